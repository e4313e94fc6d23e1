"""A hook of mkdocs: pages that are made while the guide is built, from the registry, the command line and docstrings.

They are a card for every registered method, a page that lists them, every command with its options, and the Python API.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import stridebench
from stridebench.harness.cli.main import stride
from stridebench.harness.core import Claim
from stridebench.harness.discover import declare_all
from stridebench.harness.plan import contract, presets
from stridebench.harness.plan.compatibility import Outcomes
from stridebench.harness.plan.contract import rows_of
from stridebench.harness.plan.planned_method import PlannedMethod
from stridebench.harness.plan.yaml_lines import load as load_yaml
from stridebench.harness.registry import METHODS
from stridebench.reports.html.cell_facts import link_of
from stridebench.reports.text_table import markdown_lines

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

RESULTS = Path(__file__).parents[1] / "reports" / "data" / "results" / "cards.yaml"
HOMES = {
    "embedded-code": "programs",
    "embedded-image": "emoji_scenes",
    "embedded-digits-l": "digits",
    "smollm2-135m": "humaneval",
    "embedded-sudoku-masked": "sudoku",
    "tabular": "tabular",
}
"""Backbones of the commands on cards, the first that a method runs on, and a task of each."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def pages() -> dict[str, str]:
    """Return the text of every generated page by its path."""
    rows = methods()
    cards = {f"methods/{row['name']}.md": card(row) for row in rows}
    return {"methods/index.md": index(rows), **cards, "commands.md": commands(), "python.md": python()}


def methods() -> list[contract.ListRow]:
    """Return the rows of the package's own methods."""
    declare_all()
    return [row for row in rows_of(METHODS) if not METHODS.from_plugin(row["name"])]


def index(rows: Sequence[Any]) -> str:
    """Return the page that lists all methods."""
    lines = ["# Methods", "", "| method | what it does | claim |", "| --- | --- | --- |"]
    lines += [f"| [{row['name']}]({row['name']}.md) | {_cell(row['summary'])} | {claim(row)} |" for row in rows]
    return "\n".join(
        [*lines, "", "`stride list methods` prints this list. `stride list matrix` says what runs here.", ""]
    )


def card(row: Any) -> str:
    """Return the page of one method: its idea, claim, source, needs, parameters and commands."""
    name, kind = row["name"], METHODS.get(row["name"])
    module = importlib.import_module(kind.__module__)
    idea = (inspect.getdoc(module) or "").partition("\nSource:")
    summary = inspect.getdoc(kind).partition("\nArgs:\n")[0].strip()
    parts = [f"# {name}", "", idea[0].strip(), "", summary, "", *_rest(idea[2])]
    parts += ["| | |", "| --- | --- |", f"| claim | {claim(row)} |"]
    parts += [f"| exact if | {_cell(row['exact_at'])} |"] if row["exact_at"] else []
    link = link_of(idea[2]) or link_of(row["source"])
    parts += [f"| source | {_cell(row['source'])}{f' ([paper]({link}))' if link else ''} |"]
    parts += [f"| needs | {_cell(', '.join(row['needs']) or 'nothing beyond a forward pass')} |", ""]
    if row["params"]:
        meanings, values = meanings_of(kind), values_of(kind)
        parts += ["## Parameters", "", "| parameter | default | values | meaning |", "| --- | --- | --- | --- |"]
        parts += [
            f"| `{key}` | `{_cell(value)}` | {_cell(values[key])} | {_cell(meanings.get(key, ''))} |"
            for key, value in row["params"].items()
        ]
    run = command_of(name) or f"stride run --method {name} --backbone BACKBONE --task TASK"
    return "\n".join(
        [*parts, "", "## Commands", "", "```text", f"stride verify {name}", run, "```", "", *measured(name)]
    )


def measured(name: str) -> list[str]:
    """Return the measured row of a method with what made it, as lines; none if there is no row."""
    results = load_yaml(RESULTS.read_text(encoding="utf-8"))
    (table,) = results["tables"]
    row = next((row for row in table["rows"] if row[0] == name), None)
    if row is None:
        return []
    source = f"Made by `{row[-1]}` at {results['commit']} ({results['machine']}). {results['setting'].strip()}"
    return ["## Measured", "", *markdown_lines(table["columns"][1:-1], [row[1:-1]]), "", source, ""]


def claim(row: Any) -> str:
    """Return the claims of a method in words."""
    return "; or ".join(Claim[word].value for word in row["claims"])


