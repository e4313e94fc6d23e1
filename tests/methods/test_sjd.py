"""SJD: the recorded distributions are those that the drafts were drawn from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Method
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import UsageError
from stridebench.harness.proof.cases import CASES
from stridebench.harness.proof.distance import method_law, reference_law, total_variation
from stridebench.harness.proof.enumerate import EnumeratingDraws
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.jacobi_window import Init, JacobiWindow, discard, redraw
from stridebench.methods.sjd import SJD
from tests.support.enumerated import enumerated

INITS: tuple[Init, ...] = ("uniform", "random", "h-repeat", "h-sample")
LEFT = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


def decoded(method: Method[Any], sampling: Sampling, budget: int, **params: Any) -> Decode:
    model = Tabular("tabular", params)
    run = open_run(model, lambda name: model, (0, 1), sampling, budget, SeededDraws(0, "t", "p", 0))
    return decode(method, run)


def dishonesty(act: Callable[[EnumeratingDraws], tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The largest difference between P(draft | drafts and records before it, its own record) and its record.

    Args:
        act: returns drafts and their recorded distributions; run over every outcome of its draws.
    """
    frequencies: dict[Any, dict[int, float]] = {}
    records: dict[Any, list[float]] = {}
    for weight, (tokens, probs) in enumerated(act):
        for place, token in enumerate(tokens.tolist()):
            upto = [round(value, 10) for value in probs[: place + 1].flatten().tolist()]
            key = (place, tuple(tokens[:place].tolist()), tuple(upto))
            records[key] = probs[place].tolist()
            group = frequencies.setdefault(key, {})
            group[token] = group.get(token, 0.0) + weight
    return max(
        abs(weight / sum(group.values()) - records[key][token])
        for key, group in frequencies.items()
        for token, weight in group.items()
    )


def new_window(draws: EnumeratingDraws, init: Init) -> tuple[JacobiWindow, Any]:
    model = Tabular("tabular", {"vocabulary": 3})
    run = open_run(model, lambda name: model, (0, 2), Sampling(1.0), 9, draws)
    return JacobiWindow.empty(run, 3, init), run


class TestInits:
    @pytest.mark.parametrize("init", INITS)
    @pytest.mark.parametrize("left", [None, LEFT], ids=["start", "later"])
    def test_a_new_window_records_the_distributions_of_its_drafts(self, init: Init, left: torch.Tensor | None) -> None:
        def fill(draws: EnumeratingDraws) -> tuple[torch.Tensor, torch.Tensor]:
            window, run = new_window(draws, init)
            window.past = window.past if left is None else left[None]
            window.fill(run, 3)
            return window.tokens, window.probs

        assert dishonesty(fill) < 1e-12

    @pytest.mark.parametrize("init", INITS)
    def test_drafts_added_behind_refined_ones_record_their_distributions(self, init: Init) -> None:
        def fill(draws: EnumeratingDraws) -> tuple[torch.Tensor, torch.Tensor]:
            window, run = new_window(draws, init)
            fresh = redraw(draws)(window.tokens, window.probs, LEFT[None], 2)
            window.tokens, window.probs, window.reused = fresh
            window.fill(run, 3)
            return window.tokens, window.probs

        assert dishonesty(fill) < 1e-12

    def test_the_check_catches_a_neighbours_distribution_recorded_for_a_copy(self) -> None:
        """The known mistake: copy the neighbour's token and record the neighbour's distribution."""

        def copy(draws: EnumeratingDraws) -> tuple[torch.Tensor, torch.Tensor]:
            token = draws.categorical(LEFT[None], "draft")
            return token.repeat(2), LEFT.expand(2, -1)

        assert dishonesty(copy) > 0.1

    @pytest.mark.parametrize(
        ("init", "expected"),
        [
            ("uniform", [1 / 3] * 3),
            ("random", None),
            ("h-repeat", [0.0, 0.0, 1.0]),
            ("h-sample", LEFT.tolist()),
        ],
    )
    def test_the_recorded_distribution_of_each_init(self, init: Init, expected: list[float] | None) -> None:
        draws = EnumeratingDraws()
        draws.replay([], [], {})
        window, run = new_window(draws, init)
        window.past = LEFT[None]
        window.fill(run, 2)
        for token, probs in zip(window.tokens.tolist(), window.probs.tolist(), strict=True):
            assert probs == (expected or [float(v == token) for v in range(3)])
        assert not bool(window.reused.any())

    def test_without_a_distribution_on_the_left_a_sample_is_a_random_id_and_the_next_one_copies_it(self) -> None:
        """A random id is recorded as a point mass, and a draw from a point mass is a copy."""
        draws = EnumeratingDraws()
        draws.replay([1], [], {})
        window, run = new_window(draws, "h-sample")
        window.fill(run, 2)
        assert window.tokens.tolist() == [1, 1]
        assert window.probs.tolist() == [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]


