"""Enumeration: every outcome once, with its weight; races by area; limits that name the draw."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate

from stridebench.harness.core.draft import Acceptance, DeclaredRows, Draft, Path
from stridebench.harness.core.draws import Draws, SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run, open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import ContractError, EnumerationLimit
from stridebench.harness.proof import distance as distances
from stridebench.harness.proof import enumerate as enumeration
from stridebench.harness.proof.cases import CASES, Case
from stridebench.harness.proof.distance import (
    QUICK,
    WHOLE,
    Effort,
    distance,
    joined,
    measure,
    prompts_of,
    reference_law,
    total_variation,
    toy_drafter,
)
from stridebench.harness.proof.enumerate import EnumeratingDraws, fork, freeze, output_law
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.jacobi_window import JacobiWindow
from tests.support.enumerated import enumerated
from tests.support.one_by_one import OneByOne

Outcomes = list[tuple[float, Any]]
SMALL = Case(2, 3, 10, Sampling(1.0))


def outcomes(act: Callable[[EnumeratingDraws], Any]) -> Outcomes:
    return list(enumerated(act))


def probs_of(outcome_list: Outcomes) -> dict[Any, float]:
    probs: dict[Any, float] = {}
    for weight, value in outcome_list:
        probs[value] = probs.get(value, 0.0) + weight
    return probs


def opener(case: Case) -> Callable[[Draws], Run]:
    backbone = case.backbone()

    def opened(draws: Draws) -> Run:
        return open_run(backbone, toy_drafter(backbone), case.prompt, case.sampling, case.length, draws)

    return opened


def rows(*weights: list[float]) -> torch.Tensor:
    return torch.tensor(weights, dtype=torch.float64)


class TestOutcomes:
    def test_weights_sum_to_one_over_all_kinds_of_draws(self) -> None:
        p, q = rows([0.2, 0.3, 0.5]), rows([0.6, 0.4, 0.0])

        def act(draws: EnumeratingDraws) -> tuple[int, ...]:
            first = draws.integers(2, 3, "init").tolist()
            x = draws.categorical(q, "draft")
            y = draws.couple(x, q, p)
            path = draws.path(rows([0.3, 0.9, 1.0])[0], torch.tensor([-1, 0, 0]))
            return (*first, int(x), int(y), int(draws.race(p, [4])), int(path.stop))

        outcome_list = outcomes(act)
        assert sum(weight for weight, _ in outcome_list) == pytest.approx(1, abs=1e-12)
        assert len({value for _, value in outcome_list}) == len(outcome_list)
        assert all(weight > 0 for weight, _ in outcome_list)

    def test_impossible_outcomes_are_not_visited(self) -> None:
        assert len(outcomes(lambda d: int(d.categorical(rows([0.0, 1.0, 0.0]), "resid")))) == 1
        assert len(outcomes(lambda d: int(d.path(rows([1.0, 0.0, 0.5])[0]).stop))) == 1
        same = rows([0.5, 0.5])
        assert len(outcomes(lambda d: int(d.couple(torch.tensor([1]), same, same)))) == 1

    def test_couple_has_the_joint_distribution_of_maximal_coupling(self) -> None:
        q, p = [0.1, 0.5, 0.4], [0.3, 0.2, 0.5]

        def act(draws: EnumeratingDraws) -> tuple[int, int]:
            x = draws.categorical(rows(q), "draft")
            return int(x), int(draws.couple(x, rows(q), rows(p)))

        probs = probs_of(outcomes(act))
        assert sum(probs.get((v, v), 0) for v in range(3)) == pytest.approx(sum(map(min, p, q)), abs=1e-12)
        for v in range(3):
            assert sum(probs.get((x, v), 0) for x in range(3)) == pytest.approx(p[v], abs=1e-12)


def joint_winner(a: list[float], b: list[float], i: int, j: int) -> float:
    """P(i wins E / a and j wins E / b) over exponential clocks E; derived again, by integration.

    For i = j it is 1 / sum max(a_k / a_i, b_k / b_i). Else, with r = E_j / E_i and the scale of E_i
    integrated out, it is the integral of 1 / c(r)^2, where c is 1 + r and the others' sum of
    max(a_k / a_i, r b_k / b_j).
    """
    if i == j:
        return 1 / sum(max(a[k] / a[i], b[k] / b[i]) for k in range(len(a)))
    low, high = a[j] / a[i], b[j] / b[i]
    others = [k for k in range(len(a)) if k not in (i, j)]

    def density(r: float) -> float:
        return 1 / (1 + r + sum(max(a[k] / a[i], r * b[k] / b[j]) for k in others)) ** 2

    kinks = [k for k in ((a[o] / a[i]) * (b[j] / b[o]) for o in others) if low < k < high]
    return integrate.quad(density, low, high, points=kinks, epsabs=1e-12)[0] if low < high else 0.0


PAIRS = [
    ([0.3, 0.7], [0.8, 0.2]),
    ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]),
    ([0.1, 0.6, 0.3], [0.15, 0.25, 0.6]),
    ([0.9, 0.05, 0.05], [0.02, 0.49, 0.49]),
]


class TestRaces:
    @pytest.mark.parametrize("weights", [[0.3, 0.7], [1.0, 0.0], [0.2, 0.5, 0.3], [0.0, 0.4, 0.6], [0.0, 0.0, 1.0]])
    def test_one_race_has_its_distribution(self, weights: list[float]) -> None:
        probs = probs_of(outcomes(lambda d: int(d.race(rows(weights), [7]))))
        for token, weight in enumerate(weights):
            assert probs.get(token, 0.0) == pytest.approx(weight, abs=1e-12)

    @pytest.mark.parametrize(("a", "b"), PAIRS)
    def test_two_races_on_one_key_share_gumbel_noise(self, a: list[float], b: list[float]) -> None:
        probs = probs_of(outcomes(lambda d: (int(d.race(rows(a), [7])), int(d.race(rows(b), [7])))))
        for i, j in itertools.product(range(len(a)), repeat=2):
            assert probs.get((i, j), 0.0) == pytest.approx(joint_winner(a, b, i, j), abs=1e-9)

    def test_the_integral_agrees_with_clocks(self) -> None:
        """The reference of the test above, once, by Monte-Carlo: six standard errors at a fixed seed."""
        a, b = PAIRS[2]
        clocks = np.random.default_rng(0).exponential(size=(200_000, 3))
        wins = list(zip((clocks / a).argmin(1), (clocks / b).argmin(1), strict=True))
        for i, j in itertools.product(range(3), repeat=2):
            p = joint_winner(a, b, i, j)
            assert abs(wins.count((i, j)) / 200_000 - p) <= 6 * (p * (1 - p) / 200_000) ** 0.5 + 1e-9

    def test_races_on_other_keys_are_independent(self) -> None:
        a, b = PAIRS[1]
        probs = probs_of(outcomes(lambda d: tuple(d.race(rows(a, b), [1, 2]).tolist())))
        for i, j in itertools.product(range(3), repeat=2):
            assert probs[i, j] == pytest.approx(a[i] * b[j], abs=1e-12)

    def test_a_distribution_raced_again_has_the_same_winner(self) -> None:
        a, b = PAIRS[1]
        outcome_list = outcomes(lambda d: tuple(d.race(rows(a, b, a), [5, 5, 5]).tolist()))
        assert all(value[0] == value[2] for _, value in outcome_list)

    def test_each_of_many_races_on_a_key_has_its_distribution(self) -> None:
        distributions = [[0.5, 0.3, 0.2], [0.2, 0.3, 0.5], [0.34, 0.33, 0.33], [0.1, 0.8, 0.1]]
        outcome_list = outcomes(lambda d: tuple(d.race(rows(*distributions), [5] * 4).tolist()))
        for place, weights in enumerate(distributions):
            marginal = probs_of([(weight, value[place]) for weight, value in outcome_list])
            assert [marginal[v] for v in range(3)] == pytest.approx(weights, abs=1e-10)

    def test_four_tokens_are_beyond_the_regions(self) -> None:
        with pytest.raises(EnumerationLimit, match="vocabulary of 2 or 3; this one has 4"):
            outcomes(lambda d: int(d.race(torch.full((1, 4), 0.25), [0])))


@dataclass(frozen=True)
class Holding(OneByOne):
    """Autoregressive, with a state of the caller's choice."""

    state: Any = None

    def start(self, run: Run) -> Any:
        return self.state


