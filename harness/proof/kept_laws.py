"""Laws on disk, so that an unchanged method is not enumerated twice.

A sheet holds the laws of one setting, as it is or with one injected bug. It counts only where the files that the laws
rest on (`stridebench.harness.proof.sources`) are as they were. Only what runs inside `keeping` reads and writes sheets.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stridebench.harness.core.method import Method, Mutant, parameters
from stridebench.harness.errors import ContractError, EnumerationLimit, StoreError
from stridebench.harness.platform.folders import cache_folder
from stridebench.harness.proof import sources
from stridebench.harness.record.files import SCHEMA, encode, load, put

Law = dict[tuple[int, ...], float]
RAISED = {"EnumerationLimit": EnumerationLimit, "ContractError": ContractError}
"""What an enumeration may end in instead of a law; each is decided by the same files."""


@dataclass
class Keeper:
    """A folder of sheets.

    Args:
        fresh: read none of what earlier commands wrote.
        command: tells the sheets of this command from those of earlier ones.

    Attributes:
        used: laws that an earlier command had enumerated.
        enumerated: laws that this one did.
        trouble: why the last sheet could not be written; "" where all were.
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
    """Laws by what was enumerated.

    Args:
        modules: of the method, and of the bug.
        rests_on: the digest of the files; None: they cannot be told, so that nothing is kept.
        earlier: written by an earlier command.
    """

    path: Path
    modules: tuple[str, ...]
    rests_on: str | None
    laws: dict[str, Any] = field(default_factory=dict)
    earlier: bool = False
    new: int = 0
    seen: set[str] = field(default_factory=set)


_keeper: Keeper | None = None
_open: Sheet | None = None


def folder() -> Path:
    """Where `stride verify` keeps its laws."""
    return cache_folder() / "laws"


@contextmanager
def keeping(keeper: Keeper) -> Iterator[Keeper]:
    """While inside, laws are read from the keeper's folder and written there."""
    global _keeper
    before, _keeper = _keeper, keeper
    try:
        yield keeper
    finally:
        _keeper = before


@contextmanager
def sheet(method: Method[Any], mutant: Mutant | None = None, part: str = "") -> Iterator[None]:
    """While inside, the laws that are asked for belong to this setting, this bug and this part of the cases.

    Processes that enumerate at the same time have sheets of their own.
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
    """The law of ``what``, from the open sheet where it has it.

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
    """A method with all its parameters, in one line."""
    return f"{type(method).__module__}.{type(method).__qualname__} {parameters(method)!r}"


def _decoded(body: Any) -> Law:
    if isinstance(body, dict):
        raise RAISED[body["raised"]](body["text"])
    return {tuple(tokens): weight for tokens, weight in body}


def _sheet_of(keeper: Keeper, method: Method[Any], mutant: Mutant | None, part: str) -> Sheet:
    """The sheet of a setting, a bug and a part: of this process, else of the disk, else an empty one."""
    kind = type(method)
    modules: tuple[str, ...] = (kind.__module__,)
    what = setting(method) + (f" {part}" if part else "")
    if mutant is not None:
        modules += (mutant.where.partition(":")[0],)
        what += f" {mutant.where} {mutant.old!r} {mutant.new!r}"
    name = hashlib.sha256(what.encode()).hexdigest()[:32]
    if name not in keeper.sheets:
        path, rests_on = keeper.folder / f"{name}.json", sources.digest(modules) if _is_of(kind) else None
        keeper.sheets[name] = _read(keeper, Sheet(path, modules, rests_on))
    return keeper.sheets[name]


def _is_of(kind: type) -> bool:
    """Whether a class is the one of its name in its module, and not another that gives itself this name."""
    return getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind


def _read(keeper: Keeper, empty: Sheet) -> Sheet:
    """What was kept; nothing where a byte of it or of the sources has changed."""
    if empty.rests_on is None:
        return empty
    try:
        body = load(empty.path, "")
    except (StoreError, OSError):
        return empty
    earlier = body.get("command") != keeper.command
    if body.get("rests_on") != empty.rests_on or (earlier and keeper.fresh):
        return empty
    return replace(empty, laws=dict(body["laws"]), earlier=earlier)


def _write(keeper: Keeper, sheet: Sheet) -> None:
    if not sheet.new:
        return
    if sources.edited(sheet.modules):  # the digest may be of the new files, and the laws are of the old ones
        keeper.trouble = "a file that they rest on was written since this command began"
        return
    body = {"schema": SCHEMA, "rests_on": sheet.rests_on, "command": keeper.command, "laws": sheet.laws}
    try:
        keeper.folder.mkdir(parents=True, exist_ok=True)
        put(sheet.path, encode(body))
        sheet.new = 0
    except OSError as error:
        keeper.trouble = str(error)
