"""Whether this machine can time anything: a fixed piece of work, repeated, and the counts of the noise meter."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from stridebench.harness.machine.noise import NoiseMeter

WAIT_SHARE = 0.02
"""Share of the time that threads may wait for a core."""
SPREAD = 0.05
"""Relative distance of the 90th percentile from the median that pieces may have."""


@dataclass(frozen=True)
class MachineNoise:
    """The disturbances that the pieces of work met.

    Args:
        pieces: number of them.
        wait_share: time that threads waited for a core over the wall time.
        switches_per_second: involuntary context switches.
        spread: 90th percentile of a piece's time over the median, less 1.
    """

    pieces: int
    wait_share: float
    switches_per_second: float
    spread: float

    @property
    def quiet(self) -> bool:
        """Whether seconds measured here mean something."""
        return self.wait_share <= WAIT_SHARE and self.spread <= SPREAD

    @property
    def words(self) -> str:
        """The verdict in one line."""
        verdict = "quiet enough to time" if self.quiet else "too noisy to time: other work has the cores"
        return (
            f"{verdict} (threads waited {self.wait_share:.1%} of the time, {self.switches_per_second:.0f} involuntary "
            f"switches a second, 90th percentile {self.spread:.1%} above the median of {self.pieces} pieces)"
        )


def measure(seconds: float = 2.0) -> MachineNoise:
    """Multiply matrices for so long with the threads that torch has."""
    matrix = torch.ones(256, 256) / 256
    for _ in range(5):
        matrix @ matrix
    meter = NoiseMeter()
    times: list[float] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or len(times) < 10:
        start = time.perf_counter()
        for _ in range(4):
            matrix @ matrix
        times.append(time.perf_counter() - start)
    wall = time.perf_counter() - begin
    waited = meter.read()
    meter.close()
    median, high = np.quantile(times, [0.5, 0.9])
    return MachineNoise(len(times), waited.wait_ns / 1e9 / wall, waited.switches / wall, float(high / median - 1))
