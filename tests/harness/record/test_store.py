"""The run folder: written records are restored, damage is named, and a kill loses no finished record."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import traceback
import wave
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stridebench.harness
from stridebench.harness.errors import ContractError, RunIncomplete, StoreError, UnknownNameError
from stridebench.harness.record.columns import LISTS, STEP_FIELDS, Record, Sample, Step
from stridebench.harness.record.entries import CellMeta, StoredVerdict
from stridebench.harness.record.files import partial_of
from stridebench.harness.record.metrics import totals
from stridebench.harness.record.run_notes import sound_file
from stridebench.harness.record.store import SealedError, Store
from tests.support import fake_store

CELLS = ["sjd-0a1b", "ar-2c3d"]
KEY = {"T": 0, "model": {"name": "tabular", "dtype": "fp32"}, "methods": ["sjd", "ar"]}
MANIFEST = {
    "key": KEY,
    "cells": {cell: {"method": cell[:2]} for cell in CELLS},
    "suite": {},
    "provenance": {},
}
META = CellMeta(status="done", label="sjd", backbone="tabular", dtype="fp32", task="toy")
PLANNED = [
    ("HumanEval/0", 0, True),
    ("HumanEval/0", 0, False),
    ("HumanEval/0", 1, False),
    ("HumanEval/1", 0, False),
]


def record(prompt: str, repetition: int = 0, warmup: bool = False) -> Record:
    """Two steps and four tokens, which depend on the arguments alone."""
    steps = [fake_store.step(accepted, 3, levels_built=2, ranks=(0,), energies=(-0.25, -1e30)) for accepted in (1, 2)]
    steps[1] = replace(steps[1], overshoot=1)
    told = {"text": "é\x00 ok", "agreement": 0.5, "diverged_at": 2, "margin": -0.25, "scores": {"pass": 1.0}}
    tokens = tuple(range(repetition, repetition + 4))
    return fake_store.record(prompt, steps, repetition, warmup=warmup, tokens=tokens, **told)


def fill(store: Store, cell: str) -> list[tuple[str, int, bool]]:
    """Write the cell's missing records, seal it, and return their keys."""
    if store.sealed(cell):
        return []
    missing = [key for key in PLANNED if key not in store.done(cell)]
    for prompt, repetition, warmup in missing:
        store.write(cell, record(prompt, repetition, warmup))
    store.seal(cell, META)
    return missing


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "a" / "run", MANIFEST)


def assert_same(left: Store, right: Store) -> None:
    assert left.cells() == right.cells() == CELLS
    for cell in CELLS:
        one, other = left.cell(cell), right.cell(cell)
        assert one.meta == other.meta
        pd.testing.assert_frame_equal(one.samples, other.samples)
        pd.testing.assert_frame_equal(one.steps, other.steps)
        for file in ("samples.parquet", "steps.parquet"):
            assert (left.path / "cells" / cell / file).read_bytes() == (right.path / "cells" / cell / file).read_bytes()


def leftovers(run: Path) -> list[str]:
    return [path.name for path in run.rglob("*") if "partial" in path.name]


# Written records are restored.


