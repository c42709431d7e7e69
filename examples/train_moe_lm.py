"""Trains a small mixture-of-experts language model on the bytes of a text, in plain torch.

    python examples/train_moe_lm.py --text FILE --out out/lm
    torchrun --nproc-per-node 2 examples/train_moe_lm.py --text FILE --out out/lm --resume

The experts' layer is openmok's (--backend mok) or torch's own operations (--backend torch: grouped
products and Triton, over NCCL's all-to-all, as bench/peers has them; on the CPU a loop over
experts). Everything else is the same program. Under torchrun the ranks share the batch and the
experts; DistributedDataParallel averages the gradients of what every rank holds. Prints the loss in
nats a byte, tokens a second of one rank, the time that is left, and the share of a step that is
spent in the experts' layers. --out keeps a picture of the losses and checkpoints, from which any
number of ranks goes on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
import sys
import time

import torch
import torch.distributed as dist

import openmok
from moe_lm import checkpoint
from moe_lm.experts import make_experts
from moe_lm.job import Job, start_job
from moe_lm.layer_clock import LayerClock
from moe_lm.loss_chart import write_chart
from moe_lm.model import Model
from moe_lm.trainer import Trainer


def batch_of(text: torch.Tensor, step: int, config: argparse.Namespace, job: Job) -> torch.Tensor:
    """This rank's rows of the step's batch, which does not depend on the number of ranks."""
    generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
    starts = torch.randint(len(text) - config.length, (config.batch,), generator=generator)
    rows = [text[s : s + config.length + 1] for s in starts[slice(*job.slice_of(config.batch))]]
    return torch.stack(rows).long().to(job.device)


class Report:
    """The lines of a run, its losses, and their picture. Rank 0's."""

    def __init__(self, config: argparse.Namespace, job: Job, first_step: int, tokens: int):
        self.config, self.job = config, job
        self.first_step, self.tokens = first_step, tokens
        self.began = self.since = time.perf_counter()
        self.losses: list[tuple[int, float]] = []
        self.times: list[tuple[float, float]] = []  # seconds of timed steps, of it in the layers
        file = config.out / "losses.json" if config.out else None
        if first_step > 0 and file and file.exists():
            self.losses = [(s, loss) for s, loss in json.loads(file.read_text()) if s <= first_step]

    def line(self, steps: int, loss: float, step_seconds: float, layer_seconds: float) -> None:
        """After so many steps: the mean loss since the last line, and the last step's times."""
        now = time.perf_counter()
        since_line = steps - max([step for step, _ in self.losses] or [self.first_step])
        rate = self.tokens * since_line / (now - self.since)
        left = (self.config.steps - steps) * (now - self.began) / (steps - self.first_step)
        self.losses.append((steps, loss))
        self.times.append((step_seconds, layer_seconds))
        self.since = now
        if self.job.rank > 0:
            return
        print(
            f"step {steps}/{self.config.steps}  loss {loss:.4f}  {rate:.0f} tokens/s  "
            f"layers {layer_seconds / step_seconds:.1%} of {1e3 * step_seconds:.1f} ms  "
            f"{int(left) // 60}:{int(left) % 60:02} left",
            flush=True,
        )
        if self.config.out:
            self._write()

    def _write(self) -> None:
        curves = {f"{self.config.backend}, seed {self.config.seed}": self.losses}
        for other in self.config.beside:
            curves[str(other)] = json.loads(other.read_text())
        (self.config.out / "losses.json").write_text(json.dumps(self.losses) + "\n")
        write_chart(self.config.out / "loss.svg", curves)


def train(text: torch.Tensor, trainer: Trainer, clock: LayerClock, first_step: int) -> Report:
    config, job = trainer.config, trainer.job
    report = Report(config, job, first_step, config.batch // job.size * config.length)
    losses = []
    for step in range(first_step, config.steps):
        is_timed = (step + 1) % config.report == 0 or step + 1 == config.steps
        clock.is_on = is_timed
        batch = batch_of(text, step, config, job)
        if is_timed:
            clock.take_seconds()
            before = time.perf_counter()
        losses.append(trainer.step(step, batch))
        if is_timed:
            in_layers = clock.take_seconds()
            taken = time.perf_counter() - before
            loss = torch.stack(losses).mean()
            losses = []
            if job.size > 1:
                dist.all_reduce(loss)
            report.line(step + 1, loss.item() / job.size, taken, in_layers)
        is_last = step + 1 == config.steps
        if config.out and (is_last or (config.save and (step + 1) % config.save == 0)):
            checkpoint.save(config.out, step + 1, trainer, job)
    return report


def trainer_of(config: argparse.Namespace, job: Job, clock: LayerClock) -> Trainer:
    """A model of the config's backend from its seed's numbers, and its optimizer."""
    model = Model(config, job, clock).to(job.device, torch.bfloat16)
    model.use(make_experts(config, job, config.batch // job.size * config.length))
    return Trainer(model, config, job)


def read_text(file: str, length: int) -> torch.Tensor:
    text = torch.frombuffer(bytearray(Path(file).read_bytes()), dtype=torch.uint8)
    if len(text) <= length + 1:
        sys.exit(f"--text: expected more than {length + 1} bytes, found {len(text)}")
    return text


def parser_of_models(description: str) -> argparse.ArgumentParser:
    """The options of text, model and optimizer."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--text", required=True, help="a file; its bytes are the tokens")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    precisions = ("bf16", "fp8_block", "mxfp8")
    parser.add_argument(
        "--precision", choices=precisions, default="bf16", help="of mok's experts (bf16)"
    )
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
    return parser


def read_arguments() -> argparse.Namespace:
    parser = parser_of_models(__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("mok", "torch"), default="mok")
    parser.add_argument("--out", type=Path, help="a folder for checkpoints, losses.json, loss.svg")
    parser.add_argument("--resume", action="store_true", help="go on from --out's last checkpoint")
    parser.add_argument(
        "--beside", type=Path, nargs="*", default=[], help="losses.json of other runs to draw too"
    )
    parser.add_argument(
        "--save", type=int, default=0, help="steps between checkpoints; 0: one at the end (0)"
    )
    return parser.parse_args()


def refuse(config: argparse.Namespace, job: Job) -> None:
    """What cannot be run ends here, in one sentence."""
    for name in ("batch", "experts"):
        number = getattr(config, name)
        if number % job.size:
            sys.exit(f"--{name}: expected a multiple of the {job.size} ranks, found {number}")
    if config.backend == "torch" and config.precision != "bf16":
        sys.exit(f"--precision: expected bf16 with --backend torch, found {config.precision}")
    if config.resume and not config.out:
        sys.exit("--resume: expected --out with it, found none")
    if config.resume and checkpoint.newest(config.out) is None:
        sys.exit(f"--resume: expected a checkpoint step-N in {config.out}, found none")


def main() -> None:
    config = read_arguments()
    text = read_text(config.text, config.length)
    job = start_job(config.device)
    refuse(config, job)
    if config.out:
        config.out.mkdir(parents=True, exist_ok=True)
    clock = LayerClock(job.device)
    trainer = trainer_of(config, job, clock)
    first_step = 0
    if config.resume:
        found, first_step = checkpoint.newest(config.out)
        checkpoint.load(found, first_step, trainer, job)
        if job.rank == 0:
            print(f"goes on from {found}", flush=True)
    train(text, trainer, clock, first_step)
    openmok.clear_workspaces()
    if job.size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
