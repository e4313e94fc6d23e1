"""A run at a URL: what is finished lies there, and each machine works in another folder."""

from __future__ import annotations

import hashlib
import io
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from stridebench.harness.errors import StoreError, UsageError
from stridebench.harness.record.files import drop, make, put, put_folder

_URL = re.compile(r"([a-z][a-z0-9+]+):/+(.+)", re.IGNORECASE)

_PARTS = ("outputs", "conditions")
"""Further folders that hold files of a cell."""


def remote_run(path: str | Path) -> RemoteRun | None:
    """Return the run at a URL, or None if ``path`` is that of a folder. A `Path` lacks one of a URL's slashes."""
    match = _URL.fullmatch(str(path))
    if match is None or (isinstance(path, Path) and path.exists()):
        return None
    root = "/" if match[1] in ("file", "local") else ""
    return RemoteRun(f"{match[1]}://{root}{match[2].rstrip('/')}")


def holds_run(url: str) -> bool:
    """Whether a run was started at a URL."""
    remote = remote_run(url)
    return remote is not None and remote.manifest() is not None


@dataclass(frozen=True)
class RemoteRun:
    """The objects of a run at a URL, whose protocol is one of fsspec.

    Raises:
        StoreError: of every method: the URL cannot be read or written.
    """

    url: str

    def create(self, manifest: bytes) -> Path:
        """Start a run and return the working copy, or raise StoreError if there is a run already."""
        with self._access():
            if self._fs.exists(self._at("manifest.json")):
                raise StoreError(f"{self.url} already holds a run. Go on with it (--resume), or name another URL.")
            self._write("manifest.json", manifest)
        return self._copy_of(manifest)

    def manifest(self) -> bytes | None:
        """Return the manifest, or None if no run was started."""
        return self._read("manifest.json")

    def working_copy(self) -> Path:
        """Return the copy on this machine, and make it if there is none."""
        manifest = self.manifest()
        if manifest is None:
            raise StoreError(f"{self.url} holds no run (no manifest.json). Check the URL, or start a run there.")
        return self._copy_of(manifest)

    def send(self, copy: Path, cell: str) -> None:
        """Write a sealed cell of the copy as one object."""
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(file for part in ("cells", *_PARTS) for file in (copy / part / cell).rglob("*")):
                if file.is_file():
                    archive.writestr(file.relative_to(copy).as_posix(), file.read_bytes())
        with self._access():
            self._write(f"cells/{cell}.zip", data.getvalue())

    def send_missing(self, copy: Path, cells: Iterable[str]) -> None:
        """Write sealed cells of the copy that are not at the URL: a kill came before they were sent."""
        there = self._sealed()
        for cell in cells:
            if cell not in there:
                self.send(copy, cell)

    def forget(self, cell: str) -> None:
        """Remove a cell, which is to run again."""
        with self._access():
            if self._fs.exists(self._at(f"cells/{cell}.zip")):
                self._fs.rm_file(self._at(f"cells/{cell}.zip"))

    def fetch(self, copy: Path, cells: Iterable[str]) -> None:
        """Bring those of these cells to the copy that are at the URL, or raise StoreError if one is damaged."""
        asked = list(cells)
        there = self._sealed() if len(asked) > 1 else set(asked)
        for cell in asked:
            data = self._read(f"cells/{cell}.zip") if cell in there else None
            if data is not None:
                self._unpack(copy, cell, data)

    def publish(self, copy: Path, folder: str) -> None:
        """Write the files of a folder of the copy to the URL."""
        with self._access():
            for file in sorted((copy / folder).rglob("*")):
                if file.is_file():
                    self._write(file.relative_to(copy).as_posix(), file.read_bytes())

    def restore(self, copy: Path, folder: str, names: Sequence[str]) -> None:
        """Bring a published folder to the copy if all of its files are at the URL and the copy lacks it."""
        if (copy / folder).is_dir():
            return
        files = {name: self._read(f"{folder}/{name}") for name in names}
        whole = {name: data for name, data in files.items() if data is not None}
        if len(whole) == len(names):
            make((copy / folder).parent)
            put_folder(copy / folder, whole)

    def _unpack(self, copy: Path, cell: str, data: bytes) -> None:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                files = {name: archive.read(name) for name in archive.namelist()}
        except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
            raise StoreError(
                f"{self.url}/cells/{cell}.zip is damaged: {error}. Restore it from a copy, or delete it and run again "
                f"with --resume."
            ) from error
        folders = {f"{part}/{cell}" for part in ("cells", *_PARTS)}
        if foreign := [name for name in files if not _inside(name, folders)]:
            raise StoreError(f"{self.url}/cells/{cell}.zip holds {foreign[0]!r:.80}, which is none of that cell.")
        sealed = {}
        for name, content in files.items():
            if name.startswith("cells/"):
                sealed[PurePosixPath(name).name] = content
            else:
                make((copy / name).parent)
                put(copy / name, content)
        make(copy / "cells")
        put_folder(copy / "cells" / cell, sealed)
        drop(copy / "records" / cell)  # decodes of this machine that another one was quicker to finish

    def _copy_of(self, manifest: bytes) -> Path:
        """The copy of the run that has this manifest; another run at the same URL has another one."""
        name = hashlib.sha256(self.url.encode() + b"\n" + manifest).hexdigest()[:24]
        copy = Path(os.environ.get("STRIDE_CACHE") or Path.home() / ".cache" / "stridebench") / "runs" / name
        if not (copy / "manifest.json").exists():
            make(copy)
            put(copy / "manifest.json", manifest)
        return copy

    def _sealed(self) -> set[str]:
        with self._access():
            folder = self._at("cells")
            if not self._fs.exists(folder):
                return set()
            self._fs.invalidate_cache(folder)
            names = (PurePosixPath(str(name)).name for name in self._fs.ls(folder, detail=False))
            return {name.removesuffix(".zip") for name in names if name.endswith(".zip")}

    def _read(self, name: str) -> bytes | None:
        with self._access():
            try:
                data: bytes = self._fs.cat_file(self._at(name))
            except FileNotFoundError:
                return None
            return data

    def _write(self, name: str, data: bytes) -> None:
        """Write an object; a file system of folders gets it by a rename."""
        path = self._at(name)
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        with self._fs.open(path, "wb", autocommit=False) if self._renames else self._fs.open(path, "wb") as file:
            file.write(data)
        if self._renames:
            file.commit()

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    @property
    def _renames(self) -> bool:
        return "file" in self._fs.protocol

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        with self._access():
            return _file_system(self.url)

    @property
    def _fs(self) -> Any:
        return self._opened[0]

    @property
    def _root(self) -> str:
        return self._opened[1].rstrip("/")

    @contextmanager
    def _access(self) -> Iterator[None]:
        """Raise StoreError if the URL cannot be used."""
        try:
            yield
        except (OSError, ValueError, ImportError) as error:
            raise StoreError(
                f"{self.url} cannot be used: {type(error).__name__}: {error}. Check the URL, its credentials and that "
                f"the package of its protocol is installed (see fsspec)."
            ) from error