def picture(eol: bool, init: Init, size: int = 8) -> tuple[JacobiWindow, Any]:
    """A picture of 2 rows and 3 columns behind a prompt of two tokens, ids 0 to 3 and 4 for the ends of rows."""
    model = Tabular("tabular", {"vocabulary": 5, "grid": [2, 3, 4] if eol else [2, 3]})
    draws = EnumeratingDraws()
    draws.replay([], [], {})
    run = open_run(model, lambda name: model, (0, 2), Sampling(1.0), 8 if eol else 6, draws)
    return JacobiWindow.empty(run, size, init), run


class TestGrids:
    @pytest.mark.parametrize("init", [*INITS, "v-repeat", "v-sample"])
    def test_ends_of_rows_are_drafted_where_they_are_forced(self, init: Init) -> None:
        window, run = picture(True, init)
        draft = window.propose(run)
        assert len(draft) == 7, "the last position is that of the bonus token"
        assert [token == 4 for token in draft.tokens.tolist()] == [False] * 3 + [True] + [False] * 3
        assert draft.probs is not None and draft.probs[3].tolist() == [0, 0, 0, 0, 1]

    @pytest.mark.parametrize(
        ("init", "source"),
        [("h-repeat", [None, 0, 1, None, None, 4, 5]), ("v-repeat", [None, None, None, None, 0, 1, 2])],
    )
    def test_a_copy_is_of_the_neighbour_in_the_picture(self, init: Init, source: list[int | None]) -> None:
        """Ids 3 2 1, an end, then copies of neighbours. A cell without a neighbour is drawn (id 0 here)."""
        window, run = picture(True, init)
        prefix = torch.tensor([3, 2, 1, 4])
        run.target.append(prefix)
        tokens = [*prefix.tolist(), *window.propose(run).tokens.tolist()]
        expected = [0 if at is None else tokens[at] for at in source]
        assert tokens[4:] == expected[4:]
        assert window.probs.argmax(1).tolist() == tokens[4:]

    def test_a_vertical_sample_is_drawn_from_the_distribution_above_and_records_it(self) -> None:
        window, run = picture(False, "v-sample")
        probs = torch.softmax(torch.arange(30.0, dtype=torch.float64).view(6, 5).sin(), -1)
        window.fill(run, 3)
        window.advance(run, probs[:4], 2, redraw(run.draws))  # a row is emitted, its distributions are stored
        run.target.append(torch.tensor([0, 1, 2]))
        window.fill(run, 2)
        torch.testing.assert_close(window.probs, probs[[3, 1]], rtol=0, atol=0)

    def test_forced_drafts_stay_out_of_acceptance(self) -> None:
        steps = decoded(SJD(9, "random"), Sampling(1.0), 20, vocabulary=6, seed=2, grid=[4, 4, 5]).steps
        assert sum(step.forced_accepted for step in steps) > 0
        for step in steps:
            assert step.forced_accepted <= step.forced_tested <= step.forced_drafted
            assert step.forced_accepted <= step.accepted and step.forced_tested <= step.tested

    @pytest.mark.parametrize("init", ["v-repeat", "v-sample"])
    def test_vertical_inits_are_refused_for_texts(self, init: Init) -> None:
        with pytest.raises(UsageError, match=f"init is {init}, and this backbone's tokens lie in no rows; use h-"):
            decoded(SJD(4, init), Sampling(1.0), 5)

    def test_a_window_larger_than_the_picture_is_cut_to_it(self) -> None:
        params = {"vocabulary": 4, "grid": [2, 2]}
        assert decoded(SJD(50), Sampling(1.0), 4, **params).tokens == decoded(SJD(4), Sampling(1.0), 4, **params).tokens

    def test_without_refinement_the_window_is_emptied(self) -> None:
        window, run = picture(False, "uniform")
        window.fill(run, 5)
        probs = window.probs.clone()
        window.advance(run, probs.new_full((6, 5), 0.2), 1, discard)
        assert len(window.tokens) == len(window.probs) == len(window.reused) == 0


@pytest.mark.parametrize(("counts", "drafts"), [(True, 3), (False, 4)])
def test_a_window_that_counts_the_fed_token_has_one_draft_less(counts: bool, drafts: int) -> None:
    steps = decoded(SJD(4, window_counts_refed=counts), Sampling(1.0), 60, vocabulary=5).steps
    assert {(step.drafted, step.rows) for step in steps[:9]} == {(drafts, drafts + 1)}


def test_the_window_may_be_one_draft_when_the_fed_token_does_not_count() -> None:
    method = SJD(1, window_counts_refed=False)
    probs = method_law(method, CASES[0])
    case = CASES[0]
    reference = reference_law(case.backbone(), case.prompt, case.length, case.sampling)
    assert total_variation(probs, reference) < 1e-12


@pytest.mark.slow
def test_refined_drafts_are_accepted_more_often_than_fresh_ones() -> None:
    """SJD needs fewer passes than Jacobi on the same flat model."""
    passes = {
        kind: len(decoded(METHODS.get(kind)(window=8), Sampling(1.0), 200, vocabulary=6, context=400).steps)
        for kind in ("sjd", "jacobi")
    }
    assert passes["sjd"] < passes["jacobi"]
