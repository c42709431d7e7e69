"""What the runs of two backends say beside each other."""

from __future__ import annotations

import statistics


def summary_of(runs: list[dict]) -> tuple[list[str], dict]:
    """Lines to print, and the same as numbers. runs: as compare_moe_lm.py makes them, of the
    backends mok and torch, for the same seeds and steps."""
    heads = f"{'step ms':>10}{'layers ms':>11}{'share':>8}{'tokens/s':>11}{'last loss':>11}"
    lines = [f"{'':<16}{heads}"]
    for r in runs:
        share = r["layers_ms"] / r["step_ms"]
        lines.append(
            f"{r['backend'] + ', seed ' + str(r['seed']):<16}{r['step_ms']:>10.2f}"
            f"{r['layers_ms']:>11.2f}{share:>8.1%}{r['tokens_per_second']:>11.0f}"
            f"{r['losses'][-1][1]:>11.4f}"
        )
    gain, said = _gain(runs)
    lines += said
    distance, said = _distance(runs)
    return lines + said, gain | distance


def _of(runs: list[dict], backend: str) -> list[dict]:
    return sorted((r for r in runs if r["backend"] == backend), key=lambda r: r["seed"])


def _gain(runs: list[dict]) -> tuple[dict, list[str]]:
    """Amdahl's law: what is not in the layers takes torch's time, the layers take mok's."""

    def median(backend: str, of: str) -> float:
        return statistics.median([r[of] for r in _of(runs, backend)])

    step, layers = median("torch", "step_ms"), median("torch", "layers_ms")
    mok_step, mok_layers = median("mok", "step_ms"), median("mok", "layers_ms")
    predicted = step / (step - layers + mok_layers)
    found = {
        "layer_gain": layers / mok_layers,
        "step_gain_predicted": predicted,
        "step_gain": step / mok_step,
    }
    found["part_of_prediction"] = found["step_gain"] / predicted
    return found, [
        f"layers {found['layer_gain']:.3f} times as fast; by Amdahl's law the step "
        f"{predicted:.3f} times, found {found['step_gain']:.3f} times: "
        f"{found['part_of_prediction']:.1%} of it"
    ]


def _distance(runs: list[dict]) -> tuple[dict, list[str]]:
    """At every line: how far the backends' means over the seeds are apart, how far the runs of one
    seed, and the spread of torch's runs."""
    ours, torchs = ([[x for _, x in r["losses"]] for r in _of(runs, b)] for b in ("mok", "torch"))
    points = list(zip(zip(*ours), zip(*torchs)))
    means = [abs(statistics.mean(a) - statistics.mean(b)) for a, b in points]
    pairs = [max(abs(x - y) for x, y in zip(a, b)) for a, b in points]
    spreads = [max(b) - min(b) for _, b in points]
    within = sum(gap <= spread for gap, spread in zip(means, spreads))
    found = {
        "gaps_of_means": means,
        "gaps_of_pairs": pairs,
        "spreads_of_torch": spreads,
        "lines_within_spread": within,
        "lines": len(points),
    }
    return found, [
        f"mean loss of mok's and torch's runs apart by {statistics.mean(means):.4f} on average, at "
        f"most {max(means):.4f}; of one seed at most {max(pairs):.4f}",
        f"torch's own runs apart by {statistics.mean(spreads):.4f} on average, at least "
        f"{min(spreads):.4f}; the means are nearer than that in {within} of {len(points)} lines",
    ]
