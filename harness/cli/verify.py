"""`stride verify`: exact output distributions, and the injected bugs that they catch."""

from __future__ import annotations

import time
from typing import Any

import click
from rich.console import Console

from harness.cli.main import emit
from harness.core.method import label, parameters
from harness.discover import declare_all
from harness.errors import UsageError
from harness.plan import contract
from harness.plan.names import build
from harness.proof.cases import Case, cases_of
from harness.proof.distance import distance
from harness.proof.mutants import CAUGHT, TriedMutant, try_mutants
from harness.proof.prove import EXACT, prove
from harness.registry import METHODS
from reports import text_table

QUICK = 32
"""Largest number of outputs of a model that --quick enumerates."""
DISTRIBUTIONS = {"setting": 0, "verdict": 1, "total variation": 1, "claim": 3, "injected bug": 2, "largest on": 4}
BUGS = {"injected bug": 0, "method": 1, "total variation": 1, "seen": 1, "on": 2, "in": 3}
"""Columns of both tables, and the order in which a narrow terminal keeps them."""


@click.command(name="verify")
@click.argument("methods", nargs=-1)
@click.option("--param", "-p", "params", multiple=True, metavar="KEY=VALUE", help="Verify this setting only.")
@click.option("--quick", is_flag=True, help="Only the smaller models.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON document: [{method, params, claim, total_variation, ...}].",
)
def command(methods: tuple[str, ...], params: tuple[str, ...], quick: bool, as_json: bool) -> None:
    """Enumerate every outcome of a decode on small random models, and print the total variation to the target.

    An exact method must stay below 1e-12. Each injected bug, a one-line change of the real code, must exceed 1e-3.
    Exit codes: 1 a claim of exactness fails or an injected bug is not caught, 4 a method could not be enumerated.

    \b
    stride verify
    stride verify sjd sjdpp
    stride verify sjdpp -p reuse=paper -p tau=0.25
    """
    declare_all()
    outputs = QUICK if quick else None
    console = Console(stderr=True, quiet=as_json)
    rows: list[dict[str, Any]] = []
    settings = {name: _settings(name, params) for name in methods} if methods else dict(contract.usable_methods())
    for name, variants in settings.items():
        for method in variants:
            console.print(f"{label(method)} ...", end="\r", markup=False)
            rows.append(_row(name, method, outputs))
    baseline = METHODS.get("autoregressive")()
    cases = cases_of(baseline, outputs)
    floor = max(distance(baseline, case) for case in cases)
    tried = [] if params else [(name, bug) for name in settings for bug in _bugs(name, rows)]
    bugs = [{"method": name, **vars(bug), "caught": bug.caught} for name, bug in tried]
    if as_json:
        emit(rows)
    else:
        _show(rows, bugs, floor, cases)
    unseen = [row for row in rows if row["verdict"] in ("exact", "broken") and not row["planted"] and row["plants"]]
    if any(row["verdict"] == "broken" for row in rows) or unseen or not all(bug["caught"] for bug in bugs):
        raise SystemExit(1)
    if any(row["verdict"] == "unverified" for row in rows):
        raise SystemExit(4)


def _settings(name: str, params: tuple[str, ...]) -> list[Any]:
    if not params:
        return contract.settings_of(name)
    kind = contract.class_of(METHODS, name)
    values = dict(item.partition("=")[::2] for item in params)
    method = build(kind, name, values)
    if isinstance(method, list):
        raise UsageError("; ".join(text for _, text in method))
    contract.check(METHODS, name, method)
    return [method]


def _row(name: str, method: Any, outputs: int | None) -> dict[str, Any]:
    begin = time.monotonic()
    try:
        plain = prove(method, cases_of(method, outputs)).plain(name)
    except Exception as error:  # a plugin may raise anything, and a setting may branch too much: its row says so
        plain = {
            "method": name,
            "label": label(method),
            "params": parameters(method),
            "claim": method.claim.name,
            "total_variation": None,
            "case": f"{type(error).__name__}: {error}",
            "verdict": "unverified",
            "planted": False,
            "plants": [],
        }
    return plain | {"seconds": time.monotonic() - begin}


def _bugs(name: str, rows: list[dict[str, Any]]) -> list[TriedMutant]:
    """Injected bugs of a method, unless one of its settings could not be enumerated at all."""
    kind = METHODS.get(name)
    if any(row["verdict"] == "unverified" for row in rows if row["method"] == name):
        return []
    return try_mutants(kind, kind.variants())


def _unproved(rows: list[dict[str, Any]]) -> list[str]:
    """Why settings could not be enumerated; the table has no room for it."""
    return [f"! {row['label']}: {row['case']}" for row in rows if row["total_variation"] is None]


def _show(rows: list[dict[str, Any]], bugs: list[dict[str, Any]], floor: float, cases: tuple[Case, ...]) -> None:
    console = Console()
    columns = [text_table.Column(key, key, rank=rank) for key, rank in DISTRIBUTIONS.items()]
    lines = []
    for row in rows:
        tv = "" if row["total_variation"] is None else f"{row['total_variation']:.3g}"
        missed = "NOT caught" if row["verdict"] == "exact" else "none applies"
        caught = "caught" if row["planted"] else (missed if row["plants"] else "none injected")
        lines.append([row["label"], row["verdict"], tv, row["claim"], caught, row["case"]])
    table = text_table.TextTable("exact output distributions", tuple(columns), lines, _unproved(rows))
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
        f"{len(cases)} models. Noise floor (autoregressive by the same enumeration): {floor:.2g}. "
        f"exact: below {EXACT:g}; an injected bug is caught above {CAUGHT:g}."
    )
