"""`stride list`: registered methods, tasks, backbones, suites and engines, and which methods run on which backbones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from stridebench.harness.cli.main import emit, json_option, say
from stridebench.harness.discover import catalogue, declare_all
from stridebench.harness.errors import UnknownNameError, UsageError
from stridebench.harness.plan import contract, presets, resolve
from stridebench.harness.plan.compatibility import LACKS, WORDS, Outcomes
from stridebench.harness.plan.contract import ListRow, listed_row, rows_of
from stridebench.harness.plan.planned_method import PlannedMethod
from stridebench.harness.plan.preset_files import Spec
from stridebench.harness.registry import DATASETS, ENGINES, METHODS, PICTURE_SCORERS, TASKS, Registry

KINDS = ("methods", "tasks", "backbones", "suites", "engines", "scorers", "datasets", "matrix")
STORED = ("runs", "weights")
"""Kinds that lie on this machine: they are listed only if they are asked for."""
OF_PACKAGES = ("scorers", "datasets")
"""Kinds that are listed only if a package brings some or they are asked for."""


@click.command(name="list")
@click.argument("kind", type=click.Choice([*KINDS, *STORED]), required=False)
@click.argument("name", required=False)
@click.option("--long", is_flag=True, help="Parameters, requirements, sources and licences too.")
@json_option("[{name, kind, claim, needs, source, ...}]")
@click.option("--prune", is_flag=True, help="With runs: delete all but the newest.")
@click.option("--keep", type=click.IntRange(0), help="With --prune: how many runs stay.")
@click.option("--yes", is_flag=True, help="With --prune: do not ask.")
def command(
    kind: str | None, name: str | None, long: bool, as_json: bool, prune: bool, keep: int | None, yes: bool
) -> None:
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
    stride list runs FOLDER      sizes, durations and verdicts; FOLDER is runs if none is named
    stride list runs nights/runs --prune --keep 30
    stride list weights          in the cache, with sizes; stride fetch --remove NAME deletes some
    """
    if kind == "weights" and name is not None:
        raise UsageError(f"weights are listed without a name; leave out {name!r}")
    if kind in STORED or prune or keep is not None or yes:
        from stridebench.harness.cli.stored import list_stored  # imports pandas

        list_stored(kind, Path(name or "runs"), as_json, prune, keep, yes)
        return
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


