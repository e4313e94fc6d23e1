"""Laws on disk, so that an unchanged method is not enumerated twice.

A sheet holds the laws of one setting, as it is or with one injected bug. It is valid only if the files that the laws
depend on (this file included) are unchanged. Sheets are read and written only inside `keeping`.
"""

from __future__ import annotations

import hashlib
import importlib
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

import stridebench.harness
from stridebench.harness.core.method import Method, Mutant, parameters
from stridebench.harness.errors import ContractError, EnumerationLimit, StoreError
from stridebench.harness.machine.surroundings import cache_folder
from stridebench.harness.proof.cases import presets_names
from stridebench.harness.record.files import SCHEMA, encode, load, put

TICK_S = 0.1
"""Clocks of file systems may lag behind by less."""
SHARED = {
    "harness": ("core", "proof", "machine", "plan", "record", "kernels", "backbones/slots"),
    "methods": ("drafters", "verifiers"),
}
"""Folders that every law depends on, with the modules next to the first, the toys and the reference of masked ones."""


def files(modules: tuple[str, ...]) -> list[Path]:
    """Return the files that laws of these modules depend on: the shared ones, and those of the modules."""
    homes = {room: Path(importlib.import_module(f"stridebench.{room}").__path__[0]) for room in SHARED}
    paths = {path for room, home in homes.items() for folder in SHARED[room] for path in (home / folder).rglob("*.py")}
    paths |= {*homes["harness"].glob("*.py"), *(homes["harness"] / "backbones").glob("*toy.py")}
    paths.add(homes["methods"] / "masked_diffusion.py")
    return sorted(paths | {Path(str(sys.modules[name].__file__)) for name in modules if name in sys.modules})


@cache
def digest(modules: tuple[str, ...]) -> str | None:
    """Return the digest of the files that laws of these modules depend on, of the libraries and of the processor.

    None if a module is not ours, or a file was written after this process had begun to read them.
    """
    if not all(module.startswith(tuple(f"stridebench.{room}." for room in SHARED)) for module in modules):
        return None
    if edited(modules):
        return None
    facts = [platform.python_version(), torch.__version__, platform.machine(), *presets_names()]
    facts.append(torch.backends.cpu.get_cpu_capability())
    facts += [f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in files(modules)]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def edited(modules: tuple[str, ...]) -> bool:
    """Return whether a file that these depend on was written or moved since this process began to read them."""
    return any(path.stat().st_ctime >= stridebench.harness.IMPORTED - TICK_S for path in files(modules))


Law = dict[tuple[int, ...], float]
RAISED = {"EnumerationLimit": EnumerationLimit, "ContractError": ContractError}
"""Errors that an enumeration may end in instead of a law; the same files decide them."""


@dataclass
class LawKeeper:
    """A folder of sheets.

    Args:
        fresh: read none of what earlier commands wrote.
        command: tells the sheets of this command from those of earlier ones.

    Attributes:
        used: laws that an earlier command had enumerated.
        trouble: why the last sheet could not be written; "" if all were.
    """

    folder: Path
    fresh: bool
    command: str
    used: int = 0
    enumerated: int = 0
    trouble: str = ""
    sheets: dict[str, Sheet] = field(default_factory=dict)


@dataclass
class Sheet:
    """Laws by the enumerated case.

    Args:
        modules: of the method, and of the bug.
        rests_on: the digest of the files, or None if they are unknown, so that no laws are kept.
    """

    path: Path
    modules: tuple[str, ...]
    rests_on: str | None
    laws: dict[str, Any] = field(default_factory=dict)
    earlier: bool = False
    new: int = 0
    seen: set[str] = field(default_factory=set)


_keeper: LawKeeper | None = None
_open: Sheet | None = None


def folder() -> Path:
    """Return the folder in which `stride verify` keeps its laws."""
    return cache_folder() / "laws"


