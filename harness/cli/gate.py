"""`stride gate`: fails where a change made decoding worse."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from harness.cli.main import emit
from harness.errors import UsageError
from harness.record.store import Store
from reports.gate import decision, rendering


@click.command(name="gate")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--baseline", type=click.Path(path_type=Path), required=True, help="File of `stride baseline make`.")
@click.option(
    "--margin",
    type=click.FloatRange(0, 1),
    help="Tolerated drop. Default: what the baseline's A/A reruns justify, or 5 %.",
)
@click.option("--min-prompts", type=click.IntRange(6), default=6, show_default=True, help="Fewer are inconclusive.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Default: RUN/gate.md.")
@click.option("--junit", type=click.Path(path_type=Path), help="Default: RUN/gate.xml.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {verdict, rows, removed, added, notes}.")
def command(
    run: Path,
    baseline: Path,
    margin: float | None,
    min_prompts: int,
    markdown: Path | None,
    junit: Path | None,
    as_json: bool,
) -> None:
    """Test whether a run got worse than a baseline: one-sided, paired by prompt and seed.

    Compared are tau - 1, acceptance and expected acceptance of cells that draft, SCR of the others, log-probabilities
    and scores; and the speed-up, on equal machines and with A/A reruns. A verdict that got worse fails, and so does an
    e-value of 1000. The suite must be the baseline's; code, weights and the models that presets name may differ, since
    the gate tests them. Of other methods and fewer prompts the shared ones are compared.

    In a workflow of GitHub the table goes to the step summary too, and rows that do not pass become annotations.

    Exit codes: 0 pass, 1 fail, 4 inconclusive (too few prompts, or too wide an interval), 2 error.

    \b
    stride gate runs/tonight --baseline baseline.json
    stride gate runs/tonight --baseline baseline.json --margin 0.03 --junit gate.xml
    """
    result = decision.gate(Store.open(run), read_baseline(baseline), margin, min_prompts)
    (markdown or run / "gate.md").write_text(rendering.markdown(result), encoding="utf-8")
    (junit or run / "gate.xml").write_text(rendering.junit(result), encoding="utf-8")
    report_to_github(result)
    if as_json:
        rows = [asdict(row) for row in result.rows]
        lists = {"removed": result.removed, "added": result.added, "notes": result.notes}
        emit({"verdict": result.verdict, "rows": rows, **lists})
    else:
        click.echo(rendering.markdown(result))
    raise SystemExit(result.exit_code)


def read_baseline(path: Path) -> dict[str, Any]:
    """The document of a baseline's file.

    Raises:
        UsageError: there is no such file, or it holds no JSON object.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read the baseline {path}: {error}. Make one with `stride baseline make`.") from error
    if not isinstance(document, dict):
        raise UsageError(
            f"{path} holds a JSON {type(document).__name__}, no baseline; `stride baseline make` makes one"
        )
    return document


def report_to_github(result: decision.Result) -> None:
    """Append the table to the step summary of a GitHub workflow, and annotate rows that do not pass."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(rendering.markdown(result) + "\n")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in rendering.github_annotations(result):
            click.echo(line, err=True)  # standard output may be one JSON document
