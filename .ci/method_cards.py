"""A hook of mkdocs: a card for every registered method, and a page that lists them, made while the guide is built."""

from __future__ import annotations

import inspect
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from stridebench.harness.cli.list import rows_of
from stridebench.harness.core import Claim
from stridebench.harness.discover import declare_all
from stridebench.harness.registry import METHODS


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    declare_all()
    rows = [row for row in rows_of(METHODS) if not METHODS.from_plugin(row["name"])]
    for path, text in {"methods/index.md": index(rows), **{f"methods/{r['name']}.md": card(r) for r in rows}}.items():
        files.append(File.generated(config, path, content=text))
    return files


def index(rows: list[dict[str, Any]]) -> str:
    """Return the page that lists all methods."""
    lines = ["# Methods", "", "| method | what it does | claim |", "| --- | --- | --- |"]
    lines += [f"| [{row['name']}]({row['name']}.md) | {_cell(row['summary'])} | {claim(row)} |" for row in rows]
    return "\n".join(
        [*lines, "", "`stride list methods` prints this list. `stride list matrix` says what runs here.", ""]
    )


def card(row: dict[str, Any]) -> str:
    """Return the page of one method: its docstring, claim, source, needs, parameters and commands."""
    name = row["name"]
    parts = [f"# {name}", "", *_described(METHODS.get(name)), ""]
    parts += ["| | |", "| --- | --- |", f"| claim | {claim(row)} |", f"| source | {_cell(row['source'])} |"]
    parts += [f"| needs | {_cell(', '.join(row['needs']) or 'nothing beyond a forward pass')} |", ""]
    if row["params"]:
        parts += ["## Parameters", "", "| parameter | default |", "| --- | --- |"]
        parts += [f"| `{key}` | {_cell(f'`{value}`')} |" for key, value in row["params"].items()]
    parts += ["", "## Commands", "", "```text", f"stride verify {name}"]
    parts += [f"stride list methods {name}", f"stride run --method {name} --backbone BACKBONE --task TASK", "```", ""]
    return "\n".join(parts)


def claim(row: dict[str, Any]) -> str:
    """Return the claims of a method in words."""
    return "; or ".join(Claim[word].value for word in row["claims"])


def _described(cls: type) -> list[str]:
    """Return the docstring, with its arguments as a list."""
    text, _, arguments = (inspect.getdoc(cls) or "").partition("\nArgs:\n")
    lines = [text.strip()]
    if arguments:
        lines += ["", "```text", inspect.cleandoc(arguments), "```"]
    return lines


def _cell(text: str) -> str:
    return str(text).replace("|", "\\|").replace("\n", " ")