@contextmanager
def keeping(keeper: LawKeeper) -> Iterator[LawKeeper]:
    """Read laws from the keeper's folder and write them there while inside."""
    global _keeper
    before, _keeper = _keeper, keeper
    try:
        yield keeper
    finally:
        _keeper = before


@contextmanager
def sheet(method: Method[Any], mutant: Mutant | None = None, part: str = "") -> Iterator[None]:
    """Look up laws for this setting, this bug and this part of the cases while inside.

    Processes that enumerate at the same time have separate sheets.
    """
    global _open
    if _keeper is None:
        yield
        return
    before, _open = _open, _sheet_of(_keeper, method, mutant, part)
    try:
        yield
    finally:
        _write(_keeper, _open)
        _open = before


def kept(what: str, enumerate_it: Callable[[], Law]) -> Law:
    """Return the law of ``what``, from the open sheet if it is there.

    Raises:
        EnumerationLimit, ContractError: the enumeration ends in it, today or when it was kept.
    """
    if _open is None or _keeper is None or _open.rests_on is None:
        return enumerate_it()
    if what in _open.laws:
        _keeper.used += _open.earlier and what not in _open.seen
        _open.seen.add(what)
        return _decoded(_open.laws[what])
    sheet, keeper = _open, _keeper
    try:
        law = enumerate_it()
        body: Any = [[list(tokens), weight] for tokens, weight in law.items()]
    except (EnumerationLimit, ContractError) as error:
        if type(error).__name__ not in RAISED:
            raise
        body = {"raised": type(error).__name__, "text": str(error)}
    sheet.laws[what] = body
    sheet.seen.add(what)
    sheet.new += 1
    keeper.enumerated += 1
    return _decoded(body)


def setting(method: Method[Any]) -> str:
    """Return a method with all its parameters, in one line."""
    return f"{type(method).__module__}.{type(method).__qualname__} {parameters(method)!r}"


def _decoded(body: Any) -> Law:
    if isinstance(body, dict):
        raise RAISED[body["raised"]](body["text"])
    return {tuple(tokens): weight for tokens, weight in body}


def _sheet_of(keeper: LawKeeper, method: Method[Any], mutant: Mutant | None, part: str) -> Sheet:
    """Return the sheet of a setting, a bug and a part: of this process, else of the disk, else an empty one."""
    kind = type(method)
    modules: tuple[str, ...] = (kind.__module__,)
    what = setting(method) + (f" {part}" if part else "")
    if mutant is not None:
        modules += (mutant.where.partition(":")[0],)
        what += f" {mutant.where} {mutant.old!r} {mutant.new!r}"
    name = hashlib.sha256(what.encode()).hexdigest()[:32]
    if name not in keeper.sheets:
        path, rests_on = keeper.folder / f"{name}.json", digest(modules)
        keeper.sheets[name] = _read(keeper, Sheet(path, modules, rests_on))
    return keeper.sheets[name]


def _read(keeper: LawKeeper, empty: Sheet) -> Sheet:
    """Return the kept laws; none if a byte of them or of the sources has changed."""
    if empty.rests_on is None:
        return empty
    try:
        body = load(empty.path, "")
    except (StoreError, OSError):
        return empty
    earlier = body.get("command") != keeper.command
    if body.get("rests_on") != empty.rests_on or (earlier and keeper.fresh):
        return empty
    laws: Any = body["laws"]
    return replace(empty, laws=dict(laws), earlier=earlier)


def _write(keeper: LawKeeper, sheet: Sheet) -> None:
    if not sheet.new:
        return
    if edited(sheet.modules):  # the digest may be of the new files, and the laws are of the old ones
        keeper.trouble = "a file that they rest on was written since this command began"
        return
    body = {"schema": SCHEMA, "rests_on": sheet.rests_on, "command": keeper.command, "laws": sheet.laws}
    try:
        keeper.folder.mkdir(parents=True, exist_ok=True)
        put(sheet.path, encode(body))
        sheet.new = 0
    except OSError as error:
        keeper.trouble = str(error)
