"""Trains a small mixture-of-experts language model on the bytes of a text, in plain torch.

    python examples/train_moe_lm.py --text FILE
    torchrun --nproc-per-node 2 examples/train_moe_lm.py --text FILE

The experts' layer is openmok's (--backend mok) or torch's own operations (--backend torch: grouped
products and Triton, over NCCL's all-to-all, as bench/peers has them; on the CPU a loop over
experts). Everything else is the same program. Under torchrun the ranks share the batch and the
experts; gradients of what every rank holds are averaged with one all-reduce a step. Prints the
loss in nats a byte, tokens a second of one rank, and the share of a step that is spent in the
experts' layers.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
import os
from pathlib import Path
import sys
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import openmok
from openmok.nn import Router

VOCABULARY = 256


@dataclass(frozen=True)
class Job:
    """Where this process stands: rank of size, on a device."""

    rank: int
    size: int
    device: torch.device

    def slice_of(self, total: int) -> tuple[int, int]:
        """This rank's share of `total` things: the first ranks have one more."""
        base, more = divmod(total, self.size)
        first = self.rank * base + min(self.rank, more)
        return first, first + base + (self.rank < more)


def start_job(device: str) -> Job:
    if "WORLD_SIZE" not in os.environ:
        return Job(0, 1, torch.device(device))
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    return Job(dist.get_rank(), dist.get_world_size(), torch.device(device))


# ---- What time the layers take ----------------------------------------------------------------
class LayerClock:
    """Adds up the time between pairs of marks of a step: CUDA events, or the host's clock."""

    def __init__(self, device: torch.device):
        self.is_cuda, self.is_on, self.marks = device.type == "cuda", False, []

    def mark(self) -> None:
        if not self.is_on:
            return
        if self.is_cuda:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def take_seconds(self) -> float:
        """Of the pairs so far, which are then forgotten."""
        if self.is_cuda:
            torch.cuda.synchronize()
        pairs = list(zip(self.marks[::2], self.marks[1::2]))
        self.marks = []
        return sum(a.elapsed_time(b) * 1e-3 if self.is_cuda else b - a for a, b in pairs)


class Mark(torch.autograd.Function):
    """Nothing but a mark, on the way forth and on the way back."""

    @staticmethod
    def forward(ctx, x, clock):
        ctx.clock = clock
        clock.mark()
        return x.view_as(x)

    @staticmethod
    def backward(ctx, d_x):
        ctx.clock.mark()
        return d_x, None


# ---- The experts' layer -----------------------------------------------------------------------
class MokExperts:
    def __init__(self, config: argparse.Namespace, job: Job, max_tokens: int):
        self.options = {
            "group": dist.group.WORLD if job.size > 1 else None,
            "num_experts": config.experts,
            "tuning": openmok.Tuning(max_tokens=max_tokens if job.size > 1 else 0),
        }

    def __call__(self, x, ids, weights, gate_up, down):
        return openmok.moe(x, ids, weights, gate_up, down, **self.options)[0]


class TorchExperts:
    """The layer of bench/peers, which needs a GPU with Triton."""

    def __init__(self, config: argparse.Namespace, job: Job, max_tokens: int):
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench/peers"))
        from moe_peer.case import Shape
        from moe_peer.layers import NcclLayer, TorchLayer

        shape = Shape(
            name="train", hidden=config.hidden, intermediate=config.intermediate,
            experts=config.experts, top_k=config.top_k, tokens_per_rank=max_tokens,
            ranks=job.size, seed=config.seed, routing_file="", backward=True, peers=(),
        )  # fmt: skip
        place = SimpleNamespace(x=torch.empty(0, device=job.device))
        self.layer = (NcclLayer if job.size > 1 else TorchLayer)(shape, job.rank, place)

    def __call__(self, x, ids, weights, gate_up, down):
        self.layer.tensors = SimpleNamespace(
            x=x, ids=ids.int(), weights=weights, w13=gate_up, w2=down
        )
        return self.layer()


