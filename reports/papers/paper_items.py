"""Every table and figure of the papers, and what making one takes; from ``reports/data/paper_items.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from stridebench.harness.plan.yaml_lines import load as load_yaml
from stridebench.reports.papers.paper_files import PaperData

FILE = Path(__file__).parents[1] / "data" / "paper_items.yaml"


class Cells(PaperData):
    """A method with options on some models.

    Args:
        options: of the method, if its default does not fit the models.
    """

    method: str
    options: dict[str, Any] = {}  # noqa: RUF012  # pydantic copies it
    models: tuple[str, ...]


class Item(PaperData):
    """A table or a figure.

    Args:
        item: "Table 1", "Figure 2".
        made_by: a sheet or a figure of the reports, ``contact sheets`` of a run, or a verb.
        suite: fills it from models that are here, too.
        why: it cannot be made, or there is nothing to make.
    """

    item: str
    made_by: str = ""
    suite: str = ""
    cells: tuple[Cells, ...] = ()
    models: tuple[str, ...] = ()
    why: str = ""


@cache
def items() -> Mapping[str, tuple[Item, ...]]:
    """Read all items, by paper."""
    body = load_yaml(FILE.read_text(encoding="utf-8"))
    return {paper: tuple(Item.model_validate(item) for item in listed) for paper, listed in body["papers"].items()}
