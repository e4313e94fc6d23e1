"""Speculative sampling: the tokens of the drafter's session, its passes, and acceptance."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Claim
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import UsageError
from stridebench.methods.drafters.draft_model import ModelDrafter
from stridebench.methods.speculative import Speculative
from tests.support import toys

PROMPT = (0, 1, 2, 3)


def opened(sampling: Sampling, budget: int = 20) -> Run:
    return toys.opened(sampling, budget, PROMPT, vocabulary=4)


def decoded(method: Speculative, sampling: Sampling, budget: int = 20) -> Decode:
    return decode(method, opened(sampling, budget))


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(0.7, top_k=3)])
def test_a_drafter_that_is_the_target_has_all_drafts_accepted(sampling: Sampling) -> None:
    result = decoded(Speculative("self", 3), sampling, budget=40)
    drafted = sum(step.drafted for step in result.steps)
    assert sum(step.accepted for step in result.steps) == drafted == 30
    assert sum(step.expected for step in result.steps) == drafted
    assert all(step.emitted == step.drafted + 1 for step in result.steps)


def test_counts_of_a_step() -> None:
    result = decoded(Speculative("toy", 3), Sampling(1.0))
    for step in result.steps[:-2]:
        assert (step.nfe, step.draft_nfe, step.drafted, step.rows) == (1, 3, 3, 4)
        assert step.tested == min(step.accepted + 1, 3)
        assert 0 <= step.expected <= 3
    assert {step.accepted for step in result.steps} > {0}


class Watched(ModelDrafter):
    """Checks the tokens of the drafter's session after each draft."""

    def propose(self, run: Run) -> Draft:
        draft = super().propose(run)
        assert self.session.tokens == [*run.target.tokens, *draft.tokens.tolist()]
        return draft


def test_the_drafters_session_has_the_targets_tokens_and_its_own_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stridebench.methods.speculative.ModelDrafter", Watched)
    run = opened(Sampling(1.0), budget=30)
    method = Speculative("toy", 4)
    result = decode(method, run)
    assert any(step.accepted == 4 for step in result.steps), "the case in which the drafter is a token behind"
    assert any(step.accepted == 0 for step in result.steps)
    drafter = run.opened["toy"]
    drafter.sync(run.target.tokens)
    assert drafter.tokens == run.target.tokens == [*PROMPT, *result.tokens]


def test_masks_draft_in_one_pass_whose_rows_see_the_text_and_earlier_masks() -> None:
    """Row k is the drafter's distribution behind the text and k masks, whatever was drawn before."""
    run, fresh = opened(Sampling(1.0)), opened(Sampling(1.0))
    state = Speculative("toy", 3, mask=2).start(run)
    draft, session = state.propose(run), fresh.open("toy")
    assert draft.probs is not None and state.session.passes == 1
    for k, q in enumerate(draft.probs):
        session.sync([*PROMPT, *[2] * k])
        torch.testing.assert_close(q, run.probs(session.forward())[0])
    result = decoded(Speculative("toy", 3, mask=2), Sampling(1.0), budget=30)
    for step in result.steps[:-2]:
        assert (step.nfe, step.draft_nfe, step.drafted) == (1, 1, 3)
    assert any(step.accepted for step in result.steps)


def test_a_drafter_for_pard_names_its_own_mask() -> None:
    run = opened(Sampling(1.0))
    session = run.open("toy")
    session.capabilities = replace(session.capabilities, pard=2)
    assert Speculative("toy", 3, mask="pard").start(run).mask == 2
    assert Speculative("toy", 3).start(run).mask is None, "it stays a model that proposes a token a pass"
    session.capabilities = replace(session.capabilities, pard=None)
    with pytest.raises(UsageError, match=r"the drafter toy has no pard_token in its config\.json; take one"):
        Speculative("toy", 3, mask="pard").start(run)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_drafter_reads_the_same_text_after_masks_left_its_cache(temperature: float) -> None:
    """One draft a step needs no mask, so a drafter with masks that are never read drafts as one without."""
    drafters = (Speculative("toy", 1), Speculative("toy", 1, mask=3))
    plain, masked = (decoded(one, Sampling(temperature), budget=30) for one in drafters)
    assert plain.tokens == masked.tokens
    run = opened(Sampling(temperature), budget=30)
    decode(Speculative("toy", 3, mask=3), run)
    run.opened["toy"].sync(run.target.tokens)
    fresh = opened(Sampling(temperature)).open("toy")
    fresh.sync(run.target.tokens)
    torch.testing.assert_close(run.opened["toy"].forward(), fresh.forward())


def test_a_mask_that_the_drafter_lacks_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"mask is 4, and the drafter toy has the ids below 4; give the pard_token"):
        decoded(Speculative("toy", mask=4), Sampling(1.0))


def test_a_rule_of_acceptance_is_exact_where_it_keeps_the_targets_distribution() -> None:
    exact = [Speculative(acceptance=rule).claim for rule in ("exact", "mixture:1", "thresholds:1,1", "fly:1,1.1")]
    assert set(exact) == {Claim.SAME_LAW} and Speculative(acceptance="mixture:0.99").claim is Claim.DECLARED


def test_fly_goes_on_behind_a_greedy_rejection_where_the_target_is_unsure() -> None:
    """A greedy row of p has no entropy, so that of the logits counts; above ln 3 no row has enough."""
    fly, exact = (decoded(Speculative("toy", 4, acceptance=rule), Sampling(0.0)) for rule in ("fly:1,0", "fly:1,1.1"))
    assert exact.tokens == decoded(Speculative("toy", 4), Sampling(0.0)).tokens
    means = [sum(step.accepted for step in one.steps) / len(one.steps) for one in (fly, exact)]
    assert means[0] > means[1] and fly.tokens != exact.tokens