@dataclass(frozen=True)
class Remembering(Method[dict[str, int]]):
    """Drafts a constant and remembers, in its state alone, whether that was accepted."""

    claim = Claim.SAME_LAW
    source = "this test"

    def start(self, run: Run) -> dict[str, int]:
        return {"hits": 0}

    def step(self, run: Run, state: dict[str, int]) -> Acceptance:
        if state["hits"] % 2 or run.room < 2:
            p = run.probs(run.target.forward())
            state["hits"] += 1
            return Acceptance(Path.root(p), run.draws.categorical(p, "resid")[0])
        p = run.probs(run.target.forward(Draft(torch.tensor([1]))))
        path = run.draws.path(p[:1, 1])
        state["hits"] += int(path.stop)
        left = p[0].clone()
        left[1] = 0
        probs = p[1] if int(path.stop) else left
        return Acceptance(path, run.draws.categorical(probs[None], "resid")[0])


@dataclass
class Coin:
    """A state whose coin is no field, so that a comparison by fields does not see it."""

    steps: int = 0


class Bag:
    """Plain attributes."""

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class Tossing(OneByOne):
    """Tosses a coin in its first step and is greedy where it showed 1."""

    def start(self, run: Run) -> Any:
        return Coin()

    def step(self, run: Run, state: Any) -> Acceptance:
        p = run.probs(run.target.forward())
        token = p[0].argmax() if getattr(state, "coin", 0) else run.draws.categorical(p, "resid")[0]
        if not run.emitted:
            setattr(state, "coin", int(run.draws.integers(1, 2, "init")))  # noqa: B010  # no field, on purpose
        return Acceptance(Path.root(p), token)


