"""A bench for another process: invented times, and candidates that take the process down in the ways candidates do.

The script is a JSON file that SCRIPTED_BENCH names. "faults" are lists [step, variant, K, fault]: at that step of a candidate of
that variant on a shape of that K, the process is killed, aborts, exits, hangs, or its device is lost. "log" gets every step.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path

from minblas.timing import Timing


def benches(variants, device):
    return Benches(json.loads(Path(os.environ["SCRIPTED_BENCH"]).read_text()), device)


class Benches:
    def __init__(self, script, device):
        self.script, self.device = script, device

    @contextlib.contextmanager
    def open(self, problem):
        yield Bench(self.script, problem, self.device)


class Bench:
    def __init__(self, script, problem, device):
        self.script, self.problem, self.device, self.dead = script, problem, device, False

    def prepare(self, pick):
        self.step("load", [pick])
        return pick

    def verdict(self, prepared):
        self.step("verify", [prepared])
        return ""

    def estimate(self, prepared):
        return self.of(prepared) + 5.0

    def of(self, prepared):
        if prepared == "torch":
            return 12.0
        return {"persistent": 5.0, "me.bad": 5.0, "tma": 6.0}.get(prepared.variant, 10.0 + prepared.tile.block_k / 1000)

    def time(self, prepared, estimates, rounds, target_us):
        self.step("time", prepared)
        time.sleep(self.script.get("pause", 0.0))
        return [Timing.of([self.of(each)] * rounds) for each in prepared]

    def torch(self):
        return "torch"

    def lost(self):
        return self.dead

    def step(self, name, picks):
        names = [getattr(pick, "variant", pick) for pick in picks]
        with Path(self.script["log"]).open("a") as log:
            log.write(json.dumps([os.getpid(), self.device, name, self.problem.k, names]) + "\n")
        for step, variant, k, fault in self.script.get("faults", ()):
            if step == name and variant in names and k == self.problem.k:
                self.strike(fault)

    def strike(self, fault):
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "abort":
            os.abort()
        elif fault == "exit":
            os._exit(3)
        elif fault == "hang":
            time.sleep(1000)
        elif fault == "lost":
            self.dead = True
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
