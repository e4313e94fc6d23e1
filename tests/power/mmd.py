"""The two-sample test of "Model Equality Testing": maximum mean discrepancy with the Hamming kernel.

Source: Gao, Liang and Guestrin 2024, arXiv:2410.20247, section 3. Outputs of one prompt are compared with each other;
the p-value comes from permutations within each prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Outputs = Sequence[Sequence[int]]


def hamming(outputs: Outputs) -> NDArray[np.float64]:
    """Share of places at which two outputs agree, each filled up to the longest with a symbol of its own kind."""
    length = max(map(len, outputs))
    table = np.full((len(outputs), length), -1)
    for row, output in enumerate(outputs):
        table[row, : len(output)] = output
    agreement: NDArray[np.float64] = (table[:, None] == table[None]).mean(axis=2)
    return agreement


def discrepancy(gram: NDArray[np.float64], first: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Unbiased squared discrepancy between the outputs marked and the others, for each of B labellings [B, n]."""
    a, b = first.astype(np.float64), (~first).astype(np.float64)
    size = a.sum(1)
    other = b.sum(1)
    inner_a = (np.einsum("bi,ij,bj->b", a, gram, a) - a @ np.diag(gram)) / (size * (size - 1))
    inner_b = (np.einsum("bi,ij,bj->b", b, gram, b) - b @ np.diag(gram)) / (other * (other - 1))
    squared: NDArray[np.float64] = inner_a + inner_b - 2 * np.einsum("bi,ij,bj->b", a, gram, b) / (size * other)
    return squared


def mmd_p(samples: Sequence[Outputs], reference: Sequence[Outputs], permutations: int = 1000, seed: int = 0) -> float:
    """p-value that both sets of outputs, by prompt, come from one distribution."""
    rng = np.random.default_rng(seed)
    total = np.zeros(permutations + 1)
    for drawn, expected in zip(samples, reference, strict=True):
        gram = hamming([*drawn, *expected])
        labels = np.arange(len(gram)) < len(drawn)
        shuffled = np.array([labels, *(rng.permutation(labels) for _ in range(permutations))])
        total += discrepancy(gram, shuffled)
    return float((total >= total[0] - 1e-12).sum() / (permutations + 1))
