"""`stride compare`: two runs, cell by cell."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from harness.cli.main import emit
from harness.discover import report
from harness.record.store import Store


@click.command(name="compare")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Write Markdown here too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {rows, only_a, only_b, notes}.")
def command(a: Path, b: Path, out: Path | None, as_json: bool) -> None:
    """Differences of B from A, paired by prompt and seed, with intervals; seconds on equal machines only.

    \b
    stride compare runs/before runs/after
    stride compare runs/before runs/after --out compare.md
    """
    module = report("compare")
    found = module.compare(Store.open(a), Store.open(b))
    if out:
        out.write_text(module.markdown(found), encoding="utf-8")
    if as_json:
        frame = found.frame.astype(object).where(found.frame.notna(), None)
        rows = frame.to_dict("records")
        emit({"rows": rows, "only_a": found.only_a, "only_b": found.only_b, "notes": found.notes})
        return
    module.terminal(found, Console())
