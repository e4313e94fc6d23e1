"""`stride gate`: fails if a change made decoding worse."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from stridebench.gating import MIN_PROMPTS, gate_replay, read_baseline
from stridebench.harness.cli.main import LazyGroup, LocalPath, add_to_step_summary, emit, json_option, say
from stridebench.harness.discover import declare_all
from stridebench.harness.errors import RunIncomplete, UsageError, number_of, printable
from stridebench.harness.machine.extras import optional
from stridebench.harness.plan.budget import refuse_moving_prompts
from stridebench.harness.record.store import Store
from stridebench.harness.run import checkouts
from stridebench.harness.run.checkouts import Version, last_line
from stridebench.reports.gate import ab, decision, rendering
from stridebench.reports.gate import golden as golden_gate
from stridebench.reports.gate.baseline import failed_samples, make_baseline, with_replay
from stridebench.reports.history import report
from stridebench.reports.history.series import METRICS, read, series
from stridebench.reports.text_table import Column, TextTable, number, print_table

RUN = click.Path(path_type=Path)


@click.group(name="gate", cls=LazyGroup, modules={"nightly": "nightly"})
def command() -> None:
    """Test whether a change of code or weights made decoding worse.

    \b
    stride gate make runs/nightly --out baseline.json
    stride gate check runs/tonight --baseline baseline.json
    stride gate replay --baseline baseline.json
    stride gate ab main . quick --limit 6
    stride gate nightly nightly --history nights
    """


def _tested(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that both tests against a baseline have."""
    for option in (
        click.option("--summary", is_flag=True, help="Print one line, for a chat."),
        json_option("{verdict, rows, removed, added, notes}"),
        click.option("--junit", type=LocalPath(), help="Default: RUN/gate.xml, if a run is given."),
        click.option("--markdown", type=LocalPath(), help="Default: RUN/gate.md, if a run is given."),
        click.option(
            "--min-prompts",
            type=click.IntRange(MIN_PROMPTS),
            default=MIN_PROMPTS,
            show_default=True,
            help="With fewer prompts a figure is inconclusive.",
        ),
        click.option(
            "--margin",
            type=click.FloatRange(0, 1),
            help="Tolerated drop, and the loss that a pass rules out. Default: none and 5 %; of a replay 1 %.",
        ),
    ):
        function = option(function)
    return function


@command.command(name="check")
@click.argument("run", type=RUN)
@click.option("--baseline", type=LocalPath(), help="File of `stride gate make`.")
@click.option("--golden", type=LocalPath(), help="Instead: acceptance of another tool (`stride exchange import`).")
@click.option("--setting", default="", help="With --golden: which of its curves, such as thinking_on.")
@click.option("--drafts", type=click.IntRange(1), help="With --golden: the draft length.")
@_tested
def check(
    run: Path, baseline: Path | None, golden: Path | None, setting: str, drafts: int | None, **options: Any
) -> None:
    """Test whether a run got worse than a baseline: one-sided, paired by prompt and seed.

    Compared are tau - 1, acceptance and expected acceptance of cells that draft, SCR of the others, log-probabilities
    and scores; and the speed-up, on equal machines and with A/A reruns. A verdict that got worse fails, and so does an
    e-value of 1000. The suite must be the baseline's; code, weights and the models that presets name may differ, since
    the gate tests them. If methods differ, the shared ones are compared. If the run lacks a prompt of the baseline,
    that is an error.

    RUN may be a URL such as s3://bucket/run; the files then lie in its folder gate/. In a workflow of GitHub the table
    goes to the step summary too, and rows that do not pass become annotations.

    A pass says that a loss of 5 %, or of --margin, would have been seen. If not, the row is inconclusive and says how
    many prompts that needs; a replay needs fewer.

    Exit codes: 0 pass, 1 fail, 4 inconclusive (too few prompts, or too wide an interval), 2 error.

    \b
    stride gate check runs/tonight --baseline baseline.json
    stride gate check runs/tonight --baseline baseline.json --margin 0.03 --junit gate.xml
    stride gate check runs/tonight --baseline baseline.json --summary
    stride gate check runs/engines --golden golden.yaml --setting thinking_on --drafts 4
    """
    if golden is not None and baseline is None:
        raise SystemExit(_golden(run, golden, setting, drafts, options["margin"], options["as_json"]))
    if baseline is None or golden is not None:
        raise UsageError("name a --baseline, or a --golden reference for engines, one of them")
    document, store = read_baseline(baseline), Store.open(run)
    _conclude([decision.gate(store, document, options["margin"], options["min_prompts"])], store, options)


