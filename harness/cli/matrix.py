"""The matrix of `stride list`: whether each method runs on each backbone, and if not, the missing parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stridebench.harness.cli.main import say
from stridebench.harness.plan import contract, presets
from stridebench.harness.plan.compatibility import LACKS, WORDS, Outcomes
from stridebench.harness.plan.planned_method import PlannedMethod

NARROWEST = 12
"""Characters of a column of words, its border included."""
MARKS = {"runs": "x", "needs a part": "p", "needs weights": "w", "cannot": "-"}


def rows() -> list[dict[str, Any]]:
    """Return one row for each pair: its outcome, the reason, and the command that makes or fetches missing parts."""
    pairs, outcomes = [], Outcomes()
    specs = presets.by_name()
    for name in contract.usable_names():
        method = PlannedMethod.default(name)
        for backbone in specs.values():
            outcome = outcomes.of(method, backbone)
            pair = {"name": name, "kind": "matrix", "backbone": backbone.name}
            pairs.append({**pair, "outcome": outcome.word, "reason": outcome.reason, "command": outcome.command})
    return pairs


def show(console: Console, pairs: list[dict[str, Any]]) -> None:
    """Print the matrix; backbones with the same outcome for every method share a column, and their names follow.

    If the words are too wide for the terminal, a column has a mark for each method, and a legend follows.
    """
    outcomes: dict[str, list[str]] = {}
    for row in pairs:
        outcomes.setdefault(row["backbone"], []).append(_short(row))
    alike: dict[tuple[str, ...], list[str]] = {}
    for backbone, column in outcomes.items():
        alike.setdefault(tuple(column), []).append(backbone)
    methods = dict.fromkeys(row["name"] for row in pairs)
    if len(alike) * NARROWEST + max(map(len, methods)) > console.width:
        marked: dict[tuple[str, ...], list[str]] = {}
        for words, backbones in alike.items():
            marked.setdefault(tuple(MARKS.get(word, MARKS["cannot"]) for word in words), []).extend(backbones)
        alike = marked
    table = Table(title="matrix", title_justify="left", header_style="bold")
    if _are_marks(alike):
        table.box, table.padding = None, (0, 1, 0, 0)
    table.add_column("method", no_wrap=True)
    for index in range(len(alike)):
        table.add_column(_letter(index), overflow="fold")
    for place, method in enumerate(methods):
        table.add_row(method, *(column[place] for column in alike))
    console.print(table)
    names = Table.grid(padding=(0, 2))
    names.add_column(style="bold", no_wrap=True)
    names.add_column(overflow="fold")
    for index, backbones in enumerate(alike.values()):
        names.add_row(_letter(index), ", ".join(backbones))
    console.print(names)
    if _are_marks(alike):
        console.print(", ".join(f"{mark} {word}" for word, mark in MARKS.items()) + "; why: stride list matrix --json")
    counts = Counter(row["outcome"] for row in pairs)
    console.print(f"{len(pairs)} pairs: " + ", ".join(f"{counts[word]} {word}" for word in WORDS))
    _show_commands(pairs)


def _are_marks(alike: Iterable[tuple[str, ...]]) -> bool:
    return any(column[0] in MARKS.values() for column in alike)


def _show_commands(pairs: list[dict[str, Any]]) -> None:
    """Print each command once, with the pairs that need it."""
    needing: dict[str, list[dict[str, Any]]] = {}
    for row in pairs:
        if row["command"]:
            needing.setdefault(row["command"], []).append(row)
    for command, rows in needing.items():
        say(f"# {_first([row['name'] for row in rows], 2)} on {_first([row['backbone'] for row in rows], 1)}")
        say(_from_here(command).replace(" --out ", " \\\n    --out "))


def _first(names: list[str], count: int) -> str:
    """Return the first few distinct names, and how many more there are."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - count
    return ", ".join(distinct[:count]) + (f" and {more} more" if more > 0 else "")


def _from_here(command: str) -> str:
    """Return a command with paths relative to the current folder, if they are below it."""
    return command.replace(f"{Path.cwd()}/", "")


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"A{index}"


def _short(row: dict[str, Any]) -> str:
    """Return the outcome, or the reason if a method cannot run."""
    if row["outcome"] != "cannot":
        return str(row["outcome"])
    return str(row["reason"]).replace(LACKS, "lacks").replace(f" for {row['backbone']} is here", "")
