"""Planted biases on trained models are refuted, correct samplers are not; and the two-sample test beside them works."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stridebench.harness.record.metrics import REFUTED
from tests.power.biases import BIASED, CORRECT, DIGITS, Sampler
from tests.power.measure import tried
from tests.power.mmd import discrepancy, hamming, mmd_p

VISIBLE = (
    "p and q swapped in the test",
    "acceptance by sqrt(p / q)",
    "the draft's distribution is lost, corrections from p",
    "test and correction share a random number",
    "another q is recorded than was sampled",
    "bonus row after a rejection",
    "a rejected draft's entry stays in the cache",
    "nodes of a tree one position too far",
    "earlier siblings of a tree forgotten",
    "guidance dropped in the second row of a pass",
    "top-p taken twice",
    "Medusa's typical acceptance",
)
"""Biases that some thousand tokens of a small model refute; the others take more, see the results file."""


@pytest.mark.audit
@pytest.mark.parametrize("sampler", CORRECT, ids=lambda sampler: sampler.name)
def test_correct_samplers_are_never_refuted(sampler: Sampler) -> None:
    trial = tried(sampler)
    assert trial.refuted_after is None and trial.path[-1] < np.log(20)


@pytest.mark.audit
@pytest.mark.parametrize("sampler", [s for s in BIASED if s.name in VISIBLE], ids=lambda sampler: sampler.name)
def test_planted_biases_are_refuted(sampler: Sampler) -> None:
    assert tried(sampler).refuted_after is not None


@pytest.mark.slow
def test_a_planted_bias_is_refuted_within_some_hundred_tokens() -> None:
    (swapped,) = [sampler for sampler in BIASED if sampler.name == "p and q swapped in the test"]
    trial = tried(replace(swapped, setting=replace(DIGITS, prompts=2, repetitions=2)))
    assert trial.refuted_after is not None and trial.path[-1] > np.log(REFUTED) and len(trial.path) == 256


def test_every_visible_bias_is_planted() -> None:
    assert set(VISIBLE) <= {sampler.name for sampler in BIASED} and all(sampler.biased for sampler in BIASED)


def outputs(rng: np.random.Generator, probs: list[float], prompts: int = 6, size: int = 8) -> list[list[list[int]]]:
    return [rng.choice(len(probs), size=(size, 12), p=probs).tolist() for _ in range(prompts)]


def test_the_two_sample_test_keeps_its_level_and_sees_a_large_difference() -> None:
    rng = np.random.default_rng(0)
    fair, skewed = [0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]
    levels = [mmd_p(outputs(rng, fair), outputs(rng, fair), permutations=99) for _ in range(40)]
    assert np.mean(np.array(levels) <= 0.1) < 0.25
    assert mmd_p(outputs(rng, fair), outputs(rng, skewed), permutations=99) == 0.01


def test_the_discrepancy_by_hand() -> None:
    gram = hamming([[1, 2], [1, 3], [1], [4, 5]])
    np.testing.assert_allclose(gram, [[1, 0.5, 0.5, 0], [0.5, 1, 0.5, 0], [0.5, 0.5, 1, 0], [0, 0, 0, 1]])
    labels = np.array([[True, True, False, False]])
    np.testing.assert_allclose(discrepancy(gram, labels), [0.5 + 0 - 2 * 0.25])
