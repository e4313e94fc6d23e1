"""`stride report`: tables and plots of a finished or half-finished run."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from harness.cli.main import emit
from harness.discover import report
from harness.record.store import Store


@click.command(name="report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Where files go. Default: RUN/report.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: a row a cell.")
def command(run: Path, out: Path | None, as_json: bool) -> None:
    """Print the table; write Markdown, CSV and LaTeX, the Pareto plot as PNG and SVG, sheets of
    pictures, meshes and transcripts where there are any, and for a run of papers/... the paper's tables and figures.

    \b
    stride report runs/quick-20260101-120000
    stride report runs/mine --out docs/mine
    stride report runs/mine --json | jq '.[] | {label, speedup, verdict}'
    """
    store = Store.open(run)
    tables, pareto = report("tables"), report("pareto")
    frame = report("summary").summarise(store)
    folder = out or run / "report"
    written = [*tables.write(store, folder), *pareto.write(frame, folder)]
    written += report("contact_sheets").write(store, folder)
    written += report("papers").write(store, folder)
    if as_json:
        emit(frame.astype(object).where(frame.notna(), None).to_dict("records"))
        return
    tables.terminal(frame, Console())
    report("papers").terminal(store, Console())
    click.echo("\n".join(f"wrote {path}" for path in written))
