"""Run folders that hold unexpected things: one message, exit code 2, from every command that reads them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stridebench.harness.errors import StoreError
from stridebench.harness.record import rows
from stridebench.harness.record.files import encode
from stridebench.harness.record.store import Store
from tests.support.cli import refused, stride

Change = Callable[[Path], Any]
Rows = list[dict[str, Any]]
MANIFEST, SAMPLES, STEPS = "../../manifest.json", "samples.parquet", "steps.parquet"


WORDS = (
    *("--method", "sjd", "--backbone", "tabular", "--task", "{name: tabular, limit: 2}", "-t", 0),
    *("--max-new-tokens", 4, "--set", "prove=false", "--json"),
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "run"
    assert stride("run", *WORDS, "--out", folder).code == 0
    return folder


@pytest.fixture(scope="module")
def baseline(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The counts of the sound run."""
    file = tmp_path_factory.mktemp("baseline") / "baseline.json"
    assert stride("gate", "make", sound, "--out", file).code == 0
    return file


def loop(name: str) -> Change:
    def act(cell: Path) -> None:
        path = cell / name
        path.unlink()
        path.symlink_to(path)

    return act


def folder_instead(name: str) -> Change:
    def act(cell: Path) -> None:
        (cell / name).unlink()
        (cell / name).mkdir()

    return act


