"""`moe` on one GPU: outputs and all gradients against a plain layer in FP64 on the CPU."""

import threading

import pytest

torch = pytest.importorskip("torch")

from bounds import assert_total_within_bounds, assert_within_bounds
from gpu_cases import E, H, I, INPUTS, K, S, arguments, d_out_of, plain_answer, without_grads
import openmok
from test_torch import assert_same_bits, grads, leaves, trained


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("more", [{}, {"biases": True}, {"shared": True}])
def test_output_and_all_gradients_are_the_plain_layers(dtype, more):
    made = arguments(dtype=dtype, **more)
    d_out = d_out_of(made)
    out, found = trained(made, d_out)
    expected_out, expected = plain_answer(made, d_out)
    assert out.dtype == dtype and out.is_cuda
    assert_within_bounds("out", out.float().cpu(), expected_out)
    for name, leaf in leaves(made).items():
        assert found[name].dtype == leaf.dtype and found[name].is_cuda
        check = assert_total_within_bounds if name in INPUTS else assert_within_bounds
        check(name, found[name].float().cpu(), expected[name])


@pytest.mark.parametrize("num_tokens", [1, 127, 4099])
def test_numbers_of_tokens(num_tokens):
    made = arguments(num_tokens, seed=num_tokens)
    d_out = d_out_of(made)
    out, found = trained(made, d_out)
    expected_out, expected = plain_answer(made, d_out)
    assert_within_bounds("out", out.float().cpu(), expected_out)
    assert_within_bounds("x", found["x"].float().cpu(), expected["x"])
    assert_within_bounds("down", found["down"].float().cpu(), expected["down"])


def test_no_tokens():
    made = arguments(0)
    out, rows = openmok.moe(**made)
    out.sum().backward()
    assert out.shape == (0, H) and rows.sum() == 0
    assert made["x"].grad.shape == (0, H)
    assert (made["gate_up"].grad == 0).all() and (made["down"].grad == 0).all()


def test_tokens_per_expert_stay_on_the_device():
    made = arguments()
    _, rows = openmok.moe(**made)
    ids = made["topk_ids"]
    assert rows.is_cuda and rows.dtype == torch.int32
    assert torch.equal(rows, torch.bincount(ids[ids >= 0], minlength=E).int())


def test_repeats_have_the_same_bits():
    made = arguments(biases=True, shared=True)
    d_out = d_out_of(made)
    expected_out, expected = trained(made, d_out)
    for tuning in [openmok.Tuning()] * 10 + [
        openmok.Tuning(max_workers=40),
        openmok.Tuning(macrobatch_rows=512, context_rows=256),
    ]:
        out, _ = openmok.moe(**without_grads(made), tuning=tuning)
        out.backward(d_out)
        assert torch.equal(out, expected_out)
        assert_same_bits(grads(made), expected)


def test_views_and_pairs_of_weights():
    made = arguments()
    d_out = d_out_of(made)
    _, expected = trained(made, d_out)
    gate, up = (half.requires_grad_() for half in made["gate_up"].detach().split(I, 1))
    down = [view.requires_grad_() for view in made["down"].detach()]
    out, _ = openmok.moe(**(made | {"gate_up": (gate, up), "down": down}))
    out.backward(d_out)
    assert torch.equal(torch.cat([gate.grad, up.grad], 1), expected["gate_up"])
    assert torch.equal(torch.stack([view.grad for view in down]), expected["down"])


# ---- Streams ----------------------------------------------------------------------------------
def test_calls_on_other_streams():
    made = arguments()
    d_out = d_out_of(made)
    expected_out, expected = trained(made, d_out)
    without_grads(made)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for i in range(12):
        stream = streams[i % 3]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            torch.cuda._sleep(1_000_000)
            # Made late on this stream, freed while the call may still be running.
            x = (made["x"].detach() * 2 / 2).requires_grad_()
            out, _ = openmok.moe(**(made | {"x": x}))
            out.backward(d_out)
            got = out.detach().clone(), x.grad.clone()
            del out, x
        torch.cuda.current_stream().wait_stream(stream)
        assert torch.equal(got[0], expected_out) and torch.equal(got[1], expected["x"])


