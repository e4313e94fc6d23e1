"""SJD: the recorded distribution of each init, neighbours in a picture, and the size of a window."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import UsageError
from stridebench.harness.proof.cases import CASES
from stridebench.harness.proof.distance import distance
from stridebench.harness.proof.enumerate import EnumeratingDraws
from stridebench.methods.drafters.jacobi_window import Init, JacobiWindow, discard, redraw
from stridebench.methods.jacobi import Jacobi
from stridebench.methods.sjd import SJD
from tests.support.toys import decoded

INITS: tuple[Init, ...] = ("uniform", "random", "h-repeat", "h-sample")
LEFT = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)


def new_window(draws: EnumeratingDraws, init: Init) -> tuple[JacobiWindow, Any]:
    model = Tabular("tabular", {"vocabulary": 3})
    run = open_run(model, lambda name: model, (0, 2), Sampling(1.0), 9, draws)
    return JacobiWindow.empty(run, 3, init), run


class TestInits:
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
    assert distance(SJD(1, window_counts_refed=False), CASES[0]) < 1e-12


@pytest.mark.slow
def test_refined_drafts_are_accepted_more_often_than_fresh_ones() -> None:
    """SJD needs fewer passes than Jacobi on the same flat model."""
    passes = {
        kind: len(decoded(kind(window=8), Sampling(1.0), 200, vocabulary=6, context=400).steps)
        for kind in (SJD, Jacobi)
    }
    assert passes[SJD] < passes[Jacobi]
