"""`stride list`: registered methods, tasks, backbones, suites and engines, and which methods run on which backbones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from stridebench.harness.cli import matrix
from stridebench.harness.cli.main import emit, say
from stridebench.harness.discover import catalogue, declare_all
from stridebench.harness.errors import UnknownNameError
from stridebench.harness.plan import contract, presets, suite
from stridebench.harness.plan.presets import Spec
from stridebench.harness.registry import DATASETS, ENGINES, METHODS, PICTURE_SCORERS, TASKS, Registry

KINDS = ("methods", "tasks", "backbones", "suites", "engines", "scorers", "datasets", "matrix")
OF_PACKAGES = ("scorers", "datasets")
"""Kinds that are listed only if a package brings some or they are asked for."""


@click.command(name="list")
@click.argument("kind", type=click.Choice(KINDS), required=False)
@click.argument("name", required=False)
@click.option("--long", is_flag=True, help="Parameters, requirements, sources and licences too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: [{name, kind, claim, needs, source, ...}].")
def command(kind: str | None, name: str | None, long: bool, as_json: bool) -> None:
    """List methods, tasks, backbones, suites and engines, a line each; or, with NAME, everything about one of them.

    \b
    stride list                  everything but the matrix
    stride list methods          claims, and what each does
    stride list methods sjdpp    its claims, requirements, source, and parameters with their defaults
    stride list matrix           every method on every backbone: runs, needs a part, needs weights, or cannot
    stride list backbones --long
    stride list backbones --json
    stride list engines          what each engine can tell
    stride list scorers          of pictures, and datasets: those that other packages bring
    """
    declare_all()
    kinds: tuple[str, ...] = (kind,) if kind else KINDS[:-1]
    rows = [row for word in kinds for row in ROWS[word]()]
    found = {row["kind"] for row in rows}
    kinds = tuple(word for word in kinds if kind or word not in OF_PACKAGES or word.removesuffix("s") in found)
    if name is not None:
        known = [row["name"] for row in rows]
        if name not in known:
            raise UnknownNameError(str(kind).removesuffix("s"), name, known)
        rows = [row for row in rows if row["name"] == name]
    if as_json:
        emit(rows)
    elif name is not None and kind != "matrix":
        _show_entry(rows[0])
    else:
        for word in kinds:
            _show(word, [row for row in rows if row["kind"] == word.removesuffix("s")], long)


def methods() -> list[dict[str, Any]]:
    """Return one row a method."""
    found = dict(contract.usable_methods(_others("method", METHODS)))
    rows = [*_catalogued("method", METHODS), *(method_row(name, settings) for name, settings in found.items())]
    return sorted(rows, key=lambda row: str(row["name"]))


def method_row(name: str, settings: list[Any]) -> dict[str, Any]:
    """Return the row of a method with these variants."""
    cls = type(settings[0])
    claims = list(dict.fromkeys(method.claim.name for method in settings))
    return {
        "name": name,
        "kind": "method",
        "claim": claims[0],
        "claims": claims,
        "exact_at": cls.exact_at,
        "needs": sorted(need.name for need in settings[0].requirements),
        "source": cls.source,
        "params": {f.name: contract.default(f) for f in dataclasses.fields(cls)},
        "from": METHODS.source(name),
        "summary": (cls.__doc__ or "").strip().split("\n")[0],
    }


def tasks() -> list[dict[str, Any]]:
    """Return one row a task."""
    found = dict(contract.usable_tasks(_others("task", TASKS)))
    rows = [*_catalogued("task", TASKS), *(task_row(name, kind) for name, kind in found.items())]
    return sorted(rows, key=lambda row: str(row["name"]))


def task_row(name: str, kind: type[Any]) -> dict[str, Any]:
    """Return the row of a task."""
    return {
        "name": name,
        "kind": "task",
        "claim": None,
        "needs": [],
        "source": kind.source,
        "params": {f.name: contract.default(f) for f in dataclasses.fields(kind)},
        "makes": kind.modality,
        "metrics": list(kind.metrics),
        "runs_code": kind.runs_code,
        "from": TASKS.source(name),
        "summary": (kind.__doc__ or "").strip().split("\n")[0],
    }


def _catalogued(kind: str, registry: Registry[Any]) -> list[dict[str, Any]]:
    """Return the rows of the catalogue whose modules are not imported."""
    rows = (entry["row"] for name, entry in catalogue()[f"{kind}s"].items() if registry.pending(name))
    return [{**row, "params": contract.values(row["params"])} for row in rows]


def _others(kind: str, registry: Registry[Any]) -> list[str]:
    """Return the names that the catalogue lacks, or whose modules are imported anyway."""
    return [name for name in registry if not registry.pending(name) or name not in catalogue()[f"{kind}s"]]


def backbones() -> list[dict[str, Any]]:
    """Return one row a preset."""
    return [
        {
            "name": spec.name,
            "kind": "backbone",
            "claim": None,
            "needs": [],
            "meets": sorted(need.name for need in spec.meets()),
            "source": source_of(spec)[0],
            "id": source_of(spec)[1],
            "adapter": spec.adapter,
            "modality": spec.modality(),
            "size": spec.size,
            "template": spec.params.get("template"),
            "chat": bool(spec.params.get("chat", False)),
            "licence": spec.licence,
            "ready": spec.ready(),
            "summary": spec.note,
        }
        for spec in presets.by_name().values()
    ]


def source_of(spec: Spec) -> tuple[str, str]:
    """Return the kind of a preset's source and its pinned name there, or the adapter if nothing is loaded."""
    if "source" not in spec.params:
        return spec.adapter, ""
    kind, source = next(iter(spec.params["source"].items()))
    first = source[0] if isinstance(source, list) else source
    if not isinstance(first, dict):
        return kind, str(first)
    if kind == "hub":
        pin = first.get("revision")
        return kind, f"{first['id']}@{pin}" if pin else str(first["id"])
    if kind == "random":
        return kind, str(first["model_type"])
    return kind, " ".join(str(first[key]) for key in ("package", "version") if key in first)


