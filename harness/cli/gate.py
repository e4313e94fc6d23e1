"""`stride gate`: fails where a change lowered acceptance."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from harness.cli.main import emit
from harness.errors import UsageError
from harness.record.store import Store
from reports.gate import decision


@click.command(name="gate")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--baseline", type=click.Path(path_type=Path), required=True, help="File of `stride baseline make`.")
@click.option("--margin", type=click.FloatRange(0, 1), default=0.05, show_default=True, help="Tolerated drop.")
@click.option("--min-prompts", type=click.IntRange(2), default=6, show_default=True, help="Fewer are inconclusive.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Default: RUN/gate.md.")
@click.option("--junit", type=click.Path(path_type=Path), help="Default: RUN/gate.xml.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {verdict, rows}.")
def command(
    run: Path,
    baseline: Path,
    margin: float,
    min_prompts: int,
    markdown: Path | None,
    junit: Path | None,
    as_json: bool,
) -> None:
    """Test whether tau - 1 and the acceptance rate dropped against a baseline: one-sided, paired by prompt and seed.

    Only counts are compared, no times. The suite must be the baseline's. Code, weights and the models that presets name
    may differ, since the gate tests them. Of fewer prompts the shared ones are compared.

    Exit codes: 0 pass, 1 fail, 4 inconclusive (too few prompts, or too wide an interval), 2 error.

    \b
    stride gate runs/tonight --baseline baseline.json
    stride gate runs/tonight --baseline baseline.json --margin 0.03 --junit gate.xml
    """
    try:
        document = json.loads(baseline.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read the baseline {baseline}: {error}. Make one with `stride baseline make`."
        ) from error
    if not isinstance(document, dict):
        raise UsageError(
            f"{baseline} holds a JSON {type(document).__name__}, no baseline; `stride baseline make` makes one"
        )
    result = decision.gate(Store.open(run), document, margin, min_prompts)
    (markdown or run / "gate.md").write_text(decision.markdown(result), encoding="utf-8")
    (junit or run / "gate.xml").write_text(decision.junit(result), encoding="utf-8")
    if as_json:
        emit({"verdict": result.verdict, "rows": [asdict(row) for row in result.rows]})
    else:
        click.echo(decision.markdown(result))
    raise SystemExit(result.exit_code)
