"""The verdicts: every method of the registry against its claim, its mutants, its samples, a real model.

A method that is registered is tested here without another line.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.capabilities import UNORDERED, Requirement
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.draft import DeclaredRows
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.method import Claim, Method, Mutant, label
from stridebench.harness.core.run import Run, open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.session import Session
from stridebench.harness.discover import load_all
from stridebench.harness.errors import ContractError, EnumerationLimit, UsageError
from stridebench.harness.plan import presets, resolve
from stridebench.harness.proof import cases as proof_cases
from stridebench.harness.proof import mutants as proof_mutants
from stridebench.harness.proof.cases import CASES, GRID_CASES, Case, cases_of, wider_cases_of
from stridebench.harness.proof.catalogue import Piece, compute
from stridebench.harness.proof.distance import (
    QUICK,
    distance,
    method_law,
    reference_law,
    reference_of,
    total_variation,
    toy_drafter,
)
from stridebench.harness.proof.enumerate import Law
from stridebench.harness.proof.mutants import CAUGHT, TARGET_MUTANTS, injected, mutants_of, try_one
from stridebench.harness.proof.prove import EXACT, prove, verdict_of
from stridebench.harness.proof.verdicts import OUTPUTS
from stridebench.harness.record.metrics import diverge
from stridebench.harness.registry import METHODS, TASKS
from tests.support.one_by_one import OneByOne, RankedChoice, register

load_all()
SMALLEST, FEWEST, FEW_APPROXIMATE = 32, 16, 9
WIDE = ("ddtree", "dflash", "dspark", "eagle1", "eagle2", "eagle3", "mtp", "p_eagle", "specinfer", "spectr")
"""Methods whose first variant is proved on the fewest outputs too.

