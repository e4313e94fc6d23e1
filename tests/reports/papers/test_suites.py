"""Reports of suites of questions: by prompt length, and by the format of the target's weights."""

from __future__ import annotations

from pathlib import Path

from stridebench.reports.papers import report
from tests.support.fake_store import FakeStore, empty, meta, record, step
from tests.support.paper_runs import run_of

PROMPTS = 6


def add(store: FakeStore, name: str, accepted: int, ms: float, length: int, **changes: object) -> None:
    outputs = [record(f"p{n}", [step(accepted, 3, ms=ms)] * 4, prompt_tokens=length) for n in range(PROMPTS)]
    outputs += [record("p0", [step(accepted, 3, ms=ms)], prompt_tokens=7, warmup=True)] * (PROMPTS + 1)
    store.add(meta(name, **changes), outputs)


def lengths() -> FakeStore:
    store = empty()
    store.body["suite"] = {"name": "context", "report": "context"}
    for length, accepted in ((256, 3), (4096, 1)):
        task = f"long_context length={length}"
        add(store, f"ar-{length}", 0, 10, length, task=task, role="baseline", baseline=f"ar-{length}")
        method = {"label": "lookup", "method": "prompt_lookup", "baseline": f"ar-{length}"}
        add(store, f"lookup-{length}", accepted, 20, length, task=task, **method)
    return store


def test_a_method_has_a_row_for_each_prompt_length(tmp_path: Path) -> None:
    (sheet,) = [sheet for _, _, sheet in report.PaperReport.of(run_of(lengths()).store).sheets]
    assert [row[:2] for row in sheet.rows] == [["lookup", "256"], ["lookup", "4096"]]
    assert [row[3].split()[0] for row in sheet.rows] == ["4.00", "2.00"]
    assert [row[4].split()[0] for row in sheet.rows] == ["2.00", "1.00"]
    written = report.write(run_of(lengths()).store, tmp_path)
    assert {path.name for path in written} >= {"papers-prompt-lengths.png", "papers-prompt_lengths.csv"}


def formats() -> FakeStore:
    store = empty()
    store.body["suite"] = {"name": "quantized", "report": "quantized"}
    for form, accepted in (("", 3), (":weights=int4", 2)):
        backbone, cost = f"m{form}", {"quantisation_kl": 0.05, "quantisation_agreement": 0.9} if form else {}
        add(store, f"ar{form}", 0, 10, 7, backbone=backbone, role="baseline", baseline=f"ar{form}", label="ar", **cost)
        method = {"label": "lookup", "method": "prompt_lookup", "baseline": f"ar{form}", **cost}
        add(store, f"lookup{form}", accepted, 20, 7, backbone=backbone, **method)
    return store


def test_a_method_has_a_row_for_each_format_beside_what_rounding_costs(tmp_path: Path) -> None:
    (sheet,) = [sheet for _, _, sheet in report.PaperReport.of(run_of(formats()).store).sheets]
    rows = {(row[0], row[1]): row for row in sheet.rows}
    assert set(rows) == {("ar", "bf16"), ("ar", "int4"), ("lookup", "bf16"), ("lookup", "int4")}
    assert rows["lookup", "int4"][4].split()[0] == "3.00"
    assert rows["lookup", "int4"][5].split()[0] == "1.50"
    assert rows["lookup", "int4"][6:8] == ["0.0500", "0.900"] and rows["lookup", "bf16"][6] == "-"
    assert {path.name for path in report.write(run_of(formats()).store, tmp_path)} >= {"papers-weight-formats.png"}
