"""Inputs of a layer on a GPU, all of them BF16 numbers, and the plain layer's answer to them."""

import torch

from test_torch import leaves, plain_layer

H, I, E, K, S = 512, 256, 16, 4, 384
INPUTS = ("topk_weights", "shared_weights")


def arguments(num_tokens=700, seed=0, dtype=torch.bfloat16, biases=False, shared=False):
    """Keyword arguments of `moe` as leaves on the current GPU."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, scale=1.0):
        return (torch.randn(shape, generator=generator) * scale).bfloat16().to("cuda", dtype)

    ids = torch.rand(num_tokens, E, generator=generator).argsort(1)[:, :K]
    ids = ids.masked_fill(torch.rand(num_tokens, K, generator=generator) < 0.1, -1)
    made = {
        "x": normal(num_tokens, H),
        "topk_weights": torch.rand(num_tokens, K, generator=generator).cuda(),
        "gate_up": normal(E, 2 * I, H, scale=H**-0.5),
        "down": normal(E, H, I, scale=I**-0.5),
    }
    if biases:
        made |= {"gate_up_bias": normal(E, 2 * I, scale=0.3), "down_bias": normal(E, H, scale=0.3)}
    if shared:
        made["shared"] = normal(2 * S, H, scale=H**-0.5), normal(H, S, scale=S**-0.5)
        made["shared_weights"] = torch.linspace(0.1, 2, num_tokens, device="cuda")
    for leaf in leaves(made).values():
        leaf.requires_grad_()
    return made | {"topk_ids": ids.cuda()}


def d_out_of(made, seed=3):
    generator = torch.Generator().manual_seed(seed)
    x = made["x"]
    return torch.randn(x.shape, generator=generator).bfloat16().to("cuda", x.dtype)


def without_grads(made):
    for leaf in leaves(made).values():
        leaf.grad = None
    return made


def plain_answer(made, d_out):
    """Output and gradients by name, in FP64 on the CPU."""

    def one(tensor):
        tensor = tensor.detach().cpu()
        return tensor.double().requires_grad_() if tensor.is_floating_point() else tensor

    right = {k: tuple(map(one, v)) if isinstance(v, tuple) else one(v) for k, v in made.items()}
    out = plain_layer(**right)
    out.backward(d_out.cpu().double())
    return out.detach(), {name: leaf.grad for name, leaf in leaves(right).items()}
