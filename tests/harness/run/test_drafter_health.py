"""Some drafts of a run are made again by a drafter that has read nothing else; one that reads stale rows shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stridebench.harness.core.draft import Acceptance
from stridebench.harness.core.method import Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.proof.mutants import injected
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.store import Store
from stridebench.harness.registry import METHODS
from stridebench.harness.run.auditing import OTHER_ORDER, uncheckable
from stridebench.methods.drafters.draft_model import ModelDrafter
from stridebench.methods.speculative import Speculative
from stridebench.reports.summary import summarise
from tests.support.one_by_one import register
from tests.support.runs import finished

DRAFTERS = ({"name": "speculative", "drafter": "toy"}, {"name": "specinfer", "drafter": "toy"}, "eagle1", "eagle2")
SIZES: dict[str, Any] = {"max_new_tokens": 16, "temperature": [1.0], "warmup": 0}
STALE = Mutant(
    "stridebench.harness.core.session:Session._extend",
    "self._cache.keep(start)",
    'self._cache.keep(start + (self.kind == "draft"))',
    "a drafter's cache keeps the first row behind its rollback",
)


def drafter_of(cell: SealedCell) -> dict[str, Any]:
    return {name: value for name, value in cell.meta.stored().items() if name.startswith("drafter_")}


def cells_of(path: Path, methods: Sequence[Any], **words: Any) -> dict[str, dict[str, Any]]:
    cells = finished(path / "run", methods=list(methods), **{**SIZES, **words})
    return {cell.meta.method: drafter_of(cell) for cell in cells.values()}


@pytest.mark.slow
def test_correct_drafters_draft_the_same_anew(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, DRAFTERS)
    for method in ("speculative", "specinfer", "eagle1", "eagle2"):
        facts = cells[method]
        assert facts["drafter_tv"] <= 1e-12 and facts["drafter_places"] >= 5
        assert facts["drafter_acceptance"] == facts["drafter_acceptance_anew"] and "drafter_reason" not in facts


def test_a_drafter_with_a_stale_cache_is_named_with_what_it_costs(tmp_path: Path) -> None:
    with injected(STALE):
        cells = cells_of(tmp_path, DRAFTERS[::2])
    for method in ("speculative", "eagle1"):
        facts = cells[method]
        assert facts["drafter_tv"] > 10 * facts["drafter_tv_limit"]
        assert facts["drafter_acceptance"] != facts["drafter_acceptance_anew"]
    flags = summarise(Store.open(tmp_path / "run")).set_index("method").loc["speculative", "flags"]
    assert "drafts unlike one that reads the same text anew: total variation" in flags


def test_a_stale_drafter_shows_at_temperature_zero(tmp_path: Path) -> None:
    with injected(STALE):
        facts = cells_of(tmp_path, DRAFTERS[:1], temperature=[0.0], max_new_tokens=24)["speculative"]
    assert facts["drafter_tv"] > facts["drafter_tv_limit"]


def test_a_row_of_a_batch_is_checked_as_a_decode_of_its_own(tmp_path: Path) -> None:
    alone = cells_of(tmp_path / "alone", DRAFTERS[:1])["speculative"]
    batched = cells_of(tmp_path / "batched", DRAFTERS[:1], batch=3)["speculative"]
    fingerprint = {"drafter_fingerprint"}
    assert {key: alone[key] for key in alone.keys() - fingerprint} == pytest.approx(
        {key: batched[key] for key in batched.keys() - fingerprint}
    )


def test_methods_without_a_drafter_say_why_they_are_not_checked(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, ["sjd", "prompt_lookup", "autoregressive"])
    for method in ("sjd", "prompt_lookup"):
        assert "not from a drafter" in cells[method]["drafter_reason"] and "drafter_tv" not in cells[method]
    assert set(cells["autoregressive"]) <= {"drafter_fingerprint"}


def test_a_canvas_says_why_it_is_not_checked() -> None:
    cell = SimpleNamespace(method=METHODS.get("zipar")())
    assert uncheckable(cell, SimpleNamespace(opened={})) == OTHER_ORDER  # type: ignore[arg-type]


class FailsAnew(Speculative):
    """Fails in a decode that begins behind an output."""

    def step(self, run: Run, state: ModelDrafter) -> Acceptance:
        if len(run.target) > 6 and not run.emitted:
            raise ValueError("not where I began")
        return super().step(run, state)


def test_a_method_that_fails_there_keeps_its_sample_and_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, METHODS, "fails_anew", FailsAnew)
    cells = finished(tmp_path / "run", methods=[{"name": "fails_anew", "drafter": "toy"}], isolation="none", **SIZES)
    cell = next(cell for cell in cells.values() if cell.meta.method == "fails_anew")
    assert "not where I began" in cell.meta.drafter_reason and set(cell.samples["status"]) == {"ok"}


def test_only_the_first_decode_of_the_first_prompts_is_checked(tmp_path: Path) -> None:
    words = {**SIZES, "tasks": [{"name": "tabular", "prompts_count": 4}], "repetitions": 2}
    cells = finished(tmp_path / "run", methods=list(DRAFTERS[:1]), **words)
    (cell,) = [cell for cell in cells.values() if cell.meta.method == "speculative"]
    checked = [json.loads(text) != {} for text in cell.samples.sort_values(["repetition", "prompt"])["drafter"]]
    assert sum(checked) == 3 and not any(checked[4:])
