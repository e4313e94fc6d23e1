"""Published data sets of text: where their files are, how fields are read, and how equal questions are recognised."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.tasks.loaders.files import (
    Row,
    Where,
    field_names,
    hub_rows,
    json_file,
    json_lines,
    locate,
    missing,
    parquet,
)

OFFICIAL = "official"
"""Value of a parameter ``hub`` that means the data set and revision that the task pins."""


@dataclass(frozen=True)
class PublishedTexts:
    """A published data set.

    Args:
        origin: who publishes it, under which file name.
        files: which files of the hub's data set.
        package: a distribution that contains it, used if the data folder does not.
    """

    what: str
    file: str
    origin: str
    hub: str = ""
    config: str = ""
    files: str = ""
    package: str = ""
    member: str = ""

    def rows(self, path_or_empty: str, hub: str, split: str) -> list[tuple[Where, Row]]:
        """Read all rows: from the hub if ``hub`` names a data set, else from a file (.parquet, .json, JSON lines).

        Args:
            path_or_empty: a path, or "".
            hub: "", `OFFICIAL`, ID or ID@REVISION.

        Raises:
            UsageError: the data is missing, malformed or empty; the message names it and its place.
        """
        if hub:
            return self._of_hub(self.hub if hub == OFFICIAL else hub, split)
        path = self.place(path_or_empty)
        rows = _read(path, self.what, self.origin)
        if not rows:
            raise UsageError(f"{path} holds no row. It should be {self.what}, from {self.origin}")
        return rows

    def place(self, file: str) -> Path:
        """Return the given path, else the path in the data folder, else the file of the installed package."""
        path = locate(file, self.file)
        if file or path.exists() or not self.package:
            return path
        try:
            packaged = Path(str(distribution(self.package).locate_file(self.member)))
        except PackageNotFoundError:
            return path
        return packaged if packaged.is_file() else path

    def _of_hub(self, name: str, split: str) -> list[tuple[Where, Row]]:
        if not name:
            raise UsageError(f"no data set of the hub is pinned for {self.what}; give its ID@REVISION, or a file")
        rows = hub_rows(name, split, name=self.config, data_files=self.files)
        if not rows:
            raise UsageError(f"the hub data set {name!r}, split {split!r}, holds no row")
        return rows


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
    entries = json_file(path, what, origin)
    if not isinstance(entries, list):
        raise Where(path, 1).fault(f"a list is expected; found {type(entries).__name__}")
    rows = [(Where(path, number, "entry"), entry) for number, entry in enumerate(entries, 1)]
    for where, entry in rows:
        if not isinstance(entry, dict):
            raise where.fault(f"a JSON object is expected; found {type(entry).__name__}")
    return rows


def raw(row: Row, key: str, where: Where) -> str:
    """Return a field that must be a text which is not blank. White space is kept."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise where.fault(f"{key} is {value!r}, not a text; found the fields {field_names(row)}")
    return value


def texts(row: Row, key: str, where: Where, least: int = 0) -> tuple[str, ...]:
    """Return a field that must be a list of ``least`` texts or more."""
    value = row.get(key)
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(isinstance(text, str) for text in value):
        raise where.fault(f"{key} is {value!r}, not a list of texts")
    if len(value) < least:
        raise where.fault(f"{key} has {len(value)} texts, fewer than {least}")
    return tuple(value)


def unique(prompts: Sequence[Prompt], path: str) -> tuple[Prompt, ...]:
    """Return the prompts as they are, or raise UsageError if two prompts have the same id."""
    ids: set[str] = set()
    for prompt in prompts:
        if prompt.id in ids:
            raise UsageError(f"{path}: {prompt.id} is there twice. Replace the file by the published one")
        ids.add(prompt.id)
    return tuple(prompts)


def key(text: str) -> str:
    """Return a hex sha256 that is equal for texts which differ in case and white space alone."""
    return hashlib.sha256(" ".join(text.casefold().split()).encode()).hexdigest()


def questions_of(prompt: Prompt) -> tuple[str, ...]:
    """Return the questions of a prompt without the words that its form adds; by default its text."""
    questions = prompt.data.get("asked") or (prompt.text or "",)
    return (questions,) if isinstance(questions, str) else tuple(questions)


def ranked(prompts: Sequence[Prompt], seed: int) -> list[Prompt]:
    """Sort prompts in a random order that depends on the seed and their ids alone."""
    return sorted(prompts, key=lambda prompt: hashlib.sha256(f"{seed}/{prompt.id}".encode()).digest())


def until(text: str, stops: Sequence[str]) -> str:
    """Return the text before the first of the stops."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]
