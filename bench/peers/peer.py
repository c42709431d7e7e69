"""The MoE layer as it is written without openmok, timed on request by `mok bench`.

One JSON object a line on stdin, one answer a line on stdout:
    {"setup": {...}}                     the fields of moe_peer/case.py; before any run
        -> {"names": [...], "left_out": {name: why}, "torch": ..., "triton": ..., "nccl": ...,
            "device": ..., "peak_bytes": ...}
    {"run": NAME, "pass": "forward" | "forward-inference" | "backward"}
        -> {"ms": ..., "pass_peak_bytes": ..., "saved_bytes": ...}
        one execution, of each number the largest of all ranks; the bytes are torch's own, above
        what was allocated before, of an execution that is not timed: the peak (a backward's with
        its forward), and what a forward keeps besides its output; null where there is no layer
    {"release": true}                    -> {}, the tensors of the last setup are gone
    {"quit": true}                       -> {}, and the program ends
Whatever fails answers {"error": "one sentence"}. `forward` is a training forward that keeps what
its backward needs, `forward-inference` runs without autograd. What libraries print goes to stderr.

With --ranks R the program is rank 0 and starts the others, one GPU each.
"""

import argparse
import os
import sys

from moe_peer import protocol


def whole_number_from_1(text):
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=whole_number_from_1, default=1, help="GPUs, one rank each")
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)
    protocol.serve(sys.stdin, answers, lambda: make_session(arguments.ranks))


def make_session(num_ranks):
    """Only here does torch come in, so that a machine without it gets its sentence."""
    if num_ranks == 1:
        from moe_peer.session import Session

        return Session(rank=0, num_ranks=1)
    from moe_peer.processes import RankProcesses

    return RankProcesses(num_ranks)


if __name__ == "__main__":
    main()