@command.command(name="replay")
@click.argument("run", type=RUN, required=False)
@click.option("--baseline", type=LocalPath(), required=True, help="File of `stride gate make --replay`.")
@click.option("--device", default="cpu", show_default=True, help="A torch device, such as cuda.")
@click.option("--offline", is_flag=True, help="Never download weights.")
@_tested
def replay(run: Path | None, baseline: Path, device: str, offline: bool, **options: Any) -> None:
    """Score the drafters of today along the texts of a baseline.

    Only the change itself differs, so losses of 1 % show. If a RUN is given, it is tested against the baseline too, and
    the worse verdict counts. Exit codes are those of `stride gate check`.

    \b
    stride gate replay --baseline baseline.json
    stride gate replay runs/tonight --baseline baseline.json --device cuda
    """
    document, store = read_baseline(baseline), None if run is None else Store.open(run)
    margin, prompts = options["margin"], options["min_prompts"]
    results = [] if store is None else [decision.gate(store, document, margin, prompts)]
    results.append(gate_replay(document, margin, prompts, device, fetch=not offline))
    _conclude(results, store, options)


def _conclude(results: list[decision.GateResult], store: Store | None, options: dict[str, Any]) -> None:
    """Write and print the verdict, and exit with its code."""
    result = decision.joined(results)
    write_verdict(result, store, options["markdown"], options["junit"])
    if options["as_json"]:
        rows = [asdict(row) for row in result.rows]
        lists = {"removed": result.removed, "added": result.added, "notes": result.notes}
        emit({"verdict": result.verdict, "rows": rows, **lists})
    elif options["summary"]:
        say(rendering.sentence(result))
    else:
        print_table(rendering.table(result), Console())
    raise SystemExit(result.exit_code)


