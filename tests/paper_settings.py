"""The settings of the papers' suites next to their authors': `python -m tests.paper_settings` prints them as a table.

`tests/paper_settings.yaml` lists them with their sources; ours are read from the suites.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.table import Table

from stridebench.harness.core.method import parameters
from stridebench.harness.discover import declare_all, names_of, plain
from stridebench.harness.plan import presets
from stridebench.harness.plan.resolve import Resolved, of_command

FILE = Path(__file__).with_suffix(".yaml")


class Setting(NamedTuple):
    """A setting of a suite and of the authors; ``reason``: why they differ, or "".

    Attributes:
        suite_has, authors: the values without repeats, in order.
    """

    name: str
    suite: str
    suite_has: list[Any]
    authors: list[Any]
    source: str
    reason: str

    @property
    def agrees(self) -> bool:
        """Whether both have the same values, in any order."""
        return all(one in self.authors for one in self.suite_has) and all(one in self.suite_has for one in self.authors)


@cache
def settings() -> tuple[Setting, ...]:
    """Return all settings in the order of the file."""
    declare_all()
    listed = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    rows = []
    for name, entry in listed.items():
        kind, rest = entry["ours"].split(".", 1)
        values = list(_values(of_command(entry["suite"]), kind, rest, entry.get("model", "")))
        here = [value for at, value in enumerate(values) if value not in values[:at]]
        authors = entry["authors"] if entry["authors"] is not None else []
        same = isinstance(authors, list) and authors not in here
        published = authors if same else [authors]
        rows.append(Setting(name, entry["suite"], here, published, entry["source"], entry.get("reason", "")))
    return tuple(rows)


def _values(resolved: Resolved, kind: str, path: str, model: str) -> Iterator[Any]:
    """Yield the value of each entry that the path names; pairs are lists, as YAML writes them."""
    if kind == "suite":
        value = getattr(resolved.suite, path)
        yield from value if isinstance(value, tuple) else (value,)
        return
    name, key = path.rsplit(".", 1)
    if kind == "backbones":
        entries = {entry.name: entry for entry in resolved.suite.backbones}
        for backbone in entries:
            if plain(backbone) == name:
                yield entries[backbone].sampling if key == "sampling" else presets.resolve(backbone).params[key]
        return
    uses: Any = resolved.uses if kind == "methods" else resolved.tasks
    for use in uses:
        called = use.planned.name if kind == "methods" else use.name
        if called != name or (model and not names_of(model) & set(use.backbones or ())):
            continue
        values = parameters(use.method) if kind == "methods" else {**vars(use), **use.params}
        value = values[key]
        yield list(value) if isinstance(value, tuple) else value


def main() -> None:
    """Print the table, the differences last."""
    rows = sorted(settings(), key=lambda one: not one.agrees)
    table = Table("setting", "ours", "authors'", box=None, header_style="bold")
    table.add_column("source", overflow="fold")
    for one in rows:
        here, authors = (", ".join(map(str, values)) or "not printed" for values in (one.suite_has, one.authors))
        table.add_row(one.name, here, authors, "; ".join(filter(None, (one.source, one.reason))))
    Console().print(table)
    print(f"{len(rows)} settings, {sum(not one.agrees for one in rows)} differ")


if __name__ == "__main__":
    main()