def suites() -> list[dict[str, Any]]:
    """Return one row a suite or variant of one."""
    rows = catalogue()["suites"]
    return [
        dict(rows[name]["row"]) if name in rows else suite_row(name, path) for name, path in suite.commands().items()
    ]


def suite_row(name: str, path: Path) -> dict[str, Any]:
    """Return the row of a suite."""
    loaded = suite.of_command(name).suite
    return {
        "name": name,
        "kind": "suite",
        "claim": None,
        "needs": [],
        "source": path.name,
        "backbones": [entry.name for entry in loaded.backbones],
        "tasks": [entry.name for entry in loaded.tasks],
        "summary": loaded.description,
    }


def _of_packages(kind: str, registry: Registry[Any]) -> list[dict[str, Any]]:
    """Return one row an entry point."""
    return [
        {
            "name": name,
            "kind": kind,
            "claim": None,
            "needs": [],
            "source": registry.source(name),
            "from": registry.source(name),
            "summary": (registry.get(name).__doc__ or "").strip().split("\n")[0],
        }
        for name in registry
    ]


def engines() -> list[dict[str, Any]]:
    """Return one row an engine."""
    rows = [*_catalogued("engine", ENGINES), *(engine_row(name) for name in _others("engine", ENGINES))]
    return sorted(rows, key=lambda row: str(row["name"]))


def engine_row(name: str) -> dict[str, Any]:
    """Return the row of an engine."""
    kind = ENGINES.get(name)
    return {
        "name": name,
        "kind": "engine",
        "claim": None,
        "needs": [],
        "source": ENGINES.source(name),
        **dataclasses.asdict(kind.tells),
        "params": {f.name: contract.default(f) for f in dataclasses.fields(kind) if f.init},
        "summary": (kind.__doc__ or "").strip().split("\n")[0],
    }


ROWS = {
    "methods": methods,
    "tasks": tasks,
    "backbones": backbones,
    "suites": suites,
    "engines": engines,
    "scorers": lambda: _of_packages("scorer", PICTURE_SCORERS),
    "datasets": lambda: _of_packages("dataset", DATASETS),
    "matrix": matrix.rows,
}


