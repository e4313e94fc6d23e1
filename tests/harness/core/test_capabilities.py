"""A picture's cells, its forced tokens, and how they are counted."""

import pytest

from stridebench.harness.core.capabilities import Grid


def test_cells_in_raster_order_behind_the_prompt():
    grid = Grid(2, 3, start=5)
    assert [grid.cell(p) for p in range(4, 12)] == [None, (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), None]
    assert grid.length == 6 and all(grid.forced(p) is None for p in range(20))


def test_ends_of_rows_and_of_the_picture_are_forced():
    grid = Grid(2, 2, eol=9, tail=(7, 8), start=1)
    assert [grid.forced(p) for p in range(0, 10)] == [None, None, None, 9, None, None, 9, 7, 8, None]
    assert [grid.cell(p) for p in range(1, 9)] == [(0, 0), (0, 1), None, (1, 0), (1, 1), None, None, None]
    assert grid.length == 8


@pytest.mark.parametrize("grid", [Grid(3, 4), Grid(3, 4, eol=1), Grid(3, 4, eol=1, tail=(2,))], ids=str)
def test_every_token_is_a_cell_or_forced(grid):
    cells = [grid.cell(p) for p in range(grid.length) if grid.forced(p) is None]
    assert cells == [(r, c) for r in range(3) for c in range(4)]
