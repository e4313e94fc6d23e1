"""The enumerations of `stride verify`, and its tables. They need torch, which the help text does not."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, cast

from rich.console import Console

from stridebench.harness.cli.main import emit
from stridebench.harness.core.method import label, parameters
from stridebench.harness.discover import declare_all
from stridebench.harness.plan import contract
from stridebench.harness.plan.yaml_lines import option_texts
from stridebench.harness.proof.catalogue import (
    FEW,
    Done,
    FloorRow,
    Piece,
    Settings,
    computed,
    joined,
    pieces,
    processors,
    settings_to_verify,
)
from stridebench.harness.proof.kept_laws import LawKeeper, folder
from stridebench.harness.proof.mutants import CAUGHT
from stridebench.harness.proof.prove import EXACT, BugRow, ProofRow, SettingRow
from stridebench.harness.proof.random_cases import Tried, try_random
from stridebench.harness.proof.sampler_proof import EXACT as SAMPLER_EXACT
from stridebench.harness.proof.sampler_proof import ROUNDED, SamplerRow, prove_sampler
from stridebench.harness.proof.samplers import read_samplers
from stridebench.reports import text_table

BUDGET_S = 600.0
"""Seconds after which no random case begins."""
DISTRIBUTIONS = {"setting": 0, "verdict": 1, "total variation": 1, "claim": 3, "injected bug": 2, "largest on": 4}
RANDOM = {"setting": 0, "verdict": 1, "total variation": 1, "claim": 3, "cases": 2, "largest on": 4}
BUGS = {"injected bug": 0, "method": 1, "total variation": 1, "seen": 1, "on": 2, "in": 3}
SAMPLERS = {"sampler": 0, "verdict": 1, "total variation": 1, "accepted": 2, "of block": 2, "faults seen": 3, "on": 4}
"""Columns of the tables, and the order in which a narrow terminal keeps them."""


def verify(
    methods: tuple[str, ...],
    params: tuple[str, ...],
    quick: bool,
    fresh: bool,
    processes: int | None,
    number: int | None,
    seed: int | None,
    budget: float | None,
    as_json: bool,
) -> None:
    """Enumerate, print the tables, and exit with the code of `stride verify`; the arguments are its options."""
    declare_all()
    values = option_texts("-p", params, "window=4")
    settings = {name: settings_to_verify(name, values) for name in methods} or dict(contract.usable_methods())
    if number is not None:
        _random(settings, number, seed or 0, BUDGET_S if budget is None else budget, as_json)
        return
    outputs = FEW if quick else None
    asked = pieces(settings, not quick and not params, not params, outputs)
    keeper = LawKeeper(folder(), fresh, uuid.uuid4().hex)
    done = _computed(asked, settings, outputs, keeper, processes or processors(), as_json)
    rows = [_row(piece, done) for piece in asked if piece.kind in ("setting", "published")]
    bugs = _bugs(asked, done, rows)
    if as_json:
        emit([*rows, *bugs])
    else:
        floor = next(one.row for one in done.values() if one.piece.kind == "floor")
        _show(rows, bugs, cast(FloorRow, floor))
        Console().print(_laws(list(done.values())), markup=False, highlight=False)
    unseen = [row for row in rows if row["verdict"] in ("exact", "broken") and not row["planted"] and row["plants"]]
    if any(row["verdict"] == "broken" for row in rows) or unseen or not all(bug["caught"] for bug in bugs):
        raise SystemExit(1)
    if any(row["verdict"] == "unverified" for row in rows):
        raise SystemExit(4)


def _computed(
    asked: Sequence[Piece], settings: Settings, outputs: int | None, keeper: LawKeeper, processes: int, quiet: bool
) -> dict[Piece, Done]:
    """Enumerate every piece; the terminal shows the last one that was done."""
    done: dict[Piece, Done] = {}
    with Console(stderr=True, quiet=quiet).status("enumerating ...") as status:
        for one in computed(asked, settings, outputs, keeper, processes):
            done[one.piece] = one
            status.update(f"{len(done)} of {len(asked)} enumerated, {one.piece.method} the last")
            if one.error is not None and one.piece.kind != "bug":
                raise one.error
    return done


def _row(piece: Piece, done: Mapping[Piece, Done]) -> ProofRow:
    """Return the row of a setting, joined over its cases."""
    dear = done.get(replace(piece, kind="dear")) if piece.kind == "setting" else None
    # An error of a setting ends the command, so both have rows.
    return joined(cast(ProofRow, done[piece].row), cast(ProofRow, dear.row) if dear else None)


def _bugs(asked: Sequence[Piece], done: Mapping[Piece, Done], rows: Sequence[ProofRow]) -> list[BugRow]:
    """Return the rows of injected bugs, without methods that have a setting which could not be enumerated at all."""
    unverified = {row["method"] for row in rows if row["verdict"] == "unverified"}
    bugs = [done[piece] for piece in asked if piece.kind == "bug" and piece.method not in unverified]
    for one in bugs:
        if one.error is not None:
            raise one.error
    return [cast(BugRow, one.row) for one in bugs]


def _laws(done: Sequence[Done]) -> str:
    """Say how many distributions were read from the cache and how many were enumerated."""
    used, new = sum(one.used for one in done), sum(one.enumerated for one in done)
    text = f"{used} distributions from the cache ({folder()}; --fresh enumerates them again), {new} enumerated."
    trouble = next((one.trouble for one in done if one.trouble), "")
    return text + (f" They could not be kept: {trouble}" if trouble else "")


def _random(settings: Mapping[str, Sequence[Any]], number: int, seed: int, budget: float, as_json: bool) -> None:
    """Enumerate random cases of the variants and the defaults, and print a row a setting."""
    every = {
        name: list(dict.fromkeys([*variants, contract.default_of(list(variants))]))
        for name, variants in settings.items()
    }
    tried = try_random(every, number, seed, budget)
    rows = [_random_row(one, seed) for one in tried if one.measured or one.left_out or one.error]
    if as_json:
        emit(rows)
    else:
        _show_random(rows, number * len(settings), seed)
    if any(row["verdict"] == "broken" for row in rows):
        raise SystemExit(1)
    if any(one.error for one in tried) or not any(row["cases"] for row in rows):
        raise SystemExit(4)


class RandomRow(SettingRow):
    """A setting on random cases."""

    cases: int
    left_out: Sequence[str]
    seed: int


def _random_row(one: Tried, seed: int) -> RandomRow:
    worst = one.worst
    return {
        "method": one.name,
        "label": label(one.method),
        "params": parameters(one.method),
        "claim": one.method.claim.name,
        "total_variation": None if worst is None else worst.total_variation,
        "case": one.error or ("" if worst is None else str(worst.case)),
        "verdict": one.verdict,
        "cases": len(one.measured),
        "left_out": one.left_out,
        "seed": seed,
    }


def _show_random(rows: Sequence[RandomRow], asked: int, seed: int) -> None:
    columns = [text_table.Column(key, key, rank=rank) for key, rank in RANDOM.items()]
    lines = []
    for row in rows:
        variation = "" if row["total_variation"] is None else f"{row['total_variation']:.3g}"
        counts = f"{row['cases']}" + (f" ({len(row['left_out'])} left out)" if row["left_out"] else "")
        lines.append([row["label"], row["verdict"], variation, row["claim"], counts, row["case"]])
    title = f"exact output distributions on random cases (seed {seed})"
    console = Console()
    reasons = ((row, row["case"] or (row["left_out"] or [""])[0]) for row in rows if row["verdict"] == "unverified")
    failed = [f"! {row['label']}: {reason}" for row, reason in reasons]
    text_table.print_table(text_table.TextTable(title, tuple(columns), lines, failed), console)
    done = sum(row["cases"] + len(row["left_out"]) for row in rows)
    console.print(
        f"{done} of {asked} cases in the time budget; exact: below {EXACT:g} in these cases, whose texts end at 12 "
        f"tokens. Without --random the cases have longer texts and windows too."
    )


def _show(rows: Sequence[ProofRow], bugs: Sequence[BugRow], floor: FloorRow) -> None:
    console = Console()
    columns = [text_table.Column(key, key, rank=rank) for key, rank in DISTRIBUTIONS.items()]
    lines = []
    for row in rows:
        tv = "" if row["total_variation"] is None else f"{row['total_variation']:.3g}"
        missed = "NOT caught" if row["verdict"] == "exact" else "none applies"
        caught = "caught" if row["planted"] else (missed if row["plants"] else "none injected")
        lines.append([row["label"], row["verdict"], tv, row["claim"], caught, row["case"]])
    unproved = [f"! {row['label']}: {row['case']}" for row in rows if row["total_variation"] is None]
    unproved += [f"! {row['label']}: {row['hint']}" for row in rows if row["hint"]]
    table = text_table.TextTable("exact output distributions", tuple(columns), lines, unproved)
    text_table.print_table(table, console)
    if bugs:
        columns = [text_table.Column(key, key, rank=rank) for key, rank in BUGS.items()]
        lines = []
        for bug in bugs:
            caught = "caught" if bug["caught"] else "NOT caught"
            variation = f"{bug['total_variation']:.3g}"
            lines.append([bug["why"], bug["method"], variation, caught, bug["case"], bug["where"]])
        text_table.print_table(text_table.TextTable("injected bugs", tuple(columns), lines, []), console)
    console.print(
        f"{floor['cases']} models. Noise floor (autoregressive by the same enumeration): {floor['floor']:.2g}. "
        f"exact: below {EXACT:g}; an injected bug is caught above {CAUGHT:g}."
    )


def verify_samplers(targets: Sequence[str], as_json: bool) -> None:
    """Prove samplers of other projects, and print a row each, as soon as all are read."""
    samplers = [sampler for target in targets for sampler in read_samplers(target)]
    rows = [prove_sampler(sampler) for sampler in samplers]
    if as_json:
        emit([asdict(row) for row in rows])
    else:
        _show_samplers(rows)
    if any(row.verdict == "biased" for row in rows):
        raise SystemExit(1)


def _show_samplers(rows: Sequence[SamplerRow]) -> None:
    columns = [text_table.Column(key, key, rank=rank) for key, rank in SAMPLERS.items()]
    lines, notes = [], []
    for row in rows:
        read = {fault: seen for fault, seen in row.faults.items() if seen is not None}
        variation, block = f"{row.total_variation:.3g}", "" if row.block is None else f"{row.block:.3f}"
        seen = f"{sum(read.values())} of {len(read)}"
        lines.append([row.sampler, row.verdict, variation, f"{row.accepted:.3f}", block, seen, row.on])
        notes += [f"! {row.sampler}: the proof does not see {fault}" for fault, caught in read.items() if not caught]
        if row.alarm:
            notes.append(f"! {row.sampler} accepts more than block verification; no exact verifier of a chain does")
    console = Console()
    table = text_table.TextTable("samplers, over all drafts and draws", tuple(columns), lines, notes)
    text_table.print_table(table, console)
    console.print(
        f"Six random models of three ids. exact: below {SAMPLER_EXACT:g}, to rounding: below {ROUNDED:g}. accepted: "
        "drafts a cycle. faults seen: of three mistakes in the arguments, those that the function reads.",
        highlight=False,
    )
