"""`stride gate ab`: two versions of the code run a suite in turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click
from rich.console import Console

from stridebench.harness.cli.main import LocalPath, emit, say
from stridebench.harness.errors import RunIncomplete, UsageError, printable
from stridebench.harness.record.store import Store
from stridebench.harness.run import checkouts
from stridebench.harness.run.checkouts import Version, last_line
from stridebench.reports.gate import ab
from stridebench.reports.text_table import print_table

TAKEN = ("--out", "--append", "--json", "--dry-run", "--resume", "--seed")
"""Options of `stride run` that a comparison sets."""


@click.command(name="ab", context_settings={"ignore_unknown_options": True})
@click.argument("a")
@click.argument("b")
@click.argument("options", nargs=-1, type=click.UNPROCESSED, metavar="[SUITE] [OPTIONS OF RUN]")
@click.option("--rounds", type=click.IntRange(1), default=6, show_default=True, help="Runs of each side.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first round; each further round adds 1.")
@click.option("--out", type=LocalPath(file_okay=False), help="Folder of all runs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {a, b, out, rows, only_a, only_b, notes}.")
def command(a: str, b: str, options: tuple[str, ...], rounds: int, seed: int, out: Path | None, as_json: bool) -> None:
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
    folder = out or Path("runs") / f"ab-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty; name another folder with --out")
    with checkouts.versions([a, b]) as sides:
        for side in sides:
            _plan(side, options)
        notes = _notes(sides)
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


def _plan(version: Version, options: Sequence[str]) -> None:
    """Check that a version can plan the suite, before anything runs."""
    code, errors = run_turn(version, [*options, "--dry-run"])
    if code:
        raise UsageError(f"{version.name} cannot plan this suite: {last_line(errors)}")


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


def _notes(sides: Sequence[Version]) -> list[str]:
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
