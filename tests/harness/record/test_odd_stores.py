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

import pandas as pd
import pytest

from harness.record.files import encode
from tests.support.cli import refused
from tests.support.runs import finished

Change = Callable[[Path], Any]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "run"
    finished(folder, methods=["sjd"], tasks=[{"name": "tabular", "limit": 2}])
    return folder


def loop(*names: str) -> Change:
    def act(cell: Path) -> None:
        path = cell.joinpath(*names)
        path.unlink()
        path.symlink_to(path)

    return act


def folder_instead(name: str) -> Change:
    def act(cell: Path) -> None:
        (cell / name).unlink()
        (cell / name).mkdir()

    return act


def table(name: str, content: Callable[[pd.DataFrame], pd.DataFrame] | bytes) -> Change:
    """Replace a table and its checksum."""

    def act(cell: Path) -> None:
        data = content
        if not isinstance(data, bytes):
            sink = io.BytesIO()
            data(pd.read_parquet(cell / name)).to_parquet(sink)
            data = sink.getvalue()
        (cell / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        body("cell.json", lambda entries: entries["files"].update({name: digest}))(cell)

    return act


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


MANIFEST = "../../manifest.json"
CHANGES: dict[str, Change] = {
    "loop of cell.json": loop("cell.json"),
    "loop of samples": loop("samples.parquet"),
    "loop of the manifest": loop(MANIFEST),
    "folder for cell.json": folder_instead("cell.json"),
    "folder for steps": folder_instead("steps.parquet"),
    "folder for the manifest": folder_instead(MANIFEST),
    "other columns": table("samples.parquet", lambda frame: pd.DataFrame({"a": [1]})),
    "other columns of steps": table("steps.parquet", lambda frame: pd.DataFrame({"a": [1]})),
    "other types": table("samples.parquet", lambda frame: frame.assign(warmup="x", status=3)),
    "other types of steps": table("steps.parquet", lambda frame: frame.assign(accepted="x")),
    "no table": table("samples.parquet", b"hello"),
    "no files": body("cell.json", lambda entries: entries.update(files={})),
    "other files": body("cell.json", lambda entries: entries.update(files={"../x": "y"})),
    "files of a number": body("cell.json", lambda entries: entries.update(files=3)),
    "no meta": body("cell.json", lambda entries: entries.pop("meta")),
    "meta of a list": body("cell.json", lambda entries: entries.update(meta=[])),
    "sampling": meta(sampling="greedy"),
    "verdict": meta(verdict=3),
    "label": meta(label=["a"]),
    "expected": meta(expected="many"),
    "deep": lambda cell: (cell / "cell.json").write_text("[" * 200_000),
    "huge": lambda cell: (cell / "cell.json").write_bytes(b" " * 20_000_000),
    "no cells": body(MANIFEST, lambda entries: entries.pop("cells")),
    "cells of a list": body(MANIFEST, lambda entries: entries.update(cells=[])),
    "a cell outside": body(MANIFEST, lambda entries: entries["cells"].update({"../../etc": {}})),
    "a cell of NUL": body(MANIFEST, lambda entries: entries["cells"].update({"a\0b": {}})),
    "cells of numbers": body(MANIFEST, lambda entries: entries.update(cells=dict.fromkeys(entries["cells"], 3))),
    "no key": body(MANIFEST, lambda entries: entries.pop("key")),
    "key of a number": body(MANIFEST, lambda entries: entries.update(key=3)),
}


@pytest.fixture
def odd(sound: Path, tmp_path: Path) -> Callable[[Change], Path]:
    def make(change: Change) -> Path:
        folder = Path(shutil.copytree(sound, tmp_path / "run"))
        change(next((folder / "cells").glob("sjd*")))
        return folder

    return make


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_every_command_ends_with_one_message(
    sound: Path, tmp_path: Path, odd: Callable[[Change], Path], change: Change
) -> None:
    run = odd(change)
    for words in (("report", run), ("show", run, "sjd"), ("compare", sound, run), ("compare", run, sound)):
        assert str(run) in refused(*words)
    assert str(run) in refused("baseline", "make", run, "--out", tmp_path / "baseline.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
@pytest.mark.parametrize("name", ["cell.json", "samples.parquet", MANIFEST])
def test_an_unreadable_file_is_one_message(odd: Callable[[Change], Path], name: str) -> None:
    run = odd(lambda cell: (cell / name).chmod(0))
    refused("report", run)