class TestOutputLaw:
    def test_states_that_differ_in_more_than_their_fields_are_not_merged(self) -> None:
        reference = reference_law(SMALL.backbone(), SMALL.prompt, SMALL.length, SMALL.sampling)
        assert total_variation(output_law(Tossing(), opener(SMALL)), reference) > 0.01

    def test_states_are_merged_where_all_that_they_hold_is_equal(self) -> None:
        """Classes of one name are two; floats are equal to 1e-12; the order of a dictionary does not count."""
        namesake = dataclass(type("Coin", (), {"__annotations__": {"steps": int}, "steps": 0}))
        alike: list[tuple[Any, Any]] = [
            (Coin(1), Coin(1)),
            ({"a": 1, "b": [2.0, None]}, {"b": [2.0, None], "a": 1}),
            (0.1 + 0.2, 0.3 + 4e-13),
            (rows([0.5]), rows([0.5 + 4e-13])),
            ([1, "x"], (1, "x")),
            (Bag(x=1, y=[2]), Bag(y=[2], x=1)),
        ]
        pairs: list[tuple[Any, Any]] = [
            (Coin(1), namesake(1)),
            (Coin(1), Coin(2)),
            ({"a": 1}, {"a": 2}),
            ({"a": 1}, {"b": 1}),
            (0.3, 0.3 + 2e-12),
            (rows([0.5]), rows([0.5 + 2e-12])),
            (torch.tensor([1, 2]), torch.tensor([[1, 2]])),
            (Bag(x=1), Bag(x=2)),
            ([None], [0]),
        ]
        assert all(freeze(one) == freeze(other) for one, other in alike)
        assert all(freeze(one) != freeze(other) for one, other in pairs)

    def test_a_fork_shares_nothing_that_can_be_written_and_keeps_what_its_parts_share(self) -> None:
        shared = [1, torch.zeros(2)]
        state = {"coin": Coin(3), "pair": (shared, shared), "bag": Bag(own=shared), "plain": (None, 1.5, "x")}
        twin, memo = fork(state, memo := {}), memo
        assert freeze({**twin, "bag": 0}) == freeze({**state, "bag": 0}) and twin["bag"].own[0] == 1
        assert twin["pair"][0] is twin["pair"][1] is twin["bag"].own is fork(shared, memo)
        twin["pair"][0][1][0] = 7
        twin["coin"].steps, twin["coin"].more = 4, 5
        assert shared[1].tolist() == [0, 0] and vars(state["coin"]) == {"steps": 3}  # type: ignore[attr-defined, arg-type]

    @pytest.mark.parametrize("case", [SMALL, Case(3, 2, 3, Sampling(0.7), eos=(2,))], ids=str)
    def test_a_method_with_memory_has_the_targets_distribution(self, case: Case) -> None:
        reference = reference_law(case.backbone(), case.prompt, case.length, case.sampling)
        assert total_variation(output_law(Remembering(), opener(case)), reference) < 1e-12

    @pytest.mark.parametrize("name", ["sjdpp", "speculative"])
    def test_merging_states_does_not_change_the_distribution(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        method = METHODS.get(name).variants()[0]
        merged = output_law(method, opener(SMALL))
        serial = itertools.count()
        monkeypatch.setattr(enumeration, "freeze", lambda thing: next(serial))
        assert total_variation(output_law(method, opener(SMALL)), merged) < 1e-13

    def test_the_start_state_is_not_changed(self) -> None:
        """Each outcome works on copies of the start state."""
        state = JacobiWindow.empty(opener(SMALL)(EnumeratingDraws()), 2, "uniform")
        output_law(Holding(state), opener(SMALL))
        assert len(state.tokens) == 0


class Guessing(OneByOne):
    """Draws four ids and does not use them."""

    def start(self, run: Run) -> Any:
        return run.draws.integers(4, 2, "init").tolist()


class Opaque:
    __slots__ = ("x",)


UNFREEZABLE: dict[str, Callable[[], Any]] = {
    "iterator": lambda: iter([1, 2]),
    "numpy array": lambda: np.zeros(2),
    "nested set": lambda: {"nested": [{1, 2}]},
    "slots": Opaque,
    "class": lambda: Coin,
    "generator": lambda: random.Random(0),
    "function": lambda: lambda: 1,
}


@dataclass(frozen=True)
class StaleNoise(OneByOne):
    """Draws each token by a race whose key repeats, so that the noise of an emitted token is used again."""

    keys: tuple[int, ...] = (0, 1, 2)

    def token(self, run: Run, p: torch.Tensor) -> torch.Tensor:
        return run.draws.race(p, [self.keys[run.emitted]])[0]


class TestStaleNoise:
    """A race on the noise of an emitted position is not a fresh draw."""

    @pytest.mark.parametrize(
        ("keys", "message"),
        [
            ((0, 0, 0), r"the noise of position \d.* emitted already"),
            ((3, 3, 4), r"the noise of position \d.* emitted already"),
            ((9, 9, 9), r"the noise of position \d+, and the output ends before position 6"),
            ((3, 4, 6), r"the noise of position \d+, and the output ends before position 6"),
        ],
    )
    def test_it_is_refused_by_the_enumeration_and_by_seeded_draws(self, keys: tuple[int, ...], message: str) -> None:
        """A ring of keys behind the output is fresh for as long as an enumeration looks, and repeats later."""
        with pytest.raises(ContractError, match=message):
            output_law(StaleNoise(keys), opener(SMALL))
        with pytest.raises(ContractError, match=message):
            decode(StaleNoise(keys), opener(SMALL)(SeededDraws(0, "t", "p", 0)))

    def test_a_repeated_key_ahead_of_the_text_is_enumerated_as_the_same_noise(self) -> None:
        """Key 5 is emitted last, so all three tokens come from one noise vector, which the distribution shows."""
        assert distance(StaleNoise((5, 5, 5)), SMALL) > 0.1
        assert distance(StaleNoise((3, 4, 5)), SMALL) < 1e-12


class TestLimits:
    @pytest.mark.parametrize("kind", UNFREEZABLE)
    def test_a_state_that_cannot_be_compared_is_a_contract_error(self, kind: str) -> None:
        with pytest.raises(ContractError, match=r"a state holds a .*cannot be compared"):
            output_law(Holding(UNFREEZABLE[kind]()), opener(SMALL))

    @pytest.mark.parametrize("limit", ["STEP_LIMIT", "TOTAL_LIMIT"])
    def test_too_many_outcomes_name_the_draw_that_branches_most(
        self, limit: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(enumeration, limit, 12)
        with pytest.raises(EnumerationLimit, match=r"12 .*branches most is integers/init"):
            output_law(Guessing(), opener(SMALL))

    def test_a_step_whose_draws_promise_too_much_ends_at_once(self) -> None:
        with pytest.raises(EnumerationLimit, match=r"promise over 8 outcomes, integers/init"):
            output_law(Guessing(), opener(SMALL), EnumeratingDraws(widest=8))

    def test_outcomes_that_wait_are_counted_by_the_value_that_was_drawn(self) -> None:
        def act(draws: EnumeratingDraws) -> list[int]:
            three = draws.integers(2, 3, "init").tolist()
            return [*three, int(draws.categorical(p[:1], "resid")), int(draws.race(p[1:], [4]))]

        p, draws, waiting = rows([0.0, 0.25, 0.75], [0.2, 0.3, 0.5]), EnumeratingDraws(widest=54), []  # type: ignore[var-annotated]
        for script, drawn, weight in (([], [0, 0, 1, 0], 0.25), ([2, 1, 2, 0], [2, 1, 2, 0], 0.75)):
            draws.replay(script, waiting, {})
            assert act(draws) == drawn and draws.weight == pytest.approx(weight * 0.2 / 9)
            assert draws.branches == {"integers/init": 4, "categorical/resid": 1, "race": 2}
            assert sorted(waiting) == [[0, 0, 1, 1], [0, 0, 1, 2], [0, 0, 2], [0, 1], [0, 2], [1], [2]]
        with pytest.raises(EnumerationLimit, match="promise over 53 outcomes, race the last"):
            act(EnumeratingDraws(widest=53))


@dataclass(frozen=True)
class DeclaresEven(OneByOne):
    """Draws from the target's distribution, declares that all tokens are as probable, and names another target."""

    claim = Claim.DECLARED

    def step(self, run: Run, state: None) -> Acceptance:
        p = run.probs(run.target.forward())
        acceptance = Acceptance(Path.root(p), self.token(run, p))
        acceptance.declared = DeclaredRows(torch.full_like(p, 1 / p.shape[1]), p.roll(1, 1))
        return acceptance


class TestDistance:
    def test_rows_that_are_declared_wrongly_are_weighed_by_how_often_they_are_reached(self) -> None:
        case = Case(3, 2, 11, Sampling(1.0))
        expected = 0.0
        first = reference_law(case.backbone(), case.prompt, 1, case.sampling)
        for before, weight in {(): 1.0, **first}.items():
            law = reference_law(case.backbone(), (*case.prompt, *before), 1, case.sampling)
            p = torch.tensor([law[token,] for token in range(3)])
            expected += weight * float((p - 1 / 3).abs().sum() + (p - p.roll(1)).abs().sum()) / 2
        assert distance(DeclaresEven(), case) == pytest.approx(expected, rel=1e-6) != 0

    @pytest.mark.parametrize(
        ("effort", "length", "few", "lengths"),
        [
            (WHOLE, 4, 0, [4]),
            (WHOLE, 1, 0, [1]),
            (WHOLE, 2, 3, [2, 1]),
            (QUICK, 4, 0, [4, 3, 2]),
            (QUICK, 5, 3, [5, 4, 3, 2]),
            (QUICK, 2, 0, [2]),
            (QUICK, 2, 3, [2, 1]),
            (QUICK, 1, 3, [1]),
        ],
    )
    def test_a_case_that_branches_too_much_is_made_shorter(
        self, effort: Effort, length: int, few: int, lengths: list[int]
    ) -> None:
        case = replace(SMALL, length=length, few=few)
        shorter = [replace(case, length=one) for one in lengths]
        assert effort.tries(case) == shorter
        rows_together = replace(case, batch=2, joint=True)
        assert effort.tries(rows_together) == [rows_together, *(replace(one, batch=2) for one in shorter)]

    def test_pinned_streams_are_answered_by_each_seed_and_none_without_seeds(self) -> None:
        class Pinned(OneByOne):
            pinned = frozenset({"noise", "init"})

        effort = Effort(widest=8, starts=2, most=9)
        assert [one.limits for one in effort.draws(Pinned())] == [(8, ("init", "noise"), n, 9) for n in (0, 1)]
        assert [one.limits for one in replace(effort, starts=0).draws(Pinned())] == [(8, (), 0, 9)]
        assert [one.limits for one in effort.draws(OneByOne())] == [(8, (), 0, 9)]

    @pytest.mark.parametrize(
        ("case", "effort", "widest"),
        [
            (SMALL, WHOLE, [math.inf]),
            (replace(SMALL, length=6), WHOLE, [math.inf]),
            (replace(SMALL, length=7), WHOLE, [2_000] * 6),
            (replace(SMALL, length=7), QUICK, [16_384] * 6),
            (replace(SMALL, few=3), QUICK, [256, 256]),
        ],
    )
    def test_the_effort_of_a_case_follows_its_outputs(
        self, case: Case, effort: Effort, widest: list[float], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried: list[tuple[int, float]] = []

        def measured(method: Method[Any], one: Case, draws: EnumeratingDraws) -> float:
            tried.append((one.length, draws.limits[0]))
            if len(tried) < len(widest):
                raise EnumerationLimit("too many")
            return 0.25

        monkeypatch.setattr(distances, "distance", measured)
        result = measure(OneByOne(), case, effort)
        assert tried == [(case.length - index, limit) for index, limit in enumerate(widest)]
        assert (result.case.length, result.total_variation) == (tried[-1][0], 0.25)

    def test_rows_of_a_batch_have_beginnings_of_the_prompt_and_are_joined_in_order(self) -> None:
        case = replace(SMALL, prompt=(5, 6, 7), batch=4)
        beginnings = [(5, 6, 7), (5, 6), (5,), (5, 6, 7)]
        assert prompts_of(case) == beginnings
        assert prompts_of(case, 1) == [beginnings[-1 % 3], *beginnings[:3]]
        assert joined([(1, 2), (3,), ()]) == (1, 2, -1, 3, -1)


class TestPins:
    def test_a_pinned_stream_has_the_same_answer_in_every_step(self) -> None:
        def act(draws: EnumeratingDraws) -> tuple[int, ...]:
            return tuple(draws.integers(12, 3, "init").tolist())

        answers = []
        for start in (0, 0, 1):
            draws, stack = EnumeratingDraws(pinned=frozenset({"init"}), start=start), []  # type: ignore[var-annotated]
            draws.replay([], stack, {})
            first = act(draws)
            draws.replay([], stack, {})
            assert (act(draws), stack, draws.weight) == (first, [], 1.0)
            answers.append(first)
        assert answers[0] == answers[1] != answers[2]
        assert set(answers[0]) == {0, 1, 2}

    def test_a_stream_of_a_recorded_distribution_must_not_be_pinned(self) -> None:
        """SJD's fresh drafts are tested against the distribution they came from, so a fixed draft is noticed."""
        case = CASES[0]
        method = METHODS.get("sjd").variants()[0]
        pinned = EnumeratingDraws(pinned=frozenset({"init"}))
        assert method.pinned == frozenset()
        assert distance(method, case) < 1e-12 < 1e-3 < distance(method, case, pinned)
