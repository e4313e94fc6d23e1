"""A method from another package that ends or holds up its process."""

import ctypes
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path as File

from harness.core import Acceptance, Claim, Method, Path


def interrupt():
    raise KeyboardInterrupt


FAULTS = {
    "none": lambda: None,
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(0),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda: time.sleep(3600),
    "interrupt": interrupt,
    "close_files": lambda: os.closerange(3, 4096),
    "kill_run": lambda: os.kill(os.getppid(), signal.SIGKILL),
}


@dataclass(frozen=True)
class BadDay(Method[None]):
    """One token a pass, until the fault; ``proof``: it comes while outcomes are enumerated, and in no decode."""

    fault: str = "none"
    proof: bool = False

    claim = Claim.SAME_LAW
    source = "tests/plugins"

    def start(self, run):
        if "BAD_DAY_STARTS" in os.environ:
            with File(os.environ["BAD_DAY_STARTS"]).open("a") as starts:
                starts.write(f"{self.fault}\n")

    def step(self, run, state):
        if self.proof == (type(run.draws).__name__ != "SeededDraws") and run.emitted > 1:
            FAULTS[self.fault]()
        p = run.probs(run.target.forward())
        return Acceptance(Path.root(p), run.draws.categorical(p, "resid")[0])