@command.command(name="make")
@click.argument("run", type=RUN)
@click.option("--out", type=LocalPath(), default=Path("baseline.json"), show_default=True, help="File.")
@click.option("--again", type=RUN, multiple=True, help="A rerun with another seed; may be repeated.")
@click.option("--replay", "replayed", is_flag=True, help="Keep the outputs and score every drafter along them.")
@click.option("--device", default="cpu", show_default=True, help="Of the replay: a torch device, such as cuda.")
@click.option("--offline", is_flag=True, help="Never download weights for the replay.")
@click.option("--force", is_flag=True, help="Replace a baseline that is there already.")
@json_option("{baseline, cells}")
def make(
    run: Path,
    out: Path,
    again: tuple[Path, ...],
    replayed: bool,
    device: str,
    offline: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Write the counts, scores and times of every cell but plain decoding, by prompt and seed, and all verdicts.

    The run must be finished. Reruns of the suite with other seeds (A/A reruns) show how far figures move if nothing
    changed, and seconds are compared with them alone. Two or three reruns are enough.

    With --replay the baseline also keeps the outputs of cells with a drafter or trained components, and scores their
    drafts along them. `stride gate replay` scores the same texts again, which shows far smaller losses.

    \b
    stride gate make runs/nightly --out baseline.json
    stride run nightly --seed 1 --out runs/again1
    stride gate make runs/nightly --again runs/again1 --again runs/again2 --out baseline.json --force
    stride gate make runs/nightly --replay --out baseline.json
    """
    if out.exists() and not force:
        raise UsageError(f"{out} is there already; name another file with --out, or replace it with --force")
    store = Store.open(run)
    document = make_baseline(store, [Store.open(path) for path in again])
    if replayed:
        from stridebench.replaying import record_texts  # loads models

        document = with_replay(document, record_texts(store, document, device, fetch=not offline))
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for name in document["cells"]:
        left_out = len(failed_samples(store.cell(name)))
        if left_out:
            say(f"stride: warning: the baseline lacks {left_out} failed samples of {name}", err=True)
    if as_json:
        emit({"baseline": str(out), "cells": list(document["cells"])})
    else:
        say(f"wrote {out}: {number_of(len(document['cells']), 'cell')}, {number_of(len(again), 'A/A rerun')}")


def _golden(run: Path, path: Path, setting: str, drafts: int | None, margin: float | None, as_json: bool) -> int:
    """Compare the engines of a run with a reference, and return the exit code."""
    rows = golden_gate.gate(Store.open(run), golden_gate.reference(path, setting, drafts), margin)
    code = golden_gate.exit_code(rows)
    if as_json:
        verdict = next(word for word, number in decision.EXIT.items() if number == code)
        emit({"verdict": verdict, "rows": [asdict(row) for row in rows]})
        return code
    titles = ("engine", "reference", "length a draft", "interval", "verdict")
    columns = tuple(Column(title, title, rank=0) for title in titles)
    texts = [
        [row.label, number(row.reference), number(row.length), f"{number(row.low)} to {number(row.high)}", row.verdict]
        for row in rows
    ]
    print_table(TextTable(f"acceptance lengths of {path}", columns, texts, []), Console())
    return code


def write_verdict(result: decision.GateResult, store: Store | None, markdown: Path | None, junit: Path | None) -> None:
    """Write the table and the JUnit file; in a workflow of GitHub, its step summary and annotations too.

    If no files are named, they go into the run's folder, or into its folder ``gate`` if the run lies at a URL.
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
    add_to_step_summary(rendering.markdown(result))
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in rendering.github_annotations(result):
            say(line, err=True)  # standard output may be one JSON document


@command.command(name="history")
@click.argument("folder", type=LocalPath(), metavar="DIR")
@click.option("--metric", "metrics", multiple=True, help="Only this metric, such as acceptance; may be repeated.")
@click.option("--out", type=LocalPath(), help="Folder of history.md and history.png. Default: DIR.")
@click.option("--html", "pages", type=LocalPath(), help="Write a page for a browser into this folder instead.")
@click.option("--summary", is_flag=True, help="Print one line, for a chat, and write nothing.")
@json_option("{series}, each with its changes and verdict")
def history(
    folder: Path, metrics: tuple[str, ...], out: Path | None, pages: Path | None, summary: bool, as_json: bool
) -> None:
    """Table and figure of each metric of each cell over the nights of a history, with its change points.

    A change is named with the commits before and after it. It is found on the third night after a step; odd nights, or
    noise that goes on for a few nights, are not a change in 95 of 100 series. DIR holds the lines of
    `stride gate nightly` or `stride run --append`; a file of such lines is read as well.

    A series of fewer than eight nights, or without a value in the latest ones, is inconclusive. Exit codes: 0, 4 if no
    figure has a value in two of several nights, 2 error.

    \b
    stride gate history nights
    stride gate history nights --metric acceptance --json
    stride gate history nights --summary
    stride gate history nights --html site                   open site/index.html
    """
    if wrong := [name for name in metrics if name not in METRICS and not name.startswith(("score.", "set."))]:
        raise UsageError(f"no metric {wrong[0]!r:.60}; there are {', '.join(METRICS)}, and score.NAME and set.NAME")
    outputs = {"--json": as_json, "--summary": summary, "--html": pages, "--out": out}
    asked = [word for word, given in outputs.items() if given]
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked)} are different outputs; ask for one")
    lines = read(folder)
    results = report.findings([one for one in series(lines) if not metrics or one.metric in metrics])
    if as_json:
        emit({"series": report.document(results)})
    elif summary:
        say(report.summary(results))
    else:
        _write_history(results, folder, out, pages)
    nights = {line["created"] for line in lines}
    raise SystemExit(4 if len(nights) > 1 and not results else 0)


def _write_history(results: Sequence[report.Finding], folder: Path, out: Path | None, pages: Path | None) -> None:
    """Write the page for a browser, or the table and the figure; say where."""
    if pages is not None:
        for module in ("plotly", "itables"):
            optional(module, "a page for a browser", "html")
        from stridebench.reports.html import history as history_page
        from stridebench.reports.html import text as assets

        assets.check_folder(pages)
        say(f"wrote {history_page.write(results, str(folder), pages)}")
        return
    place = out or (folder if folder.is_dir() else folder.parent)
    place.mkdir(parents=True, exist_ok=True)
    (place / "history.md").write_text(report.markdown(results), encoding="utf-8")
    for table in report.tables(results):
        print_table(table, Console())
    drawn = report.figure(results, place / "history.png")
    say("\n".join(f"wrote {path}" for path in (place / "history.md", drawn) if path is not None))


TAKEN = ("--out", "--append", "--json", "--dry-run", "--resume", "--seed")
"""Options of `stride run` that a comparison sets."""


