"""Steps of a known text: their mean over texts is that of every outcome of a decode, by enumeration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.draft import Draft, ExpectedSteps
from stridebench.harness.core.draws import Draws, SeededDraws
from stridebench.harness.core.loop import decode, prefill
from stridebench.harness.core.method import Method
from stridebench.harness.core.run import Run, open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.proof.distance import toy_drafter
from stridebench.harness.proof.enumerate import EnumeratingDraws, output_law
from stridebench.methods.autoregressive import Autoregressive
from stridebench.methods.drafters import draft_model
from stridebench.methods.drafters.known_text import KnownText
from stridebench.methods.speculative import FORESEEN_POLICIES, VERIFIERS, Speculative
from tests.support.enumerated import enumerated

PROMPT, T1 = (0, 1), Sampling(1.0)
TOY = Tabular("tabular", {"vocabulary": 2, "alike": 0.6})


def opened(draws: Draws, model: Tabular, sampling: Sampling, budget: int) -> Run:
    return open_run(model, toy_drafter(model), PROMPT, sampling, budget, draws)


def texts_of(model: Tabular, sampling: Sampling, budget: int) -> Mapping[tuple[int, ...], float]:
    return output_law(Autoregressive(), lambda draws: opened(draws, model, sampling, budget))


def known(
    model: Tabular, sampling: Sampling, budget: int, text: tuple[int, ...], draws: Draws
) -> tuple[Run, KnownText]:
    run = opened(draws, model, sampling, budget)
    prefill(Autoregressive(), run)
    session = run.models.target()
    session.prefill()
    p = run.probs(session.forward(Draft(torch.tensor(text[:-1], dtype=torch.long))))
    return run, KnownText.read(run, run.open("toy"), text, p, 3)


def foreseen(method: Speculative, run: Run, text: KnownText) -> ExpectedSteps:
    return text.expected_steps(run, method.verifier, method.gamma, method._length())


def foreseen_steps(method: Speculative, model: Tabular, sampling: Sampling, budget: int) -> float:
    """The mean of the foreseen steps over all texts; drafts are drawn from a seed."""
    total = 0.0
    for text, weight in texts_of(model, sampling, budget).items():
        run, one = known(model, sampling, budget, text, SeededDraws(0, "t", "p", 0))
        total += weight * foreseen(method, run, one).steps
    return total


def mean_steps(method: Method[Any], model: Tabular, sampling: Sampling, budget: int) -> float:
    """The mean number of steps over all outcomes of a decode."""
    steps = []
    output_law(
        method,
        lambda draws: opened(draws, model, sampling, budget),
        watch=lambda weight, *outcome: steps.append(weight),
    )
    return sum(steps)


BY_TOKENS = [Speculative("toy", 3, "token", policy) for policy in ("", "conf:0.6", "keep:0.6", "p_min:0.5", "ema:0.5")]
BY_BLOCKS = [Speculative("toy", 3, "block", policy) for policy in ("", "conf:0.6", "keep:0.6", "table:1=2")]
BY_SAMPLES = [Speculative("toy", 3, verifier) for verifier in ("match", "coupled")]


@pytest.mark.parametrize(
    "method", [*BY_TOKENS, *BY_BLOCKS, *BY_SAMPLES], ids=lambda one: f"{one.verifier}-{one.policy}"
)
@pytest.mark.usefixtures("unchecked")
def test_the_mean_over_texts_is_that_of_every_outcome(method: Speculative) -> None:
    """At T = 1, or with top-p."""
    budget, sampling = (3 if method.verifier == "coupled" else 4), Sampling(0.6, top_p=0.8) if method.policy else T1
    exact = mean_steps(method, TOY, sampling, budget)
    assert foreseen_steps(method, TOY, sampling, budget) == pytest.approx(exact, abs=1e-10) and exact < budget - 0.3


def test_texts_that_end_early_are_counted_up_to_their_end() -> None:
    model = Tabular("tabular", {"vocabulary": 2, "alike": 0.6, "eos": (1,)})
    texts = texts_of(model, T1, 3)
    assert {len(text) for text in texts} == {1, 2, 3}
    for method in (Speculative("toy", 2), Speculative("toy", 3, "block", "keep:0.6")):
        exact = mean_steps(method, model, T1, 3)
        assert foreseen_steps(method, model, T1, 3) == pytest.approx(exact, abs=1e-10)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("policy", ["", "conf:0.7", "keep:0.7", "p_min:0.7", "ema:0.5"])
def test_the_mean_of_passes_and_drafts_is_that_of_every_outcome(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over texts and over the drafts that are drawn from each position; a decode's are counted as they are proposed."""
    model, budget = Tabular("tabular", {"vocabulary": 2, "alike": 0.5}), 3
    method = Speculative("toy", 2, policy=policy)
    last = [(0, 0)]
    propose = draft_model.ModelDrafter.propose

    def counted(state: draft_model.ModelDrafter, run: Run) -> Draft:
        before = run.models.meter.drafts
        draft = propose(state, run)
        last[0] = (len(draft), run.models.meter.drafts - before)
        return draft

    monkeypatch.setattr(draft_model.ModelDrafter, "propose", counted)
    exact: dict[tuple[int, int], float] = {}

    def watch(weight: float, *outcome: object) -> None:
        exact[last[0]] = exact.get(last[0], 0.0) + weight

    output_law(method, lambda draws: opened(draws, model, Sampling(1.0), budget), watch=watch)
    mean: dict[tuple[int, int], float] = {}
    for text, weight in texts_of(model, Sampling(1.0), budget).items():

        def of_draws(draws: EnumeratingDraws, text: tuple[int, ...] = text) -> ExpectedSteps:
            return foreseen(method, *known(model, Sampling(1.0), budget, text, draws))

        for chance, steps in enumerated(of_draws):
            for draft, count in steps.by_draft.items():
                mean[draft] = mean.get(draft, 0.0) + weight * chance * count
    assert {key: mean[key] for key in exact} == pytest.approx(exact, abs=1e-10)
    assert sum(mean.values()) == pytest.approx(sum(exact.values()), abs=1e-10) and len(exact) > 1


