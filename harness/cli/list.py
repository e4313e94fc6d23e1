"""`stride list`: what is registered, and what runs on what."""

from __future__ import annotations

import dataclasses
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from harness import presets, suite
from harness.cli.main import emit
from harness.discover import load_all
from harness.errors import ContractError
from harness.plan import unmet
from harness.registry import METHODS, TASKS

KINDS = ("methods", "tasks", "backbones", "suites", "matrix")


@click.command(name="list")
@click.argument("kind", type=click.Choice(KINDS), required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document: [{name, kind, claim, needs, source, ...}].")
def command(kind: str | None, as_json: bool) -> None:
    """What there is: claims, needs, sources, parameters.

    \b
    stride list                  everything but the matrix
    stride list methods          claims and parameters
    stride list matrix           every method on every backbone: runs, or the need it lacks
    stride list backbones --json
    """
    load_all()
    kinds = (kind,) if kind else KINDS[:-1]
    rows = [row for each in kinds for row in ROWS[each]()]
    if as_json:
        emit(rows)
        return
    for each in kinds:
        _show(each, [row for row in rows if row["kind"] == each.removesuffix("s")])


def methods() -> list[dict[str, Any]]:
    """One row a method."""
    rows = []
    for name in METHODS:
        cls = METHODS.get(name)
        settings = settings_of(name, cls)
        claims = list(dict.fromkeys(method.claim.name for method in settings))
        rows.append(
            {
                "name": name,
                "kind": "method",
                "claim": claims[0],
                "claims": claims,
                "exact_at": cls.exact_at,
                "needs": sorted(need.name for need in settings[0].needs),
                "source": cls.source,
                "params": {f.name: _default(f) for f in dataclasses.fields(cls)},
                "from": METHODS.source(name),
                "summary": (cls.__doc__ or "").strip().split("\n")[0],
            }
        )
    return rows


def settings_of(name: str, cls: Any) -> Any:
    """Its variants.

    Raises:
        ContractError: a plugin's class is no dataclass, lacks a claim, or cannot be made.
    """
    try:
        dataclasses.fields(cls)
        return cls.variants()
    except TypeError as error:
        raise ContractError(f"the method {name!r} of {METHODS.source(name)} cannot be made: {error}") from error


def tasks() -> list[dict[str, Any]]:
    """One row a task."""
    return [
        {
            "name": name,
            "kind": "task",
            "claim": None,
            "needs": [],
            "source": TASKS.get(name).source,
            "params": {f.name: _default(f) for f in dataclasses.fields(TASKS.get(name))},
            "metrics": list(TASKS.get(name).metrics),
            "runs_code": TASKS.get(name).runs_code,
            "from": TASKS.source(name),
            "summary": (TASKS.get(name).__doc__ or "").strip().split("\n")[0],
        }
        for name in TASKS
    ]


def backbones() -> list[dict[str, Any]]:
    """One row a preset."""
    return [
        {
            "name": spec.name,
            "kind": "backbone",
            "claim": None,
            "needs": [],
            "meets": sorted(need.name for need in spec.meets()),
            "source": next(iter(spec.params.get("source", {spec.adapter: 0}))),
            "adapter": spec.adapter,
            "licence": spec.licence,
            "ready": spec.ready(),
            "summary": spec.note,
        }
        for spec in presets.known().values()
    ]


def suites() -> list[dict[str, Any]]:
    """One row a suite."""
    rows = []
    for name, path in suite.known().items():
        found = suite.load(name).suite
        rows.append(
            {
                "name": name,
                "kind": "suite",
                "claim": None,
                "needs": [],
                "source": path.name,
                "backbones": [entry.name for entry in found.backbones],
                "tasks": [entry["name"] for entry in found.tasks],
                "summary": found.description,
            }
        )
    return rows


def matrix() -> list[dict[str, Any]]:
    """One row a pair: it runs, or the reason it does not. There is no third outcome."""
    rows = []
    for name in METHODS:
        for backbone in presets.known():
            reason = unmet(METHODS.get(name)(), backbone)
            rows.append(
                {
                    "name": name,
                    "kind": "matrix",
                    "backbone": backbone,
                    "outcome": "skipped" if reason else "runs",
                    "reason": reason,
                }
            )
    return rows


ROWS = {"methods": methods, "tasks": tasks, "backbones": backbones, "suites": suites, "matrix": matrix}


def _default(f: dataclasses.Field[Any]) -> Any:
    return None if f.default is dataclasses.MISSING else f.default


def _show(kind: str, rows: list[dict[str, Any]]) -> None:
    console = Console()
    if kind == "matrix":
        _show_matrix(console, rows)
        return
    table = Table(title=kind, title_justify="left", header_style="bold", expand=False)
    for column in COLUMNS[kind]:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in COLUMNS[kind]))
    console.print(table)


COLUMNS = {
    "methods": ("name", "claims", "params", "needs", "source", "from"),
    "tasks": ("name", "summary", "params", "metrics", "from"),
    "backbones": ("name", "source", "ready", "licence", "summary"),
    "suites": ("name", "backbones", "tasks", "summary"),
}


def _show_matrix(console: Console, rows: list[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(row["backbone"] for row in rows))
    table = Table(title="matrix", title_justify="left", header_style="bold")
    for column in ("method", *names):
        table.add_column(column, overflow="fold")
    for method in dict.fromkeys(row["name"] for row in rows):
        mine = {row["backbone"]: row for row in rows if row["name"] == method}
        table.add_row(method, *(mine[name]["reason"] or "runs" for name in names))
    console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "yes" if value is True else "no" if value is False else str(value or "")