def table(name: str, content: Callable[[Rows], Rows] | bytes, schema: pa.Schema | None = None) -> Change:
    """Replace a table and its checksum; the columns keep their types unless there is another ``schema``."""

    def act(cell: Path) -> None:
        data = content
        if not isinstance(data, bytes):
            before = pq.read_table(cell / name)
            sink = io.BytesIO()
            pq.write_table(pa.Table.from_pylist(data(before.to_pylist()), schema=schema or before.schema), sink)
            data = sink.getvalue()
        (cell / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        body("cell.json", lambda entries: entries["files"].update({name: digest}))(cell)

    return act


def row(name: str, **values: Any) -> Change:
    """Change entries of the first row of a table."""
    return table(name, lambda rows: [{**rows[0], **values}, *rows[1:]])


def body(file: str, change: Callable[[dict[str, Any]], Any]) -> Change:
    """Change the JSON of a file and its checksum."""

    def act(cell: Path) -> None:
        entries = json.loads((cell / file).read_text())
        del entries["sha256"]
        change(entries)
        (cell / file).write_bytes(encode(entries))

    return act


def meta(**entries: Any) -> Change:
    return body("cell.json", lambda content: content["meta"].update(entries))


def meta_without(name: str) -> Change:
    return body("cell.json", lambda content: content["meta"].pop(name))


def cell_of(manifest: dict[str, Any]) -> dict[str, Any]:
    """The planned cell of the method."""
    return next(entries for name, entries in manifest["cells"].items() if name.startswith("sjd"))


def as_text(column: str) -> Change:
    """Give a column of the samples the type of texts."""
    schema = rows.SAMPLES.set(rows.SAMPLES.get_field_index(column), pa.field(column, pa.string()))
    return table(SAMPLES, lambda rows: [{**row, column: "x"} for row in rows], schema)


NUMBERS = pa.schema({"a": pa.int64()})
CHANGES: dict[str, tuple[Change, str]] = {
    "loop of cell.json": (loop("cell.json"), "cell.json is missing"),
    "loop of the manifest": (loop(MANIFEST), "holds no run"),
    "folder for cell.json": (folder_instead("cell.json"), "cell.json is not a regular file"),
    "folder for steps": (folder_instead(STEPS), "steps.parquet is damaged"),
    "other columns": (table(SAMPLES, lambda rows: [{"a": 1}], NUMBERS), "samples.parquet lacks the column prompt"),
    "other types": (as_text("warmup"), "the column warmup in the type string"),
    "no table": (table(SAMPLES, b"hello"), "samples.parquet is no table"),
    "no files": (body("cell.json", lambda entries: entries.update(files={})), "names the files"),
    "other files": (body("cell.json", lambda entries: entries.update(files={"../x": "y"})), "names the files"),
    "files of a number": (body("cell.json", lambda entries: entries.update(files=3)), "has files 3"),
    "no meta": (body("cell.json", lambda entries: entries.pop("meta")), "lacks the entry meta"),
    "sampling": (meta(sampling="greedy"), "meta.sampling 'greedy'"),
    "verdict": (meta(verdict=3), "meta.verdict 3"),
    "deep": (lambda cell: (cell / "cell.json").write_text("[" * 200_000), "not a store's file"),
    "huge": (lambda cell: (cell / "cell.json").write_bytes(b" " * 20_000_000), "not a store's file"),
    "no cells": (body(MANIFEST, lambda entries: entries.pop("cells")), "lacks the entry cells"),
    "a cell outside": (body(MANIFEST, lambda entries: entries["cells"].update({"../../etc": {}})), "'../../etc'"),
    "a cell of NUL": (body(MANIFEST, lambda entries: entries["cells"].update({"a\0b": {}})), "none of a run"),
    "cells of numbers": (body(MANIFEST, lambda entries: entries.update(cells={"a": 3})), "has cells.a 3"),
    "no status": (meta_without("status"), "lacks the entry meta.status"),
    "another status": (meta(status="asleep"), "meta.status 'asleep'"),
    "a temperature of text": (meta(sampling={"temperature": "hot"}), "meta.sampling.temperature 'hot'"),
    "a temperature of NaN": (meta(sampling={"temperature": float("nan")}), "meta.sampling.temperature nan"),
    "a verdict of a number": (meta(verdict={"word": 3}), "meta.verdict.word 3"),
    "a variation of text": (meta(verdict={"total_variation": "small"}), "total_variation 'small'"),
    "set scores of numbers": (meta(set_scores={"fid": 3}), "meta.set_scores.fid 3"),
    "a set score without its size": (meta(set_scores={"fid": {"value": 1.0}}), "lacks the entry meta.set_scores.fid"),
    "a grid of text": (meta(grid="8x8"), "meta.grid '8x8'"),
    "a batch of zero": (meta(batch=0), "meta.batch 0"),
    "a huge budget": (meta(max_new_tokens=10**400), "meta.max_new_tokens 1000"),
    "scores of text": (row(SAMPLES, scores="good"), "scores is 'good'"),
    "scores of texts": (row(SAMPLES, scores='{"pass": "yes"}'), "no JSON object of numbers"),
    "stages of text": (row(SAMPLES, stages="slow"), "stages is 'slow'"),
    "a row without a prompt": (row(SAMPLES, prompt=None), "a row without prompt"),
    "a gap in the tokens": (row(SAMPLES, tokens=[1, None]), "tokens has a gap"),
    "another status of a row": (row(SAMPLES, status="asleep"), "status is none of ok, failed"),
    "a row twice": (table(SAMPLES, lambda rows: rows + rows), "two rows of one prompt, repetition, warmup"),
    "a negative count": (row(STEPS, accepted=-3), "accepted is negative"),
    "more accepted drafts than any run has": (row(STEPS, accepted=2**31, drafted=2**31), "accepted is over 100,000"),
    "a step twice": (table(STEPS, lambda rows: rows + rows), "two rows of one prompt, repetition, warmup, step"),
    "a suite of text": (body(MANIFEST, lambda entries: entries.update(suite="quick")), "has suite 'quick'"),
    "a report without a name": (body(MANIFEST, lambda entries: entries.update(suite={"report": {}})), "suite.report"),
    "provenance of a list": (body(MANIFEST, lambda entries: entries.update(provenance=[1])), "has provenance [1]"),
    "no date": (body(MANIFEST, lambda entries: entries.pop("created")), "lacks the entry created"),
    "tasks of numbers": (body(MANIFEST, lambda entries: entries["key"].update(tasks=[3])), "has key.tasks.0 3"),
    "a cell of odd types": (
        body(MANIFEST, lambda entries: cell_of(entries).update(expected="many")),
        "expected 'many'",
    ),
    "no key": (body(MANIFEST, lambda entries: entries.pop("key")), "lacks the entry key"),
}


@pytest.fixture
def odd(sound: Path, tmp_path: Path) -> Callable[[Change], Path]:
    def make(change: Change) -> Path:
        folder = Path(shutil.copytree(sound, tmp_path / "run"))
        change(next((folder / "cells").glob("sjd*")))
        return folder

    return make


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=list(CHANGES))
def test_what_no_run_writes_is_one_error_that_names_the_file(
    odd: Callable[[Change], Path], change: Change, message: str
) -> None:
    run = odd(change)
    with pytest.raises(StoreError) as refusal:
        store = Store.open(run)
        [store.cell(name) for name in store.cells()]
    assert str(run) in str(refusal.value) and message in str(refusal.value)


@pytest.mark.parametrize("name", ["no cells", "no status", "folder for steps"])
def test_every_command_ends_with_one_message(
    sound: Path, baseline: Path, tmp_path: Path, odd: Callable[[Change], Path], name: str
) -> None:
    run = odd(CHANGES[name][0])
    for words in (
        ("report", run),
        ("show", run, "sjd"),
        ("report", run, "--against", sound),
        ("report", sound, "--against", run),
    ):
        assert str(run) in refused(*words)
    assert str(run) in refused("gate", "make", run, "--out", tmp_path / "baseline.json")
    assert str(run) in refused("gate", "check", run, "--baseline", baseline)
    assert str(run) in refused("run", *WORDS, "--resume", "--out", run)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
@pytest.mark.parametrize("name", ["cell.json", "samples.parquet", MANIFEST])
def test_an_unreadable_file_is_one_message(odd: Callable[[Change], Path], name: str) -> None:
    run = odd(lambda cell: (cell / name).chmod(0))
    refused("report", run)
