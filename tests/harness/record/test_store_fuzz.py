"""Run folders with any change of an entry, whose checksums are right: read, or refused with one message."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from stridebench.harness.record.files import encode
from tests.support.cli import stride
from tests.support.fuzz import SHORT_OR_LONG, assert_one_message, fuzz, numbers, plain

WORDS = (
    *("--method", "sjd", "--backbone", "tabular", "--task", "{name: tabular, limit: 2}", "-t", 0, "-t", 1),
    *("--max-new-tokens", 4, "--set", "prove=false", "--json"),
)
ABSENT = object()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "run"
    assert stride("run", *WORDS, "--out", folder).code == 0
    assert stride("gate", "make", folder, "--out", folder.with_name("baseline.json")).code == 0
    return folder


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every entry of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(inner for key, item in items for inner in paths(item, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The JSON value with one entry replaced, or left out."""
    if not path:
        return {} if new is ABSENT else new
    copy = value.copy()
    if new is ABSENT and len(path) == 1:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(value[path[0]], path[1:], new)
    return copy


class Changes:
    """Applies a change to a copy of a sound run, and reads it with every command."""

    def __init__(self, sound: Path, folder: Path, verbs: tuple[str, ...]) -> None:
        self.sound, self.run, self.verbs = sound, folder / "run", verbs
        self.cell = next((sound / "cells").glob("sjd*T1*")).relative_to(sound)

    def of_json(self, file: str) -> st.SearchStrategy[Any]:
        """Entries of a JSON file and their new values."""
        body = json.loads((self.sound / file).read_text())
        del body["sha256"]
        return st.tuples(st.just(file), st.sampled_from(paths(body)[1:]), plain | st.just(ABSENT))

    def of_table(self, name: str) -> st.SearchStrategy[Any]:
        """Columns of a table and their new values in the first row."""
        file, schema = str(self.cell / name), pq.read_schema(self.sound / self.cell / name)
        texts = st.sampled_from(["", "{}", "[]", '{"a": "b"}', '{"a": 1e999}', "ok", "failed"]) | st.text(max_size=9)
        kinds = {
            "string": texts,
            "bool": st.booleans(),
            "double": numbers.map(float),
            "int64": st.integers(-(2**63), 2**63 - 1),
        }
        scalars = {str(kind): strategy | st.none() for kind, strategy in kinds.items()}
        columns = [
            st.tuples(
                st.just(file),
                st.just(field.name),
                st.lists(scalars[str(field.type.value_type)], max_size=3) | st.none(),
            )
            if pa.types.is_list(field.type)
            else st.tuples(st.just(file), st.just(field.name), scalars[str(field.type)])
            for field in schema
        ]
        return st.one_of(columns)

    def __call__(self, change: tuple[str, Any, Any]) -> None:
        shutil.rmtree(self.run, ignore_errors=True)
        shutil.copytree(self.sound, self.run)
        file, where, new = change
        if file.endswith(".json"):
            self._write_json(file, where, new)
        else:
            self._write_table(file, where, new)
        for verb in self.verbs:
            words = {
                "show": ("show", self.run, self.cell.name),
                "compare": ("report", self.run, "--against", self.sound),
                "baseline": ("gate", "make", self.run, "--out", self.run / "baseline.json"),
                "gate": ("gate", "check", self.run, "--baseline", self.sound.with_name("baseline.json")),
                "report": ("report", self.run),
                "resume": ("run", *WORDS, "--resume", "--out", self.run),
            }[verb]
            outcome = stride(*words)
            if not outcome.out.startswith("error: "):  # a row of the table says what is wrong
                assert_one_message(outcome, (0, 1, 2, 4))

    def _write_json(self, file: str, path: tuple[Any, ...], new: Any) -> None:
        body = json.loads((self.run / file).read_text())
        del body["sha256"]
        (self.run / file).write_bytes(encode(changed(body, path, new)))

    def _write_table(self, file: str, column: str, new: Any) -> None:
        table = pq.read_table(self.run / file)
        rows = table.to_pylist()
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist([{**rows[0], column: new}, *rows[1:]], schema=table.schema), sink)
        (self.run / file).write_bytes(sink.getvalue())
        digest = hashlib.sha256(sink.getvalue()).hexdigest()
        self._write_json(str(self.cell / "cell.json"), ("files", Path(file).name), digest)


@SHORT_OR_LONG
@pytest.mark.parametrize(
    "name", ["manifest.json", "cell.json", "samples.parquet", pytest.param("steps.parquet", marks=pytest.mark.slow)]
)
def test_any_value_of_a_file(sound: Path, tmp_path: Path, long: bool, name: str) -> None:
    check = Changes(sound, tmp_path, ("show", "compare", "baseline", "gate", *(["report", "resume"] if long else [])))
    if name.endswith(".parquet"):
        values = check.of_table(name)
    else:
        values = check.of_json(name if name == "manifest.json" else str(check.cell / name))
    fuzz(values, check, 2, long)
