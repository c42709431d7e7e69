"""`moe` in CUDA graphs and compiled graphs on one GPU."""

import pytest

torch = pytest.importorskip("torch")

from gpu_cases import arguments, d_out_of, without_grads
import openmok
from test_torch import assert_same_bits, grads, leaves, trained


def refilled(made, other):
    """The values of another case in the tensors of this one."""
    with torch.no_grad():
        for name, leaf in leaves(made).items():
            leaf.copy_(leaves(other)[name])
        made["topk_ids"].copy_(other["topk_ids"])


@pytest.mark.parametrize("more", [{}, {"biases": True, "shared": True}])
def test_forward_and_backward_in_a_cuda_graph(more):
    made, d_out = arguments(**more), None
    others = [arguments(seed=seed, **more) for seed in (5, 6, 7)]
    d_out = d_out_of(made)
    expected = [trained(other, d_out) for other in others]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            openmok.moe(**without_grads(made))[0].backward(d_out)
    torch.cuda.current_stream().wait_stream(stream)
    without_grads(made)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out, rows = openmok.moe(**made)
        out.backward(d_out)
    for i in (0, 1, 2, 1, 0):
        refilled(made, others[i])
        graph.replay()
        # An uncaptured call on the same workspace between two replays.
        again, _ = openmok.moe(**others[i])
        assert torch.equal(out, expected[i][0]) and torch.equal(again, expected[i][0])
        assert_same_bits(grads(made), expected[i][1])
        ids = made["topk_ids"]
        assert torch.equal(rows, torch.bincount(ids[ids >= 0], minlength=len(rows)).int())


def test_graphs_of_several_sizes_interleaved():
    cases = [arguments(tokens, seed=tokens) for tokens in (256, 1000)]
    expected = [openmok.moe(**made)[0].detach() for made in cases]
    graphs, outs = [], []
    with torch.no_grad():
        for made in cases:
            openmok.moe(**made)
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1]):
                outs.append(openmok.moe(**made)[0])
    for i in (0, 1, 1, 0, 1):
        outs[i].zero_()
        graphs[i].replay()
        assert torch.equal(outs[i], expected[i])


def test_a_graph_outlives_a_larger_workspace():
    made = arguments(200)
    with torch.no_grad():
        expected = openmok.moe(**made)[0].clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out, _ = openmok.moe(**made)
        held = openmok.workspace_bytes()
        openmok.moe(**(arguments(5000) | {name: made[name] for name in ("gate_up", "down")}))
        torch.cuda.synchronize()
        assert openmok.workspace_bytes() > 2 * held
        # Whoever had got the smaller workspace's memory would be overwritten, or overwrite it.
        others = [torch.full((held // 16,), 7, dtype=torch.uint8, device="cuda") for _ in range(16)]
        for _ in range(3):
            out.zero_()
            graph.replay()
            assert torch.equal(out, expected)
        assert all([(other == 7).all() for other in others])


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_one_compiled_graph_gives_the_same_bits(mode):
    made = arguments(biases=True)
    d_out = d_out_of(made)
    expected_out, expected = trained(made, d_out)

    @torch.compile(fullgraph=True, mode=mode)
    def layer(x):
        return openmok.moe(**(made | {"x": x * 1.0}))[0] * 2.0

    for _ in range(4):  # warm-up, recording, two replays
        out = layer(without_grads(made)["x"])
        out.backward(d_out / 2)
        assert torch.equal(out.detach() / 2, expected_out)
        assert_same_bits(grads(made), expected)
        del out
    torch._dynamo.reset()