def command_of(name: str) -> str:
    """Return a command that runs a method at its defaults, or "" if it needs a part that does not ship.

    The backbone's weights may be absent, but nothing else.
    """
    outcomes, method, known = Outcomes(), PlannedMethod.default(name), presets.by_name()
    for backbone, task in HOMES.items():
        outcome = outcomes.of(method, known[backbone])
        if outcome.word == "runs" or (outcome.word == "needs weights" and len(outcome.commands) == 1):
            return f"stride run --method {name} --backbone {backbone} --task {task} --limit 6"
    return ""


def meanings_of(kind: type[Any]) -> dict[str, str]:
    """Return the meaning of each parameter by its docstring; one line of it may name several."""
    arguments = textwrap.dedent((inspect.getdoc(kind) or "").partition("\nArgs:\n")[2].partition("\n\n")[0])
    entries = re.split(r"^(?=\w[\w, ]*: )", arguments, flags=re.MULTILINE)
    pairs = (entry.partition(":")[::2] for entry in entries if ":" in entry)
    named = [([name.strip() for name in names.split(",")], " ".join(text.split())) for names, text in pairs]
    return {name: _borrowed(kind, name, text, name == names[0]) for names, text in named for name in names}


def _borrowed(kind: type[Any], name: str, text: str, first: bool) -> str:
    """Return the meaning of a parameter that is "as" that of another method, or that a class explains.

    Args:
        first: of the parameters with this text, which has the rest of it.
    """
    link = re.match(r"(?:as in|as|see) `*([\w-]+)`*\b[`.;]*\s*", text)
    if link is None:
        return text
    word = link[1].replace("-", "").lower()
    method = next((one for one in METHODS if one in (word, f"{word}1")), None)
    other = METHODS.get(method) if method else getattr(importlib.import_module(kind.__module__), link[1], None)
    explained = meanings_of(other).get(name) if other is not None else None
    return f"{explained} {text[link.end() :] if first else ''}".strip() if explained else text


def values_of(kind: type[Any]) -> dict[str, str]:
    """Return the values of each parameter in words, by its type."""
    return {field.name: _values(_hint(kind, field.name)) for field in dataclasses.fields(kind) if field.init}


def _hint(kind: type[Any], name: str) -> Any:
    """Return the type of a field; other annotations of its class may name what only type checkers import."""
    owner = next(base for base in kind.__mro__ if name in vars(base).get("__annotations__", {}))
    return eval(owner.__annotations__[name], vars(importlib.import_module(owner.__module__)))  # our own source


def _values(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(hint))
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " or ".join(_values(one) for one in typing.get_args(hint))
    words = {bool: "true, false", int: "whole number", float: "number", str: "text", type(None): "nothing"}
    return words.get(hint, str(getattr(hint, "__name__", hint)))


def commands() -> str:
    """Return the page of all commands, each as its --help prints it."""
    parts = ["# Commands", "", "What `stride COMMAND --help` prints.", ""]
    for words, command, context in _leaves(stride, click.Context(stride, info_name="stride", terminal_width=100)):
        parts += [f"## {words}", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(parts)


def _leaves(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield every command with its words and context; a group stands before its own commands."""
    yield context.command_path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                inner = click.Context(below, parent=context, info_name=name, terminal_width=100)
                yield from _leaves(below, inner)


def python() -> str:
    """Return the page of the package `stridebench`: its functions and classes with their docstrings."""
    parts = ["# Python", "", *_described(stridebench), ""]
    for name in stridebench.__all__:
        entry = getattr(stridebench, name)
        if inspect.isfunction(entry):
            parts += [f"## {name}", "", *_signature(name, entry), *_described(entry), ""]
        elif inspect.isclass(entry):
            parts += [f"## {name}", "", *_described(entry), ""]
            for member, value in vars(entry).items():
                function = value.fget if isinstance(value, property) else getattr(value, "func", value)
                if member.startswith("_") or not inspect.isfunction(function):
                    continue
                shown = [] if function is not value else _signature(member, function)
                parts += [f"### {name}.{member}", "", *shown, *_described(function), ""]
    return "\n".join(parts)


def _signature(name: str, function: Any) -> list[str]:
    return ["```python", f"{name}{inspect.signature(function)}", "```", ""]


def _described(entry: Any) -> list[str]:
    """Return a docstring, with its sections and examples as they are written."""
    text, *sections = re.split(r"\n(?=(?:Args|Returns|Raises|Attributes):\n)", inspect.getdoc(entry) or "", maxsplit=1)
    return [text.strip().replace("``", "`"), *(["", "```text", *sections, "```"] if sections else [])]


def _rest(text: str) -> list[str]:
    """Return the lines of a module's docstring from its source on."""
    lines = f"Source:{text}".strip().splitlines() if text.strip() else []
    return [*(f"{line}  " for line in lines), ""]


def _cell(text: object) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")
