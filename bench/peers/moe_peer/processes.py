"""R ranks of one host: this process is rank 0, the others are its children."""

import multiprocessing
import socket

import torch
import torch.distributed as dist

from .memory import slowest_and_largest
from .protocol import RequestError, sentence_of
from .session import Session


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def join(rank, num_ranks, port):
    session = Session(rank, num_ranks)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank,
                            world_size=num_ranks, device_id=torch.device("cuda", rank))
    return session


def answer(session, request):
    kind, *arguments = request
    try:
        return getattr(session, kind)(*arguments)
    except Exception as error:  # goes to rank 0 as a sentence
        return {"error": sentence_of(error)}


def serve_rank(rank, num_ranks, port, requests):
    """A child: answers until its pipe closes."""
    session = join(rank, num_ranks, port)
    while True:
        try:
            request = requests.recv()
        except EOFError:
            break
        requests.send(answer(session, request))
    session.close()
    dist.destroy_process_group()


class RankProcesses:
    """A Session over all ranks. Where a rank fails alone the others may wait for it: whoever drives
    this program bounds its own wait."""

    def __init__(self, num_ranks):
        port = free_port()
        context = multiprocessing.get_context("spawn")
        self.pipes, self.children = [], []
        for rank in range(1, num_ranks):
            here, there = context.Pipe()
            child = context.Process(target=serve_rank, args=(rank, num_ranks, port, there),
                                    daemon=True)
            child.start()
            there.close()
            self.pipes.append(here)
            self.children.append(child)
        self.session = join(0, num_ranks, port)

    def everywhere(self, *request):
        for pipe in self.pipes:
            pipe.send(request)
        answers = [answer(self.session, request)]
        for rank, pipe in enumerate(self.pipes, start=1):
            try:
                answers.append(pipe.recv())
            except EOFError:
                answers.append({"error": "its process has ended"})
        for rank, one in enumerate(answers):
            if "error" in one:
                raise RequestError(f"rank {rank}: {one['error']}")
        return answers

    def setup(self, fields):
        answers = self.everywhere("setup", fields)
        first = answers[0]
        names = [n for n in first["names"] if all(n in a["names"] for a in answers)]
        left_out = {n: why for a in reversed(answers) for n, why in a["left_out"].items()}
        peak = max(a["peak_bytes"] for a in answers)
        return {**first, "names": names, "left_out": left_out, "peak_bytes": peak}

    def run(self, name, pass_name):
        return slowest_and_largest(self.everywhere("run", name, pass_name))

    def release(self):
        self.everywhere("release")
        return {}

    def close(self):
        for pipe in self.pipes:
            pipe.close()
        self.session.close()
        dist.destroy_process_group()
        for child in self.children:
            child.join(timeout=10)
