"""Random cases: the same for the same seed, varied in all that a bias may hide behind, and caught by them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from stridebench.harness.core import loop
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.method import Claim, Method, Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.core.session import Session
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.proof import distance
from stridebench.harness.proof.cases import (
    BATCH_CASES,
    CASES,
    GRID_BATCH_CASES,
    GRID_CASES,
    MASKED_CASES,
    PUBLISHED,
    PUBLISHED_GREEDY,
    Case,
    batch_cases_of,
    cases_of,
    joint_case_of,
    presets_names,
)
from stridebench.harness.proof.distance import (
    DRAWN,
    QUICK,
    joint_law,
    law_to_match,
    measure,
    reference_of,
    total_variation,
)
from stridebench.harness.proof.enumerate import Law
from stridebench.harness.proof.mutants import CAUGHT, injected
from stridebench.harness.proof.prove import EXACT, prove
from stridebench.harness.proof.random_cases import random_case, try_random
from stridebench.harness.proof.verdicts import Verdicts
from stridebench.harness.record.entries import StoredVerdict
from stridebench.harness.registry import METHODS
from tests.power.held_out import (
    HELD_OUT,
    ColdIsGreedy,
    EqualSample,
    HeldOut,
    LargeIds,
    LateTokens,
    LongPrompt,
    NinthDraft,
    OwnMultinomial,
    SharedBuffer,
    TopPDropped,
    fixed,
)
from tests.support.one_by_one import OneByOne

SEED = 0
pytestmark = pytest.mark.usefixtures("unchecked")


@dataclass(frozen=True)
class Shy(OneByOne):
    """Autoregressive, and colder where a condition holds."""

    condition: str = "never"

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        if BIASES[self.condition](run):
            p = p**2 / (p**2).sum()
        return super().token(run, p)


BIASES: dict[str, Callable[[Run], bool]] = {
    "never": lambda run: False,
    "a prompt of sixteen": lambda run: len(run.target) - run.emitted >= 16,
    "T below 0.3": lambda run: 0 < run.sampling.temperature < 0.3,
    "T = 1.7": lambda run: abs(run.sampling.temperature - 1.7) < 0.1,
    "filters first": lambda run: run.sampling.order == "filter_first",
    "the seventh token": lambda run: run.emitted == 6,
    "ten tokens of room": lambda run: run.room >= 10,
    "five ids": lambda run: run.capabilities.vocabulary == 5,
    "a batch": lambda run: run.slot is not None,
    "a batch of four": lambda run: run.slot is not None and run.slot.served == 4,
}


class DrawsOfNumpy(OneByOne):
    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        return torch.tensor(np.random.choice(p.shape[1], p=p[0].numpy()))


class HoldsAGenerator(OneByOne):
    generator = torch.Generator().manual_seed(0)

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(p[0], 1, generator=self.generator)[0]


def word_of_run(method: Method[Any], batch: int = 1) -> StoredVerdict:
    """The verdict that a run of the tabular model at T = 1 gives to a method."""
    plan = SimpleNamespace(suite=SimpleNamespace(suite=SimpleNamespace(prove=True)))
    cell = SimpleNamespace(
        method=method, batch=batch, backbone="tabular", sampling=Sampling(1.0), dtype="fp64", task=None
    )
    sample = SimpleNamespace(status="ok", warmup=False, diverged_at=None, margin=None)
    judge = Verdicts(plan, CASES[0].backbone(), lambda name: CASES[0].backbone(), False)  # type: ignore[arg-type]
    return judge.of(cell, [sample])  # type: ignore[arg-type,list-item]


HIDDEN = (ColdIsGreedy, LongPrompt, LateTokens, NinthDraft, LargeIds)
"""Methods whose bias waits for a condition that few cases meet; any proof of a run sees the others."""


class TestRuns:
    @pytest.mark.slow
    @pytest.mark.parametrize("one", [one for one in HELD_OUT if one.biased], ids=lambda one: one.name)
    def test_a_biased_method_that_was_held_out_is_broken_on_fixed_cases_and_in_the_proof_of_a_run(
        self, one: HeldOut
    ) -> None:
        assert fixed(one) == "broken"
        if one.kind in HIDDEN:
            assert word_of_run(one.kind()).word == "broken"

    @pytest.mark.audit
    @pytest.mark.parametrize("one", [one for one in HELD_OUT if not one.biased], ids=lambda one: one.name)
    def test_an_exact_method_that_was_held_out_is_exact_unless_it_draws_elsewhere(self, one: HeldOut) -> None:
        elsewhere = one.kind is OwnMultinomial
        assert fixed(one) == ("broken (two decodes with the same draws differ)" if elsewhere else "exact")

    @pytest.mark.parametrize(
        ("method", "source"),
        [
            (OwnMultinomial(), "torch's global generator moved, at "),
            (DrawsOfNumpy(), "numpy's global generator moved."),
            (HoldsAGenerator(), "it may hold a generator or state of its own"),
        ],
    )
    def test_a_method_that_draws_elsewhere_is_broken_with_a_hint(self, method: Method[Any], source: str) -> None:
        note = word_of_run(method).note
        assert note.startswith("two decodes with the same draws differ: ") and source in note
        line = OwnMultinomial.token.__code__.co_firstlineno + 1
        assert (f"{OwnMultinomial.token.__code__.co_filename}:{line}." in note) == isinstance(method, OwnMultinomial)

    def test_a_bias_has_no_hint_of_another_source(self) -> None:
        both = [case for case in CASES if case.sampling.top_k and case.sampling.top_p < 1]
        assert (proof := prove(TopPDropped(), both, mutants=False)).verdict == "broken" and proof.hint == ""

    @pytest.mark.audit
    def test_drafts_compared_with_samples_of_the_target_are_enumerated_on_every_fixed_case(self) -> None:
        method = EqualSample()
        proof = prove(method, mutants=False)
        assert (proof.verdict, len(proof.cases)) == ("exact", len(cases_of(method)))

    @pytest.mark.slow
    def test_a_run_in_batches_sees_a_buffer_that_rows_share(self) -> None:
        assert word_of_run(SharedBuffer(gamma=1), 2).word == "broken"
        assert word_of_run(METHODS.get("speculative")(drafter="toy", gamma=1), 4).word == "exact"

    def test_pictures_are_proved_in_batches_too(self) -> None:
        class OfPictures(OneByOne):
            requirements = frozenset({Requirement.GRID})

        assert word_of_run(OfPictures(), 4).word == "exact"
        assert all(case.grid and case.batch > 1 for case in batch_cases_of(OfPictures()))

    def test_without_batches_in_its_proof_a_run_in_batches_is_unverified_in_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(distance, "MOST", 10)
        assert word_of_run(Shy(), 4).word == "unverified in batches"
        assert word_of_run(Shy(), 1).word == "exact"


def nearest_wrong(case: Case) -> dict[str, Case]:
    """The case with one thing of its sampling or prompt wrong. Of long texts cuts are moved and never dropped."""
    now, greedy = case.sampling, case.sampling.temperature == 0
    wrong: dict[str, dict[str, Any]] = {}
    if greedy or now.temperature != 1:
        wrong["T = 1"] = {"temperature": 1.0}
    if not greedy:
        wrong["T = 0"] = {"temperature": 0.0}
    if not greedy and now.top_k:
        moved = {1: {"top_k": now.top_k + 1}, -1: {"top_k": now.top_k - 1}}
        wrong |= {f"top-k by {by}": cut for by, cut in moved.items()} | ({} if case.few else {"no top-k": {"top_k": 0}})
    if not greedy and now.top_p < 1:
        wrong |= {f"top-p by {by}": {"top_p": now.top_p + by} for by in (-0.1, 0.1)}
        wrong |= {} if case.few else {"no top-p": {"top_p": 1.0}}
    if not greedy and now.min_p:
        wrong |= {f"min-p by {by}": {"min_p": now.min_p + by} for by in (-0.1, 0.1)} | {"no min-p": {"min_p": 0.0}}
    if now.temperature not in (0, 1) and (now.top_p < 1 or now.min_p):
        other = "filter_first" if now.order == "temperature_first" else "temperature_first"
        wrong["order"] = {"order": other}
    shifted = replace(case, prompt=case.prompt[1:])
    return {name: replace(case, sampling=replace(now, **changed)) for name, changed in wrong.items()} | {
        "prompt": shifted,
        **({} if case.guidance == 1 else {f"guidance {s}": replace(case, guidance=s) for s in (1.0, 1.75, 2.25)}),
    }


def cut_before_guidance(case: Case) -> Law:
    """The law of a case whose cuts are of the branch with the condition, before it is guided."""
    plain, guided = replace(case, guidance=1.0).backbone(), case.backbone()
    law: Law = {}

    def rows(backbone: Backbone, tokens: Sequence[int]) -> torch.Tensor:
        cache = backbone.open(Prompt("", tokens=case.prompt)).cache()
        return Session(cache, backbone.capabilities, tokens, stopwatch=Stopwatch(CpuClock())).forward()

    def extend(output: tuple[int, ...], weight: float) -> None:
        if len(output) == case.length:
            law[output] = weight
            return
        tokens = [*case.prompt, *output]
        cut = warp(rows(plain, tokens), case.sampling) == 0
        p = warp(rows(guided, tokens).masked_fill(cut, -math.inf), Sampling(case.sampling.temperature))
        for token in p[0].nonzero()[:, 0].tolist():
            extend((*output, token), weight * float(p[0, token]))

    with torch.inference_mode():
        extend((), 1.0)
    return law


@pytest.mark.parametrize("case", [case for case in (*CASES, *GRID_CASES) if case.guidance != 1], ids=str)
def test_a_cut_after_guidance_is_separate_from_one_before(case: Case) -> None:
    assert total_variation(cut_before_guidance(case), law_to_match(None, case)) > CAUGHT
    plain = replace(case, guidance=1.0)
    assert total_variation(cut_before_guidance(plain), law_to_match(None, plain)) < EXACT


def separated() -> list[Any]:
    """All fixed cases; those of masked models, which fill their places in every order, are slow."""
    quick = (*CASES, *GRID_CASES, *BATCH_CASES, *GRID_BATCH_CASES, PUBLISHED, PUBLISHED_GREEDY)
    return [*quick, *(pytest.param(case, marks=pytest.mark.slow) for case in MASKED_CASES)]


@pytest.mark.parametrize("case", separated(), ids=str)
def test_a_fixed_case_is_separate_from_its_nearest_wrong_settings(case: Case) -> None:
    reference = reference_of(METHODS.get("masked_diffusion")()) if case.masked else None
    for name, wrong in nearest_wrong(case).items():
        pair = [case, wrong]
        if case.few and case.sampling.temperature == 0 and name == "T = 1":
            pair = [replace(one, length=1) for one in pair]  # a shorter text can only hide a difference
        assert total_variation(*(law_to_match(reference, one) for one in pair)) > CAUGHT, name


@pytest.mark.parametrize("case", [case for case in CASES if case.few], ids=str)
def test_the_outputs_that_a_cut_leaves_are_counted(case: Case) -> None:
    assert len(law_to_match(None, case)) == case.few == case.outputs


class TestCaught:
    @pytest.mark.parametrize("condition", list(BIASES))
    def test_a_bias_that_waits_for_a_condition_is_caught_within_100_cases(self, condition: str) -> None:
        method = Shy(condition)
        cases = (random_case(method, SEED, index) for index in range(100 if condition != "never" else 10))
        cases = (case for case in cases if "batch" not in condition or case.batch > 1)
        caught = (measure(method, case, DRAWN).total_variation > EXACT for case in cases)
        assert any(caught) == (condition != "never")

    @pytest.mark.parametrize("condition", ["T = 1.7", "filters first", "a batch"])
    def test_fixed_cases_catch_some(self, condition: str) -> None:
        worst = max(measure(Shy(condition), case).total_variation for case in CASES[-9:])
        assert worst > EXACT

    @pytest.mark.parametrize("name", ["sjd", "speculative", "prompt_lookup", "specinfer"])
    def test_a_residual_of_little_mass_that_is_forgotten_is_caught(self, name: str) -> None:
        small = Mutant(
            "stridebench.methods.verifiers.rejection:residual",
            "torch.where(mass > 0, positive / mass, p)",
            "torch.where(mass > 1e-3, positive / mass, p)",
            "a residual of mass below 1e-3 is p",
        )
        method = METHODS.get(name).variants()[0]
        with injected(small):
            assert max(measure(method, case).total_variation for case in CASES[-9:]) > EXACT

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["sjd", "speculative"])
    def test_a_wrong_test_from_the_fifth_draft_on_is_caught_at_the_published_window(self, name: str) -> None:
        late = Mutant(
            "stridebench.methods.verifiers.rejection:acceptance_probs",
            "return (px / draft_probs(x, q).to(p.dtype)).clamp_max(1.0)",
            "return (px / draft_probs(x, q).to(p.dtype)).clamp_max(1.0) ** (1 - 0.5 * (torch.arange(len(x)) >= 4))",
            "from the fifth draft on the square root is tested",
        )
        method = METHODS.get(name)()
        method = replace(method, drafter="toy") if name == "speculative" else method
        with injected(late):
            measured = measure(method, PUBLISHED, QUICK)
        assert measured.case == PUBLISHED
        assert measured.total_variation > EXACT


class TestDrawn:
    def test_a_case_of_a_number_stays_the_same_so_that_a_row_can_be_run_again(self) -> None:
        """Texts, pictures and masked models, as each method needs them; other seeds give other cases."""
        methods = [METHODS.get(name)() for name in ("speculative", "zipar", "masked_diffusion")]
        cases = [random_case(method, 0, index) for method in methods for index in range(100)]
        assert not set(cases) & {random_case(methods[0], 1, index) for index in range(100)}
        assert hashlib.sha256(repr(cases).encode()).hexdigest()[:16] == "9fb013045f3b7919"

    def test_cases_vary_in_all_that_a_method_can_see(self) -> None:
        cases = [random_case(Shy(), SEED, index) for index in range(300)]
        assert {case.vocabulary for case in cases} == {2, 3, 4, 5, 300}
        assert {len(case.prompt) for case in cases} == set(range(1, 41))
        both = [case.sampling for case in cases if case.sampling.top_k and case.sampling.top_p < 1]
        assert {one.order for one in both} == {"temperature_first", "filter_first"}
        assert {case.batch for case in cases} == {1, 2, 3, 4}
        cuts = {(bool(one.top_k), one.top_p < 1, one.min_p > 0) for one in (case.sampling for case in cases)}
        assert len(cuts) == 8 and {case.guidance == 1 for case in cases} == {True, False}
        assert {case.length for case in cases} >= set(range(1, 13))
        assert {case.sampling.order for case in cases} == {"temperature_first", "filter_first"}
        temperatures = {case.sampling.temperature for case in cases}
        assert {0.0, 0.1, 1.0, 1000.0} <= temperatures and any(1 < one < 2.1 for one in temperatures)
        assert all(case.outputs <= 256 or case.eos or case.grid or case.alike for case in cases)
        assert any(case.grid for case in cases) and any(case.eos for case in cases)
        assert len({str(case) for case in cases}) == len(cases)

    def test_a_case_names_what_it_sets_and_nothing_else(self) -> None:
        every = Sampling(0.7, 2, 0.5, "filter_first", 0.25)
        words = "V=3 length=2 seed=1 T=0.7 top_k=2 top_p=0.5 min_p=0.25 filter_first prompt=2,1 batch=2 guidance=2"
        assert str(Case(3, 2, 1, every, prompt=(2, 1), batch=2, guidance=2.0)) == words
        assert str(Case(3, 2, 1, Sampling(1.0))) == "V=3 length=2 seed=1 T=1"

    def test_no_name_tells_that_a_case_is_a_toy(self) -> None:
        names = {case.backbone().name for case in CASES}
        assert names <= set(presets_names()) and len(names) > 5
        assert not names & {"tabular", "masked_tabular"}
        assert not hasattr(Run, "toys")


class TestRows:
    CASE = Case(2, 2, 3, CASES[0].sampling, prompt=(1, 0, 1), batch=3)

    def test_a_row_of_a_batch_has_the_targets_distribution(self) -> None:
        assert measure(METHODS.get("speculative")(drafter="toy", gamma=1), self.CASE).total_variation < EXACT

    def test_an_error_of_a_row_is_raised(self) -> None:
        with pytest.raises(UsageError, match="no such"):
            measure(Failing("no such"), self.CASE)


LATEST: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
"""What the first row of a batch drew last, and from which distribution."""


class CopiesTheFirstRow(OneByOne):
    """Each row has the target's distribution; the second one keeps the first one's token as often as it can."""

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        if len(run.target) - run.emitted == len(TestRowsTogether.CASE.prompt):
            token = run.draws.categorical(p, "resid")
            LATEST["first"] = (token, p)
            return token[0]
        return run.draws.couple(LATEST["first"][0], LATEST["first"][1], p)[0]


class TestRowsTogether:
    CASE = Case(2, 2, 30, CASES[0].sampling, prompt=(1, 0, 1), batch=2, joint=True)

    def test_rows_that_depend_on_each_other_are_seen_only_together(self) -> None:
        apart = measure(CopiesTheFirstRow(), replace(self.CASE, joint=False))
        together = measure(CopiesTheFirstRow(), self.CASE)
        assert apart.total_variation < EXACT and together.case == self.CASE
        assert together.total_variation > 0.1

    def test_independent_rows_have_the_product_of_their_distributions(self) -> None:
        backbone = self.CASE.backbone()
        law = joint_law(Shy(), self.CASE, lambda name: backbone)
        assert len(law) == 16 and sum(law.values()) == pytest.approx(1, abs=1e-12)
        assert all(output[2] == -1 and len(output) == 5 for output in law)
        assert measure(Shy(), self.CASE).total_variation < EXACT
        assert measure(METHODS.get("speculative")(drafter="toy", gamma=1), self.CASE).total_variation < EXACT

    def test_no_counters_of_the_machine_are_read_where_no_time_is_looked_at(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read: list[object] = []
        monkeypatch.setattr(loop, "NoiseMeter", lambda **named: read.append(named))
        backbone = self.CASE.backbone()
        assert len(joint_law(Shy(), self.CASE, lambda name: backbone)) == 16 and not read

    def test_rows_that_branch_too_much_are_enumerated_one_by_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(distance, "MOST", 15)
        measured = measure(Shy(), self.CASE)
        assert measured.case == replace(self.CASE, joint=False) and measured.total_variation < EXACT

    @pytest.mark.audit
    @pytest.mark.parametrize("name", sorted(METHODS))
    def test_rows_of_every_method_are_independent(self, name: str) -> None:
        settings = [one for one in METHODS.get(name).variants() if one.claim is Claim.SAME_LAW]
        for method in settings:
            for case in joint_case_of(method):
                assert measure(method, case).total_variation < EXACT


@dataclass(frozen=True)
class Failing(OneByOne):
    """Raises a usage error, or another one."""

    message: str = ""

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        if self.message:
            raise UsageError(self.message)
        raise KeyError("column")


class TestTried:
    def test_settings_take_turns_and_verdicts_follow(self) -> None:
        settings: dict[str, list[Method[Any]]] = {
            "shy": [Shy(), Shy("filters first")],
            "failing": [Failing("does not fit"), Failing()],
        }
        right, shy, unfit, failed = try_random(settings, 12, 1, math.inf)
        assert (len(right.measured), len(shy.measured)) == (6, 6)
        assert (right.verdict, shy.verdict, unfit.verdict, failed.verdict) == (
            "exact",
            "broken",
            "unverified",
            "unverified",
        )
        assert len(unfit.left_out) == 6 and unfit.left_out[0].endswith("does not fit")
        assert failed.error is not None and "KeyError: 'column'" in failed.error

    def test_without_time_nothing_is_tried(self) -> None:
        (one,) = try_random({"shy": [Shy()]}, 5, SEED, -1.0)
        assert (one.measured, one.left_out, one.verdict) == ([], [], "unverified")

    def test_a_greedy_claim_is_tried_at_zero_temperature_alone(self) -> None:
        class Greedy(Shy):
            claim = Claim.SAME_GREEDY

        (one,) = try_random({"greedy": [Greedy()]}, 30, SEED, math.inf)
        assert one.measured and all(result.case.sampling.temperature == 0 for result in one.measured)
        assert len(one.measured) + len(one.left_out) == 30


@pytest.mark.audit
class TestEveryMethod:
    """`stride verify --random` for all that ships: no exact setting is broken on 30 cases."""

    @pytest.mark.parametrize("name", sorted(METHODS))
    def test_no_claim_breaks(self, name: str) -> None:
        settings: list[Method[Any]] = list(METHODS.get(name).variants())
        tried = try_random({name: settings}, 30 * len(settings), 20_26, 600.0)
        assert [one.error for one in tried if one.error] == []
        assert all(one.measured for one in tried)
        assert not [one for one in tried if one.verdict == "broken"]
