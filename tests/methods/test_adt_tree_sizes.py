"""Sizes of ADT-Tree's trees: the step of eq. 2, its bounds, and the cell from which a size starts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.sampling import Sampling
from stridebench.methods.adt_tree import Adjacency, ADTTree, Alpha, Init, Size
from tests.support.feature_toys import run_on

RULE = ADTTree(first=(4, 10), widths=(4, 13), step_k=3, radius=2.0)
MODEL = Tabular("tabular", {"vocabulary": 30, "grid": (4, 4)})
PROMPT = (0, 1, 2)


def sizes(init: Init, cells: dict[tuple[int, int], Size], last: Size, **changes: object) -> Adjacency:
    """The state after these cells of a picture of four columns, behind a prompt of three tokens."""
    rule = replace(RULE, init=init, **changes)  # type: ignore[arg-type]
    return Adjacency(rule, {3 + 4 * row + column: size for (row, column), size in cells.items()}, last)


def chosen(state: Adjacency, cell: tuple[int, int]) -> Size:
    run = run_on(MODEL, Sampling(1.0), 16, PROMPT)
    run.target.sync([*PROMPT, *[0] * (4 * cell[0] + cell[1])])
    return state.choose(run)


class TestTheStep:
    @pytest.mark.parametrize(
        ("base", "alpha", "expected"),
        [
            (Size(4, 10), 1.0, Size(5, 7)),
            (Size(4, 10), 0.99, Size(3, 13)),
            (Size(9, 5), 1.0, Size(9, 4)),
            (Size(1, 12), 0.0, Size(1, 13)),
        ],
    )
    def test_it_moves_depth_and_width_in_opposite_directions(self, base: Size, alpha: float, expected: Size) -> None:
        assert RULE.moved(base, alpha, 100) == expected

    def test_with_deep_only_width_is_unbounded_at_depth_one(self) -> None:
        free = replace(RULE, deep_only=True)
        assert free.moved(Size(1, 12), 0.0, 100) == Size(1, 15)
        assert free.moved(Size(1, 15), 0.0, 16) == Size(1, 16)
        assert free.moved(Size(1, 18), 1.0, 100) == Size(2, 13)

    def test_width_is_at_most_the_vocabulary(self) -> None:
        assert RULE.moved(Size(4, 10), 0.0, 6).width == 6

    @pytest.mark.parametrize(("alpha", "used"), [("loops", 0.75), ("levels", 0.6), ("printed", 1.0)])
    def test_the_used_share_by_each_definition(self, alpha: str, used: float) -> None:
        assert replace(RULE, alpha=alpha).used(Size(4, 10), 3) == pytest.approx(used)  # type: ignore[arg-type]


class TestTheStart:
    def test_the_first_tree_has_the_first_size(self) -> None:
        run = run_on(MODEL, Sampling(1.0), 16, PROMPT)
        assert Adjacency(RULE).choose(run) == Size(4, 10)

    @pytest.mark.parametrize(
        ("init", "cell", "expected"),
        [
            ("horizontal", (1, 2), Size(3, 13)),  # of (1, 1): 4, 10
            ("vertical", (1, 2), Size(6, 8)),  # of (0, 2): 7, 5
            ("horizontal", (2, 0), Size(1, 7)),  # no cell to the left: the last one, 2, 4
            ("vertical", (0, 3), Size(1, 7)),
        ],
    )
    def test_a_size_starts_from_a_neighbours_tree(self, init: Init, cell: tuple[int, int], expected: Size) -> None:
        cells = {(1, 1): Size(4, 10, 1.0), (0, 2): Size(7, 5, 1.0)}
        assert chosen(sizes(init, cells, Size(2, 4, 0.5)), cell) == expected

    def test_with_of_neighbour_the_share_is_that_of_the_cell_above(self) -> None:
        state = sizes("vertical", {(0, 2): Size(7, 10, 1.0)}, Size(2, 4, 0.5), of_neighbour=True)
        assert chosen(state, (1, 2)) == Size(8, 7)

    def test_the_flock_by_hand(self) -> None:
        """Cells within 2 of (1, 2): (1, 1) weighs 3/2, (0, 2) weighs 1; (0, 0) is too far away."""
        cells = {(1, 1): Size(2, 10), (0, 2): Size(7, 5), (0, 0): Size(9, 13)}
        base_d, base_k = round((1.5 * 2 + 7) / 2.5), round((1.5 * 10 + 5) / 2.5)
        state = sizes("flock", cells, Size(5, 5, 1.0))
        assert chosen(state, (1, 2)) == Size(base_d + 1, base_k - 3)

    def test_an_empty_flock_starts_from_the_last_tree(self) -> None:
        assert chosen(sizes("flock", {}, Size(5, 9, 0.0)), (2, 2)) == Size(4, 12)

    def test_random_sizes_lie_within_the_bounds(self) -> None:
        run = run_on(MODEL, Sampling(1.0), 16, PROMPT)
        state = sizes("random", {}, Size(5, 9, 1.0), step_d=0, step_k=0)
        drawn = [state.choose(run) for _ in range(300)]
        assert {size.depth for size in drawn} == set(range(1, 10))
        assert {size.width for size in drawn} == set(range(4, 14))


def test_a_step_records_its_size_for_every_emitted_cell() -> None:
    state = Adjacency(RULE)
    state.follow(7, Size(4, 10), 2, Grid(4, 4, start=3))
    assert state.last == Size(4, 10, 0.5)
    assert state.cells == dict.fromkeys((7, 8, 9), state.last)


@pytest.mark.parametrize(("alpha", "share"), [("loops", 2 / 3), ("levels", 2 / 4), ("printed", 3 / 3)])
def test_a_forced_end_of_a_row_counts_neither_as_accepted_nor_as_a_level(alpha: Alpha, share: float) -> None:
    """Rows of three cells and an end. The tree at cell (0, 1) has levels of cells 1 and 2, the end, and two cells."""
    state = Adjacency(replace(RULE, alpha=alpha))
    state.follow(4, Size(4, 10), 3, Grid(4, 3, eol=9, start=3))
    assert state.last is not None and state.last.alpha == pytest.approx(share)
    assert state.cells == dict.fromkeys((4, 5, 6, 7), state.last)


def test_a_tree_whose_only_accepted_draft_is_forced_becomes_shallower() -> None:
    state = Adjacency(RULE)
    state.follow(6, Size(1, 10), 1, Grid(4, 3, eol=9, start=3))
    assert state.last is not None and state.last.alpha == 0.0
