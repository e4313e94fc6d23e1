"""The table of requests: identities of an engine's own numbers, and measures on requests countable by hand."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from stridebench.harness.errors import StoreError, UnknownNameError
from stridebench.harness.record.entries import CellMeta, StoredVerdict
from stridebench.harness.record.requests import REQUESTS, Request, identities, measures, per_position, table
from stridebench.harness.record.store import Store

MS = 1_000_000
ONE = Request(
    prompt="a",
    repetition=0,
    warmup=False,
    status="ok",
    tokens=(1, 2, 3, 4, 5),
    output_tokens=5,
    sent_ns=0,
    ended_ns=100 * MS,
    arrivals_ns=(10 * MS, 40 * MS, 90 * MS),
    chunk_tokens=(1, 2, 2),
    draft_steps=2,
    drafted=6,
    accepted=2,
    histogram=(0, 2),
    told_length=2.0,
    told_rate=0.33,
)
TWO = replace(
    ONE,
    prompt="b",
    tokens=(1, 2, 3),
    output_tokens=3,
    sent_ns=100 * MS,
    ended_ns=200 * MS,
    arrivals_ns=(30 * MS, 50 * MS),
    chunk_tokens=(1, 2),
    draft_steps=2,
    drafted=4,
    accepted=1,
    histogram=(1, 1),
    told_length=1.5,
    told_rate=0.25,
)


def test_right_numbers_break_no_identity() -> None:
    assert identities(ONE) == identities(TWO) == []
    assert identities(Request("a", 0, False, "ok")) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accepted": 7, "histogram": None, "told_length": None, "told_rate": None}, "accepted 7 of 6 drafts"),
        ({"accepted": 6, "output_tokens": 5}, "accepted 6 drafts in 5 tokens"),
        ({"draft_steps": 3}, "the histogram holds 2 steps, and there were 3"),
        ({"accepted": 3}, "the histogram holds 2 accepted drafts, and there were 3"),
        ({"told_length": 1.0}, "it says a mean length of 1, and its counts give 2.000"),
        ({"told_rate": 1.2}, "it says an acceptance of 1.2, and its counts give 0.333"),
    ],
)
def test_each_identity_is_checked(changes: dict[str, object], words: str) -> None:
    assert words in identities(replace(ONE, **changes))  # type: ignore[arg-type]


def test_measures_are_those_of_the_definitions() -> None:
    frame = table([ONE, TWO, replace(ONE, prompt="c", warmup=True)]).to_pandas()
    row = measures(frame, {}, {"ttft_ms": 20, "tpot_ms": None})
    assert row["length_per_draft_pooled"] == 1 + 3 / 4 and row["length_per_draft_mean"] == (2.0 + 1.5) / 2
    assert row["length_per_pass_pooled"] == 8 / 5  # 8 tokens, of which 3 were drafts
    assert row["length_per_pass_mean"] == pytest.approx((5 / 3 + 3 / 2) / 2)
    assert row["acceptance"] == 3 / 10
    assert row["ttft_ms_p50"] == 20 and row["tpot_ms_p50"] == (80 / 4 + 20 / 2) / 2
    assert row["itl_ms_p50"] == 30  # of 20, 30 and 50
    assert row["tokens_per_second"] == 8 / 0.2 and row["goodput"] == 1 / 0.2
    assert per_position(frame) == [3 / 4]


def test_what_is_not_told_is_missing() -> None:
    silent = Request("a", 0, False, "ok", output_tokens=4, ended_ns=100 * MS)
    row = measures(table([silent]).to_pandas(), {}, {})
    assert row["tokens_per_second"] == 40
    others = set(row) - {"tokens_per_second", "requests_per_second"}
    assert {name for name in others if row[name] is not None} == set()
    assert per_position(table([silent]).to_pandas()) == []


def test_counters_stand_in_for_what_requests_do_not_tell() -> None:
    told = replace(ONE, draft_steps=None, histogram=None)
    row = measures(table([told]).to_pandas(), {"draft_steps": 2.0, "accepted": 9.0}, {})
    assert row["length_per_draft_pooled"] == 2.0 and row["acceptance"] == 2 / 6


def test_times_of_two_sessions_are_not_compared() -> None:
    later = replace(TWO, session=1, sent_ns=0, ended_ns=100 * MS)
    row = measures(table([ONE, later]).to_pandas(), {}, {})
    assert row["tokens_per_second"] == 8 / 0.2


def test_a_request_comes_back_from_its_file_and_from_its_table(tmp_path: Path) -> None:
    assert Request.of(asdict(ONE)) == ONE
    planned = CellMeta(status="done", label="x", backbone="b", dtype="fp32", task="t")
    store = Store.create(tmp_path, {"key": {}, "cells": {}, "engines": {"cell": planned.stored()}})
    for request in (TWO, ONE):
        store.write_request("cell", request)
    assert store.requests("cell") == [ONE, TWO]
    store.seal("cell", planned)
    cell = store.cell("cell")
    assert cell.requests["prompt"].tolist() == ["a", "b"] and cell.meta.label == "x"
    assert list(cell.requests) == REQUESTS.names
    with pytest.raises(StoreError, match="sealed"):
        store.write_request("cell", ONE)
    with pytest.raises(UnknownNameError):
        store.sealed("other")
    store.update("cell", CellMeta(verdict=StoredVerdict(verdict="same tokens")))
    assert store.cell("cell").meta.verdict == StoredVerdict(verdict="same tokens")


def test_a_damaged_request_is_set_aside_and_made_again(tmp_path: Path) -> None:
    store = Store.create(tmp_path, {"key": {}, "cells": {}, "engines": {"cell": {}}})
    store.write_request("cell", ONE)
    (file,) = (tmp_path / "requests" / "cell").glob("*.json")
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="not a store's file"):
        assert store.requests("cell") == []
