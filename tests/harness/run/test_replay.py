"""Stored texts: drafters scored along them, what makes a cell unreplayable, and settings weighed along them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.models import Models
from stridebench.harness.core.sampling import warp
from stridebench.harness.core.task import Prompt
from stridebench.harness.plan import presets
from stridebench.harness.plan.cells import Cell
from stridebench.harness.record.store import Store
from stridebench.harness.run.loading import Options
from stridebench.harness.run.replay import Text, foresee, replay, replay_text, unreplayable
from stridebench.methods.prompt_lookup import PromptLookup
from stridebench.methods.speculative import Speculative
from stridebench.methods.zipar import ZipAR
from tests.support.cli import refused, stride
from tests.support.runs import finished, plan_of
from tests.support.shape_checks import without_shape_checks

TOKENS = (1, 0, 2, 2, 1, 0)


def method(drafter: str) -> dict[str, Any]:
    return {"name": "speculative", "drafter": drafter, "gamma": 3}


def cell_of(drafter: str) -> Cell:
    plan = plan_of(methods=[method(drafter)], temperature=[1.0])
    return next(cell for cell in plan.cells if cell.role == "method")


def models_of(cell: Cell, prompt: Prompt) -> Models:
    backbone = presets.load(*cell.group, "cpu", False)
    return Models(backbone, partial(presets.drafter, backbone), prompt)


def text(cell: Cell) -> tuple[Prompt, Text]:
    prompt = cell.task.task.prompts()[0]
    return prompt, Text(prompt.id, 0, TOKENS)


def test_the_target_as_its_own_drafter_is_accepted_everywhere() -> None:
    cell = cell_of("self")
    prompt, one = text(cell)
    assert replay_text(cell, models_of(cell, prompt), one) == pytest.approx([1.0] * len(TOKENS))


def test_a_position_is_valued_by_what_both_distributions_share() -> None:
    """Against sessions that read each prefix of the text anew."""
    cell = cell_of("self:layers=1")
    prompt, one = text(cell)
    shared = []
    for place in range(len(TOKENS)):
        models = models_of(cell, prompt)
        rows = []
        for session in (models.target(), models.drafter("self:layers=1", 1)):
            session.append(torch.tensor(TOKENS[:place], dtype=torch.long))
            rows.append(warp(session.forward(Draft(torch.empty(0, dtype=torch.long))), cell.sampling)[0])
        shared.append(float(torch.minimum(*rows).sum()))
    assert min(shared) < 0.9
    assert replay_text(cell, models_of(cell, prompt), one) == pytest.approx(shared)


def test_a_cell_is_replayed_the_same_each_time_and_an_unknown_one_is_an_error() -> None:
    plan = plan_of(methods=[method("self:layers=1")], temperature=[1.0])
    cell = next(cell for cell in plan.cells if cell.role == "method")
    texts = {cell.id: [text(cell)[1]], "gone": [text(cell)[1]]}
    first, second = (replay(plan.suite.suite.model_dump(), texts, Options()) for _ in range(2))
    assert first == second and first["gone"].error == "the suite has no such cell any more"
    (row,) = first[cell.id].rows
    assert row[:3] == ("tabular/0", 0, len(TOKENS)) and 0 < row[3] < len(TOKENS)
    lost = replay(plan.suite.suite.model_dump(), {cell.id: [Text("no such prompt", 0, TOKENS)]}, Options())
    assert "no prompt 'no such prompt'" in str(lost[cell.id].error)


def test_methods_whose_drafts_do_not_follow_from_the_text_are_left_out() -> None:
    assert unreplayable(Speculative()) is None
    assert "neither a drafter" in str(unreplayable(PromptLookup()))
    assert "another order" in str(unreplayable(ZipAR()))


def test_settings_are_weighed_along_the_texts_of_the_baseline(tmp_path: Path) -> None:
    """At T = 0 the steps of a setting that ran are those that it took, output by output."""
    path, small = tmp_path / "run", {"tasks": [{"name": "tabular", "limit": 2}], "max_new_tokens": 4}
    cells = finished(path, methods=[method("toy")], temperature=[0.0, 1.0], **small)
    with without_shape_checks():
        settings = foresee(Store.open(path), Options())
        shown, rows = stride("report", path, "--what-if"), stride("report", path, "--what-if", "--json").document
    ran = cells["speculative drafter=toy gamma=3 T=0"]
    (same,) = (one for one in settings if one.cell == ran.name and one.label == ran.meta.label)
    steps = ran.steps[~ran.steps["warmup"].astype(bool)].groupby(["prompt", "repetition"]).size()
    assert {key: one.steps for key, one in same.outputs.items()} == pytest.approx(steps.to_dict())
    assert shown.code == 0 and shown.out.count("along the texts of the baseline") == 2
    assert len(rows) == len(settings) and {row["cell"] for row in rows} == {one.cell for one in settings}
    assert "speculative drafter=toy gamma=8 verifier=block policy=conf:0.4" in {row["setting"] for row in rows}
    for row in rows:
        assert 1 <= row["tau"] <= 1 + row["drafted"]
        assert row["ms_per_token"] is None or row["regret"] >= 0 or not row["fixed"]


def test_a_run_without_a_drafter_has_nothing_to_weigh(tmp_path: Path) -> None:
    finished(tmp_path / "run", methods=["jacobi"], temperature=[0.0])
    assert "no finished cell of a method that can be weighed" in refused("report", tmp_path / "run", "--what-if")
    assert "different outputs; ask for one" in refused("report", tmp_path / "run", "--what-if", "--plots")
    assert "--what-if writes no files" in refused("report", tmp_path / "run", "--what-if", "--out", tmp_path / "x")
