"""SpecTr: continuations that share a prefix share its nodes, and further drafts raise acceptance."""

from __future__ import annotations

from typing import Any

import pytest

from stridebench.harness.core.loop import Decode
from stridebench.harness.core.method import Method
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.proof.cases import CASES
from stridebench.harness.proof.distance import QUICK, measure
from stridebench.methods.spectr import SpecTr
from stridebench.methods.speculative import Speculative
from tests.support import toys


def decoded(method: Method[Any], sampling: Sampling, budget: int = 30) -> Decode:
    return toys.decoded(method, sampling, budget, prompt=(0, 1, 2, 3), vocabulary=5, context=400)


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(0.7, top_k=3)])
def test_a_drafter_that_is_the_target_has_every_level_accepted(sampling: Sampling) -> None:
    result = decoded(SpecTr("self", k=3, gamma=2), sampling)
    assert [(step.accepted, step.levels) for step in result.steps] == [(2, 2)] * 10


def test_one_continuation_is_chain_speculation() -> None:
    """The same draws from the same probabilities, so the same tokens."""
    spectr, chain = (decoded(method, Sampling(1.0), 60) for method in (SpecTr("toy", 1, 4), Speculative("toy", 4)))
    assert spectr.tokens == chain.tokens
    assert [step.accepted for step in spectr.steps] == [step.accepted for step in chain.steps]


def test_more_continuations_raise_expected_acceptance() -> None:
    """Means over 60 tokens at a fixed seed."""
    means = []
    for k in (1, 4):
        steps = decoded(SpecTr("toy", k, 2), Sampling(1.0), 60).steps
        means.append(sum(step.expected for step in steps) / len(steps))
    assert means[0] + 0.2 < means[1], means


def test_counts_of_a_step() -> None:
    """Greedy continuations are all the same, so a step drafts gamma nodes and reads k times as many."""
    for step in decoded(SpecTr("toy", k=3, gamma=2), Sampling(0.0)).steps[:-2]:
        assert (step.nfe, step.draft_nfe, step.rows, step.drafted) == (1, 2, 7, 2)
    drafted = {step.drafted for step in decoded(SpecTr("toy", k=3, gamma=2), Sampling(1.0)).steps[:-2]}
    assert drafted <= set(range(2, 7))
    assert len(drafted) > 1


@pytest.mark.usefixtures("unchecked")
@pytest.mark.slow
def test_the_default_size_is_proved_on_a_shorter_output() -> None:
    """Four drafts of two tokens are 6,561 outcomes before any is tested; of one token they are 81."""
    method, eos = SpecTr("toy"), CASES[1]
    measured = measure(method, eos, QUICK)
    assert (eos.length, measured.case.length) == (3, 2)
    assert measured.total_variation < 1e-12
