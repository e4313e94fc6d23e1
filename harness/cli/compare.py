"""`stride compare`: two runs, cell by cell."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from harness.cli.main import emit
from harness.record.store import Store
from reports.gate import compare


@click.command(name="compare")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Also write Markdown to this file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {rows, only_a, only_b, notes}.")
def command(a: Path, b: Path, out: Path | None, as_json: bool) -> None:
    """Differences of run B from run A, paired by prompt and seed, with intervals. Times: on equal machines only.

    \b
    stride compare runs/before runs/after
    stride compare runs/before runs/after --out compare.md
    """
    comparison = compare.compare(Store.open(a), Store.open(b))
    if out:
        out.write_text(compare.markdown(comparison), encoding="utf-8")
    if as_json:
        frame = comparison.frame.astype(object).where(comparison.frame.notna(), None)
        rows = frame.to_dict("records")
        emit({"rows": rows, "only_a": comparison.only_a, "only_b": comparison.only_b, "notes": comparison.notes})
        return
    compare.terminal(comparison, Console())
