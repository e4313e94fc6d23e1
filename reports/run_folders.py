"""Which runs a command line names: run folders, URLs, or folders that hold runs; and which cells and prompts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click

from stridebench.harness.errors import StoreError, UnknownNameError, UsageError, printable
from stridebench.harness.record.remote import remote_run

LISTED = 12
"""A message lists at most so many cells or prompts."""
DEFAULT = "runs"
"""Where `stride run` puts runs."""


def run_folders(paths: Iterable[str | Path]) -> list[str | Path]:
    """Return the run folders and URLs that these paths name, each once.

    Args:
        paths: run folders, URLs of runs, or folders that hold some; ``runs`` if there are none.
    """
    folders: dict[str | Path, str | Path] = {}
    for name in list(paths) or [DEFAULT]:
        path = Path(name)
        if remote_run(name) is not None:
            folders[str(name)] = name
            continue
        if not path.is_dir():
            raise UsageError(f"the folder {path} does not exist; name a run folder, or a folder that holds some")
        below = sorted(file.parent for file in path.glob("*/manifest.json"))
        runs = [path] if (path / "manifest.json").exists() else below
        if not runs:
            raise StoreError(f"{path} holds no run (no manifest.json in it or in its folders); check the path")
        folders |= {run.resolve(): run for run in runs if run.resolve() not in folders}
    return list(folders.values())


def match_name(ids: list[str], text: str) -> str:
    """Return the only cell whose id is ``text``, begins with it, contains it, or contains its parts in their order.

    A label of the run's table, such as ``sjdpp tau=0.25`` or ``sjdpp tau=0.25 T=1``, is read as the beginning of an
    id. If other labels begin with it, they are named on standard error.
    """
    words, _, temperature = text.partition(" T=")
    label, at = (re.sub(r"[^\w=+-]+", "-", one, flags=re.ASCII).strip("-") for one in (words, f"T{temperature}"))
    parts = re.compile(".*".join(map(re.escape, text.split("."))))
    rules: list[Callable[[str], object]] = [
        lambda name: name.startswith(f"{text}."),
        lambda name: label and name.startswith(f"{label}.") and (not temperature or f".{at}." in name),
        lambda name: name.startswith(f"{text}-"),
        lambda name: text in name,
        parts.search,
    ]
    found = _only_one("cell", ids, text, rules)
    longer = [name.split(".")[0] for name in ids if name.startswith(f"{label}-")]
    if label and found.startswith(f"{label}.") and longer:
        others = ", ".join(dict.fromkeys(longer))
        click.echo(printable(f"{text!r} is {found}; its other settings: {others}"), err=True)
    return found


def _only_one(kind: str, ids: list[str], text: str, rules: Sequence[Callable[[str], object]]) -> str:
    """Return ``text`` if it is an id, or the only id that meets the first of the rules that any meets."""
    if text in ids:
        return text
    for rule in rules:
        matches = [name for name in ids if rule(name)]
        if len(matches) == 1:
            return matches[0]
        if matches and text:
            listed = "".join(f"\n  {name}" for name in matches[:LISTED])
            more = f"\n  and {len(matches) - LISTED} more" if len(matches) > LISTED else ""
            raise UsageError(f"{text!r} fits {len(matches)} {kind}s; write more of one's id:{listed}{more}")
    raise UnknownNameError(kind if kind == "cell" else f"{kind} of this cell", text, ids)


def match_prompt(ids: list[str], text: str) -> str:
    """Return the only prompt whose id is ``text``, ends with it after a slash, or begins with it."""
    return _only_one("prompt", ids, text, [lambda name: name.endswith(f"/{text}"), lambda name: name.startswith(text)])
