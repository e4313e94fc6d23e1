"""Functions that fill tables and draw figures, by their names in the papers' YAML files."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from matplotlib.figure import Figure

from stridebench.reports.papers.measured import Run
from stridebench.reports.text_table import TextTable

Fill = Callable[[Run], Iterable[TextTable]]
Draw = Callable[[Run], Iterable[Figure]]
SHEETS: dict[str, Fill] = {}
FIGURES: dict[str, Draw] = {}


def sheet(*names: str) -> Callable[[Fill], Fill]:
    """Register a function that fills tables."""

    def register(fill: Fill) -> Fill:
        SHEETS.update(dict.fromkeys(names, fill))
        return fill

    return register


def figure(name: str) -> Callable[[Draw], Draw]:
    """Register a function that draws figures. Files have this name without the paper's."""

    def register(draw: Draw) -> Draw:
        FIGURES[name] = draw
        return draw

    return register
