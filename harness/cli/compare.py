"""`stride compare`: runs beside a first one, cell by cell."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from stridebench.harness.cli.main import emit
from stridebench.harness.errors import UsageError
from stridebench.harness.record.store import Store
from stridebench.reports.gate import compare


@click.command(name="compare")
@click.argument("runs", nargs=-1, metavar="RUN RUN...", required=True)
@click.option("--out", type=click.Path(path_type=Path), help="Also write Markdown to this file.")
@click.option("--consumption", is_flag=True, help="Memory and energy too, where both runs have them.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {runs, rows, only_a, only_b, notes}.")
def command(runs: tuple[str, ...], out: Path | None, consumption: bool, as_json: bool) -> None:
    """Differences of each further run from the first, paired by prompt and seed, with intervals.

    Cells of equal configuration are compared, over prompts that both runs finished. The strongest evidence stands
    first. What has no partner is named with the reason. Times are compared on equal machines only.

    \b
    stride compare runs/before runs/after
    stride compare runs/before runs/after --out compare.md
    stride compare runs/before runs/after --consumption
    stride compare runs/monday runs/tuesday runs/wednesday --json
    """
    if len(runs) < 2:
        raise UsageError("a comparison needs two runs or more; name the one to compare with first")
    comparison = compare.compare(*(Store.open(run) for run in runs), consumption=consumption)
    if out:
        out.write_text(compare.markdown(comparison, runs), encoding="utf-8")
    if as_json:
        frame = comparison.frame.astype(object).where(comparison.frame.notna(), None)
        rows = frame.to_dict("records")
        only = {"only_a": comparison.only_a, "only_b": comparison.only_b}
        letters = dict(zip(("a", *comparison.runs), runs, strict=True))
        emit({"runs": letters, "rows": rows, **only, "notes": comparison.notes})
        return
    compare.terminal(comparison, Console(), runs)