A step has many outcomes, or `speculative` and `adt_tree`, whose drafters are cheaper, prove the verifier on more.
"""
SMALL = tuple(case for case in CASES if case.outputs <= SMALLEST and not case.few)
LONGER = ("lookahead",)
"""Methods whose guesses come from earlier text, so that some bugs appear in longer texts only."""
SAMPLED = SMALL[0]
DRAWS, RARE = 600, 5
FALSE_ALARM = 1e-6


SLOW = {
    "cllm",
    "cross_regression",
    "eagle1",
    "jacobi",
    "lanternpp",
    "lookahead",
    "multi_head",
    "sjd_pac",
    "sjdpp",
    "specinfer",
    "spectr",
}
"""Methods whose settings or mutants take over a second each."""
MANY_MUTANTS = {"dspark", "lantern", "masked_diffusion", "speculative"}
"""Methods whose mutants together take over five seconds."""


def names() -> list[Any]:
    """All methods, those whose mutants take long marked."""
    slow = SLOW | MANY_MUTANTS
    return [pytest.param(name, marks=pytest.mark.slow if name in slow else ()) for name in sorted(METHODS)]


def enumerated_long() -> list[Any]:
    """All methods; all but one run with ``-m audit`` and in `stride verify`."""
    return [pytest.param(name, marks=() if name == "speculative" else pytest.mark.audit) for name in sorted(METHODS)]


def proved_variants() -> list[Any]:
    """Variants with the outputs of the models that they are proved on.

    A method's first one has the models of 27 and 32 outputs, the others those of 16 at most: prompts, hot and cold
    ones, filters first, a batch, pictures. With ``-m audit`` the others have all of them, and so has `stride verify`.
    """
    params = []
    for name in METHODS:
        for number, method in enumerate(METHODS.get(name).variants()):
            few, title = number > 0 or name in WIDE, label(method).replace(" ", ",")
            looks_ahead = "fly:2" in title  # it is exact in texts of three tokens
            fewest = FEW_APPROXIMATE if method.claim is Claim.APPROXIMATE and not looks_ahead else FEWEST
            marks = [pytest.mark.slow] if number or name in SLOW else []
            params.append(pytest.param(method, fewest if few else SMALLEST, id=title, marks=marks))
            if few:
                params.append(pytest.param(method, SMALLEST, id=f"{title},whole", marks=[*marks, pytest.mark.audit]))
    return params


def on_a_real_model() -> list[Any]:
    """Exact variants of methods that pass chains, trees and drafters' windows to a model; others pass the same kinds.

    The second and later ones of a method run with ``-m audit``.
    """
    params = []
    for name in ("jacobi", "specinfer", "speculative"):
        exact = [one for one in METHODS.get(name).variants() if one.claim in (Claim.SAME_LAW, Claim.SAME_GREEDY)]
        params += [
            pytest.param(one, marks=pytest.mark.audit if at else (), id=str(one)) for at, one in enumerate(exact)
        ]
    return params


DRAWN = ("masked_diffusion", "multi_head", "sjdpp", "specinfer", "speculative")
"""Methods that ask for every kind of draw between them; seeded decodes of the others run with ``-m audit``."""


def sampled_names() -> list[Any]:
    """All methods, those whose draws another one asks for too marked."""
    return [pytest.param(name, marks=() if name in DRAWN else pytest.mark.audit) for name in sorted(METHODS)]


WORDS = {Claim.APPROXIMATE: "approximate", Claim.DECLARED: "declared"}


@pytest.mark.usefixtures("unchecked")
class TestProofs:
    @pytest.mark.parametrize(("method", "outputs"), proved_variants())
    def test_enumeration_confirms_the_claim(self, method: Method[Any], outputs: int) -> None:
        cases = cases_of(method, outputs) or cases_of(method, SMALLEST)
        proof = prove(method, [case for case in cases if not case.few], mutants=False)
        assert proof.verdict == WORDS.get(method.claim, "exact")
        if method.claim is Claim.APPROXIMATE:
            assert proof.total_variation > CAUGHT, "it is exact on these models and could claim so"
        else:
            assert proof.total_variation < EXACT

    @pytest.mark.parametrize("name", enumerated_long())
    def test_long_texts_and_large_vocabularies_are_enumerated_where_a_method_fits_them(self, name: str) -> None:
        method = METHODS.get(name).variants()[0]
        few = [case for case in cases_of(method) if case.few]
        proof = prove(method, [*few, *cases_of(method)[:1]], mutants=False)
        assert proof.verdict == WORDS.get(method.claim, "exact")
        assert name != "speculative" or proof.cases[: len(few)] == tuple(few)

    @pytest.mark.parametrize("name", names())
    def test_every_mutant_is_caught(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        if name not in LONGER:
            monkeypatch.setattr(proof_cases, "CASES", SMALL)
        kind = METHODS.get(name)
        tried_mutants = [try_one(mutant, kind.variants()) for mutant in mutants_of(name)]
        assert [(mutant.why, mutant.caught) for mutant in tried_mutants] == [
            (mutant.why, True) for mutant in mutants_of(name)
        ]

    @pytest.mark.parametrize("name", sorted(METHODS))
    def test_every_method_is_enumerated_on_models_that_keep_more_than_entries(self, name: str) -> None:
        for method in METHODS.get(name).variants():
            states = {case.state for case in proof_cases.cases_of(method, OUTPUTS)} - {""}
            if UNORDERED & method.requirements:
                assert not states  # their rows are not those of a next token
            elif Requirement.GRID in method.requirements:
                assert states == {"prefix"}
            else:
                trees = Requirement.TREE_MASK in method.requirements
                assert states == {"grammar", "prefix"} | (set() if trees else {"recurrent"})

    def test_a_state_that_is_not_taken_back_shows_with_drafts_only(self) -> None:
        """So comparing a server's plain decode with itself is no test of it."""
        bugs = [one for ones in TARGET_MUTANTS.values() for one in ones if "not taken back" in one.why]
        assert len(bugs) == 2
        assert not any(try_one(bug, METHODS.get("autoregressive").variants()).caught for bug in bugs)

    @pytest.mark.parametrize("name", sorted(METHODS))
    def test_a_method_that_claims_exactness_has_a_mutant(self, name: str) -> None:
        kind = METHODS.get(name)
        if any(method.claim is not Claim.APPROXIMATE for method in kind.variants()):
            assert kind.mutants

    def test_rows_that_are_declared_wrongly_refute_a_claim(self, monkeypatch: pytest.MonkeyPatch) -> None:
        method, right = METHODS.get("speculative")("toy", 2, acceptance="mixture:0.5"), DeclaredRows.__init__
        assert prove(method, SMALL[:1], mutants=False).verdict == "declared"
        for wrong in (lambda pi, p: ((pi + p) / 2, p), lambda pi, p: (pi, p.roll(1, 0))):
            monkeypatch.setattr(DeclaredRows, "__init__", lambda self, pi, p, wrong=wrong: right(self, *wrong(pi, p)))
            proof = prove(method, SMALL[:1], mutants=False)
            assert proof.verdict == "broken" and proof.total_variation > CAUGHT

    def test_a_method_that_claims_to_declare_and_does_not_is_one_error(self) -> None:
        class Silent(METHODS.get("speculative")):  # type: ignore[misc]  # a class found at run time
            claim = Claim.DECLARED

        with pytest.raises(ContractError, match="Silent claims DECLARED and a step declares nothing; set `declared`"):
            prove(Silent("toy", 2), SMALL[:1], mutants=False)

    def test_a_proof_with_mutants_stops_at_the_first_caught_one(self) -> None:
        kind = METHODS.get("speculative")
        proof = prove(kind.variants()[0], SMALL[:2])
        assert proof.catches
        assert proof.verdict == "exact"
        assert len(proof.mutants) == 1
        plain = proof.plain("speculative")
        expected = {"method", "params", "claim", "total_variation", "verdict", "planted"}
        assert expected <= set(plain)
        assert (plain["claim"], plain["planted"]) == ("SAME_LAW", True)

    def test_a_claim_of_greedy_equality_is_checked_at_temperature_zero_only(self) -> None:
        class Greedy(METHODS.get("sjdpp")):  # type: ignore[misc]  # a class found at run time
            claim = Claim.SAME_GREEDY

        proof = prove(Greedy(window=3), SMALL, mutants=False)  # lossy above T = 0
        assert (proof.verdict, proof.total_variation) == ("exact", 0.0)

    def test_the_published_setting_of_a_method_of_greedy_equality_is_enumerated_at_temperature_zero(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        register(monkeypatch, METHODS, "ranked_choice", RankedChoice)
        row = compute(Piece("published", "ranked_choice"), {"ranked_choice": (RankedChoice(rank=1),)}, None)
        assert (row["verdict"], row["params"]) == ("exact", {"rank": 0})
        assert row["case"] == str(proof_cases.PUBLISHED_GREEDY)

    @pytest.mark.slow
    def test_a_false_claim_is_broken(self) -> None:
        class Boasting(METHODS.get("sjdpp")):  # type: ignore[misc]  # a class found at run time
            claim = Claim.SAME_LAW

        proof = prove(Boasting(window=3), SMALL, mutants=False)
        assert proof.verdict == "broken"
        assert proof.total_variation > 0.01
        assert proof.case in {str(case) for case in SMALL}


@dataclass(frozen=True)
class OwnReference(OneByOne):
    """Autoregressive at half the temperature, held against itself or another method."""

    other: str = ""

    @property
    def reference(self) -> Method[Any]:
        return METHODS.get(self.other)() if self.other else self

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        return run.draws.categorical(p**2 / (p**2).sum(), "resid")[0]


class TestReferenceOf:
    @pytest.mark.parametrize("other", ["", "autoregressive", "masked_diffusion"])
    def test_a_method_does_not_choose_what_it_is_held_against(self, other: str) -> None:
        with pytest.raises(ContractError, match=r"names the reference .* does not choose its reference"):
            prove(OwnReference(other), SMALL, mutants=False)

    def test_a_masked_model_has_one_token_a_step_as_its_reference(self) -> None:
        method = METHODS.get("masked_diffusion")(steps=2)
        assert reference_of(method) == replace(method, steps=0)

        class Boasting(type(method)):  # type: ignore[misc]  # a class found at run time
            @property
            def reference(self) -> Method[Any]:
                return self

        with pytest.raises(ContractError, match="must be masked_diffusion at one token a step"):
            reference_of(Boasting(steps=2))


def p_value(counts: Mapping[tuple[int, ...], float], probs: Mapping[tuple[int, ...], float]) -> float:
    """Pearson's test of counts; the rarest outputs share a class that is expected five times, as the test requires."""
    classes: list[tuple[float, float]] = []
    for expected, observed in sorted((DRAWS * p, counts.get(output, 0)) for output, p in probs.items()):
        if classes and classes[0][0] < RARE:
            classes[0] = (classes[0][0] + expected, classes[0][1] + observed)
        else:
            classes.append((expected, observed))
    if len(classes) == 1:
        return 1.0  # nothing is left to chance
    expectations, observations = np.array(classes).T
    scaled = expectations * observations.sum() / expectations.sum()
    return float(stats.chisquare(observations, scaled).pvalue)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
class TestSamples:
    """Seeded decodes have the enumerated distribution."""

    @pytest.mark.parametrize("name", sampled_names())
    def test_seeded_decodes_have_the_enumerated_distribution(self, name: str) -> None:
        """One variant of each method; a correct one fails one reseeding in a million."""
        method = METHODS.get(name).variants()[0]
        case = cases_of(method, SMALLEST)[0]
        backbone = case.backbone()
        probs = method_law(method, case)
        counts: Counter[tuple[int, ...]] = Counter()
        for repetition in range(DRAWS):
            draws = SeededDraws(1, "tabular", "p", repetition)
            with torch.inference_mode():
                run = open_run(backbone, toy_drafter(backbone), case.prompt, case.sampling, case.length, draws)
                counts[decode(method, run).tokens] += 1
        assert set(counts) <= set(probs)
        assert p_value(counts, probs) > FALSE_ALARM

    def test_the_test_above_notices_a_mutant(self) -> None:
        """The draws are enough to detect a forgotten residual."""
        method = METHODS.get("speculative").variants()[0]
        reference = reference_law(SAMPLED.backbone(), SAMPLED.prompt, SAMPLED.length, SAMPLED.sampling)
        with injected(method.mutants[0]):
            biased = method_law(method, SAMPLED)
        counts = {output: DRAWS * probability for output, probability in biased.items()}
        assert p_value(counts, reference) < FALSE_ALARM


@pytest.mark.usefixtures("unchecked")
class TestReference:
    @pytest.mark.parametrize("case", CASES + GRID_CASES, ids=str)
    def test_the_reference_sums_to_one_and_ends_at_end_of_text_or_length(self, case: Case) -> None:
        probs = reference_law(case.backbone(), case.prompt, case.length, case.sampling)
        assert sum(probs.values()) == pytest.approx(1, abs=1e-12)
        for output in probs:
            assert len(output) == case.length or output[-1] in case.eos
            assert not set(output[:-1]) & set(case.eos)
            if len(case.grid) == 3:
                assert [token == case.grid[2] for token in output] == [False, False, True] * 2
        outputs = case.outputs if case.sampling.temperature else 1
        cut = not case.grid or case.sampling.top_p < 1
        assert len(probs) == outputs or (case.sampling.temperature > 0 and cut)

    def test_total_variation(self) -> None:
        a: Law = {(0,): 0.5, (1,): 0.5}
        b: Law = {(0,): 0.2, (2,): 0.8}
        assert total_variation(a, b) == pytest.approx(0.8)
        assert total_variation(a, a) == 0

    def test_a_toy_drafter_named_self_is_the_model(self) -> None:
        backbone = SAMPLED.backbone()
        assert toy_drafter(backbone)("self") is backbone
        assert toy_drafter(backbone)("other").fingerprint != backbone.fingerprint


SOURCE = '''
def twice(x):
    """Not four times."""
    doubled = x + x
    return doubled


class Holder:
    def method(self, x):
        return x * 3

    @staticmethod
    def fixed(x):
        return x * 5


NOT_A_FUNCTION = 3
'''


@pytest.fixture()
def patient(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "patient_of_the_tests.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("patient_of_the_tests")
    sys.modules.pop("patient_of_the_tests", None)


def mutant(where: str, old: str, new: str) -> Mutant:
    return Mutant(f"patient_of_the_tests:{where}", old, new, "a bug")


class TestInjection:
    def test_the_code_is_swapped_for_every_importer_and_restored(self, patient: ModuleType) -> None:
        imported_before = patient.twice
        with injected(mutant("twice", "x + x", "x + x + 1")):
            assert patient.twice(2) == imported_before(2) == 5
        assert patient.twice(2) == imported_before(2) == 4

    def test_the_code_is_restored_after_an_exception(self, patient: ModuleType) -> None:
        with pytest.raises(ZeroDivisionError), injected(mutant("twice", "x + x", "x / 0")):
            patient.twice(2)
        assert patient.twice(2) == 4

    def test_methods_and_static_methods(self, patient: ModuleType) -> None:
        with injected(mutant("Holder.method", "* 3", "* 30")), injected(mutant("Holder.fixed", "* 5", "* 50")):
            assert (patient.Holder().method(1), patient.Holder.fixed(1)) == (30, 50)
        assert (patient.Holder().method(1), patient.Holder.fixed(1)) == (3, 5)

    @pytest.mark.parametrize(("old", "lines"), [("x - x", 0), ("doubled", 2)])
    def test_text_that_is_not_on_one_line_is_refused(self, patient: ModuleType, old: str, lines: int) -> None:
        with (
            pytest.raises(ContractError, match=f"'{old}' on one line .* finds it on {lines}; bring the Mutant"),
            injected(mutant("twice", old, "0")),
        ):
            pass
        assert patient.twice(2) == 4

    def test_bugs_are_injected_into_functions_only(self, patient: ModuleType) -> None:
        with (
            pytest.raises(ContractError, match="not a Python function"),
            injected(mutant("NOT_A_FUNCTION", "3", "4")),
        ):
            pass

    def test_a_bug_that_breaks_the_contract_counts_as_caught(self) -> None:
        place, old = "stridebench.methods.autoregressive:Autoregressive.step", "run.draws.categorical(p,"
        outside = Mutant(place, old, f"99 + {old}", "outside the vocabulary")
        assert try_one(outside, [METHODS.get("autoregressive")()]).total_variation == 1.0

    def test_a_harmless_change_is_not_caught(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(proof_cases, "CASES", SMALL[:6])
        place = "stridebench.harness.core.sampling:warp"
        same = Mutant(place, "ture).softmax(-1)", "ture).softmax(1)", "the same axis")
        assert not try_one(same, [METHODS.get("autoregressive")()]).caught

    def test_a_bug_that_is_not_caught_names_the_case_in_which_it_added_most(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        added = dict(zip(SMALL[:3], (CAUGHT / 4, CAUGHT / 2, CAUGHT / 3), strict=True))
        measured = lambda method, case, effort: SimpleNamespace(total_variation=added[case])  # noqa: E731
        monkeypatch.setattr(proof_mutants, "measure", measured)
        method = METHODS.get("speculative").variants()[0]
        tried = proof_mutants.try_mutant(method, method.mutants[0], SMALL[:3], {})
        assert (tried.total_variation, tried.case) == (CAUGHT / 2, str(SMALL[1]))


UNMEASURED = {
    *(f"zipar window={window}" for window in (11, 16)),
    *(f"masked_diffusion steps={steps}" for steps in (16, 128, 256, 1024)),
    *(f"masked_diffusion order=random steps={steps}" for steps in (4, 8, 16)),
    *(f"masked_diffusion order=origin steps={steps}" for steps in (8, 16)),
    *(f"uniform_diffusion{setting}" for setting in ("", " steps=16", " bound=0", " bound=0.5", " bound=2")),
    *(f"multi_head levels={levels}" for levels in (5, 6)),
    *(f"multi_head heads=xspecmesh-cross-lora levels={levels}" for levels in (5, 6)),
    *(
        f"mulo_sd drafter=tar-1.5b-256 samplers={samplers} factor=4 window=8 draft_window=8"
        for samplers in ("repeat", "mulo-4x")
    ),
}
"""Settings of shipped suites that no model of a second or two shows to be approximate; their rows have no TV."""


def approximate_settings(*suites: str) -> dict[str, Method[Any]]:
    methods = [method for name in suites for method in resolve.of_command(name).methods]
    return {
        label(method): method
        for method in methods
        if method.claim is Claim.APPROXIMATE and reference_of(method) != method
    }


class TestApproximateSettings:
    @pytest.mark.parametrize(
        "suites", [("quick",), pytest.param(tuple(resolve.commands()), id="all", marks=pytest.mark.audit)]
    )
    def test_a_proof_case_shows_what_makes_each_approximate(self, suites: tuple[str, ...]) -> None:
        def shown(method: Method[Any]) -> bool:
            for case in (*cases_of(method, OUTPUTS), *wider_cases_of(method)):
                with suppress(UsageError, EnumerationLimit):
                    if max(distance(method, case, draws) for draws in QUICK.draws(method)) >= EXACT:
                        return True
            return False

        settings = approximate_settings(*suites)
        assert settings
        hidden = {name for name, method in settings.items() if name not in UNMEASURED and not shown(method)}
        assert hidden == set()
        assert len(suites) == 1 or set(settings) >= UNMEASURED

    @pytest.mark.parametrize("window", [2, 8])
    def test_a_window_of_zipar_is_measured_on_longer_rows(self, window: int) -> None:
        method = METHODS.get("zipar")(window=window)
        proof = prove(method, cases_of(method, OUTPUTS), mutants=False, effort=QUICK)
        assert proof.total_variation is not None and proof.total_variation > 0.1 and "grid=2x2" not in proof.case

    def test_a_setting_that_fits_no_case_has_no_distance(self) -> None:
        method = METHODS.get("zipar")(window=40)
        proof = prove(method, cases_of(method, OUTPUTS), mutants=False, effort=QUICK)
        assert (proof.verdict, proof.total_variation) == ("approximate", None)
        assert proof.case.startswith("TV not measured: zipar: window is 40")


@pytest.mark.parametrize(
    ("claim", "tv", "word"),
    [
        (Claim.SAME_LAW, EXACT / 2, "exact"),
        (Claim.SAME_LAW, EXACT, "broken"),
        (Claim.SAME_GREEDY, 0.5, "broken"),
        (Claim.APPROXIMATE, 0.9, "approximate"),
    ],
)
def test_the_word_for_a_claim_and_a_distance(claim: Claim, tv: float, word: str) -> None:
    assert verdict_of(claim, tv) == word


@pytest.mark.parametrize(
    ("tokens", "baseline_tokens", "at", "agreement"),
    [
        ((), (), None, 1.0),
        ((1, 2, 3), (1, 2, 3), None, 1.0),
        ((1, 2, 3), (1, 2, 4), 2, 2 / 3),
        ((9, 2), (1, 2), 0, 0.0),
        ((1, 2), (1, 2, 3, 4), 2, 0.5),
        ((1, 2, 3, 4), (1, 2), 2, 0.5),
        ((), (1,), 0, 0.0),
    ],
)
def test_the_first_difference_of_two_outputs(
    tokens: Sequence[int], baseline_tokens: Sequence[int], at: int | None, agreement: float
) -> None:
    divergence = diverge(tokens, baseline_tokens)
    assert divergence.at == at
    assert divergence.agreement == pytest.approx(agreement)


def test_a_case_that_every_method_fits_may_not_be_left_out() -> None:
    class Branching(OneByOne):
        def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
            raise EnumerationLimit("too many outcomes")

    with pytest.raises(EnumerationLimit, match="too many outcomes"):
        prove(Branching(), CASES[:1], mutants=False)


TOKENS = 12
MARGIN = 1e-3


def greedy(method: Method[Any], backbone: Backbone, prompt: Sequence[int]) -> tuple[int, ...]:
    """Greedy tokens; a toy drafter is the target with some of its layers."""

    def opened(name: str) -> Backbone:
        return presets.drafter(backbone, name if name == "self" else "self:layers=24")

    draws = SeededDraws(0, "humaneval", "p", 0)
    return decode(method, open_run(backbone, opened, prompt, Sampling(0.0), TOKENS, draws)).tokens


def margin(backbone: Backbone, tokens: Sequence[int], token: int, baseline_token: int) -> float:
    session = Session(backbone.cache(), backbone.capabilities, tokens, stopwatch=Stopwatch(CpuClock()))
    logits = session.forward()[0].double()
    return abs(float(logits[baseline_token] - logits[token]))


@pytest.fixture(scope="session")
def baselines(smollm2: Backbone) -> list[tuple[list[int], tuple[int, ...]]]:
    prompts = [prompt.text for prompt in TASKS.get("humaneval")().prompts()[:2]]
    encoded = [smollm2.encode(text) for text in prompts]
    return [(prompt, greedy(METHODS.get("autoregressive")(), smollm2, prompt)) for prompt in encoded]


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("prompts", [1, pytest.param(2, marks=pytest.mark.audit)])
@pytest.mark.parametrize("method", on_a_real_model())
def test_greedy_on_a_real_model_equals_autoregressive_greedy(
    method: Method[Any], smollm2: Backbone, baselines: list[tuple[list[int], tuple[int, ...]]], prompts: int
) -> None:
    for prompt, baseline_tokens in baselines[:prompts]:
        tokens = greedy(method, smollm2, prompt)
        at = diverge(tokens, baseline_tokens).at
        if at is not None:
            assert at < min(len(tokens), len(baseline_tokens)), "one output is a prefix of the other"
            tie = margin(smollm2, [*prompt, *baseline_tokens[:at]], tokens[at], baseline_tokens[at])
            assert tie < MARGIN, f"token {at}: {tokens[at]} for {baseline_tokens[at]} at a logit margin of {tie:.3g}"
