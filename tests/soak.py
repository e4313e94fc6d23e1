"""A soak: whole runs, one after the other in one process, for hours: `python -m tests.soak --minutes 120 --out FOLDER`.

Each round is `stride run` of a small suite with its reports, every fourth with its cells in a worker process. After a
round the soak writes memory, open handles and threads of the process to ``soak.csv``, and whether every count of the
round equals the first round's. At the end it draws ``soak.png`` and says whether each is flat: the slope over the
second half of the rounds, with its 95 % interval (Theil and Sen), against a limit an hour.

Why the second half: `stride run` never gives freed pages back (`harness.machine.device`), so pages are the most that
any round needed, holes between blocks included. Such a maximum rises by ever rarer steps and then stays; a leak goes on
at its rate. What is in use (``in_use_mib``) leaves the holes out, so it shows a leak of the same size in far fewer
rounds. Memory is flat where both are.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import gc
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import NamedTuple

import pyarrow
from scipy.stats import theilslopes

from stridebench.harness.record.store import Store

SUITE = (
    *("--method", "sjd", "--method", "prompt_lookup", "--method", "lookahead", "-t", "0", "-t", "1"),
    *("--backbone", "tabular", "--task", "{name: tabular, limit: 4}", "--backbone", "embedded-code"),
    *("--task", "{name: programs, limit: 2}", "--max-new-tokens", "24", "--set", "threads=1", "--offline", "--json"),
)
"""Cells of two backbones at two temperatures, with their proofs and reports."""
IN_A_WORKER = ("--set", "isolation=process")
WORKER_EVERY = 4
LIMITS = {"memory_mib": 16.0, "in_use_mib": 16.0, "handles": 1.0, "threads": 1.0}
"""Growth an hour that is not flat any more."""
WARM_UP = 0.5
"""Share of the rounds, from the first, that the slope leaves out: caches fill, the heap reaches its largest size."""


@dataclass(frozen=True)
class Round:
    """What was measured after a round.

    Args:
        seconds: since the start of the soak.
        memory_mib: memory that this process alone has written to (anonymous pages), whatever other processes share.
        in_use_mib: blocks of malloc, of Python and of Arrow that are not free.
        handles: open file descriptors.
        threads: of the process, those of libraries included.
        worker: whether the cells ran in a worker process.
        samples: decoded in the round.
        equal: whether its outputs and counts equal those of the first round of its kind.
    """

    seconds: float
    memory_mib: float
    in_use_mib: float
    handles: int
    threads: int
    worker: bool
    samples: int
    equal: bool


class Slope(NamedTuple):
    """Growth an hour, with a 95 % interval."""

    estimate: float
    low: float
    high: float


def slope(seconds: Sequence[float], values: Sequence[float]) -> Slope:
    """The median growth an hour between all pairs of rounds."""
    result = theilslopes(values, [second / 3600 for second in seconds], 0.95)
    return Slope(float(result.slope), float(result.low_slope), float(result.high_slope))


def judge(growth: Slope, limit: float) -> str:
    """flat: the interval lies below the limit; grows: above it; inconclusive: the limit lies in it."""
    if growth.high < limit:
        return "flat"
    return "grows" if growth.low > limit else "inconclusive"


def verdicts(rounds: Sequence[Round]) -> dict[str, str]:
    """A verdict in words for each entry of ``LIMITS``, and for the counts."""
    warm = rounds[int(len(rounds) * WARM_UP) :]
    words = {}
    for name, limit in LIMITS.items():
        growth = slope([one.seconds for one in warm], [float(getattr(one, name)) for one in warm])
        interval = f"{growth.estimate:+.2f} [{growth.low:+.2f}, {growth.high:+.2f}] an hour, limit {limit:g}"
        words[name] = f"{judge(growth, limit)}: {interval}"
    unequal = sum(not one.equal for one in rounds)
    words["counts"] = f"{unequal} of {len(rounds)} rounds differ" if unequal else f"equal in all {len(rounds)} rounds"
    return words


def memory_mib() -> float:
    """Anonymous pages of this process, in memory and swapped out; shared libraries are left out."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Anonymous:", "Swap:"))) / 1024


