"""A peer program for the tests of PeerProcess and of the benchmark's runner: the protocol of
bench/peers/peer.py without a layer behind it. The request's words say what to do.

--log FILE: every run appends its name. --times JSON: milliseconds by name, a list that is gone
through again and again. Names that no list has answer an error. --memory JSON: by name what a run
answers besides."""

import argparse
import json
import os
import signal
import struct
import subprocess
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--log")
parser.add_argument("--times", default="{}")
parser.add_argument("--memory", default="{}")
parser.add_argument("--ranks", type=int, default=1)
arguments = parser.parse_args()
times, memory = json.loads(arguments.times), json.loads(arguments.memory)
num_runs = {name: 0 for name in times}


def routing(fields):
    """What the routing file holds, and whether its size is right."""
    num = fields["ranks"] * fields["tokens_per_rank"] * fields["top_k"]
    with open(fields["routing_file"], "rb") as file:
        data = file.read()
    values = struct.unpack(f"<{num}i{num}f", data)
    return {"ids": values[:num], "weights": values[num:]}


def run(name, pass_name):
    if arguments.log:
        with open(arguments.log, "a") as file:
            file.write(f"{name} {pass_name}\n")
    if name not in times or pass_name in times[name]:
        return {"error": f"{name} has no {pass_name}"}
    ms = times[name][num_runs[name] % len(times[name])]
    num_runs[name] += 1
    return {"ms": ms, **memory.get(name, {})}


def misbehave(what):
    if what == "exit":
        print("first line\nthe reason, in words", file=sys.stderr)
        sys.exit(3)
    if what == "signal":
        os.kill(os.getpid(), signal.SIGTERM)
    if what == "sleep":
        time.sleep(60)
    if what == "close":
        os.close(1)
        time.sleep(60)
    if what == "endless":
        while True:
            os.write(1, b"x" * 65536)
    if what == "chatter":
        print("word " * 200000, file=sys.stderr, flush=True)
        return {"said": 1000000}
    if what == "long":
        return {"text": "y" * 300000}
    if what == "child":
        return {"child": subprocess.Popen(["sleep", "60"]).pid, "pid": os.getpid()}
    raise ValueError(what)


for line in sys.stdin:
    request = json.loads(line)
    if "print" in request:
        print(request["print"], flush=True)
        continue
    if "do" in request:
        answer = misbehave(request["do"])
    elif "setup" in request:
        fields = request["setup"]
        answer = {"names": list(times), "left_out": {"deep_ep": "No module named 'deep_ep'"},
                  "torch": "2.11.0", "nccl": "2.28.9", "fields": fields}
        if arguments.log:
            with open(arguments.log + ".setup", "w") as file:
                json.dump({**fields, **routing(fields), "ranks": arguments.ranks}, file)
    elif "run" in request:
        answer = run(request["run"], request["pass"])
    else:
        answer = {"echo": request}
    print(json.dumps(answer), flush=True)
if arguments.log:
    with open(arguments.log, "a") as file:
        file.write("end\n")