@command.command(name="ab", context_settings={"ignore_unknown_options": True})
@click.argument("a")
@click.argument("b")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[SUITE] [OPTIONS OF RUN]")
@click.option("--rounds", type=click.IntRange(1), default=6, show_default=True, help="Runs of each side.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first round; each further round adds 1.")
@click.option("--out", type=LocalPath(file_okay=False), help="Folder of all runs.")
@json_option("{a, b, out, rows, only_a, only_b, notes}")
def compare_versions(
    a: str, b: str, options: tuple[str, ...], rounds: int, seed: int, out: Path | None, as_json: bool
) -> None:
    """Run a suite with two versions of stridebench in turns, and say what differs and which one is faster.

    A and B are revisions of the repository here, or paths: a checkout (`.` is this one, with uncommitted changes), an
    environment with an installed version, or an interpreter. Revisions are checked out into temporary worktrees. All
    options of `stride run` may follow the suite.

    Each round runs the suite on both sides with one seed, and sides take turns at going first. Counts are paired by
    prompt and seed. Seconds are paired by round, so six rounds of six prompts say more than one of 36. Proofs are left
    out; `stride verify` makes them.

    Exit codes: 0 done, 2 error (an unknown revision, a version that does not import, different suites), 3 incomplete.

    \b
    stride gate ab main . quick --limit 6
    stride gate ab HEAD~1 HEAD --method prompt_lookup --backbone smollm2-135m --task '{name: humaneval, limit: 6}'
    stride gate ab ./venv-old ./venv-new mine.yaml --rounds 8 --json
    """
    if taken := [word for word in options if word.split("=")[0] in TAKEN]:
        raise UsageError(f"{taken[0].split('=')[0]} is set by the comparison; leave it out")
    declare_all()
    refuse_moving_prompts(options)
    folder = out or Path("runs") / f"ab-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; name another folder with --out")
    with checkouts.versions([a, b]) as sides:
        for side in sides:
            code, errors = run_turn(side, [*options, "--dry-run"])
            if code:
                raise UsageError(f"{side.name} cannot plan this suite: {last_line(errors)}")
        notes = _ab_notes(sides)
        stores: list[tuple[Store, Store]] = []
        for turn in range(rounds):
            say(f"round {turn + 1} of {rounds}", err=True)
            stores.append(_round(sides, turn, seed + turn, folder, options))
            if not turn:
                ab.check_suites(*stores[0])  # before the other rounds
    comparison = ab.ab(stores)
    if as_json:
        rows = [{**asdict(row), "verdict": row.verdict} for row in comparison.rows]
        document = {"a": sides[0].words, "b": sides[1].words, "out": str(folder), "rows": rows}
        emit(
            {**document, "only_a": comparison.only_a, "only_b": comparison.only_b, "notes": [*notes, *comparison.notes]}
        )
        return
    for letter, side in zip("ab", sides, strict=True):
        say(f"{letter} = {side.words}")
    print_table(ab.table(comparison), Console())
    say("\n".join(map(printable, [*notes, f"runs: {folder}"])))


def run_turn(version: Version, words: Sequence[str]) -> tuple[int, str]:
    """Return the exit code of `stride run` with these words, and its standard error."""
    done = version.start(["run", *words])
    return done.returncode, done.stderr


def _round(sides: Sequence[Version], turn: int, seed: int, folder: Path, options: Sequence[str]) -> tuple[Store, Store]:
    """Run each side once; in every second round the other side goes first."""
    paths = [folder / f"{letter}-{turn + 1}" for letter in "ab"]
    for side in (0, 1) if turn % 2 == 0 else (1, 0):
        words = [*options, "--set", "prove=false", "--seed", str(seed), "--out", str(paths[side]), "--json"]
        code, errors = run_turn(sides[side], words)
        if code not in (0, 1):  # 1: a claim is broken or samples failed; the others are compared
            kind = RunIncomplete if code == 3 else UsageError
            raise kind(f"{sides[side].name} ended with exit code {code} in round {turn + 1}: {last_line(errors)}")
    return Store.open(paths[0]), Store.open(paths[1])


def _ab_notes(sides: Sequence[Version]) -> list[str]:
    """Return notes on changes that are not compared, although the user might expect it."""
    notes = []
    revisions = [side for side in sides if side.commit and not checkouts.is_path(side.name)]
    changes = checkouts.changed_files(Path.cwd()) if revisions else 0
    if changes:
        names = " and ".join(side.name for side in revisions)
        notes.append(f"{changes} changed files here are not part of {names}; name the folder (.) to compare them")
    if sides[0].commit is not None and sides[0].commit == sides[1].commit and not any(s.changes for s in sides):
        notes.append("both sides are the same commit: differences are noise")
    return notes
