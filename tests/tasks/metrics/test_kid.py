"""KID: the unbiased estimate by hand, and its mean over equal sets."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from stridebench.harness.record.outputs import Picture
from stridebench.tasks.metrics.features import FeatureNet
from stridebench.tasks.metrics.kid import kernel_distance, kid


def test_the_estimate_leaves_each_picture_s_likeness_to_itself_out() -> None:
    random = np.random.default_rng(1)
    x, y = random.normal(size=(2, 4, 3))

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        return float((a @ b / 3 + 1) ** 3)

    pairs = [(i, j) for i, j in product(range(4), repeat=2) if i != j]
    same = sum(kernel(x[i], x[j]) + kernel(y[i], y[j]) for i, j in pairs) / 12
    expected = same - 2 * sum(kernel(a, b) for a, b in product(x, y)) / 16
    assert kernel_distance(x, y) == pytest.approx(expected)


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


def test_equal_sets_are_near_zero_and_few_pictures_have_no_value() -> None:
    equal, other = kid(pictures(0, 0), pictures(1, 0), Mean()), kid(pictures(0, 0), pictures(1, 128), Mean())
    assert equal.low is not None and equal.low < 0 < (equal.high or 0) and other.value is not None
    assert other.value > 10 * abs(equal.value or 0)
    assert "at least 100 are needed" in kid(pictures(0, 0, 9), pictures(1, 0), Mean()).reason
