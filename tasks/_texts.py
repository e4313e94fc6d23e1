"""What the text tasks share: where their published files lie, raw fields, and how equal questions are told."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from harness.core.task import Prompt
from harness.errors import UsageError
from tasks._prompt_files import Row, Where, hub_rows, json_file, json_lines, locate, missing, parquet

OFFICIAL = "official"
"""Of a parameter ``hub``: the data set and revision that the task pins."""


@dataclass(frozen=True)
class Published:
    """A published data set.

    Args:
        what: its name. file: its place in the data folder. origin: who publishes it, under which file name.
        hub: ID@REVISION of the hub, config: its configuration, files: which of its files.
        package, member: a distribution that carries it, and the file in there; used where the data folder has none.
    """

    what: str
    file: str
    origin: str
    hub: str = ""
    config: str = ""
    files: str = ""
    package: str = ""
    member: str = ""

    def rows(self, given: str, hub: str, split: str) -> list[tuple[Where, Row]]:
        """All rows, of the hub where ``hub`` names a data set, else of a file: .parquet, .json or JSON lines.

        Args:
            given: a path, or "". hub: "", `OFFICIAL`, ID or ID@REVISION. split: of the hub's data set.

        Raises:
            UsageError: it is missing, malformed or holds no row; says what it is and where to put it.
        """
        if hub:
            return self._of_hub(self.hub if hub == OFFICIAL else hub, split)
        path = self.place(given)
        found = _read(path, self.what, self.origin)
        if not found:
            raise UsageError(f"{path} holds no row. It should be {self.what}, from {self.origin}")
        return found

    def place(self, given: str) -> Path:
        """The path given, else its place in the data folder, else the installed package's file where there is one."""
        path = locate(given, self.file)
        if given or path.exists() or not self.package:
            return path
        try:
            carried = Path(str(distribution(self.package).locate_file(self.member)))
        except PackageNotFoundError:
            return path
        return carried if carried.is_file() else path

    def _of_hub(self, name: str, split: str) -> list[tuple[Where, Row]]:
        if not name:
            raise UsageError(f"no data set of the hub is pinned for {self.what}; give its ID@REVISION, or a file")
        found = hub_rows(name, split, name=self.config, data_files=self.files)
        if not found:
            raise UsageError(f"the hub data set {name!r}, split {split!r}, holds no row")
        return found


def _read(path: Path, what: str, origin: str) -> list[tuple[Where, Row]]:
    if path.is_dir():
        parts = sorted(path.glob("*.parquet"))
        if not parts:
            raise missing(path / "*.parquet", what, origin)
        return [row for part in parts for row in parquet(part, what, origin)]
    if path.suffix == ".parquet":
        return parquet(path, what, origin)
    if path.suffix != ".json":
        return json_lines(path, what, origin)
    held = json_file(path, what, origin)
    if not isinstance(held, list):
        raise Where(path, 1).fault(f"a list is expected; found {type(held).__name__}")
    found = [(Where(path, number, "entry"), entry) for number, entry in enumerate(held, 1)]
    for where, entry in found:
        if not isinstance(entry, dict):
            raise where.fault(f"a JSON object is expected; found {type(entry).__name__}")
    return found


def raw(row: Row, key: str, where: Where) -> str:
    """A field that must be a text with something in it, white space kept.

    Raises:
        UsageError: it is missing, blank or no text.
    """
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        found = ", ".join(sorted(map(str, row))[:8]) or "none"
        raise where.fault(f"{key} is {value!r}, not a text; found the fields {found}")
    return value


def texts(row: Row, key: str, where: Where, least: int = 0) -> tuple[str, ...]:
    """A field that must be a list of ``least`` texts or more.

    Raises:
        UsageError: it is not.
    """
    value = row.get(key)
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(one, str) for one in value):
        raise where.fault(f"{key} is {value!r}, not a list of texts")
    if len(value) < least:
        raise where.fault(f"{key} has {len(value)} texts, fewer than {least}")
    return tuple(value)


def unique(prompts: Sequence[Prompt], path: str) -> tuple[Prompt, ...]:
    """The prompts.

    Raises:
        UsageError: two have one id.
    """
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise UsageError(f"{path}: {prompt.id} is there twice. Replace the file by the published one")
        seen.add(prompt.id)
    return tuple(prompts)


def key(text: str) -> str:
    """Equal for texts that differ in case and white space alone: hex sha256."""
    return hashlib.sha256(" ".join(text.casefold().split()).encode()).hexdigest()


def asked(prompt: Prompt) -> tuple[str, ...]:
    """The questions in a prompt, bare of what a form puts around them; by default its text."""
    found = prompt.data.get("asked") or (prompt.text or "",)
    return (found,) if isinstance(found, str) else tuple(found)


def ranked(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """All of them, in an order that depends on the seed and on their ids alone."""
    return sorted(prompts, key=lambda prompt: hashlib.sha256(f"{seed}/{prompt.id}".encode()).digest())


def until(text: str, stops: Sequence[str]) -> str:
    """What stands before the first of the stops."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]
