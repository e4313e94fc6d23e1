"""The numbers that papers print, as data: a CSV a table, and ``index.yaml`` for where each stands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from harness.errors import UnknownNameError

FOLDER = Path(__file__).parents[1] / "data" / "papers"


@dataclass(frozen=True)
class Printed:
    """A table of a paper.

    Args:
        name: of its file. paper: title. where: "Table 1". caption: shortened.
        model: that all rows are of; "" where they name their own.
        rows: as printed, every value a text, "" where there is none.
    """

    name: str
    paper: str
    where: str
    caption: str
    model: str
    rows: pd.DataFrame


def printed(name: str) -> Printed:
    """A table by the name of its file.

    Raises:
        UnknownNameError: there is no such table.
    """
    known = _index()["tables"]
    if name not in known:
        raise UnknownNameError("printed table", name, known)
    entry = known[name]
    paper = next(one for key, one in _index()["papers"].items() if name.startswith(f"{key}_"))
    rows = pd.read_csv(FOLDER / f"{name}.csv", dtype=str, keep_default_na=False)
    return Printed(name, paper["title"], entry["where"], entry["caption"], entry.get("model", ""), rows)


def names() -> list[str]:
    """All tables."""
    return list(_index()["tables"])


def model_of(backbone: str) -> str | None:
    """What the papers call a preset; None: none of them has it."""
    found: str | None = _index()["models"].get(backbone)
    return found


@cache
def _index() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "index.yaml").read_text(encoding="utf-8"))
    return found
