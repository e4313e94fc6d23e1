"""Runs at a URL: cells are one object each, on S3 and on any file system of fsspec."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness.errors import StoreError
from stridebench.harness.record.columns import Record, Sample
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.remote import RemoteRun, holds_run, remote_run
from stridebench.harness.record.store import Store
from tests.support.s3_server import s3_server

META = CellMeta(status="done", label="sjd", backbone="tabular", dtype="fp32", task="toy")
MANIFEST: dict[str, Any] = {"key": {"seed": 0}, "cells": {"one": META.stored(), "two": META.stored()}}
SAMPLE = Sample("p", 0, False, "failed", "why")


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path / "cache"))
    if request.param == "s3":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        with s3_server() as objects:
            objects.there["bucket/.keep"] = b""
            yield objects.url("bucket/run")
    else:
        yield f"file://{tmp_path}/runs/one"


def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on another machine, whose cache holds no copy."""
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path / "other-cache"))


def sealed(store: Store, cell: str) -> None:
    store.write(cell, Record(SAMPLE, ()))
    store.seal(cell, META)


def test_a_sealed_cell_is_read_on_another_machine(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not holds_run(url)
    store = Store.create(url, MANIFEST)
    store.write("two", Record(SAMPLE, ()))
    output = store.path / "outputs" / "one" / "a.txt"
    output.parent.mkdir(parents=True)
    output.write_text("kept")
    sealed(store, "one")
    assert holds_run(url) and store.address == url
    elsewhere(monkeypatch, tmp_path)
    other = Store.open(url)
    assert other.path != store.path and other.cells() == ["one"]
    assert list(other.cell("one").samples["error"]) == ["why"]
    assert (other.path / "outputs/one/a.txt").read_text() == "kept"


def test_two_machines_seal_cells_of_one_run(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Store.create(url, MANIFEST)
    elsewhere(monkeypatch, tmp_path)
    second = Store.open(url)
    sealed(second, "two")
    sealed(first, "one")
    assert first.cells() == ["one"]
    first.fetch(["one", "two"])
    assert first.cells() == ["one", "two"]
    second.update("two", CellMeta(reason="later"))
    second.reopen("two")  # it is no skipped cell
    elsewhere(monkeypatch, tmp_path / "third")
    assert Store.resume(url, MANIFEST).meta("two").reason == "later"


def test_a_run_is_not_started_twice_at_a_url(url: str) -> None:
    Store.create(url, MANIFEST)
    with pytest.raises(StoreError, match="already holds a run"):
        Store.create(url, MANIFEST)


def test_an_unfinished_cell_goes_on_where_its_decodes_are(url: str) -> None:
    Store.create(url, MANIFEST).write("one", Record(SAMPLE, ()))
    assert Store.resume(url, MANIFEST).done("one") == {("p", 0, False)}


def test_a_resume_sends_what_a_kill_kept_back(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cell was sealed in the copy, and the process ended before the object was written."""
    store = Store.create(url, MANIFEST)
    with monkeypatch.context() as patch:
        patch.setattr(RemoteRun, "send", lambda *_: None)
        sealed(store, "one")
    store.release()
    Store.resume(url, MANIFEST).release()
    elsewhere(monkeypatch, tmp_path)
    assert Store.open(url).cells() == ["one"]


def test_a_cell_that_two_workers_fetch_at_once_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path / "cache"))
    url = f"file://{tmp_path}/run"
    store = Store.create(url, MANIFEST)
    sealed(store, "one")
    copy = store.path / "cells" / "one"
    kept, real = shutil.move(copy, tmp_path / "one"), os.replace

    def second(source: Path, target: Path) -> None:
        if target == copy and not copy.exists():
            shutil.copytree(kept, copy)
        real(source, target)

    monkeypatch.setattr(os, "replace", second)
    assert len(Store.open(url).cell("one").samples) == 1


def test_a_run_that_replaces_another_does_not_see_its_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path / "cache"))
    url = f"file://{tmp_path}/run"
    sealed(Store.create(url, MANIFEST), "one")
    shutil.rmtree(tmp_path / "run")
    assert Store.create(url, MANIFEST).cells() == []


@pytest.mark.parametrize("damage", ["cut", "foreign"])
def test_a_damaged_object_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path / "cache"))
    url = f"file://{tmp_path}/run"
    sealed(Store.create(url, MANIFEST), "one")
    file = tmp_path / "run" / "cells" / "one.zip"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("cells/one/../../../escaped", "x")
    file.write_bytes(file.read_bytes()[:50] if damage == "cut" else data.getvalue())
    elsewhere(monkeypatch, tmp_path)
    with pytest.raises(StoreError, match=r"one\.zip (is damaged|holds 'cells/one/\.\.)"):
        Store.open(url)
    assert not list(tmp_path.rglob("escaped"))


def test_objects_unpacked_into_one_folder_are_a_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path / "cache"))
    sealed(Store.create(f"file://{tmp_path}/run", MANIFEST), "one")
    folder = tmp_path / "folder"
    folder.mkdir()
    shutil.copy(tmp_path / "run" / "manifest.json", folder)
    with zipfile.ZipFile(tmp_path / "run" / "cells" / "one.zip") as archive:
        archive.extractall(folder)
    assert Store.open(folder).cells() == ["one"]


@pytest.mark.parametrize("text", ["nosuch://a/b", "s3://bucket/run?endpoint_override=127.0.0.1%3A9&scheme=nosuch"])
def test_a_url_that_cannot_be_used_is_one_clear_error(text: str) -> None:
    with pytest.raises(StoreError, match="cannot be used"):
        Store.open(text)


def test_the_path_of_a_url_is_that_url(tmp_path: Path) -> None:
    for url in ("s3://bucket/run", "file:///srv/run", "memory://a/b"):
        remote, of_path = remote_run(url), remote_run(Path(url))
        assert remote == of_path and remote is not None and remote.url == url
    assert remote_run("runs/one") is None and remote_run("/srv/run") is None and remote_run(tmp_path) is None
