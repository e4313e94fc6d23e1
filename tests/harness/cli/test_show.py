"""Which cell `stride show` takes, and how it shows a prompt."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stridebench.harness.audit.bets import bet
from stridebench.harness.audit.verdict import audit
from stridebench.harness.cli import report
from stridebench.harness.cli.report import NO_BETS, evidence_of
from stridebench.harness.cli.show import headline, show_prompt
from stridebench.harness.errors import UnknownNameError, UsageError
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.run_folders import match_name, match_prompt
from stridebench.harness.run.auditing import audit_facts
from stridebench.reports.html.figures import Chart
from tests.support import page_runs
from tests.support.fake_store import empty, meta, record, step
from tests.support.samplers import drawn, simulated

IDS = (
    "prompt_lookup.smollm2-135m.bf16.T0.humaneval-d77e43b4",
    "prompt_lookup.smollm2-135m.bf16.T1.humaneval-ea123c43",
    "sjd-window=8.smollm2-135m.bf16.T1.humaneval-b1a10185",
    "sjdpp-window=8.smollm2-135m.bf16.T1.humaneval-361cce7b",
    "sjdpp-window=8-reuse=M.smollm2-135m.bf16.T1.humaneval-3dd2765a",
)


@pytest.mark.parametrize(
    ("text", "index"),
    [
        (IDS[3], 3),
        ("prompt_lookup.T1", 1),
        ("reuse=M", 4),
        ("d77e", 0),
        ("sjdpp-window=8", 3),
        ("sjdpp window=8 reuse=M", 4),
        ("sjd window=8 T=1", 2),
    ],
)
def test_parts_that_one_cell_has_name_it(text: str, index: int) -> None:
    assert match_name(IDS, text) == IDS[index]


def test_what_names_no_cell_or_several_lists_them() -> None:
    with pytest.raises(UsageError, match=r"'prompt_lookup' fits 2 cells; write more of one's id:\n  prompt_lookup.*T0"):
        match_name(IDS, "prompt_lookup")
    with pytest.raises(UnknownNameError, match="there is no cell 'medusa'"):
        match_name(IDS, "medusa")


def test_a_label_that_others_begin_with_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    dotted = ["sjdpp-tau=0-25.image.fp32.T1.scenes-98ff", "sjdpp-tau=0-75.image.fp32.T1.scenes-0003"]
    assert match_name(dotted, "sjdpp tau=0.25") == dotted[0]
    settings = ("-window=2", "", "-window=3")
    ids = [f"zipar{setting}.embedded-image.fp32.T1.scenes-{number}" for number, setting in enumerate(settings)]
    assert match_name(ids, "zipar") == ids[1]
    assert capsys.readouterr().err == f"'zipar' is {ids[1]}; its other settings: zipar-window=2, zipar-window=3\n"
    assert match_name(ids, "zipar window=3") == ids[2] and capsys.readouterr().err == ""


def test_a_cell_begins_with_its_verdict_speed_up_and_e_value() -> None:
    figures = {
        "speedup": 1.291,
        "speedup_low": 1.1,
        "speedup_high": 1.42,
        "audit_log_e": -0.7,
        "audit_visible_tv": 0.13,
    }
    assert headline({"verdict": "exact", "total_variation": 0.0, "audit_visible_tv": 0.13, **figures}) == (
        "exact, speed-up 1.29 [1.10, 1.42], e (visible TV) 0.5 (0.130)"
    )
    assert headline({"verdict": "approximate", "total_variation": 0.2}) == "approximate (TV 0.2)"


STEP = {"prompt": "a/1", "repetition": 0, "warmup": False, "wall_ns": 2_000_000, "forced": 0}


def cell_of(**columns: Any) -> SealedCell:
    sample = {"prompt": "a/1", "repetition": 0, "warmup": False, "status": "ok", "error": None, "tokens": [1, 2, 3]}
    steps = [
        {**STEP, "step": 0, "drafted": 2, "tested": 2, "accepted": 1, "emitted": 2},
        {**STEP, "step": 1, "drafted": 0, "tested": 0, "accepted": 0, "emitted": 1},
    ]
    samples = pd.DataFrame([{**sample, "text": "one two", **columns}])
    return SealedCell("c", CellMeta(), samples, pd.DataFrame(steps), pd.DataFrame())


PROMPTS = ["HumanEval/1", "HumanEval/11", "HumanEval/2"]


def test_a_prompt_may_be_the_end_of_its_id_and_what_fits_none_or_several_lists_them() -> None:
    for text, prompt in (("HumanEval/1", 0), ("11", 1), ("1", 0), ("2", 2)):
        assert match_prompt(PROMPTS, text) == PROMPTS[prompt]
    with pytest.raises(UsageError, match=r"'Hum' fits 3 prompts; write more of one's id:\n  HumanEval/1\n"):
        match_prompt(PROMPTS, "Hum")
    for text in ("3", "umanEval/1", "Human/2"):
        with pytest.raises(UnknownNameError, match="there is no prompt of this cell"):
            match_prompt(PROMPTS, text)


def test_a_prompt_is_shown_with_its_output_by_origin_and_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    show_prompt(cell_of(prompt_text="count \x1b[2J", pieces=["one", " t", "wo"]), "a/1", as_json=False)
    text = capsys.readouterr().out
    assert "prompt\ncount \\x1b[2J\n" in text and "one two\n" in text
    for line in ("accepted 1: drafted, and accepted", "corrected 1: drawn in the place", "decoded 1: drawn without"):
        assert line in text
    assert re.search(r"0 .* 2 .* 2 .* 1 .* 2 .* 0 .* 2\.0 .* one t ", text)


def test_tokens_are_coloured_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    show_prompt(cell_of(prompt_text="x", pieces=["one", " t", "wo"]), "a/1", as_json=False)
    assert "\x1b[32mone\x1b[0m\x1b[31m t\x1b[0m" in capsys.readouterr().out


def test_a_run_without_texts_of_tokens_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    show_prompt(cell_of(), "a/1", as_json=False)
    text = capsys.readouterr().out
    assert "the run does not hold it" in text and "one two" in text
    assert "holds no text of single tokens" in " ".join(text.split())


def test_tokens_of_a_picture_are_blocks_by_origin(capsys: pytest.CaptureFixture[str]) -> None:
    show_prompt(cell_of(text="", output="outputs/a.png"), "a/1", as_json=False)
    text = capsys.readouterr().out
    assert "outputs/a.png, a block a token:\n\N{BLACK SQUARE}\N{BLACK SQUARE}\N{BLACK SQUARE}\n" in text
    assert "accepted 1: drafted, and accepted" in text and "of single tokens" not in text


def audited(folder: Path, outputs: int, **changes: Any) -> tuple[SealedCell, float]:
    """A stored cell at T = 1 with the bets on each output, and the e-value of its audit."""
    outcomes = simulated(3, 20)
    row, none = np.arange(3), np.zeros(3, dtype=np.int64)
    places = [drawn(outcomes.p, 1, seed)[0] for seed in range(outputs)]
    bets = [bet(outcomes, outcomes.ids[row, at], none, outcomes.p[row, at]) for at in places]
    records = [record(f"p{i:03d}", [step(1, 2)], audit=one.plain()) for i, one in enumerate(bets)]
    result = audit(bets)
    fake = empty().add(meta("ar", role="baseline", **{**audit_facts(result).stored(), **changes}), records)
    return page_runs.stored(fake, folder).cell("ar"), result.log_e


def test_the_curve_begins_at_one_and_ends_at_the_audit(tmp_path: Path) -> None:
    cell, log_e = audited(tmp_path / "run", 4)
    chart = evidence_of(cell)
    assert isinstance(chart, Chart)
    [curve] = chart.spec["data"]
    assert curve["x"] == [0, 3, 6, 9, 12] and curve["y"][0] == 0
    assert curve["y"][-1] == pytest.approx(log_e / np.log(10), abs=1e-3)


def test_a_long_curve_is_thinned_and_keeps_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "POINTS", 10)
    chart = evidence_of(audited(tmp_path / "run", 21)[0])
    assert isinstance(chart, Chart) and chart.spec["data"][0]["x"][-1] == 3 * 21
    assert 10 <= len(chart.rows) <= 12


def test_what_is_missing_for_a_curve_is_said(tmp_path: Path) -> None:
    records = [record("p0", [step(1, 2)])]
    fake = empty().add(meta("ar", role="baseline", audit_log_e=0.3), records).add(meta("other"), records)
    store = page_runs.stored(fake, tmp_path / "run")
    assert evidence_of(store.cell("ar")) == NO_BETS and evidence_of(store.cell("other")) is None