class LoopExperts:
    """One expert after the other, of one rank."""

    def __init__(self, config: argparse.Namespace, job: Job, max_tokens: int):
        if job.size > 1:
            sys.exit("--backend torch: expected one rank on the CPU, found several")

    def __call__(self, x, ids, weights, gate_up, down):
        out = torch.zeros_like(x)
        for expert in range(len(down)):
            tokens, choices = torch.nonzero(ids == expert, as_tuple=True)
            gate, up = (x[tokens] @ gate_up[expert].T).chunk(2, -1)
            y = (F.silu(gate) * up) @ down[expert].T
            out = out.index_add(0, tokens, (weights[tokens, choices, None] * y).to(x.dtype))
        return out


def make_experts(config: argparse.Namespace, job: Job, max_tokens: int):
    if config.backend == "mok":
        return MokExperts(config, job, max_tokens)
    kind = TorchExperts if job.device.type == "cuda" else LoopExperts
    return kind(config, job, max_tokens)


# ---- The model --------------------------------------------------------------------------------
class MoE(nn.Module):
    """This rank's experts, which start from the same numbers on any number of ranks."""

    def __init__(self, config: argparse.Namespace, job: Job, clock: LayerClock, layer: int):
        super().__init__()
        self.clock = clock
        h, i = config.hidden, config.intermediate
        self.router = Router(h, config.experts, config.top_k)
        gate_up, down = [], []
        for expert in range(*job.slice_of(config.experts)):
            number = (config.seed * 1000 + layer) * config.experts + expert
            at = {
                "device": job.device,
                "generator": torch.Generator(job.device).manual_seed(number),
            }
            gate_up.append((torch.randn(2 * i, h, **at) * h**-0.5).bfloat16())
            down.append((torch.randn(h, i, **at) * i**-0.5).bfloat16())
        self.gate_up, self.down = nn.Parameter(torch.stack(gate_up)), nn.Parameter(torch.stack(down))
        self.experts = None  # set by the model: shared by all layers

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        ids, weights = self.router(rows)
        rows = Mark.apply(rows, self.clock)
        out = self.experts(rows, ids, weights, self.gate_up, self.down)
        return Mark.apply(out, self.clock).view_as(x)


class Block(nn.Module):
    def __init__(self, config: argparse.Namespace, moe: MoE):
        super().__init__()
        h = config.hidden
        self.heads = config.heads
        self.norms = nn.ModuleList([nn.RMSNorm(h), nn.RMSNorm(h)])
        self.qkv, self.proj = nn.Linear(h, 3 * h, bias=False), nn.Linear(h, h, bias=False)
        self.moe = moe

    def forward(self, x):
        n, length, h = x.shape
        qkv = self.qkv(self.norms[0](x)).view(n, length, 3, self.heads, h // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(attended.transpose(1, 2).reshape(n, length, h))
        return x + self.moe(self.norms[1](x))


class Model(nn.Module):
    def __init__(self, config: argparse.Namespace, job: Job, clock: LayerClock):
        super().__init__()
        torch.manual_seed(config.seed)
        self.tokens = nn.Embedding(VOCABULARY, config.hidden)
        self.places = nn.Parameter(0.02 * torch.randn(config.length, config.hidden))
        self.blocks = nn.ModuleList(
            [Block(config, MoE(config, job, clock, layer)) for layer in range(config.layers)]
        )
        self.norm = nn.RMSNorm(config.hidden)
        self.head = nn.Linear(config.hidden, VOCABULARY, bias=False)

    def use(self, experts) -> None:
        for block in self.blocks:
            block.moe.experts = experts

    def forward(self, text):
        """text [n, length + 1] -> the mean loss in nats a byte."""
        x = self.tokens(text[:, :-1]) + self.places
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())


