"""Files that are complete or absent: written under another name, synced, renamed. JSON carries its own checksum."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stridebench.harness.errors import StoreError

SCHEMA = 2
"""The version of every file of a store."""
PARTIAL = "~partial"
FOREIGN_S = 3600.0
"""Age from which on what another machine has begun to write is abandoned."""
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
_WRITER = re.compile(rf"-(?P<host>[0-9a-f]{{8}})-(?P<process>[0-9]{{1,9}}){PARTIAL}$")


class DamagedError(StoreError):
    """A file is missing, truncated or altered; one of another version is not damaged."""


def encode(body: Mapping[str, Any], indent: int | None = None) -> bytes:
    """JSON that holds the sha256 of its other entries."""
    return json.dumps({**body, "sha256": _checksum(body)}, indent=indent).encode()


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, separators=(",", ":")).encode()).hexdigest()


def load(path: Path, remedy: str) -> dict[str, object]:
    """A JSON object written by ``encode``, checked.

    Raises:
        StoreError: it is of another schema version, or damaged; the message ends in ``remedy``.
    """
    if path.exists() and not path.is_file():
        raise DamagedError(f"{path} is not a regular file. {remedy}")
    try:
        body = json.loads(path.read_bytes())
        schema = body["schema"]
        rest = {name: value for name, value in body.items() if name != "sha256"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedError(f"{path} is missing, truncated or not a store's file: {error}. {remedy}") from error
    if schema != SCHEMA:
        raise StoreError(
            f"{path} is of schema version {schema}, and this stridebench reads version {SCHEMA}. "
            f"Use the version that wrote it, or run again in another folder."
        )
    if body.get("sha256") != _checksum(rest):
        raise DamagedError(f"{path} is damaged: its contents do not match its sha256. {remedy}")
    return dict(body)


def put(path: Path, data: bytes) -> None:
    """Write a file completely or not at all, durably."""
    partial = partial_of(path)
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        drop(partial)
        raise
    _sync(path.parent)


def put_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files, all of them or none, durably. One that another process wrote meanwhile stays."""
    partial = partial_of(path)
    try:
        drop(partial)
        make(partial)
        for name, data in files.items():
            put(partial / name, data)
        try:
            os.replace(partial, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            drop(partial)
    except BaseException:
        drop(partial)
        raise
    _sync(path.parent)


def partial_of(path: Path) -> Path:
    """Return the path that a file or folder has until it is complete; it differs between processes and machines."""
    return path.with_name(f"{path.name}-{_HOST}-{os.getpid()}{PARTIAL}")


def is_abandoned(partial: Path) -> bool:
    """Whether no process writes what has not got its name yet; on other machines, none for an hour.

    The workers of a pool may outlive the process of their run.
    """
    writer = _WRITER.search(partial.name)
    if writer is None:
        return True
    if writer["host"] != _HOST:
        with suppress(OSError):
            return time.time() - partial.stat().st_mtime > FOREIGN_S
        return False
    try:
        os.kill(int(writer["process"]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    return int(writer["process"]) == os.getpid()


def make(folder: Path) -> None:
    """Create a folder and its parents, durably."""
    if not folder.is_dir():
        make(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def drop_folder(path: Path) -> None:
    """Remove a folder under its name all at once, so that nobody reads a part of it."""
    partial = partial_of(path)
    drop(partial)
    os.replace(path, partial)
    drop(partial)


def drop(path: Path) -> None:
    """Remove a file or folder. What cannot be removed stays until the next resume, and is never read."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_LOCKS: dict[Path, int] = {}
"""Open handles of the lock files of this process; closing one unlocks its run."""


def lock(run: Path) -> None:
    """Keep other processes from writing to a run until ``unlock``, or until this process ends, however it ends."""
    unlock(run)
    handle = os.open(run / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise StoreError(f"{run} is being written by another process. Wait for it, or stop it.") from error
    else:
        _LOCKS[run.absolute()] = handle


def unlock(run: Path) -> None:
    """Let other processes write to a run, if this process locks it."""
    handle = _LOCKS.pop(run.absolute(), None)
    if handle is not None:
        os.close(handle)


# A run at a URL, such as s3://bucket/run: what is finished lies there, and each machine works in another copy.
#     URL/manifest.json      written first, once
#     URL/cells/CELL.zip     a sealed cell with its outputs and conditions: one object, there completely or not at all
#     URL/engines/CELL/...   a sealed cell of an engine
#     URL/report/...         the reports of the run
# Unpacked into one folder, the objects are a run folder. The copy of a machine lies in the folder of its cache. It
# holds the decodes of cells that are not sealed yet too, so a run that goes on there repeats none.


def folder_of_suite(name: str) -> Path:
    """Return the folder of a new run of a suite."""
    return Path("runs") / f"{_slug(name)}-{datetime.now(UTC):%Y%m%d-%H%M%S}"


def latest_of_suite(name: str) -> Path | None:
    """Return the newest folder that a run of this suite named itself, or None."""
    stamp = f"{8 * '[0-9]'}-{6 * '[0-9]'}"
    return max(Path("runs").glob(f"{_slug(name)}-{stamp}"), default=None)


def _slug(name: str) -> str:
    return re.sub(r"[^\w=+.-]+", "-", name, flags=re.ASCII).strip(".-")[:100] or "suite"