def test_a_sealed_cell_holds_what_was_written(store: Store) -> None:
    for prompt, repetition, warmup in reversed(PLANNED):
        store.write(CELLS[0], record(prompt, repetition, warmup))
    failed = Record(Sample("HumanEval/2", 0, False, "failed", error="out of room \udcff"), ())
    store.write(CELLS[0], failed)
    assert store.done(CELLS[0]) == {*PLANNED, ("HumanEval/2", 0, False)}
    store.seal(CELLS[0], CellMeta.read({**META.stored(), "note": [1]}))
    store = Store.open(store.path)
    assert store.done(CELLS[0]) == {*PLANNED, ("HumanEval/2", 0, False)}
    assert not (store.path / "records" / CELLS[0]).exists()
    cell = store.cell(CELLS[0])
    assert cell.meta.stored() == META.stored() | {"note": [1]}
    keys = list(zip(cell.samples["warmup"], cell.samples["prompt"], cell.samples["repetition"], strict=True))
    assert keys == sorted(keys) and len(keys) == 5
    first, last = cell.samples.iloc[0], cell.samples.iloc[3]
    assert (first["prompt"], first["repetition"], list(first["tokens"])) == ("HumanEval/0", 0, [0, 1, 2, 3])
    assert first["text"] == "é\x00 ok" and json.loads(first["scores"]) == {"pass": 1.0}
    assert first["sha256"] == hashlib.sha256(b"0,1,2,3").hexdigest()
    assert (first["diverged_at"], first["margin"], first["agreement"]) == (2, -0.25, 0.5)
    assert last["status"] == "failed" and last["error"] == "out of room \\udcff" and last["diverged_at"] is pd.NA
    assert list(cell.steps.columns) == ["prompt", "repetition", "warmup", "step", *STEP_FIELDS]
    assert list(cell.steps["step"][:4]) == [0, 1, 0, 1] and list(cell.steps["accepted"][:2]) == [1, 2]
    assert cell.steps["expected"].dtype == "float64" and len(cell.steps) == 8
    frame = totals(cell.samples, cell.steps)
    assert len(frame) == 3 and frame["output"].sum() == 12 and frame["emitted"].sum() == 15


def test_an_empty_cell_has_every_column(store: Store) -> None:
    store.seal(CELLS[1], META.merged(CellMeta(status="skipped")))
    full = Store.open(store.path)
    fill(full, CELLS[0])
    empty, filled = full.cell(CELLS[1]), full.cell(CELLS[0])
    assert list(empty.samples.columns) == list(filled.samples.columns) and empty.samples.empty
    assert list(empty.steps.columns) == list(filled.steps.columns) and empty.steps.empty
    assert dict(empty.steps.dtypes) == dict(filled.steps.dtypes)
    assert totals(empty.samples, empty.steps).empty
    assert full.cells() == CELLS, "in the manifest's order, not that of sealing"


def test_update_changes_the_meta_and_nothing_else(store: Store) -> None:
    fill(store, CELLS[0])
    before = store.cell(CELLS[0])
    store.update(CELLS[0], CellMeta(verdict=StoredVerdict(word="exact"), cell="one"))
    after = Store.open(store.path).cell(CELLS[0])
    assert after.meta.stored() == {**META.stored(), "verdict": {"word": "exact"}, "cell": "one"}
    pd.testing.assert_frame_equal(before.samples, after.samples)


numbers = st.integers(0, 2**40)
texts = st.text(max_size=8)
reals = st.floats(allow_nan=False)
by_type = {
    "bool": st.booleans(),
    "int": numbers,
    "float": reals,
    "str": texts,
    "tuple[int, ...]": st.lists(numbers, max_size=3).map(tuple),
    "tuple[float, ...]": st.lists(reals, max_size=3).map(tuple),
    "tuple[str, ...]": st.lists(texts, max_size=3).map(tuple),
    "dict[str, int]": st.dictionaries(texts, numbers, max_size=2),
    "dict[str, float]": st.dictionaries(texts, reals, max_size=2),
    "dict[str, Any]": st.dictionaries(texts, reals, max_size=2),
}  # annotations are strings