# ---- Training ---------------------------------------------------------------------------------
class Trainer:
    """AdamW on F32 masters of the model's BF16 parameters."""

    def __init__(self, model: Model, config: argparse.Namespace, job: Job):
        self.model, self.config, self.job = model, config, job
        self.parameters = list(model.parameters())
        experts = {id(p) for block in model.blocks for p in (block.moe.gate_up, block.moe.down)}
        self.is_dense = [id(p) not in experts for p in self.parameters]
        self.masters = [p.detach().float().clone() for p in self.parameters]
        self.optimizer = torch.optim.AdamW(
            self.masters, lr=config.lr, weight_decay=0.01, fused=job.device.type == "cuda"
        )

    def step(self, number: int, text: torch.Tensor) -> torch.Tensor:
        """Returns the loss of this rank's part of the batch."""
        loss = self.model(text)
        loss.backward()
        for master, parameter in zip(self.masters, self.parameters):
            master.grad = parameter.grad.float()
            parameter.grad = None
        self.average()
        warm_up = min(1.0, (number + 1) / self.config.warm_up)
        self.optimizer.param_groups[0]["lr"] = self.config.lr * warm_up
        self.optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(self.masters, self.parameters):
                parameter.copy_(master)
        return loss.detach()

    def average(self) -> None:
        """The gradients of the mean over all ranks' tokens. An expert's is their sum already."""
        if self.job.size == 1:
            return
        dense = [m.grad for m, is_dense in zip(self.masters, self.is_dense) if is_dense]
        flat = torch.cat([g.flatten() for g in dense])
        dist.all_reduce(flat)
        for gradient, total in zip(dense, flat.split([g.numel() for g in dense])):
            gradient.copy_(total.view_as(gradient))
        for master in self.masters:
            master.grad.div_(self.job.size)


def batch_of(text: torch.Tensor, step: int, config: argparse.Namespace, job: Job) -> torch.Tensor:
    """This rank's rows of the step's batch, which does not depend on the number of ranks."""
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
    starts = torch.randint(len(text) - config.length, (config.batch,), generator=generator)
    rows = [text[s : s + config.length + 1] for s in starts[slice(*job.slice_of(config.batch))]]
    return torch.stack(rows).long().to(job.device)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True, help="a file; its bytes are the tokens")
    parser.add_argument("--backend", choices=("mok", "torch"), default="mok")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    for name, default, meaning in (
        ("steps", 200, "optimizer steps"),
        ("batch", 16, "sequences of a step, of all ranks"),
        ("length", 512, "bytes of a sequence"),
        ("layers", 4, "blocks"),
        ("hidden", 1024, "H"),
        ("heads", 16, "attention heads"),
        ("intermediate", 512, "an expert's width I"),
        ("experts", 32, "E, of all ranks"),
        ("top-k", 4, "choices of a token"),
        ("warm-up", 20, "steps until the learning rate is reached"),
        ("report", 10, "steps between lines; the last step of each is timed"),
        ("seed", 1, "of weights and batches"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{meaning} ({default})")
    parser.add_argument("--lr", type=float, default=3e-4, help="learning rate (3e-4)")
    return parser.parse_args()


def main() -> None:
    config = read_arguments()
    text = torch.frombuffer(bytearray(Path(config.text).read_bytes()), dtype=torch.uint8)
    if len(text) <= config.length + 1:
        sys.exit(f"--text: expected more than {config.length + 1} bytes, found {len(text)}")
    job = start_job(config.device)
    if config.batch % job.size:
        sys.exit(f"--batch: expected a multiple of the {job.size} ranks, found {config.batch}")
    clock = LayerClock(job.device)
    model = Model(config, job, clock).to(job.device, torch.bfloat16)
    own_tokens = config.batch // job.size * config.length
    model.use(make_experts(config, job, own_tokens))
    trainer = Trainer(model, config, job)
    since = time.perf_counter()
    for step in range(config.steps):
        clock.is_on = is_timed = step % config.report == config.report - 1
        batch = batch_of(text, step, config, job)
        if is_timed:
            clock.take_seconds()
            before = time.perf_counter()
        loss = trainer.step(step, batch)
        if not is_timed:
            continue
        in_layers = clock.take_seconds()
        now = time.perf_counter()
        if job.size > 1:
            dist.all_reduce(loss)
        if job.rank == 0:
            rate = own_tokens * config.report / (now - since)
            print(
                f"step {step + 1}  loss {loss.item() / job.size:.4f}  {rate:.0f} tokens/s  "
                f"layers {in_layers / (now - before):.1%} of {1e3 * (now - before):.1f} ms",
                flush=True,
            )
        since = time.perf_counter()
    openmok.clear_workspaces()
    if job.size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