def backbones() -> list[ListRow]:
    """Return one row a preset."""
    return [
        listed_row(
            "backbone",
            spec.name,
            source_of(spec)[0],
            spec.note,
            meets=sorted(need.name for need in spec.meets()),
            id=source_of(spec)[1],
            adapter=spec.adapter,
            modality=spec.modality(),
            size=spec.size,
            template=spec.params.get("template"),
            chat=bool(spec.params.get("chat", False)),
            licence=spec.licence,
            ready=spec.ready(),
        )
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


def suites() -> list[ListRow]:
    """Return one row a suite or variant of one."""
    rows = catalogue()["suites"]
    return [rows[name]["row"] if name in rows else suite_row(name, path) for name, path in resolve.commands().items()]


def suite_row(name: str, path: Path) -> ListRow:
    """Return the row of a suite."""
    loaded = resolve.of_command(name).suite
    backbones, tasks = ([entry.name for entry in part] for part in (loaded.backbones, loaded.tasks))
    if backbones == [spec.name for spec in presets.by_name().values() if spec.ready()]:
        backbones = ["all"]  # whatever is on this machine
    return listed_row("suite", name, path.name, loaded.description, backbones=backbones, tasks=tasks)


def _of_packages(registry: Registry[Any]) -> list[ListRow]:
    """Return one row an entry point."""
    origins = {name: registry.source(name) for name in registry}
    return [
        listed_row(registry.kind, name, at, registry.get(name).__doc__, **{"from": at}) for name, at in origins.items()
    ]


NARROWEST = 12
"""Characters of a column of words, its border included."""
MARKS = {"runs": "x", "needs a part": "p", "needs weights": "w", "cannot": "-"}


def matrix_rows() -> list[ListRow]:
    """Return one row for each pair: its outcome, the reason, and the command that makes or fetches missing parts."""
    outcomes, specs = Outcomes(), presets.by_name()
    pairs: list[ListRow] = []
    for name in contract.usable_names():
        method = PlannedMethod.default(name)
        for backbone in specs.values():
            fate = outcomes.of(method, backbone)
            words = {"outcome": fate.word, "reason": fate.reason, "command": fate.command}
            pairs.append({"name": name, "kind": "matrix", "backbone": backbone.name, **words})
    return pairs


def show_matrix(console: Console, pairs: Sequence[ListRow]) -> None:
    """Print the matrix; backbones with the same outcome for every method share a column, and their names follow.

    If the words are too wide for the terminal, a column has a mark for each method, and a legend follows.
    """
    outcomes: dict[str, list[str]] = {}
    for row in pairs:
        outcomes.setdefault(row["backbone"], []).append(_outcome_words(row))
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


def _show_commands(pairs: Sequence[ListRow]) -> None:
    """Print each command once, with the pairs that need it."""
    needing: dict[str, list[ListRow]] = {}
    for row in pairs:
        if row["command"]:
            needing.setdefault(row["command"], []).append(row)
    for command, rows in needing.items():
        say(f"# {_first([row['name'] for row in rows], 2)} on {_first([row['backbone'] for row in rows], 1)}")
        from_here = command.replace(f"{Path.cwd()}/", "")
        say(from_here.replace(" --out ", " \\\n    --out "))


def _first(names: list[str], count: int) -> str:
    """Return the first few distinct names, and how many more there are."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - count
    return ", ".join(distinct[:count]) + (f" and {more} more" if more > 0 else "")


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"A{index}"


def _outcome_words(row: ListRow) -> str:
    """Return the outcome, or the reason if a method cannot run."""
    if row["outcome"] != "cannot":
        return str(row["outcome"])
    return str(row["reason"]).replace(LACKS, "lacks").replace(f" for {row['backbone']} is here", "")


ROWS: Mapping[str, Callable[[], Sequence[ListRow]]] = {
    "methods": lambda: rows_of(METHODS),
    "tasks": lambda: rows_of(TASKS),
    "backbones": backbones,
    "suites": suites,
    "engines": lambda: rows_of(ENGINES),
    "scorers": lambda: _of_packages(PICTURE_SCORERS),
    "datasets": lambda: _of_packages(DATASETS),
    "matrix": matrix_rows,
}


def _show(kind: str, rows: Sequence[ListRow], long: bool) -> None:
    console = Console()
    if kind == "matrix":
        show_matrix(console, rows)
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


def _show_lines(console: Console, kind: str, rows: Sequence[ListRow]) -> None:
    """Print a line an entry; the last column is cut at the width of the terminal."""
    heads = [HEADS.get(column, column) for column in LINES[kind]]
    cells = [heads, *([_line_cell(row, column) for column in LINES[kind]] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    say(kind)
    for line in cells:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        say(text if len(text) <= console.width else f"{text[: console.width - 1]}…")
    say(f"more: stride list {kind} NAME, or --long\n")


def _line_cell(row: ListRow, column: str) -> str:
    return CLAIMS[str(row["claim"])] if column == "claim" else _cell(row[column])


def _show_entry(row: ListRow) -> None:
    """Print everything about one entry, a field a line, and its parameters with their defaults."""
    say(f"{row['name']}: {row['summary']}")
    for key, value in row.items():
        if key not in ("name", "kind", "summary", "params", "claim") and (text := _cell(value)):
            say(f"  {HEADS.get(key, key)}: {text}")
    if isinstance(params := row.get("params"), Mapping) and params:
        say("  parameters:")
        for key, value in params.items():
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
CLAIMS = {"SAME_LAW": "exact", "SAME_GREEDY": "exact at T = 0", "DECLARED": "declared", "APPROXIMATE": "approximate"}
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


def _backbone_table(rows: Sequence[ListRow]) -> Table:
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
