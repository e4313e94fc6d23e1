"""`stride gate`: fails where a change made decoding worse."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from stridebench.harness.cli.main import emit, say
from stridebench.harness.cli.paths import LocalPath
from stridebench.harness.errors import UsageError
from stridebench.harness.record.store import Store
from stridebench.reports.gate import decision, rendering, replay
from stridebench.reports.gate import golden as golden_gate
from stridebench.reports.gate.baseline import check_content
from stridebench.reports.text_table import markdown_lines, number


@click.command(name="gate")
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--baseline", type=LocalPath(), help="File of `stride baseline make`.")
@click.option("--golden", type=LocalPath(), help="Instead: another tool's acceptance (`stride import`), for engines.")
@click.option("--setting", default="", help="With --golden: which of its curves, such as thinking_on.")
@click.option("--drafts", type=click.IntRange(1), help="With --golden: the draft length.")
@click.option(
    "--margin",
    type=click.FloatRange(0, 1),
    help="Tolerated drop. Default: what the baseline's A/A reruns justify, or 5 %.",
)
@click.option("--min-prompts", type=click.IntRange(6), default=6, show_default=True, help="Fewer are inconclusive.")
@click.option("--replay", "replayed", is_flag=True, help="Score the drafters of today along the baseline's texts.")
@click.option("--device", default="cpu", show_default=True, help="Of the replay: a torch device, such as cuda.")
@click.option("--offline", is_flag=True, help="Never download weights for the replay.")
@click.option("--markdown", type=LocalPath(), help="Default: RUN/gate.md, where a run is given.")
@click.option("--junit", type=LocalPath(), help="Default: RUN/gate.xml, where a run is given.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {verdict, rows, removed, added, notes}.")
def command(
    run: Path | None,
    baseline: Path | None,
    golden: Path | None,
    setting: str,
    drafts: int | None,
    margin: float | None,
    min_prompts: int,
    replayed: bool,
    device: str,
    offline: bool,
    markdown: Path | None,
    junit: Path | None,
    as_json: bool,
) -> None:
    """Test whether a run got worse than a baseline: one-sided, paired by prompt and seed.

    Compared are tau - 1, acceptance and expected acceptance of cells that draft, SCR of the others, log-probabilities
    and scores; and the speed-up, on equal machines and with A/A reruns. A verdict that got worse fails, and so does an
    e-value of 1000. The suite must be the baseline's; code, weights and the models that presets name may differ, since
    the gate tests them. Of other methods the shared ones are compared. A prompt of the baseline that the run lacks is
    an error.

    With --replay the drafters of today are scored along the texts of the baseline, which must have been made with
    --replay too. Nothing but the change differs, so losses of 1 % show. A run may be given as well, or left out.

    RUN may be a URL such as s3://bucket/run; the files then lie in its folder gate/. In a workflow of GitHub the table
    goes to the step summary too, and rows that do not pass become annotations.

    Exit codes: 0 pass, 1 fail, 4 inconclusive (too few prompts, or too wide an interval), 2 error.

    \b
    stride gate runs/tonight --baseline baseline.json
    stride gate runs/tonight --baseline baseline.json --margin 0.03 --junit gate.xml
    stride gate --replay --baseline baseline.json
    stride gate runs/engines --golden golden.yaml --setting thinking_on --drafts 4
    """
    if (baseline is None) == (golden is None):
        raise UsageError("name a --baseline, or a --golden reference for engines, one of them")
    if golden is not None:
        raise SystemExit(_golden(run, golden, setting, drafts, margin, as_json))
    assert baseline is not None, "one of the two is there"
    if run is None and not replayed:
        raise UsageError("name a run to test, or ask for --replay, which needs none")
    document = read_baseline(baseline)
    store = Store.open(run) if run is not None else None
    results = [decision.gate(store, document, margin, min_prompts)] if store is not None else []
    if replayed:
        results.append(_replay(document, margin, min_prompts, device, fetch=not offline))
    result = decision.joined(results)
    write(result, store, markdown, junit)
    if as_json:
        rows = [asdict(row) for row in result.rows]
        lists = {"removed": result.removed, "added": result.added, "notes": result.notes}
        emit({"verdict": result.verdict, "rows": rows, **lists})
    else:
        say(rendering.markdown(result))
    raise SystemExit(result.exit_code)


def _golden(run: Path | None, path: Path, setting: str, drafts: int | None, margin: float | None, as_json: bool) -> int:
    """The engines of a run against one length; the exit code."""
    if run is None:
        raise UsageError("name a run with engines to hold against the reference")
    rows = golden_gate.gate(Store.open(run), golden_gate.reference(path, setting, drafts), margin)
    code = golden_gate.exit_code(rows)
    if as_json:
        emit(
            {
                "verdict": next(word for word, number in decision.EXIT.items() if number == code),
                "rows": [asdict(row) for row in rows],
            }
        )
        return code
    titles = ["engine", "reference", "length a draft", "interval", "verdict"]
    texts = [
        [row.label, number(row.reference), number(row.length), f"{number(row.low)} to {number(row.high)}", row.verdict]
        for row in rows
    ]
    say("\n".join(markdown_lines(titles, texts)))
    return code


def write(result: decision.Result, store: Store | None, markdown: Path | None, junit: Path | None) -> None:
    """Write the table and the JUnit file where they are asked for or a run is given, and report to GitHub.

    Beside a run at a URL they lie in its folder ``gate``.
    """
    texts = {"gate.md": (markdown, rendering.markdown(result)), "gate.xml": (junit, rendering.junit(result))}
    place = None if store is None else store.path / "gate" if store.remote is not None else store.path
    for name, (asked, text) in texts.items():
        path = asked or (place / name if place is not None else None)
        if path is not None:
            if place is not None and not asked:
                place.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if store is not None:
        store.publish("gate")
    report_to_github(result)


def _replay(
    document: dict[str, Any], margin: float | None, min_prompts: int, device: str, fetch: bool
) -> decision.Result:
    """The gate along the baseline's texts.

    Raises:
        StoreError: the baseline is damaged. UsageError: it holds no texts.
    """
    check_content(document)
    if not document.get("replay"):
        raise UsageError("the baseline holds no texts to replay; make it with `stride baseline make RUN --replay`")
    from stridebench.harness.cli import replaying  # loads models

    scores = replaying.again(document, device, fetch)
    errors = {name: score.error for name, score in scores.items() if score.error}
    rows = {name: score.rows for name, score in scores.items()}
    return replay.replay_gate(document, rows, errors, margin, min_prompts)


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
            say(line, err=True)  # standard output may be one JSON document
