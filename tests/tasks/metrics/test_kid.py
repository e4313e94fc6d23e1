"""KID: the unbiased estimate by hand, and its mean over equal sets."""

from __future__ import annotations

import numpy as np
import pytest

from stridebench.harness.record.outputs import Picture
from stridebench.tasks.metrics.features import FeatureNet
from stridebench.tasks.metrics.frechet import kid
from tests.support.extras import needs_image_extra


class Mean(FeatureNet):
    """Pixels as features."""

    name, width, enough = "mean", 12, 2

    @classmethod
    def open(cls, folder: str = "") -> Mean:
        return cls()

    def batch(self, pixels):  # type: ignore[no-untyped-def]
        return pixels.flatten(1).float() / 255


def pictures(seed: int, shade: int, count: int = 120) -> list[Picture]:
    random = np.random.default_rng(seed)
    return [Picture(random.integers(shade, 256, size=(2, 2, 3)).astype(np.uint8)) for _ in range(count)]


@needs_image_extra
def test_the_value_is_that_of_the_definition() -> None:
    """All subsets together estimate what all pictures do; within 1 %, at a fixed seed."""
    x, y = (Mean().features(pictures(seed, shade)) for seed, shade in ((0, 0), (1, 128)))

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.asarray((a @ b.T / 12 + 1) ** 3)

    n = len(x)
    same = sum(kernel(one, one).sum() - np.trace(kernel(one, one)) for one in (x, y)) / (n * (n - 1))
    expected = float(same - 2 * kernel(x, y).mean())
    assert kid(pictures(0, 0), pictures(1, 128), Mean()).value == pytest.approx(expected, rel=0.01)


@needs_image_extra
def test_equal_sets_are_near_zero_and_few_pictures_have_no_value() -> None:
    equal, other = kid(pictures(0, 0), pictures(1, 0), Mean()), kid(pictures(0, 0), pictures(1, 128), Mean())
    assert equal.low is not None and equal.low < 0 < (equal.high or 0) and other.value is not None
    assert other.value > 10 * abs(equal.value or 0)
    assert "at least 100 are needed" in kid(pictures(0, 0, 9), pictures(1, 0), Mean()).reason