def built(kind: type[Any], **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Instances of a dataclass with any values of its fields."""
    strategies = {}
    for field in fields(kind):
        name, _, optional = str(field.type).partition(" | ")
        strategies[field.name] = st.none() | by_type[name] if optional else by_type[name]
    return st.builds(kind, **strategies | fixed)


plain_steps = built(Step, accepted=st.integers(0, 100_000))
plain_samples = built(Sample, status=st.just("failed"))
records = st.builds(Record, plain_samples, st.lists(plain_steps, max_size=3).map(tuple))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(records)
def test_a_record_survives_json(value: Record) -> None:
    assert Record.of(json.loads(json.dumps(value.plain()))) == value


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.lists(records, max_size=4, unique_by=lambda r: r.sample.prompt))
def test_a_cell_survives_the_disk(tmp_path_factory: pytest.TempPathFactory, values: list[Record]) -> None:
    store = Store.create(tmp_path_factory.mktemp("run") / "r", MANIFEST)
    for value in values:
        store.write(CELLS[0], value)
    store.seal(CELLS[0], META)
    cell = store.cell(CELLS[0])
    values.sort(key=lambda r: (r.sample.warmup, r.sample.prompt, r.sample.repetition))
    for name in ("prompt", "repetition", "category", "text", "prompt_tokens", "prefill_ns"):
        assert cell.samples[name].tolist() == [getattr(value.sample, name) for value in values]
    for name in ("tokens", "logprobs"):
        assert [tuple(row) for row in cell.samples[name]] == [getattr(value.sample, name) for value in values]
    steps = cell.steps.assign(**{name: cell.steps[name].map(tuple) for name in LISTS})
    steps = steps.astype(object).where(steps.notna(), None)
    for name in STEP_FIELDS:
        assert steps[name].tolist() == [getattr(s, name) for value in values for s in value.steps]


def test_ids_that_a_file_system_may_confuse_stay_distinct(store: Store) -> None:
    ids = [
        "a/b",
        "a%2Fb",
        "A/B",
        "é",
        "e\u0301",
        "..",
        "",
        "x" * 400,
        "x" * 401,
        "a\\b",
        "a b\n",
        "manifest.json~partial",
    ]
    for prompt in ids:
        store.write(CELLS[0], record(prompt))
    names = os.listdir(store.path / "records" / CELLS[0])
    assert len({name.casefold() for name in names}) == len(ids)
    assert all(name.isascii() and len(name) < 200 for name in names)
    resumed = Store.resume(store.path, MANIFEST)
    assert resumed.done(CELLS[0]) == {(prompt, 0, False) for prompt in ids}


# Refusals.


def test_create_refuses_a_folder_that_holds_a_run(store: Store) -> None:
    with pytest.raises(StoreError, match=r"already holds a run.*--resume.*another folder"):
        Store.create(store.path, MANIFEST)
    (store.path / "manifest.json").unlink()
    (store.path / "records").mkdir()
    with pytest.raises(StoreError, match="already holds a run"):
        Store.create(store.path, MANIFEST)


@pytest.mark.parametrize("names", [["a/b"], [".."], ["a~partial"], ["x", "X"], [""], ["é"]])
def test_create_refuses_ids_that_are_no_folder_names(tmp_path: Path, names: list[str]) -> None:
    with pytest.raises(ContractError, match="does not serve as a folder's name"):
        Store.create(tmp_path / "run", {"key": {}, "cells": dict.fromkeys(names)})


def test_resume_names_every_key_that_differs(store: Store) -> None:
    other = {"T": 1, "model": {"name": "tabular", "device": "cpu"}, "methods": ("sjd", "ar")}
    with pytest.raises(StoreError) as caught:
        Store.resume(store.path, MANIFEST | {"key": other})
    text = str(caught.value)
    assert "T: 0 there, 1 here" in text
    assert 'model.dtype: "fp32" there, absent here' in text and 'model.device: absent there, "cpu" here' in text
    assert "methods" not in text and "model.name" not in text
    assert Store.resume(store.path, MANIFEST | {"key": KEY | {"methods": ("sjd", "ar")}}).manifest == store.manifest


def test_unknown_unfinished_and_sealed_cells_are_refused(store: Store) -> None:
    for call in (store.cell, store.done, store.sealed, lambda name: store.write(name, record("a"))):
        with pytest.raises(UnknownNameError, match="sjd-0a1b"):
            call("sjd-0a1c")
    with pytest.raises(StoreError, match=r"not finished.*--resume"):
        store.cell(CELLS[0])
    with pytest.raises(StoreError, match=r"not finished.*--resume"):
        store.update(CELLS[0], CellMeta(seed=1))
    fill(store, CELLS[0])
    with pytest.raises(StoreError, match="sealed"):
        store.write(CELLS[0], record("a"))
    with pytest.raises(StoreError, match="sealed"):
        store.seal(CELLS[0], META)


def test_a_record_that_breaks_an_identity_is_neither_written_nor_sealed(store: Store) -> None:
    good = record("a")
    broken = replace(good, sample=replace(good.sample, tokens=(1,)))
    with pytest.raises(ContractError, match=r"'a'.*emitted 5 - overshoot 1"):
        store.write(CELLS[0], broken)
    assert store.done(CELLS[0]) == frozenset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stridebench.harness.record.cell_files.check", lambda steps, output: None)
        store.write(CELLS[0], broken)
    with pytest.raises(ContractError, match="emitted 5"):
        store.seal(CELLS[0], META)
    assert not store.sealed(CELLS[0])


def test_a_second_writer_is_refused(store: Store) -> None:
    code = "import sys; from stridebench.harness.record.store import Store\n"
    code += "Store.resume(sys.argv[1], Store.open(sys.argv[1]).manifest.stored())"
    Store.resume(store.path, MANIFEST)
    command = [sys.executable, "-c", code, str(store.path)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "is being written by another process" in done.stderr


# Damage.


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    place = data.find(b'"T": 0') + 5 if path.name == "manifest.json" else len(data) // 2
    data[place] ^= 1
    path.write_bytes(data)


def newer(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 3}))


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [truncate, empty, flip, newer])
def test_a_damaged_manifest_is_named(store: Store, damage: Callable[[Path], None]) -> None:
    damage(store.path / "manifest.json")
    named = r"manifest\.json is .*(version 3|truncated|sha256).*another folder"
    with pytest.raises(StoreError, match=named):
        Store.open(store.path)
    with pytest.raises(StoreError, match=named):
        Store.resume(store.path, MANIFEST)


@pytest.mark.parametrize("file", ["cell.json", "samples.parquet", "steps.parquet"])
@pytest.mark.parametrize("damage", [flip, remove])
def test_a_damaged_cell_is_named(store: Store, file: str, damage: Callable[[Path], None]) -> None:
    fill(store, CELLS[0])
    folder = store.path / "cells" / CELLS[0]
    damage(folder / file)
    for call in (store.cell, store.done):
        with pytest.raises(StoreError, match=rf"{file} is .*delete that folder and run again with --resume"):
            call(CELLS[0])


def test_a_damaged_record_is_set_aside_and_done_again(store: Store) -> None:
    for key in PLANNED:
        store.write(CELLS[0], record(*key))
    path = next((store.path / "records" / CELLS[0]).glob("*--1.json"))
    flip(path)
    with pytest.raises(StoreError, match="--resume"):
        store.seal(CELLS[0], META)
    resumed = Store.resume(store.path, MANIFEST)
    with pytest.warns(UserWarning, match="set aside"):
        assert len(resumed.done(CELLS[0])) == len(PLANNED) - 1
    assert path.with_name(path.name + ".corrupt").exists()
    assert len(fill(resumed, CELLS[0])) == 1
    assert len(resumed.cell(CELLS[0]).samples) == len(PLANNED)


class NthCall:
    """Lets something happen before the n-th call of some functions."""

    def __init__(
        self, patch: pytest.MonkeyPatch, functions: list[tuple[Any, str]], nth: int, act: Callable[[], object]
    ) -> None:
        self.left, self.act = nth, act
        for owner, name in functions:
            patch.setattr(owner, name, self.watched(getattr(owner, name)))

    def watched(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == -1:
                self.act()
            return real(*arguments, **options)

        return call


LOOKS: list[tuple[Any, str]] = [(Path, "is_dir"), (Path, "read_bytes")]
LOOKS += [(os, name) for name in ("listdir", "scandir", "mkdir")]
"""How a reader looks at the folder."""


@pytest.mark.parametrize("nth", range(16))
@pytest.mark.parametrize("read", [Store.done, Store.outputs], ids=["done", "outputs"])
def test_a_reader_beside_a_worker_that_seals_reads_all(
    store: Store, monkeypatch: pytest.MonkeyPatch, read: Callable[[Store, str], Any], nth: int
) -> None:
    for key in PLANNED:
        store.write(CELLS[0], record(*key))
    whole, other = read(store, CELLS[0]), Store.open(store.path)
    NthCall(monkeypatch, LOOKS, nth, lambda: other.seal(CELLS[0], META))
    assert read(store, CELLS[0]) == whole


@pytest.mark.parametrize("nth", range(12))
@pytest.mark.parametrize(
    "use",
    [
        lambda store: store.pending(CELLS[0]),
        lambda store: store.seal(CELLS[0], META),
        lambda store: store.write(CELLS[0], record("HumanEval/2")),
    ],
    ids=["pending", "seal", "write"],
)
def test_a_worker_whose_cell_another_one_seals_is_told_so_and_loses_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch, use: Callable[[Store], object], nth: int
) -> None:
    for key in PLANNED:
        store.write(CELLS[0], record(*key))
    other = Store.open(store.path)
    meanwhile = NthCall(monkeypatch, LOOKS, nth, lambda: other.seal(CELLS[0], META))
    with suppress(SealedError):
        use(store)
    monkeypatch.undo()
    if meanwhile.left < 0 or store.sealed(CELLS[0]):
        assert len(Store.open(store.path).cell(CELLS[0]).samples) in (len(PLANNED), len(PLANNED) + 1)
        with pytest.raises(SealedError, match="sealed already"):
            store.write(CELLS[0], record("a"))


def test_progress_beside_a_worker_that_seals_is_a_number(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in PLANNED:
        store.write(CELLS[0], record(*key))
    assert store.stored(CELLS[0]) == 3
    NthCall(monkeypatch, LOOKS, 0, lambda: shutil.rmtree(store.path / "records" / CELLS[0]))
    assert store.stored(CELLS[0]) == 0


def test_a_resume_leaves_what_living_workers_write(store: Store) -> None:
    folder = store.path / "records" / CELLS[0]
    folder.mkdir(parents=True)
    host = partial_of(folder / "x").name.split("-")[1]
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        living_part = folder / f"a.json-{host}-{living.pid}~partial"
        foreign_part, old = folder / "b.json-0123abcd-77~partial", folder / "c.json-0123abcd-78~partial"
        for path in (living_part, foreign_part, old):
            path.write_bytes(b"{")
        os.utime(old, (0, 0))
        Store.resume(store.path, MANIFEST)
        assert sorted(leftovers(store.path)) == [living_part.name, foreign_part.name]
        living.communicate(b"\n")
    Store.resume(store.path, MANIFEST)
    assert leftovers(store.path) == [foreign_part.name]


def test_a_newer_record_is_not_damage(store: Store) -> None:
    store.write(CELLS[0], record("a"))
    path = next((store.path / "records" / CELLS[0]).glob("*.json"))
    newer(path)
    with pytest.raises(StoreError, match="schema version 3"):
        store.done(CELLS[0])
    assert path.exists()


def test_resume_removes_the_partial_files_of_a_kill(store: Store) -> None:
    store.write(CELLS[1], record("a"))
    fill(store, CELLS[0])
    litter = [
        "manifest.json~partial",
        f"records/{CELLS[1]}/x.json~partial",
        f"cells/{CELLS[0]}/cell.json~partial",
    ]
    litter += [f"cells/{CELLS[1]}~partial/steps.parquet", f"records/{CELLS[0]}/old--0.json"]
    for name in litter:
        (store.path / name).parent.mkdir(exist_ok=True)
        (store.path / name).write_bytes(b"{")
    assert Store.open(store.path).done(CELLS[1]) == {("a", 0, False)}
    assert leftovers(store.path), "reading changes nothing"
    Store.resume(store.path, MANIFEST)
    assert not leftovers(store.path) and not (store.path / "records" / CELLS[0]).exists()


def test_records_remain_while_the_cell_made_of_them_is_damaged(store: Store) -> None:
    fill(store, CELLS[0])
    record_file = store.path / "records" / CELLS[0] / "x.json"
    record_file.parent.mkdir()
    record_file.write_bytes(b"{}")
    flip(store.path / "cells" / CELLS[0] / "steps.parquet")
    with pytest.raises(StoreError, match=r"steps\.parquet is damaged"):
        Store.resume(store.path, MANIFEST)
    assert record_file.exists()


# A failing disk.


def fail_at(patch: pytest.MonkeyPatch, names: Iterable[str], code: int, nth: int = 0) -> None:
    """Make the n-th call of some functions of ``os`` fail."""

    def fail() -> None:
        raise OSError(code, os.strerror(code))

    NthCall(patch, [(os, name) for name in names], nth, fail)


FULL = [("fsync", code) for code in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EIO)]


@pytest.mark.parametrize(("name", "code"), [*FULL, ("replace", errno.ENOSPC), ("mkdir", errno.ENOSPC)])
def test_a_full_disk_ends_a_write_cleanly(store: Store, monkeypatch: pytest.MonkeyPatch, code: int, name: str) -> None:
    with monkeypatch.context() as patch:
        fail_at(patch, [name], code)
        with pytest.raises(RunIncomplete, match=r"kept.*--resume") as caught:
            store.write(CELLS[0], record("a"))
    assert caught.value.exit_code == 3
    assert not leftovers(store.path)
    resumed = Store.resume(store.path, MANIFEST)
    assert resumed.done(CELLS[0]) == frozenset()


@pytest.mark.parametrize("nth", range(12))
def test_a_full_disk_ends_a_seal_cleanly(store: Store, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    for key in PLANNED:
        store.write(CELLS[0], record(*key))
    with monkeypatch.context() as patch:
        fail_at(patch, ["fsync", "replace"], errno.ENOSPC, nth)
        with pytest.raises(RunIncomplete, match="--resume"):
            store.seal(CELLS[0], META)
    assert not leftovers(store.path)
    resumed = Store.resume(store.path, MANIFEST)
    assert resumed.done(CELLS[0]) == set(PLANNED)
    fill(resumed, CELLS[0])
    assert len(resumed.cell(CELLS[0]).samples) == len(PLANNED)


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="needs a device that is always full")
def test_a_full_device_ends_a_write(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *a, **k: real(Path("/dev/full"), *a, **k))
    with pytest.raises(RunIncomplete, match="No space left"):
        store.write(CELLS[0], record("a"))


def test_a_full_disk_refuses_a_new_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, ["replace"], errno.ENOSPC)
    with pytest.raises(StoreError, match=r"no run can be started.*No space left.*another folder"):
        Store.create(tmp_path / "run", MANIFEST)
    assert not leftovers(tmp_path)


def test_other_errors_pass_unchanged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_at(monkeypatch, ["fsync"], errno.EBADF)
    with pytest.raises(OSError, match="Bad file"):
        store.write(CELLS[0], record("a"))


# A kill.


def environment() -> dict[str, str]:
    """The environment of a child that imports this harness."""
    return os.environ | {"PYTHONPATH": str(Path(stridebench.harness.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


def write_run(run: Path, journal: Path, plan: int = len(PLANNED)) -> None:
    """Start or resume the run and complete it; the journal gets a line for each stored decode."""
    store = Store.resume(run, MANIFEST) if (run / "manifest.json").exists() else Store.create(run, MANIFEST)
    finished = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    with journal.open("a") as notes:
        for cell in CELLS:
            done = store.done(cell)
            assert all(tuple(key) in done for where, *key in finished if where == cell), "a finished decode is lost"
            for key in PLANNED[:plan]:
                if key not in done:
                    store.write(cell, record(*key))
                    line = json.dumps([cell, *key])
                    notes.write(line + "\n")
                    notes.flush()
                    print(line, flush=True)
            if not store.sealed(cell):
                store.seal(cell, META)


def fork(run: Path, journal: Path, die: int | None) -> bool:
    """Call ``write_run`` in a child, killed at a call or not; return whether it finished."""
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            if die is not None:
                changes = [(os, name) for name in ("fsync", "replace", "mkdir", "unlink", "rmdir")]
                NthCall(pytest.MonkeyPatch(), changes, die, lambda: os.kill(os.getpid(), signal.SIGKILL))
            write_run(run, journal, plan=2)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), f"the child of {run} failed"
    return status == 0


def every_kill(root: Path) -> int:
    """For each call of a run in turn: kill it there, kill some of the resumed ones, resume.

    Runs in a process of its own, which starts no threads, so that it can fork.

    Returns:
        The number of calls, each of which the run was killed at.
    """
    for nth in range(1000):
        run, journal = root / str(nth), root / f"{nth}.journal"
        if fork(run, journal, nth):
            return nth
        if nth % 3 == 0:
            fork(run, journal, random.Random(nth).randrange(24))
        assert fork(run, journal, None)
    raise AssertionError("a run that never ends")


@pytest.mark.faults
def test_a_kill_between_any_two_calls_loses_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "reference", tmp_path / "journal", plan=2)
    reference = Store.open(tmp_path / "reference")
    (tmp_path / "kills").mkdir()
    command = [sys.executable, __file__, "every", str(tmp_path / "kills")]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kills = int(done.stdout)
    assert kills > 40
    for nth in range(kills):
        killed = Store.open(tmp_path / "kills" / str(nth))
        assert_same(killed, reference)
        assert not leftovers(killed.path) and not os.listdir(killed.path / "records")
        notes = (tmp_path / "kills" / f"{nth}.journal").read_text().splitlines()
        assert len(notes) == len(set(notes)), f"kill {nth}: something finished was repeated"


@pytest.mark.slow
def test_kills_at_random_moments_of_one_run(tmp_path: Path) -> None:
    """The child is killed after a seeded number of decodes that it printed as stored."""
    write_run(tmp_path / "reference", tmp_path / "reference.journal")
    reference = Store.open(tmp_path / "reference")
    run, journal = tmp_path / "run", tmp_path / "journal"
    command = [sys.executable, __file__, "go", str(run), str(journal)]
    for seed in range(3):
        child = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in range(random.Random(seed).randrange(1, 3)):
            child.stdout.readline()
        child.kill()
        child.communicate()
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert_same(Store.open(run), reference)
    stored = journal.read_text().splitlines()
    assert len(stored) == len(set(stored))


def test_the_sound_of_the_first_prompts_is_kept_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stridebench.harness.record.run_notes.SOUNDS", 2)
    store = Store.create(tmp_path / "run", MANIFEST)
    for prompt in ("a/1", "a/1", "b", "c"):
        store.notes.keep_sound(CELLS[1], prompt, np.array([0.0, 0.5, -2.0]), 16_000, "good evening")
    assert not sound_file(store.path, CELLS[1], "c").exists()
    path = sound_file(store.path, CELLS[1], "a/1")
    assert path.with_suffix(".txt").read_text() == "good evening"
    with wave.open(str(path)) as sound:
        assert (sound.getframerate(), sound.getsampwidth(), sound.getnchannels()) == (16_000, 2, 1)
        assert np.frombuffer(sound.readframes(3), "<i2").tolist() == [0, 16383, -32767]


def test_tables_are_read_without_threads(tmp_path: Path) -> None:
    """A thread of Arrow that releases bytes of Python while the interpreter ends aborts the process."""
    store = Store.create(tmp_path / "run", MANIFEST)
    fill(store, CELLS[0])
    code = f"""
import os, pathlib, sys
from stridebench.harness.record.rows import parquet_table
before = len(os.listdir("/proc/self/task"))
parquet_table(pathlib.Path({str(store.path / "cells" / CELLS[0] / "samples.parquet")!r}).read_bytes())
sys.exit(len(os.listdir("/proc/self/task")) - before)
"""
    root = Path(stridebench.harness.__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


if __name__ == "__main__":
    if sys.argv[1] == "every":
        print(every_kill(Path(sys.argv[2])))
    else:
        write_run(Path(sys.argv[2]), Path(sys.argv[3]))
