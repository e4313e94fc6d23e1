"""Laws on disk, so that an unchanged method is not enumerated twice.

A sheet holds the laws of one setting, as it is or with one injected bug. It is valid only if the files that the laws
depend on (this file included) are unchanged. Sheets are read and written only inside `keeping`.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

import stridebench.harness
from stridebench.harness.core.method import Method, Mutant, parameters
from stridebench.harness.errors import ContractError, EnumerationLimit, StoreError
from stridebench.harness.machine.folders import cache_folder
from stridebench.harness.proof.cases import presets_names
from stridebench.harness.record.files import SCHEMA, encode, load, put

# A law depends on the files of our packages that its modules import, and on the files that those import.


TICK_S = 0.1
"""Clocks of file systems may lag behind by less."""
PACKAGES = ("stridebench.harness", "stridebench.methods")
"""Whose files are read. Laws of methods of other packages are not kept: what those read is not known."""
ALWAYS = (
    "stridebench.harness.proof.distance",
    "stridebench.harness.proof.mutants",
    "stridebench.methods.masked_diffusion",
)
"""The enumeration with its models, and the reference of masked models."""


@dataclass(frozen=True)
class ModuleSource:
    """A module of ours.

    Args:
        imports: names that may be modules.
        functions: qualified names of the functions that it defines, two levels deep.
    """

    path: Path
    digest: str
    imports: frozenset[str]
    functions: tuple[str, ...]


def rests_on(modules: Iterable[str]) -> dict[str, ModuleSource]:
    """The modules of our packages that these import, at whatever depth and wherever in a file, with themselves."""
    sources: dict[str, ModuleSource] = {}
    waiting = [*modules, *ALWAYS]
    while waiting:
        name = waiting.pop()
        source = None if name in sources else _source(name)
        if source is not None:
            sources[name] = source
            waiting += source.imports
    return sources


@cache
def digest(modules: tuple[str, ...]) -> str | None:
    """Return the digest of the files that laws of these modules depend on, of the libraries and of the processor.

    None if a module is not ours, a function of these files was replaced in this process, or a file was written after
    this process had begun to read them.
    """
    if not all(f"{module}.".startswith(tuple(f"{name}." for name in PACKAGES)) for module in modules):
        return None
    sources = rests_on(modules)
    if edited(modules) or not all(_as_written(name, source) for name, source in sources.items()):
        return None
    facts = [platform.python_version(), torch.__version__, platform.machine(), *presets_names()]
    facts.append(torch.backends.cpu.get_cpu_capability())
    facts += [f"{name} {source.digest}" for name, source in sorted(sources.items())]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def edited(modules: Iterable[str]) -> bool:
    """Whether a file of what these rest on was written, moved or removed since this process began to read them."""
    return any(not _as_read(source.path) for source in rests_on(modules).values())


def _as_read(path: Path) -> bool:
    try:
        return path.stat().st_ctime < stridebench.harness.IMPORTED - TICK_S
    except OSError:
        return False


@cache
def _source(module: str) -> ModuleSource | None:
    """Return None if no module of this project has that name."""
    first, second, *rest = [*module.split("."), ""]
    if f"{first}.{second}" not in PACKAGES:
        return None
    home = Path(next(iter(importlib.import_module(f"{first}.{second}").__path__))).joinpath(*rest[:-1])
    is_package = (home / "__init__.py").is_file()
    path = home / "__init__.py" if is_package else home.with_suffix(".py")
    if not path.is_file():
        return None
    data = path.read_bytes()
    tree = ast.parse(data)
    package = module if is_package else module.rpartition(".")[0]
    imports = frozenset(prefix for name in _imported(tree, package) for prefix in _prefixes(name))
    return ModuleSource(path, hashlib.sha256(data).hexdigest(), imports, tuple(_functions(tree)))


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            origin = ".".join(filter(None, (base, node.module)))
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def _prefixes(name: str) -> list[str]:
    """The packages above a module, whose ``__init__`` runs too, and the module."""
    words = name.split(".")
    ours = ".".join(words[:2]) in PACKAGES
    return [".".join(words[:end]) for end in range(2, len(words) + 1)] if ours else []


def _functions(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef))


def _as_written(name: str, source: ModuleSource) -> bool:
    """Whether the functions of a module are still those of its file; a plugin or a test may have put others there."""
    module = sys.modules.get(name)
    return module is None or all(_is_from(module, function, source.path) for function in source.functions)


def _is_from(module: Any, name: str, path: Path) -> bool:
    thing: Any = module
    with suppress(AttributeError):  # a name that the module deletes, or that is defined under a condition
        for word in name.split("."):
            thing = inspect.getattr_static(thing, word)
        thing = getattr(thing, "fget", None) or getattr(thing, "func", None) or getattr(thing, "__func__", thing)
        thing = inspect.unwrap(thing)
        if isinstance(thing, FunctionType):
            return Path(thing.__code__.co_filename).resolve() == path.resolve()
    return True


Law = dict[tuple[int, ...], float]
RAISED = {"EnumerationLimit": EnumerationLimit, "ContractError": ContractError}
"""What an enumeration may end in instead of a law; each is decided by the same files."""


@dataclass
class LawKeeper:
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
    """Laws by the enumerated case.

    Args:
        modules: of the method, and of the bug.
        rests_on: the digest of the files, or None if they are unknown, so that no laws are kept.
        earlier: written by an earlier command.
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
    """Where `stride verify` keeps its laws."""
    return cache_folder() / "laws"


@contextmanager
def keeping(keeper: LawKeeper) -> Iterator[LawKeeper]:
    """While inside, laws are read from the keeper's folder and written there."""
    global _keeper
    before, _keeper = _keeper, keeper
    try:
        yield keeper
    finally:
        _keeper = before


@contextmanager
def sheet(method: Method[Any], mutant: Mutant | None = None, part: str = "") -> Iterator[None]:
    """While inside, look up laws for this setting, this bug and this part of the cases.

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
    """A method with all its parameters, in one line."""
    return f"{type(method).__module__}.{type(method).__qualname__} {parameters(method)!r}"


def _decoded(body: Any) -> Law:
    if isinstance(body, dict):
        raise RAISED[body["raised"]](body["text"])
    return {tuple(tokens): weight for tokens, weight in body}


def _sheet_of(keeper: LawKeeper, method: Method[Any], mutant: Mutant | None, part: str) -> Sheet:
    """The sheet of a setting, a bug and a part: of this process, else of the disk, else an empty one."""
    kind = type(method)
    modules: tuple[str, ...] = (kind.__module__,)
    what = setting(method) + (f" {part}" if part else "")
    if mutant is not None:
        modules += (mutant.where.partition(":")[0],)
        what += f" {mutant.where} {mutant.old!r} {mutant.new!r}"
    name = hashlib.sha256(what.encode()).hexdigest()[:32]
    if name not in keeper.sheets:
        path, rests_on = keeper.folder / f"{name}.json", digest(modules) if _is_of(kind) else None
        keeper.sheets[name] = _read(keeper, Sheet(path, modules, rests_on))
    return keeper.sheets[name]


def _is_of(kind: type) -> bool:
    """Whether a class is the one of its name in its module, and not another that gives itself this name."""
    return getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind


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
    return replace(empty, laws=dict(body["laws"]), earlier=earlier)


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