class _Malloc(ctypes.Structure):
    """`struct mallinfo2` of glibc 2.33 and later."""

    _fields_ = [*((f"other{index}", ctypes.c_size_t) for index in range(4)), ("hblkhd", ctypes.c_size_t)]
    _fields_ += [("usmblks", ctypes.c_size_t), ("fsmblks", ctypes.c_size_t), ("uordblks", ctypes.c_size_t)]
    _fields_ += [("fordblks", ctypes.c_size_t), ("keepcost", ctypes.c_size_t)]


def in_use_mib() -> float:
    """What malloc, Python's own allocator (in blocks of 64 bytes) and Arrow have given out; 0 without glibc."""
    ask = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if ask is None:
        return 0.0
    ask.restype = _Malloc
    info = ask()
    return (info.uordblks + info.hblkhd + 64 * sys.getallocatedblocks() + pyarrow.total_allocated_bytes()) / 2**20


def counts_of(store: Store) -> tuple[str, int]:
    """A hash of every output and count of a run, without times, and the number of samples."""
    digest, samples = hashlib.sha256(), 0
    for name in store.cells():
        cell = store.cell(name)
        steps = cell.steps[[column for column in cell.steps if not column.endswith("_ns") and column != "switches"]]
        columns = ["prompt", "repetition", "warmup", "status", "sha256", "scores"]
        digest.update(f"{name} {cell.samples[columns].to_json()} {steps.to_json()}".encode())
        samples += len(cell.samples)
    return digest.hexdigest(), samples


def run(minutes: float, out: Path) -> Iterator[Round]:
    """Rounds until the time is over, two of each kind at least."""
    from tests.support.cli import stride  # it imports torch, which --help does not need

    first: dict[bool, str] = {}
    begin, number = time.monotonic(), 0
    while time.monotonic() - begin < 60 * minutes or number < 2 * WORKER_EVERY:
        number += 1
        worker, folder = number % WORKER_EVERY == 0, out / "round"
        shutil.rmtree(folder, ignore_errors=True)
        outcome = stride("run", *SUITE, *(IN_A_WORKER if worker else ()), "--out", folder)
        if outcome.code:
            raise SystemExit(f"round {number} ended with exit code {outcome.code}: {outcome.err}")
        digest, samples = counts_of(Store.open(folder))
        gc.collect()
        threads = len(os.listdir("/proc/self/task"))
        handles = len(os.listdir("/proc/self/fd"))
        equal = first.setdefault(worker, digest) == digest
        yield Round(time.monotonic() - begin, memory_mib(), in_use_mib(), handles, threads, worker, samples, equal)


def draw(rounds: Sequence[Round], path: Path) -> None:
    """Memory, handles and threads over time, one below the other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), dpi=80, layout="constrained")
    for axes, name in zip(figure.subplots(len(LIMITS), 1, sharex=True), LIMITS, strict=True):
        axes.plot([one.seconds / 60 for one in rounds], [getattr(one, name) for one in rounds], ".-", linewidth=0.7)
        axes.set_ylabel(name)
        axes.axvspan(0, rounds[int(len(rounds) * WARM_UP)].seconds / 60, color="0.93")
        axes.set_ylim(0, 1.15 * max(getattr(one, name) for one in rounds))
    axes.set_xlabel("minutes (grey: left out of the slope)")
    figure.savefig(path, metadata={"Software": None})


def main() -> int:
    """Soak; 1 where something grows or a count differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--out", type=Path, required=True, help="folder for soak.csv, soak.png and verdict.json")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    rounds: list[Round] = []
    with (arguments.out / "soak.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Round)])
        writer.writeheader()
        for one in run(arguments.minutes, arguments.out):
            rounds.append(one)
            writer.writerow(asdict(one))
            file.flush()
    draw(rounds, arguments.out / "soak.png")
    words = {"minutes": round(rounds[-1].seconds / 60, 1), "rounds": len(rounds), **verdicts(rounds)}
    (arguments.out / "verdict.json").write_text(json.dumps(words, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(words, indent=1))
    flat = all(str(words[name]).startswith("flat") for name in LIMITS)
    return 0 if flat and all(one.equal for one in rounds) else 1


if __name__ == "__main__":
    sys.exit(main())
