"""Trains the model of train_moe_lm.py with both backends from several seeds, and compares them.

    python examples/compare_moe_lm.py --text FILE --out out/compare [--seeds 3] [MODEL OPTIONS]

One process, no launcher; the backends take turns. Every run of a seed has the same weights and
batches; neither side is captured into CUDA graphs. Prints each run's time of a step, tokens a
second and the experts' layers' share of a step; how much of the gain that Amdahl's law predicts
from the layers' times the step has; and the distance of the backends' losses beside the spread of
torch's own over the seeds. --out gets compare.json (all losses, all times) and losses.svg.
"""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path
import statistics

import torch

import openmok
from moe_lm.comparison import summary_of
from moe_lm.job import Job, start_job
from moe_lm.layer_clock import LayerClock
from moe_lm.loss_chart import write_chart
from train_moe_lm import parser_of_models, read_text, train, trainer_of

_WARM_UP_LINES = 2  # whose times do not count: kernels are compiled, memory is found


def run(config: argparse.Namespace, text: torch.Tensor, job: Job) -> dict:
    """One training run, as compare.json has it."""
    print(f"--- {config.backend}, seed {config.seed}", flush=True)
    clock = LayerClock(job.device)
    report = train(text, trainer_of(config, job, clock), clock, 0)
    times = report.times[min(_WARM_UP_LINES, len(report.times) - 1) :]
    step = statistics.median([step for step, _ in times])
    made = {
        "backend": config.backend,
        "seed": config.seed,
        "losses": report.losses,
        "step_ms": 1e3 * step,
        "layers_ms": 1e3 * statistics.median([layers for _, layers in times]),
        "tokens_per_second": config.batch * config.length / step,
        "times_ms": [[1e3 * step, 1e3 * layers] for step, layers in report.times],
    }
    openmok.clear_workspaces()
    del report
    gc.collect()
    if job.device.type == "cuda":
        torch.cuda.empty_cache()
    return made


def main() -> None:
    parser = parser_of_models(__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder for the results")
    parser.add_argument("--seeds", type=int, default=3, help="seeds, counted from --seed (3)")
    config = parser.parse_args()
    config.out.mkdir(parents=True, exist_ok=True)
    folder, config.out, config.save, config.beside = config.out, None, 0, []
    text, job = read_text(config.text, config.length), start_job(config.device)
    is_cuda = job.device.type == "cuda"
    found = {
        "device": torch.cuda.get_device_name() if is_cuda else "cpu",
        "torch": torch.__version__,
        "options": {n: v for n, v in vars(config).items() if isinstance(v, (int, float, str))},
        "runs": [],
    }
    for seed in range(config.seed, config.seed + config.seeds):
        for backend in ("torch", "mok"):
            chosen = argparse.Namespace(**{**vars(config), "backend": backend, "seed": seed})
            found["runs"].append(run(chosen, text, job))
            (folder / "compare.json").write_text(json.dumps(found, indent=1) + "\n")
    lines, found["summary"] = summary_of(found["runs"])
    (folder / "compare.json").write_text(json.dumps(found, indent=1) + "\n")
    write_chart(
        folder / "losses.svg",
        {f"{r['backend']}, seed {r['seed']}": r["losses"] for r in found["runs"]},
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
