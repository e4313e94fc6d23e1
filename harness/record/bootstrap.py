"""The bootstrap's draws, which statistics of a run and scores of a set of outputs share. Needs numpy alone."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@lru_cache(maxsize=8)
def resample_counts(n: int, resamples: int, seed: int) -> NDArray[np.float64]:
    """How often each of n clusters is drawn in each resample, [resamples, n]; read-only."""
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)
    drawn.setflags(write=False)
    return drawn