def fetched(url: str, folder: Path) -> Path:
    """Copy the file of a URL into a folder, under its digest and its name, or raise UsageError if it cannot be read."""
    try:
        file_system, path = _file_system(url)
        content: bytes = file_system.cat_file(path)
    except RuntimeError:  # a stand-in of a library was used
        raise
    except Exception as error:  # file systems raise errors of their own packages
        raise UsageError(
            f"{url} cannot be read: {type(error).__name__}: {error}. Check the URL, its credentials and that the "
            f"package of its protocol is installed (see fsspec), or fetch the file and give its path"
        ) from error
    name = PurePosixPath(url.partition("?")[0]).name
    file = folder / hashlib.sha256(content).hexdigest()[:16] / name
    make(file.parent)
    put(file, content)
    return file


def _file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it. S3 without the package s3fs is served by pyarrow."""
    import fsspec

    try:
        file_system, path = fsspec.core.url_to_fs(url)
        return file_system, str(path)
    except ImportError:
        from fsspec.implementations.arrow import ArrowFSWrapper
        from pyarrow.fs import FileSystem

        inner, path = FileSystem.from_uri(url)
        return ArrowFSWrapper(inner), path


def _inside(name: str, folders: Iterable[str]) -> bool:
    parts = PurePosixPath(name).parts
    return ".." not in parts and len(parts) > 2 and "/".join(parts[:2]) in folders