def _show(kind: str, rows: list[dict[str, Any]], long: bool) -> None:
    console = Console()
    if kind == "matrix":
        matrix.show(console, rows)
    elif not long:
        _show_lines(console, kind, rows)
    elif kind == "backbones":
        console.print(_backbone_table(rows))
    else:
        table = Table(title=kind, title_justify="left", header_style="bold", expand=False)
        for column in COLUMNS[kind]:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(_cell(row[column]) for column in COLUMNS[kind]))
        console.print(table)


def _show_lines(console: Console, kind: str, rows: list[dict[str, Any]]) -> None:
    """Print a line an entry; the last column is cut at the width of the terminal."""
    heads = [HEADS.get(column, column) for column in LINES[kind]]
    cells = [heads, *([_line_cell(row, column) for column in LINES[kind]] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    say(kind)
    for line in cells:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        say(text if len(text) <= console.width else f"{text[: console.width - 1]}…")
    say(f"more: stride list {kind} NAME, or --long\n")


def _line_cell(row: dict[str, Any], column: str) -> str:
    return CLAIMS[row["claim"]] if column == "claim" else _cell(row[column])


def _show_entry(row: dict[str, Any]) -> None:
    """Print everything about one entry, a field a line, and its parameters with their defaults."""
    say(f"{row['name']}: {row['summary']}")
    for key, value in row.items():
        if key not in ("name", "kind", "summary", "params", "claim") and (text := _cell(value)):
            say(f"  {HEADS.get(key, key)}: {text}")
    if row.get("params"):
        say("  parameters:")
        for key, value in row["params"].items():
            say(f"    {key}: {value}")


LINES = {
    "methods": ("name", "claim", "summary"),
    "tasks": ("name", "makes", "summary"),
    "backbones": ("name", "modality", "ready", "size"),
    "suites": ("name", "summary"),
    "engines": ("name", "gives_ids", "arrival", "acceptance", "summary"),
    "scorers": ("name", "from", "summary"),
    "datasets": ("name", "from", "summary"),
}
"""Columns of the short tables."""
CLAIMS = {"SAME_LAW": "exact", "SAME_GREEDY": "exact at T = 0", "APPROXIMATE": "approximate"}
"""Words for the claims in the short table."""
HEADS = {
    "gives_ids": "ids",
    "arrival": "times of",
    "modality": "makes",
    "ready": "here",
    "summary": "what it does",
    "exact_at": "exact at",
}
"""Words for keys of the rows."""
COLUMNS = {
    "methods": ("name", "claims", "params", "needs", "source", "from"),
    "tasks": ("name", "summary", "params", "metrics", "from"),
    "suites": ("name", "backbones", "tasks", "summary"),
    "scorers": ("name", "from", "summary"),
    "datasets": ("name", "from", "summary"),
    "engines": ("name", "takes_ids", "gives_ids", "arrival", "acceptance", "counters", "logprobs", "seed", "params"),
}


def _backbone_table(rows: list[dict[str, Any]]) -> Table:
    """Return a table with two lines a row, so that the longest names on the hub fit into a hundred columns."""
    table = Table(title="backbones", title_justify="left", header_style="bold", box=None, padding=(0, 1, 0, 0))
    for head in ("name\n source", "size\nlicence", "makes\nchat", "meets", "here"):
        table.add_column(head, overflow="fold", no_wrap=head.startswith("name"))
    for row in rows:
        source = f"{row['source']} {row['id'].partition('@')[0]}"
        template = f"{row['template']} {'on' if row['chat'] else 'off'}" if row["template"] else ""
        table.add_row(
            f"[bold]{row['name']}[/]\n {source}",
            f"{row['size'] or '-'}\n{row['licence']}",
            f"{row['modality']}\n{template}",
            "\n".join(row["meets"]),
            "yes" if row["ready"] else "no",
        )
    return table


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "yes" if value is True else "no" if value is False else str(value or "")
