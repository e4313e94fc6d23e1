"""The curve of masked diffusion against its twin, on records that can be counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

from stridebench.harness.record.columns import Record
from stridebench.reports.papers import user_questions
from stridebench.reports.papers.measured import measured
from tests.support.fake_store import GREEDY, FakeStore, empty, meta, record, step
from tests.support.paper_runs import assert_page, run_of

PROMPTS, TOKENS = 8, 16


def records(passes: int, right: int, ms: float) -> list[Record]:
    """``passes`` steps of ``ms`` milliseconds fill 16 tokens; the first ``right`` prompts are solved."""
    one = step(ms=ms, emitted=TOKENS // passes)
    return [
        record(f"p{n}", [one] * passes, scores={"nats": 0.5, "solved": float(n < right)}, prefill_ns=0, completion=10)
        for n in range(PROMPTS)
    ]


def cell(store: FakeStore, name: str, outputs: list[Record], ppl: float, **changes: Any) -> None:
    sets = {"generative_perplexity": (ppl, ppl - 0.1, ppl + 0.1), "distinct_10": (0.9, None, None)}
    sets |= {"distinct_2": (0.25, None, None)}
    set_scores = {
        key: {"value": value, "n": PROMPTS, "failures": 0, "low": low, "high": high, "reason": ""}
        for key, (value, low, high) in sets.items()
    }
    store.add(meta(name, set_scores=set_scores, task="sudoku", **changes), outputs)


@pytest.fixture
def store() -> FakeStore:
    """A masked model at 1, 4 and 16 passes in two orders; its twin at 16 steps of 5 ms, and one of its own methods."""
    store = empty()
    store.body["suite"] = {"name": "masked", "report": "masked"}
    masked_model = {"backbone": "m", "method": "masked_diffusion", "baseline": "m-base", "claim": "APPROXIMATE"}
    plain = {**masked_model, "role": "baseline", "params": {"order": "random", "steps": 0}}
    cell(store, "m-base", records(16, 8, 10), 1.1, **plain)
    for order in ("random", "entropy"):
        for passes, right in ((1, 0), (4, 4), (16, 8)):
            params = {"order": order, "steps": passes, "block": 0, "alg_temp": 0.0}
            facts = {**masked_model, "params": params, "label": f"masked_diffusion order={order} steps={passes}"}
            cell(store, f"{order}-{passes}", records(passes, right, 10), 1 + 1 / passes, **facts)
    twin = {"backbone": "twin", "baseline": "t-base"}
    cell(store, "t-base", records(16, 6, 5), 1.2, **twin, role="baseline", label="autoregressive")
    cell(store, "t-sjd", records(8, 6, 5), 1.2, **twin, method="sjd", params={"window": 8}, label="sjd window=8")
    return store


def test_the_table_equals_the_one_by_hand(store: FakeStore) -> None:
    (sheet,) = user_questions.step_table(run_of(store))
    titles = [column.title for column in sheet.columns]
    assert titles[:4] == ["cell", "passes", "canvas / passes", "completion / steps"]
    assert titles[4:7] == ["speed-up over the twin", "solved", "solved less the twin's"]
    assert titles[7:] == ["perplexity", "distinct-2", "distinct-10"], "by n, not by name"
    rows = {row[0]: dict(zip(titles, row, strict=True)) for row in sheet.rows}
    four, sjd = rows["masked_diffusion order=random steps=4"], rows["twin: sjd window=8"]
    assert four["canvas / passes"] == "4.00" and four["completion / steps"] == "2.50", "16 and 10 tokens in 4 passes"
    assert four["passes"] == "4.0" and four["speed-up over the twin"].startswith("2.00"), "80 ms over 40"
    assert four["solved"].startswith("0.500 [") and four["solved less the twin's"].startswith("-0.250 (n=8)")
    assert four["perplexity"] == "1.250 [1.150, 1.350]" and four["distinct-2"] == "0.250"
    assert sjd["speed-up over the twin"].startswith("2.00") and sjd["solved less the twin's"].startswith("0.000")
    assert list(rows)[-2:] == ["twin: autoregressive", "twin: sjd window=8"] and len(rows) == 9
    assert rows["twin: autoregressive"]["speed-up over the twin"] == "1"
    assert sheet.title.endswith("against twin")


def test_prefill_is_in_the_speed_up_of_whole_outputs(store: FakeStore) -> None:
    with_prefill = empty()
    with_prefill.body["suite"] = {"name": "masked", "report": "masked"}
    for name, stored in store.sealed_cells.items():
        cell_records = store.records[name]
        if name == "t-base":  # 80 ms of steps and as much prefill
            cell_records = [
                record(one.sample.prompt, one.steps, scores=one.sample.scores, prefill_ns=80_000_000)
                for one in cell_records
            ]
        with_prefill.add(stored.facts, cell_records)
    (sheet,) = user_questions.step_table(run_of(with_prefill))
    assert [row[2][:4] for row in sheet.rows if row[0].endswith("order=random steps=4")] == ["4.00"]


def test_settings_without_a_twin_have_no_sheet(store: FakeStore) -> None:
    alone = empty()
    for name, stored in store.sealed_cells.items():
        if not name.startswith("t-"):
            alone.add(stored.facts, store.records[name])
    warm = {**GREEDY, "temperature": 1.0}
    cell(alone, "t-warm", records(16, 8, 5), 1.1, backbone="twin", baseline="t-warm", role="baseline", sampling=warm)
    assert list(user_questions.pairs(measured(alone))) == [], "the twin ran at another temperature"


@pytest.mark.slow
def test_the_page_is_what_it_was(store: FakeStore) -> None:
    assert_page(store, "masked")
