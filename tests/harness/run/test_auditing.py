"""Every run at T > 0 bets against its cells, and a bias that no enumeration reaches is broken all the same."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stridebench.harness.core.method import Claim, Mutant
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.proof.mutants import injected
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.store import Store
from stridebench.harness.registry import ALTERNATIVES, METHODS
from stridebench.harness.run.auditing import OTHER_RULE, audit_cell, draws_by_other_rule
from stridebench.methods.mulo_sd import MuLoSD
from stridebench.methods.sjdpp import SJDPlusPlus
from stridebench.methods.zipar import ZipAR
from tests.support.cli import stride
from tests.support.faulty_methods import BiasedLate, CopiesLate, ReadsAnotherPrompt
from tests.support.one_by_one import register
from tests.support.runs import by_label, finished, in_parts, plan_of, start

SIZES = {"tasks": [{"name": "tabular", "prompts_count": 10}], "max_new_tokens": 24, "temperature": [1.0], "warmup": 0}


class BiasedByDesign(BiasedLate):
    claim = Claim.APPROXIMATE


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SealedCell]:
    with pytest.MonkeyPatch.context() as patch:
        register(patch, METHODS, "biased_late", BiasedLate)
        register(patch, METHODS, "biased_by_design", BiasedByDesign)
        methods = ["sjd", "speculative", "biased_late", "biased_by_design"]
        return finished(tmp_path_factory.mktemp("audited") / "run", methods=methods, **SIZES)


def test_every_cell_has_its_e_value_and_says_what_it_would_have_seen(cells: dict[str, SealedCell]) -> None:
    for cell in cells.values():
        assert cell.meta.audit_tokens == 240 and math.isfinite(cell.meta.audit_log_e)
        assert {"audit_best", "audit_visible_tv", "audit_near_cut", "audit_impossible"} <= cell.meta.model_fields_set
        assert cell.meta.audit_threshold == 5000.0


def test_correct_cells_stay_low(cells: dict[str, SealedCell]) -> None:
    for label in ("autoregressive T=1", "autoregressive (other seeds) T=1", "sjd T=1", "speculative T=1"):
        assert cells[label].meta.audit_log_e < math.log(20)
        assert cells[label].meta.verdict.word != "broken"


def test_a_biased_cell_is_broken_whatever_was_enumerated(cells: dict[str, SealedCell]) -> None:
    verdict = cells["biased_late T=1"].meta.verdict
    assert verdict.word == "broken" and verdict.note.startswith("audit: e = 1e")
    assert "once in 5000 cells" in verdict.note  # 1000 for each of five that claim the target's distribution


def test_tokens_of_a_canvas_that_no_pass_saw_break_the_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, METHODS, "copies_late", CopiesLate)
    meta = finished(tmp_path / "run", methods=["copies_late"], **SIZES)["copies_late T=1"].meta
    assert meta.audit_impossible == 60 and meta.audit_tokens == 180  # six of 24 in each of ten outputs
    assert meta.verdict.word == "broken" and "before a pass gave their" in meta.verdict.note


def test_a_cell_that_claims_no_such_thing_is_not_broken_by_its_audit(cells: dict[str, SealedCell]) -> None:
    meta = cells["biased_by_design T=1"].meta
    assert meta.audit_log_e > math.log(1000) and meta.verdict.word != "broken"


def test_an_approximate_method_is_not_audited_by_its_own_passes() -> None:
    """Its passes read an unfinished picture, so bets on them would confirm its rule and not the target's."""
    sample = SimpleNamespace(status="ok", warmup=False, tokens=(1,), logprobs=(-1.0,), audit={"gains": []})
    for method in (ZipAR(window=2), MuLoSD()):
        cell: Any = SimpleNamespace(method=method, sampling=Sampling(1.0))
        assert audit_cell(None, cell, [sample]) == OTHER_RULE  # type: ignore[arg-type, list-item]
    assert not draws_by_other_rule(MuLoSD(tau=math.inf)) and not draws_by_other_rule(SJDPlusPlus(reuse="paper"))


def test_bets_with_a_drafter_use_its_distribution(cells: dict[str, SealedCell]) -> None:
    bets = {label: json.loads(cell.samples["audit"].iloc[0]) for label, cell in cells.items() if len(cell.samples)}
    assert (
        "draft at token 2 of a step" in bets["speculative T=1"]["placed"] and not bets["autoregressive T=1"]["placed"]
    )
    assert "no residual" in bets["speculative T=1"]["names"] and "no residual" not in bets["sjd T=1"]["names"]
    assert len(bets["speculative T=1"]["tilts"][0]) == 1 + len(bets["sjd T=1"]["tilts"][0])