# ---- What a call keeps ------------------------------------------------------------------------
def test_without_gradients_nothing_is_kept():
    made = arguments(4096)
    with torch.no_grad():
        openmok.moe(**made)
        torch.cuda.synchronize()
        before, workspace = torch.cuda.memory_allocated(), openmok.workspace_bytes()
        out, rows = openmok.moe(**made)
        torch.cuda.synchronize()
        after = torch.cuda.memory_allocated()
    results = out.nbytes + 512 * -(-rows.nbytes // 512)
    assert after - before <= results
    assert openmok.workspace_bytes() == workspace


def test_a_graph_of_autograd_keeps_a_context_until_it_is_walked():
    made = arguments(4096)
    openmok.moe(**made)[0].sum().backward()
    d_out = d_out_of(made)
    before = torch.cuda.memory_allocated()
    out, _ = openmok.moe(**made)
    kept = torch.cuda.memory_allocated() - before
    assert kept >= 4096 * K * 0.85 * 4 * I  # gate and up of every row
    out.backward(d_out)
    del out, _
    assert torch.cuda.memory_allocated() - before <= 1 << 20


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_gives_the_same_bits(use_reentrant):
    made = arguments(biases=True)
    d_out = d_out_of(made)
    expected_out, expected = trained(made, d_out)
    without_grads(made)
    layer = lambda x: openmok.moe(**(made | {"x": x}))[0]
    out = torch.utils.checkpoint.checkpoint(layer, made["x"], use_reentrant=use_reentrant)
    out.backward(d_out)
    assert torch.equal(out.detach(), expected_out)
    assert_same_bits(grads(made), expected)


def test_a_context_that_was_offloaded_gives_the_same_bits():
    made = arguments(shared=True)
    d_out = d_out_of(made)
    _, expected = trained(made, d_out)
    without_grads(made)
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        out, _ = openmok.moe(**made)
    # Larger ones between: other contents where the context was, another workspace.
    openmok.moe(**arguments(3000, seed=8, shared=True))[0].sum().backward()
    out.backward(d_out)
    assert_same_bits(grads(made), expected)


def test_memory_stays_flat():
    made = arguments(2048, shared=True)
    d_out = d_out_of(made)
    free = []
    for step in range(1000):
        made["topk_ids"] = made["topk_ids"].roll(1, 0)
        openmok.moe(**without_grads(made))[0].backward(d_out)
        if step % 100 == 99:
            torch.cuda.synchronize()
            free.append((torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()))
    assert len(set(free)) == 1, free


# ---- main_grad --------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_go_on_into_main_grad_and_hooks_run_once(dtype):
    made = arguments(shared=True, dtype=torch.float32)
    d_out = d_out_of(made)
    _, plain = trained(made, d_out)
    names = ("gate_up", "down", "shared 0", "shared 1")
    parameters = {name: leaf for name, leaf in leaves(without_grads(made)).items() if name in names}
    calls = dict.fromkeys(parameters, 0)
    for name, parameter in parameters.items():
        parameter.main_grad = torch.full_like(parameter, 0.5, dtype=dtype)
        parameter.zero_out_wgrad = True

        def count(_, name=name):
            calls[name] += 1

        parameter.register_post_accumulate_grad_hook(count)
    openmok.moe(**made)[0].backward(d_out)
    for name, parameter in parameters.items():
        assert torch.equal(parameter.main_grad, (0.5 + plain[name]).to(dtype)), name
        assert parameter.grad_added_to_main_grad and calls[name] == 1, name
        assert (parameter.grad == 0).all()


def test_weight_gradients_apart_from_the_backward():
    made = arguments(shared=True)
    d_out = d_out_of(made)
    _, expected = trained(made, d_out)
    queue = []
    openmok.moe(**without_grads(made), delayed_wgrads=queue)[0].backward(d_out)
    assert made["gate_up"].grad is None
    openmok.moe(**arguments(900, seed=9, shared=True))[0].sum().backward()
    queue[0]()
    assert_same_bits(grads(made), expected)


def test_another_gpu_than_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip(f"expected two GPUs, found {torch.cuda.device_count()}")
    made = arguments()
    d_out = d_out_of(made)
    expected_out, expected = trained(made, d_out)
    there = {name: value.detach().to("cuda:1") for name, value in made.items()}
    for leaf in leaves(there).values():
        leaf.requires_grad_()
    out, rows = openmok.moe(**there)
    out.backward(d_out.to("cuda:1"))
    assert rows.device == out.device == torch.device("cuda", 1)
    assert torch.equal(out.detach().cpu(), expected_out.cpu())
    assert_same_bits({k: g.cpu() for k, g in grads(there).items()},
                     {k: g.cpu() for k, g in expected.items()})


# ---- Several ranks on one GPU -----------------------------------------------------------------
def test_virtual_ranks_have_the_bits_of_one():
    made = arguments(600)
    with torch.no_grad():
        expected, _ = openmok.moe(**made)
    torch.cuda.synchronize()
    groups = openmok.Group.cuda_virtual(3, 0)
    parts, experts = made["x"].detach().split(200), [0, 6, 11, 16]
    found = [None] * 3

    def run(rank):
        own, local = slice(200 * rank, 200 * rank + 200), slice(*experts[rank : rank + 2])
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            found[rank], _ = openmok.moe(
                parts[rank],
                made["topk_ids"][own],
                made["topk_weights"][own],
                made["gate_up"][local],
                made["down"][local],
                group=groups[rank],
                num_experts=E,
                tuning=openmok.Tuning(max_tokens=200),
            )
            torch.cuda.synchronize()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(torch.cat(found), expected)


# ---- The module -------------------------------------------------------------------------------
def test_the_module_under_a_compiler():
    torch.manual_seed(0)
    shape = openmok.LayerShape(H, I, E, K, S)
    module = openmok.MoE(shape, score="sigmoid", shared_gate=True, selection_bias=True)
    module = module.to("cuda", torch.bfloat16)
    x = torch.randn(3, 200, H, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    ids, _ = module.gate(x.reshape(-1, H))
    expected = module(x, ids)
    expected.square().sum().backward()
    right, x.grad = x.grad, None
    found = torch.compile(module, fullgraph=True)(x, ids)
    found.square().sum().backward()
    # The compiled router rounds in another order; the layer itself does not.
    assert_total_within_bounds("out", found.float().detach().cpu(), expected.float().detach().cpu())
    assert_total_within_bounds("x", x.grad.float().cpu(), right.float().cpu(), bound=1e-2)


# ---- Errors -----------------------------------------------------------------------------------
def test_weights_on_the_host_are_refused():
    made = arguments()
    made["down"] = made["down"].detach().cpu()
    with pytest.raises(openmok.MokShapeError, match="down: expected memory of CUDA device 0"):
        openmok.moe(**made)


def test_an_id_out_of_range_is_raised_by_synchronize():
    made = arguments()
    made["topk_ids"][5, 2] = E
    openmok.moe(**made)
    with pytest.raises(openmok.MokShapeError, match="rank 0.*token 5.*choice 2.*16"):
        openmok.synchronize()
    openmok.clear_workspaces()
