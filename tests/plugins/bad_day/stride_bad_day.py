"""A method and a task from another package that end or hold up their process."""

import ctypes
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path as File

from stridebench.harness.core import Acceptance, Claim, Method, Path
from stridebench.harness.core.task import Prompt, SetScore, Task


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


SCORERS = {**FAULTS, "hang_in_c": lambda: sum(range(10**13)), "raise": lambda: [].pop(), "leave": lambda: sys.exit(0)}


@dataclass(frozen=True)
class BadScorer(Task):
    """Three prompts of ids. The scorer of the second one has the fault, or that of the whole set."""

    fault: str = "none"
    set_fault: str = "none"

    source = "tests/plugins"
    modality = "tabular"
    metrics = ("length",)
    set_metrics = ("outputs",)

    def prompts(self):
        return tuple(Prompt(name, tokens=(number,)) for number, name in enumerate("abc"))

    def score(self, prompt, output, tokens):
        if prompt.id == "b":
            SCORERS[self.fault]()
        return {"length": float(len(tokens))}

    def score_set(self, outputs):
        SCORERS[self.set_fault]()
        return {"outputs": SetScore(float(len(outputs)), len(outputs))}