def test_greedy_cells_are_not_audited(tmp_path: Path) -> None:
    cell = finished(tmp_path / "run", methods=["sjd"], temperature=[0.0])["sjd T=0"]
    assert not any(key.startswith("audit") for key in cell.meta.model_fields_set) and set(cell.samples["audit"]) == {
        "{}"
    }


def test_a_masked_model_says_why_it_has_no_audit(tmp_path: Path) -> None:
    words = {"backbones": ["masked-tabular"], "methods": ["masked_diffusion"], "temperature": [1.0]}
    for cell in finished(tmp_path / "run", **words).values():
        assert "no distribution of a next token" in cell.meta.audit_reason
        assert cell.meta.audit_log_e is None


def test_an_alternative_that_fails_leaves_the_sample_and_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(outcomes: object) -> None:
        raise ValueError("no such bias")

    register(monkeypatch, ALTERNATIVES, "fails", fails)  # type: ignore[arg-type]
    cell = finished(tmp_path / "run", temperature=[1.0], methods=["sjd"])["sjd T=1"]
    assert "no such bias" in cell.meta.audit_reason and set(cell.samples["status"]) == {"ok"}


COLDER = Mutant(
    "stridebench.harness.core.run:Run.probs",
    "return warp(logits, self.sampling)",
    "return warp(2 * logits, self.sampling)",
    "T / 2",
)
EXACT_CANVAS = {"name": "mulo_sd", "tau": math.inf}
PICTURES = {
    "backbones": ["embedded-image"],
    "tasks": [{"name": "emoji_scenes", "limit": 2, "size": 32}],
    "max_new_tokens": 72,
}
KINDS = [
    pytest.param({**SIZES, "methods": ["sjd"], "batch": 4}, id="batch"),
    pytest.param({**SIZES, "methods": ["cross_regression"]}, id="gated rows"),
    pytest.param({**SIZES, **PICTURES, "methods": ["sjd"]}, id="guided passes", marks=pytest.mark.audit),
    pytest.param({**SIZES, **PICTURES, "methods": [EXACT_CANVAS]}, id="canvas", marks=pytest.mark.audit),
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_cell_is_audited(tmp_path: Path, kind: dict[str, Any]) -> None:
    def log_e(path: Path) -> float:
        cells = finished(path, **kind)
        (cell,) = [cell for cell in cells.values() if cell.meta.role == "method"]
        assert cell.meta.audit_tokens >= 120
        return float(cell.meta.audit_log_e)

    assert log_e(tmp_path / "right") < math.log(20)
    with injected(COLDER):
        assert log_e(tmp_path / "colder") > math.log(1000 * 5)


@pytest.mark.slow
def test_a_worker_process_and_a_batch_bet_the_same(tmp_path: Path) -> None:
    sizes = {"methods": ["sjd"], "temperature": [1.0], "max_new_tokens": 4, "warmup": 0}
    alone = finished(tmp_path / "alone", **sizes)["sjd T=1"]
    isolated = finished(tmp_path / "isolated", **sizes, isolation="process")["sjd T=1"]
    batched = finished(tmp_path / "batched", **sizes, batch=4)["sjd T=1"]
    for cell in (isolated, batched):
        assert cell.meta.audit_log_e == pytest.approx(alone.meta.audit_log_e, abs=1e-9)


def test_a_run_in_parts_has_the_e_values_of_one_that_was_not_stopped(tmp_path: Path) -> None:
    plan = plan_of(methods=["speculative"], temperature=[1.0])
    stopped = start(tmp_path / "parts", plan)
    in_parts(plan, stopped, (3, 4))
    whole = finished(tmp_path / "whole", methods=["speculative"], temperature=[1.0])
    for label, cell in by_label(Store.open(tmp_path / "parts")).items():
        assert cell.meta.audit_log_e == whole[label].meta.audit_log_e


def test_what_a_method_leaves_in_its_cache_is_in_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probabilities and bets come from a new cache, so they are those that `stride audit` computes from nothing."""
    register(monkeypatch, METHODS, "reads_another_prompt", ReadsAnotherPrompt)
    words = ("--method", "reads_another_prompt", "--backbone", "embedded-digits-l")
    words += ("--task", "{name: digits, limit: 2}")
    more = ("--max-new-tokens", 12, "-t", 1, "--set", "warmup=0", "--set", "timing=false", "--set", "prove=false")
    assert stride("run", *words, *more, "--out", tmp_path / "run").code == 0
    cell = by_label(Store.open(tmp_path / "run"))["reads_another_prompt T=1"]
    rows = stride("audit", tmp_path / "run", "--json").document["cells"]
    (e_value,) = (row["e_value"] for row in rows if row["label"] == "reads_another_prompt")
    assert math.log(e_value) == pytest.approx(cell.meta.audit_log_e, abs=1e-4)
