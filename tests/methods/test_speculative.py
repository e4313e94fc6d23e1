"""Speculative sampling: the tokens of the drafter's session, its passes, and acceptance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Claim
from stridebench.harness.core.run import Run, open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import ContractError, UsageError
from stridebench.harness.plan import presets
from stridebench.harness.proof.distance import toy_drafter
from stridebench.methods.drafters.draft_model import ModelDrafter
from stridebench.methods.speculative import Speculative

MODEL = Tabular("tabular", {"vocabulary": 4})
PROMPT = (0, 1, 2, 3)


def opened(sampling: Sampling, budget: int = 20, seed: int = 0, model: Tabular = MODEL) -> Run:
    draws = SeededDraws(seed, "t", "p", 0)
    return open_run(model, toy_drafter(model), PROMPT, sampling, budget, draws)


def decoded(method: Speculative, sampling: Sampling, **options: Any) -> Decode:
    return decode(method, opened(sampling, **options))


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.0), Sampling(0.7, top_k=3), Sampling(1.0, top_p=0.8)])
def test_a_drafter_that_is_the_target_has_all_drafts_accepted(sampling: Sampling) -> None:
    result = decoded(Speculative("self", 3), sampling, budget=40)
    drafted = sum(step.drafted for step in result.steps)
    assert sum(step.accepted for step in result.steps) == drafted == 30
    assert sum(step.expected for step in result.steps) == drafted
    assert all(step.emitted == step.drafted + 1 for step in result.steps)


def test_the_name_self_opens_the_target_in_a_run() -> None:
    """As in the class's docstring, on every backbone."""
    assert presets.drafter(MODEL, "self").fingerprint == MODEL.fingerprint


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


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"mask": -1}, "mask is -1 and drafter toy; give an id"),
        ({"mask": 4}, r"mask is 4, and the drafter toy has the ids below 4; give the pard_token"),
        ({"mask": 1, "drafter": "toy:vocab=tli"}, "a drafter that has the target's vocabulary"),
    ],
)
def test_a_wrong_mask_is_an_error(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decoded(Speculative(**{"drafter": "toy", **params}), Sampling(1.0))


def test_a_draft_of_probability_zero_is_a_contract_error() -> None:
    class Lying(Speculative):
        def step(self, run: Run, state: ModelDrafter) -> Acceptance:
            from stridebench.methods.verifiers.rejection import verify_chain

            draft = state.propose(run)
            assert draft.probs is not None
            probs = draft.probs.clone()
            probs[1] = probs[1].new_zeros(4)
            return verify_chain(draft.tokens, probs, run.probs(run.target.forward(draft)), run.draws)

    with pytest.raises(ContractError, match=r"drafted token \d at position 1 has q = 0"):
        decode(Lying("toy", 3), opened(Sampling(1.0)))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"acceptance": "lenient"}, "known: exact, mixture, cascade, cascade_token, typical, relaxed, thresholds, fly"),
        ({"acceptance": "mixture:1.5"}, "give numbers from 0 to 1, as in mixture:0.9"),
        ({"acceptance": "relaxed:3"}, "as in relaxed:3,0.2"),
        ({"acceptance": "typical:high,low"}, "as in typical:0.09,0.3"),
        ({"acceptance": "fly:0,0.3"}, "give a number of drafts from 1 on and an entropy in nats, as in fly:6,0.3"),
        ({"acceptance": "fly:1.5,0.3"}, "a number of drafts"),
        ({"acceptance": "fly:2"}, "a number of drafts"),
        ({"acceptance": "fly", "gamma": 1}, "looks at the drafts behind one, and gamma is 1; take 2 or more"),
        ({"acceptance": "typical", "verifier": "block"}, "acceptance typical and verifier block; take verifier token"),
        ({"acceptance": "mixture", "verifier": "coupled"}, "take verifier token"),
    ],
)
def test_a_wrong_rule_of_acceptance_is_an_error(params: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Speculative(**params)


def test_a_rule_of_acceptance_is_exact_where_it_keeps_the_targets_distribution() -> None:
    exact = [Speculative(acceptance=rule).claim for rule in ("exact", "mixture:1", "thresholds:1,1", "fly:1,1.1")]
    assert set(exact) == {Claim.SAME_LAW} and Speculative(acceptance="mixture:0.99").claim is Claim.DECLARED


def test_fly_goes_on_behind_a_greedy_rejection_where_the_target_is_unsure() -> None:
    """A greedy row of p has no entropy, so that of the logits counts; above ln 3 no row has enough."""
    fly, exact = (decoded(Speculative("toy", 4, acceptance=rule), Sampling(0.0)) for rule in ("fly:1,0", "fly:1,1.1"))
    assert exact.tokens == decoded(Speculative("toy", 4), Sampling(0.0)).tokens
    assert sum(step.accepted for step in fly.steps) / len(fly.steps) > sum(step.accepted for step in exact.steps) / len(
        exact.steps
    )
    assert fly.tokens != exact.tokens
