"""ZipAR: the cells of each pass, the number of passes, the cost in total variation, and a whole run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.backbone import Backbone, EncodedPrompt
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, advance, decode
from stridebench.harness.core.method import Mutant
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.resolve import resolve
from stridebench.harness.plan.yaml_lines import Lines
from stridebench.harness.proof.cases import Case
from stridebench.harness.proof.distance import distance, method_law, total_variation
from stridebench.harness.proof.mutants import injected
from stridebench.harness.record.store import Store
from stridebench.harness.run.executors import serial
from stridebench.harness.run.loading import Options
from stridebench.methods.zipar import ZipAR, token_before
from tests.support import toys

PLAIN = Case(2, 6, 31, Sampling(1.0), grid=(2, 3))
CLOSED = Case(3, 8, 32, Sampling(1.0), grid=(2, 3, 2))


class Blank(Cache):
    """All distributions are uniform but for the grammar of a picture; counts the entries of the cache."""

    def __init__(self, model: Tabular, prompt: int) -> None:
        self.model, self.prompt, self.entries, self.most_entries = model, prompt, 0, 0

    def extend(self, window: Window) -> Rows:
        self.entries += len(window.tokens)
        self.most_entries = max(self.most_entries, self.entries)
        assert self.model.grammar is not None
        return Rows(self.model.grammar(window.positions[len(window.tokens) - window.rows :] + 1 - self.prompt))

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        self.entries = length + len(entries)


def drawn(method: ZipAR, grid: Sequence[int], budget: int | None = None, seed: int = 0) -> tuple[Decode, Blank]:
    model = Tabular("tabular", {"vocabulary": 5, "grid": grid, "context": 2500})
    assert model.capabilities.grid is not None
    cache = Blank(model, 2)
    size = model.capabilities.grid.length if budget is None else budget
    models = Models(model, lambda name: model, (0, 1), encoded=EncodedPrompt((0, 1), lambda: cache))
    run = Run.of(models, Sampling(1.0), size, SeededDraws(seed, "t", "p", 0))
    return decode(method, run), cache


def filled(method: ZipAR, grid: Sequence[int]) -> list[list[int]]:
    """Positions of the picture filled by each step, from 0."""
    run = toys.opened(Sampling(1.0), grid[0] * (grid[1] + len(grid[2:])), vocabulary=5, grid=grid)
    state, steps = method.start(run), []
    while run.room:
        places = advance(method, run, state).places
        steps.append([place - 2 for place in places])
    return steps


@cache
def cost(method: ZipAR, case: Case) -> float:
    """Total variation to the target."""
    return distance(method, case)


class TestSchedule:
    def test_rows_grow_side_by_side(self) -> None:
        """3 x 3 without ends of rows, w = 2: row r begins two passes after row r - 1."""
        assert filled(ZipAR(2), (3, 3)) == [[0], [1], [2, 3], [4], [5, 6], [7], [8]]

    def test_an_end_of_line_is_filled_when_the_next_row_begins(self) -> None:
        """2 x 3 and ends, w = 1: place 3 ends the first row, 7 the last; the last end is drawn in its turn."""
        assert filled(ZipAR(1), (2, 3, 4)) == [[0], [1, 3, 4], [2, 5], [6], [7]]

    def test_the_first_row_may_be_finished_alone(self) -> None:
        assert filled(ZipAR(1, first_row_alone=True), (3, 2)) == [[0], [1], [2], [3, 4], [5]]
        assert filled(ZipAR(1, first_row_alone=True), (2, 2, 4)) == [[0], [1], [2], [3], [4], [5]]

    def test_at_the_pictures_width_rows_follow_one_another(self) -> None:
        assert filled(ZipAR(3), (2, 3)) == [[0], [1], [2], [3], [4], [5]]
        assert filled(ZipAR(2), (2, 2, 4)) == [[0], [1], [2, 3], [4], [5]], "an end that is known takes no pass"

    @pytest.mark.parametrize("eol", [(), (4,)], ids=["plain", "closed"])
    @pytest.mark.parametrize(("rows", "columns"), [(1, 4), (5, 6), (3, 1)])
    @pytest.mark.parametrize("alone", [False, True])
    @pytest.mark.usefixtures("unchecked")
    def test_passes_are_as_predicted(self, rows: int, columns: int, eol: tuple[int, ...], alone: bool) -> None:
        for window in {1, 2, columns} - {columns + 1}:
            result, cache = drawn(ZipAR(window, first_row_alone=alone), (rows, columns, *eol))
            row = columns + len(eol)
            more = row + (rows - 2) * window if rows > 1 else 0
            assert len(result.steps) == (row + more if alone else row + (rows - 1) * window)
            assert all(step.nfe == 1 for step in result.steps)
            assert max(step.rows for step in result.steps) <= -(-row // window) + 2
            assert sum(step.emitted for step in result.steps) == len(result.tokens) == rows * row
            assert sum(step.forced for step in result.steps) == rows * len(eol)
            assert cache.most_entries <= 2 + rows * row, "a substitute stays beside the true entry"

    @pytest.mark.parametrize("grid", [(4, 5), (4, 5, 4)], ids=["plain", "closed"])
    def test_an_adaptive_row_begins_between_the_window_and_a_whole_row(self, grid: tuple[int, ...]) -> None:
        row = grid[1] + len(grid[2:])
        counts = {len(drawn(ZipAR(2, "adaptive"), grid, seed=seed)[0].steps) for seed in range(3)}
        assert min(counts) >= row + 3 * 3 and max(counts) <= row + 3 * grid[1]


class TestTokenBefore:
    def test_without_ends_of_line_it_is_the_newest_token_above(self) -> None:
        """3 x 3, w = 1: the newest token of the row above the unfinished one, its own in the first row."""
        run = toys.opened(Sampling(1.0), 9, vocabulary=5, grid=(3, 3))
        grid = run.capabilities.grid
        assert grid is not None
        run.canvas.tokens |= {2: 4, 3: 3, 5: 2}
        assert (token_before(run.canvas, grid, 5), token_before(run.canvas, grid, 8)) == (4 - 1, 3)
        run.canvas.tokens |= {4: 1}
        assert token_before(run.canvas, grid, 8) == 1

    def test_it_is_the_end_of_line_where_rows_have_one(self) -> None:
        run = toys.opened(Sampling(1.0), 8, vocabulary=5, grid=(2, 3, 4))
        assert run.capabilities.grid is not None and token_before(run.canvas, run.capabilities.grid, 6) == 4


@pytest.mark.usefixtures("unchecked")
class TestOutputDistribution:
    @pytest.mark.parametrize("case", [PLAIN, CLOSED], ids=["plain", "closed"])
    @pytest.mark.parametrize("schedule", ["fixed", "adaptive"])
    def test_at_the_pictures_width_it_is_the_targets(self, case: Case, schedule: Any) -> None:
        assert cost(ZipAR(3, schedule), case) < 1e-12

    @pytest.mark.parametrize("case", [PLAIN, CLOSED], ids=["plain", "closed"])
    def test_a_narrower_window_costs_more_and_an_adaptive_one_less(self, case: Case) -> None:
        narrow, wide, adaptive = (cost(ZipAR(*how), case) for how in ((1,), (2,), (1, "adaptive")))
        assert narrow > wide > 1e-3 and narrow > adaptive > 1e-3

    def test_the_first_row_alone_makes_two_rows_exact(self) -> None:
        assert cost(ZipAR(1, first_row_alone=True), PLAIN) < 1e-12

    @pytest.mark.parametrize("window", [1, 2])
    def test_an_adaptive_schedule_with_one_test_is_exact(self, window: int) -> None:
        """At w = columns - 1 the only later k is the whole row, whose distribution the coupled token has."""
        measured = cost(ZipAR(window, "adaptive"), PLAIN)
        assert measured < 1e-12 if window == 2 else measured > 1e-3

    def test_a_token_that_is_not_coupled_to_its_draft_changes_it(self) -> None:
        method = ZipAR(1, "adaptive")
        clean = method_law(method, PLAIN)
        with injected(Mutant("stridebench.methods.zipar:ZipAR._first", "old.q(p.shape[-1], p), p)", "p, p)", "a bug")):
            assert total_variation(method_law(method, PLAIN), clean) > 1e-3


class TestBadInput:
    def test_a_window_wider_than_the_picture_is_refused(self) -> None:
        with pytest.raises(UsageError, match=r"window is 4 and the picture's rows have 3 cells, .*; choose 1 to 3"):
            drawn(ZipAR(4), (2, 3, 4))


def scored(backbone: Backbone, tokens: Sequence[int], prompt: Sequence[int]) -> list[float]:
    """log p of each token, from a cache of its own for every prefix."""
    encoded = backbone.open(Prompt("", tokens=tuple(prompt)))
    out = []
    for at, token in enumerate(tokens):
        ids = torch.tensor([*prompt, *tokens[:at]])
        logits = encoded.cache().extend(Window(ids, torch.arange(len(ids)), 0, None, 1)).logits
        out.append(float(logits.log_softmax(-1)[0, token]))
    return out


def test_a_run_scores_its_tokens_under_the_causal_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "framed.yaml").write_text("adapter: tabular\ngrid: [3, 4, 2]\nlicence: Apache-2.0\nnote: a test\n")
    monkeypatch.setenv("STRIDE_PRESETS", str(tmp_path))
    settings = {
        "methods": [{"name": "zipar", "window": 1}],
        "backbones": ["framed"],
        "tasks": [{"name": "tabular", "limit": 2}],
    }
    plan = expand(
        resolve({**settings, "max_new_tokens": 99, "temperature": [1.0], "prove": False}, Lines("test", None))
    )
    store = Store.create(tmp_path / "run", {**plan.manifest(), "provenance": {}})
    serial(plan, store, Options())
    cell = next(candidate for candidate in map(store.cell, store.cells()) if candidate.meta.label.startswith("zipar"))
    counted = cell.samples[~cell.samples["warmup"].astype(bool)]
    prompts = {prompt.id: prompt.tokens for candidate in plan.prompts.values() for prompt in candidate}
    backbone = presets.load("framed", "fp64")
    assert len(counted) == 2 and set(counted["status"]) == {"ok"}
    for sample in counted.to_dict("records"):
        expected = scored(backbone, sample["tokens"], prompts[sample["prompt"]] or ())
        assert list(sample["logprobs"]) == pytest.approx(expected, abs=1e-9) and len(expected) == 15
        steps = cell.steps[(cell.steps["prompt"] == sample["prompt"]) & ~cell.steps["warmup"].astype(bool)]
        assert (len(steps), int(steps["nfe"].sum()), int(steps["forced"].sum())) == (7, 7, 3)
