"""The matrix of `stride list`: every method on every backbone, and the reason where it does not run."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from harness.plan import contract, presets
from harness.plan.compatibility import LACKS, incompatibility


def rows() -> list[dict[str, Any]]:
    """One row for each pair: it runs, or the reason why not."""
    pairs = []
    specs = presets.by_name()
    for name, settings in contract.usable_methods():
        method = contract.default_of(settings)
        for backbone in specs.values():
            reason = incompatibility(method, backbone)
            outcome = "skipped" if reason else "runs"
            pairs.append(
                {"name": name, "kind": "matrix", "backbone": backbone.name, "outcome": outcome, "reason": reason}
            )
    return pairs


def show(console: Console, pairs: list[dict[str, Any]]) -> None:
    """Backbones with the same outcome for every method share a column; their names follow."""
    outcomes: dict[str, list[str]] = {}
    for row in pairs:
        outcomes.setdefault(row["backbone"], []).append(_short(row["reason"]))
    alike: dict[tuple[str, ...], list[str]] = {}
    for backbone, column in outcomes.items():
        alike.setdefault(tuple(column), []).append(backbone)
    table = Table(title="matrix", title_justify="left", header_style="bold")
    table.add_column("method", no_wrap=True)
    for index in range(len(alike)):
        table.add_column(_letter(index), overflow="fold")
    methods = dict.fromkeys(row["name"] for row in pairs)
    for place, method in enumerate(methods):
        table.add_row(method, *(column[place] for column in alike))
    console.print(table)
    names = Table.grid(padding=(0, 2))
    names.add_column(style="bold", no_wrap=True)
    names.add_column(overflow="fold")
    for index, backbones in enumerate(alike.values()):
        names.add_row(_letter(index), ", ".join(backbones))
    console.print(names)


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"A{index}"


def _short(reason: str | None) -> str:
    return "runs" if reason is None else reason.replace(LACKS, "lacks")
