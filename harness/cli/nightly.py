"""`stride gate nightly`: a run, its gate and the history, with one exit code."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from stridebench.gating import read_baseline
from stridebench.harness.cli import run
from stridebench.harness.cli.gate import write_verdict
from stridebench.harness.cli.main import LocalPath, emit, json_option, say
from stridebench.harness.discover import declare_all
from stridebench.harness.errors import RunIncomplete, StrideError, UsageError
from stridebench.harness.machine.surroundings import stdout_on_stderr
from stridebench.harness.plan.budget import refuse_moving_prompts
from stridebench.harness.record.files import put
from stridebench.harness.record.store import Store
from stridebench.reports.gate import decision, rendering
from stridebench.reports.gate.baseline import check_content, make_baseline
from stridebench.reports.history import report
from stridebench.reports.history.series import read, series
from stridebench.reports.text_table import print_table

LINES = "history.jsonl"
TAKEN = ("--out", "--append", "--json", "--dry-run")
"""Options of `stride run` that a night sets."""


@click.command(name="nightly", context_settings={"ignore_unknown_options": True})
@click.argument("suite")
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.option("--history", "folder", type=LocalPath(file_okay=False), required=True, help="Folder.")
@click.option("--margin", type=click.FloatRange(0, 1), help="Tolerated drop, as of `stride gate check`.")
@click.option(
    "--reruns",
    type=click.IntRange(0, 10),
    default=2,
    show_default=True,
    help="A/A reruns of the first night, with other seeds; each takes as long as a night.",
)
@click.option("--summary", is_flag=True, help="One line, for a chat: the verdict, the latest change and the run.")
@json_option("{run, code, gate, changes}")
def command(
    suite: str, options: tuple[str, ...], folder: Path, margin: float | None, reruns: int, summary: bool, as_json: bool
) -> None:
    """Run a suite, test it against the baseline of the history, and append its figures; options of `stride run` follow.

    The folder holds runs/, baseline.json and history.jsonl. The first night that succeeds becomes the baseline. It runs
    the suite twice more with other seeds, so it takes three times as long. Without these A/A reruns (--reruns 0)
    seconds are not compared. `stride gate make --force` makes a new baseline, and `stride gate history` shows the
    series. docs/gate.md says which losses a night sees.

    Exit codes: 0 pass, 1 fail (a claim is broken, a sample failed, or the gate fails), 2 error, 3 incomplete, 4
    inconclusive. The worst of run and gate counts.

    \b
    stride gate nightly nightly --history nights
    stride gate nightly nightly --history nights --limit 24 --device cuda
    stride gate nightly nightly --history nights --summary
    """
    if taken := [word for word in options if word.split("=")[0] in TAKEN]:
        raise UsageError(f"{taken[0]} is set by the night; leave it out")
    if "--resume" in options:
        raise UsageError("a night is a new run; leave --resume out")
    declare_all()
    refuse_moving_prompts([suite, *options])
    path = folder / "runs" / stamp()
    folder.mkdir(parents=True, exist_ok=True)
    stored = _stored(folder)
    code, answer = _run([suite, *options, "--out", str(path), "--append", str(folder / LINES), "--json"])
    baseline = folder / "baseline.json"
    result = None
    if stored is not None:
        store = Store.open(path)
        result = decision.gate(store, stored, margin)
        write_verdict(result, store, None, None)
    if result is None and code == 0:
        again = [_again([suite, *options], path, number + 1) for number in range(reruns)]
        document = make_baseline(Store.open(path), again)
        put(baseline.absolute(), (json.dumps(document, indent=1) + "\n").encode())
    steps = _changes(folder)
    code = worst_code(code, 0 if result is None else result.exit_code)
    if as_json:
        rows = None if result is None else {"verdict": result.verdict, "rows": [asdict(row) for row in result.rows]}
        emit({"run": answer, "code": code, "gate": rows, "changes": steps})
    else:
        first = f"the first night: it is the baseline from now on, with {reruns} A/A reruns"
        none = first if baseline.exists() else "no baseline: the night did not end well, so the next one is the first"
        verdict = none if result is None else rendering.sentence(result)
        night = [*(f"changed: {step}" for step in steps), f"night: {path}, exit code {code}"]
        if summary:
            say("; ".join([f"{suite}: {verdict}", *(f"changed: {step}" for step in steps[:1]), night[-1]]))
        else:
            print_table(rendering.table(result), Console()) if result is not None else say(verdict)
            say("\n".join(night))
    raise SystemExit(code)


def _stored(folder: Path) -> dict[str, Any] | None:
    """Return the baseline of a history, or None if there is none yet; damage is an error before the run."""
    _lines(folder)
    path = folder / "baseline.json"
    if not path.exists():
        return None
    document = read_baseline(path)
    check_content(document)
    return document


def _lines(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a history, of which there are none before the first night."""
    return read(folder) if any(file.stat().st_size for file in folder.glob("*.jsonl")) else []


def stamp() -> str:
    """Return the name of a night's run: the time in UTC."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}"


def worst_code(*codes: int) -> int:
    """Return the worst of exit codes: an error, an incomplete run, a failure, inconclusive, pass, in this order."""
    return next((code for code in (2, 3, 1, 4) if code in codes), max(codes))


def _run(words: list[str]) -> tuple[int, Any]:
    """Return the exit code and the document of `stride run`."""
    out, code = io.StringIO(), 0
    try:
        with stdout_on_stderr(), contextlib.redirect_stdout(out):
            run.command.main(args=words, standalone_mode=False)
    except SystemExit as stop:
        code = int(stop.code or 0)
    except StrideError as error:
        if error.exit_code != 3:  # nothing ran
            raise
        say(f"stride: {error}", err=True)
        code = error.exit_code
    return code, json.loads(out.getvalue() or "null")


def _again(words: list[str], night: Path, number: int) -> Store:
    """Rerun the first night with another seed; the rerun is not a part of the history."""
    seed = Store.open(night).manifest.key.seed + number
    path = night.with_name(f"{night.name}-again{number}")
    code, _ = _run([*words, "--seed", str(seed), "--set", "prove=false", "--out", str(path), "--json"])
    if code:
        raise RunIncomplete(
            f"the A/A rerun in {path} ended with exit code {code}, so the baseline is not made yet; `stride report` "
            f"says why, and the next night tries again"
        )
    return Store.open(path)


def _changes(folder: Path) -> list[str]:
    """Return the changes in a history as sentences, newest first."""
    steps = [(step, one.series) for one in report.findings(series(_lines(folder))) for step in one.changes]
    steps.sort(key=lambda item: item[0].first.created, reverse=True)
    return [report.change_sentence(step, one) for step, one in steps]