@pytest.mark.parametrize("policy", ["", *FORESEEN_POLICIES])
def test_at_t_0_it_is_the_number_itself(policy: str) -> None:
    model = Tabular("tabular", {"vocabulary": 5, "alike": 0.9})
    method = Speculative("toy", 3, policy=policy)
    draws = SeededDraws(0, "t", "p", 0)
    result = decode(method, opened(draws, model, Sampling(0.0), 30))
    run, one = known(model, Sampling(0.0), 30, result.tokens, draws)
    by_draft: dict[tuple[int, int], float] = {}
    for step in result.steps:
        key = (step.drafted, step.draft_nfe)
        by_draft[key] = by_draft.get(key, 0.0) + 1
    assert foreseen(method, run, one).by_draft == pytest.approx(by_draft)


def test_a_setting_of_each_verifier_length_and_policy_is_foreseen() -> None:
    method = Speculative("toy", 2)
    texts = texts_of(TOY, Sampling(1.0), 2)
    text = max(texts, key=lambda one: texts[one])
    for sampling, verifiers in ((Sampling(1.0), set(VERIFIERS)), (Sampling(0.0), {"token"})):
        run = opened(SeededDraws(0, "t", "p", 0), TOY, sampling, 2)
        prefill(method, run)
        settings = method.foresee(run, text, torch.full((2, 2), 0.5, dtype=torch.float64))
        assert {one.verifier for one in settings} == verifiers and len(settings) >= 20
        assert {one.gamma for one in settings if not one.policy} == set(range(1, 9))
        assert {one.policy for one in settings} == {"", *FORESEEN_POLICIES}
    assert replace(method, acceptance="typical").foresee(run, text, torch.ones(2, 2)) == {}
