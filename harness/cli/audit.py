"""`stride audit`: bets against a sampler, on the tokens of a run or of a file."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from rich.console import Console

from stridebench.harness.cli.main import emit, json_option, say
from stridebench.harness.cli.servers import audit_server, server_options
from stridebench.harness.core.task import Sampling
from stridebench.harness.discover import declare_all
from stridebench.harness.errors import StoreError, UsageError, printable_line
from stridebench.harness.machine.device import check_device
from stridebench.harness.record.outputs import json_values
from stridebench.harness.record.store import Store
from stridebench.harness.registry import KERNELS
from stridebench.reports import tables, text_table
from stridebench.reports.engine_rows import summarise_engines

if TYPE_CHECKING:  # they import torch, which an error in a name does not need
    from stridebench.harness.audit.kernels import KernelPosition
    from stridebench.harness.audit.of_file import ClaimedSource
    from stridebench.harness.audit.verdict import Audit
    from stridebench.harness.run.stored_audit import AuditedCell

CODES = {"not refuted": 0, "refuted": 1, "inconclusive": 4}
REFUTED = ("broken", "other weights or arithmetic", "other arithmetic", "refuted")
"""Verdicts of an engine whose tokens were refuted: they end an audit with code 1."""
PASSED = ("same tokens", "not refuted")
COLUMNS = {
    "cell": 0,
    "verdict": 0,
    "e-value": 1,
    "tokens": 2,
    "at a cut": 5,
    "visible TV": 2,
    "best bet": 3,
    "claim": 4,
}
"""Columns of the table, and the order in which a narrow terminal keeps them."""
SOURCE = ("backbone", "temperature", "top_p", "top_k", "min_p", "drafter", "margin")
"""Options that go with --tokens."""
SERVER = ("plain", "prompts", "limit", "minutes", "max_new_tokens", "key_env")
"""Options that go with the URL of a server."""
TRIALS = 20_000
"""Default number of trials of each case of a kernel."""
OTHER_CAUSES = (
    "The sampler is biased, or the tokens come from other weights, another prompt format or other settings of sampling."
)

UNKNOWN_DRAFTER = (
    "no bets on drafts that are kept untested, on wrong tests and residuals, or on a random number that is used twice: "
    "they need the drafter's distributions"
)


@click.command(name="audit")
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--tokens", type=click.Path(path_type=Path), help="A file of JSON lines instead of a run.")
@click.option("--backbone", help="With --tokens: the model that made them.")
@click.option("--temperature", "-t", type=float, help="With --tokens or a server: of the sampling, above 0.")
@click.option("--top-p", type=float, help="With --tokens or a server: of the sampling. Default: 1, all ids.")
@click.option("--top-k", type=int, help="With --tokens or a server: of the sampling. Default: 0, all ids.")
@click.option("--min-p", type=float, help="With --tokens or a server: of the sampling. Default: 0, all ids.")
@click.option(
    "--penalty",
    "penalties",
    metavar="NAME=VALUE",
    multiple=True,
    help="With a server: presence, frequency, repetition, or the id of a token whose logit is raised by so many nats.",
)
@click.option("--drafter", help="With --tokens: the model that drafted, if one did; bets use its distribution too.")
@click.option(
    "--margin", type=float, help="With --tokens: no bet this near to a cut, in logits. Default: 0.25, for bf16."
)
@click.option("--dtype", help="Compute the distributions in this type. Default: the run's, or the backbone's.")
@click.option("--device", default="cpu", show_default=True, help="A torch device, such as cuda.")
@click.option("--offline", is_flag=True, help="Never download weights.")
@click.option(
    "--kernel",
    "kernels",
    multiple=True,
    help="Instead of a run: an accept-and-resample function, such as transformers; several are tried in turn.",
)
@server_options
@click.option("--trials", type=click.IntRange(1), help="With --kernel: of each case. Default: 20000.")
@json_option("{e_value, tokens, visible_tv, best, verdict}; of a run {run, cells}, of a kernel {kernel, places}")
def command(
    run: Path | None,
    tokens: Path | None,
    kernels: tuple[str, ...],
    penalties: tuple[str, ...],
    trials: int | None,
    as_json: bool,
    dtype: str | None,
    device: str,
    offline: bool,
    **claimed: Any,
) -> None:
    """Bet against a sampler: were these tokens drawn from the distributions that the model gives, token by token?

    A sampler is refuted at an e-value of 1000. A correct one reaches it once in a thousand audits, however long one
    looks. "visible TV" is the bias, in total variation a token, that would have been refuted in 9 of 10 audits of so
    many tokens, if it is of one of the kinds that --json lists: a smaller bias or one of another kind may be there. A
    line of a file is {"prompt_ids": [1, 2], "output_ids": [3, 4]}; it may name the tokens of each decode step, such as
    "emitted": [1, 1], and then biases at one place of a step are bet on too.

    A server is audited by its own scoring, which needs no weights: it decodes the prompts at T, reads prompt and
    output again, and the bets use the probabilities that it gives the tokens then, behind the penalties and cuts of
    the request. At T = 0 each token must be the most probable one, but for near ties. With --plain its plain decode is
    audited too. If both are refuted, its scoring and its sampling disagree, and nothing is said of drafts.

    Exit codes: 0 not refuted, 1 refuted, 4 inconclusive (too few tokens, or a cell that could not be audited), 2 error.

    \b
    stride audit runs/tonight
    stride audit --tokens served.jsonl --backbone smollm2-135m --temperature 0.8 --top-p 0.95
    stride audit http://127.0.0.1:8000 --plain http://127.0.0.1:8001 --prompts mine.jsonl -t 0.8
    stride audit http://127.0.0.1:8000 --prompts mine.jsonl -t 1 --min-p 0.05 --penalty presence=1
    stride audit --kernel transformers           total variation of its tokens to known distributions, with intervals
    stride audit --kernel transformers --kernel transformers_single_position --json
    """
    declare_all()
    server = {key: claimed.pop(key) for key in SERVER}
    at_web = run is not None and str(run).startswith(("http:/", "https:/"))
    if at_web and server["prompts"] is not None:
        settings = {key: claimed.pop(key) for key in ("temperature", "top_p", "top_k", "min_p")}
        others = [tokens, trials, dtype, *claimed.values()]
        if kernels or offline or device != "cpu" or any(value is not None for value in others):
            raise UsageError(
                "a server takes prompts, a temperature, cuts and penalties; leave out the options of a run or a file"
            )
        sampling = Sampling(
            **{"temperature": 1.0} | {key: value for key, value in settings.items() if value is not None}
        )
        raise SystemExit(audit_server(str(run).replace(":/", "://", 1), sampling, penalties, as_json, server))
    if penalties:
        raise UsageError("--penalty goes with the URL of a server and --prompts")
    if unfit := [key for key in SERVER if server[key] is not None]:
        raise UsageError(f"--{unfit[0].replace('_', '-')} goes with the URL of a server and --prompts")
    if sum(map(bool, (run is not None, tokens is not None, kernels))) != 1:
        raise UsageError(
            "name a run folder, or a file of tokens with --tokens, or a function with --kernel; one of them"
        )
    for name in kernels:
        KERNELS.check(name)
    if trials is not None and not kernels:
        raise UsageError("--trials goes with --kernel; a run or a file has a fixed number of tokens")
    try:
        store = None if run is None else Store.open(run)
    except StoreError as error:
        if not at_web:
            raise
        raise StoreError(f"{error} To audit a server, add --prompts FILE.jsonl.") from error
    check_device(device)
    claimed = {key: claimed[key] for key in SOURCE if claimed[key] is not None}
    if claimed and tokens is None:
        given = ", ".join(f"--{name.replace('_', '-')}" for name in claimed)
        known = "a kernel is tried on known distributions" if kernels else "a run says how it was sampled"
        raise UsageError(f"{given} goes with --tokens; {known}")
    if kernels and (offline or device != "cpu" or dtype is not None):
        raise UsageError("a kernel is tried on known distributions; leave out --dtype, --device and --offline")
    if kernels:
        _audit_kernels(list(dict.fromkeys(kernels)), TRIALS if trials is None else trials, as_json)
    if store is not None:
        _audit_run(store, str(run), dtype, device, not offline, as_json)
    assert tokens is not None
    if not {"backbone", "temperature"} <= set(claimed):
        raise UsageError("--tokens needs --backbone and --temperature, the source that the tokens claim")
    if not tokens.exists():
        raise UsageError(f"cannot read the tokens in {tokens}: there is no such file; name a file of JSON lines")
    from stridebench.harness.audit.of_file import ClaimedSource

    _audit_tokens(tokens, ClaimedSource(**claimed, dtype=dtype), device, not offline, as_json)


def _audit_kernels(names: list[str], trials: int, as_json: bool) -> NoReturn:
    from stridebench.harness.audit.kernels import check_kernel

    kernels = {name: KERNELS.get(name) for name in names}
    places_of = {name: check_kernel(kernel, trials) for name, kernel in kernels.items()}
    if as_json:
        documents = [
            {"kernel": name, "places": [vars(place) | {"biased": place.biased} for place in places]}
            for name, places in places_of.items()
        ]
        emit(documents[0] if len(documents) == 1 else {"kernels": documents})
    else:
        for name, places in places_of.items():
            _print_kernel(name, places)
    raise SystemExit(1 if any(place.biased for places in places_of.values() for place in places) else 0)


def _print_kernel(name: str, places: list[KernelPosition]) -> None:
    titles = ("drafter", "place", "tokens", "total variation", "interval", "")
    rows = [
        [
            place.case,
            str(place.place),
            str(place.tokens),
            f"{place.total_variation:.3f}",
            f"[{place.low:.3f}, {place.high:.3f}]",
            "biased" if place.biased else "",
        ]
        for place in places
    ]
    columns = tuple(text_table.Column(title, title, rank=0) for title in titles)
    text_table.print_table(text_table.TextTable(f"{name}: tokens and the target", columns, rows, []), Console())


def _audit_run(store: Store, run: str, dtype: str | None, device: str, fetch: bool, as_json: bool) -> None:
    document: dict[str, Any] = {"run": run}
    codes = []
    if store.manifest.engines:
        frame = summarise_engines(store)
        drawn = frame[(frame["temperature"] > 0) & (frame["status"] == "done")]
        audited = [str(name) for name in drawn if str(name).startswith("audit_")]
        keys = [name for name in ("cell", "label", "load", "verdict", "same", *audited) if name in drawn]
        document["engines"] = json_values(drawn[keys].to_dict("records"))
        verdicts = set(drawn["verdict"])
        passed = bool(verdicts) and verdicts <= set(PASSED)
        codes.append(1 if verdicts & set(REFUTED) else 0 if passed else 4)
        if not as_json:
            shown = [
                column for column in tables.COLUMNS_OF_ENGINES if column.key in ("label", "load", "verdict", "audit")
            ]
            shown.append(text_table.Column("audit_tokens", "tokens", 0, 1))
            shown.append(text_table.Column("audit_best", "best bet", rank=4, formatter=text_table.word("audit_best")))
            text_table.print_table(tables.table_of("audit of the engines' tokens", shown, drawn, []), Console())
    if store.manifest.cells:
        from stridebench.checks import facts_of

        rows = _audit_methods(store, dtype, device, fetch)
        document["cells"] = [facts_of(row) for row in rows]
        codes.append(_code(rows))
        if not as_json:
            _print(rows)
    if as_json:
        emit(document)
    raise SystemExit(1 if 1 in codes else max(codes, default=4))


def _audit_methods(store: Store, dtype: str | None, device: str, fetch: bool) -> list[AuditedCell]:
    from stridebench.harness.run.loading import Options
    from stridebench.harness.run.progress import RunProgress
    from stridebench.harness.run.stored_audit import audit_store

    console = Console(stderr=True)
    with RunProgress(console, quiet=not console.is_terminal) as progress:
        return audit_store(store, dtype, Options(device=device, fetch=fetch, progress=progress))


def _code(rows: list[AuditedCell]) -> int:
    """Return the exit code for the cells of methods that claim the model's distribution."""
    from stridebench.harness.run.auditing import MASKED

    claiming = [row for row in rows if row.claim.name == "SAME_LAW" and row.reason != MASKED]
    verdicts = {"inconclusive" if row.audit is None else row.audit.verdict for row in claiming}
    if any(row.refuted for row in rows):
        return 1
    return 0 if verdicts == {"not refuted"} else 4


def _audit_tokens(path: Path, claimed: ClaimedSource, device: str, fetch: bool, as_json: bool) -> None:
    from stridebench.harness.audit.of_file import audit_figures, audit_file

    dtype, result = audit_file(path, claimed, device, fetch)
    document = {"backbone": claimed.backbone, "dtype": dtype, "tokens_file": str(path)} | audit_figures(result)
    if as_json:
        emit(document)
    else:
        say(_sentence(result, dtype))
    raise SystemExit(CODES[result.verdict])


def _power(log_e: float) -> str:
    """Write an e-value in digits, or as a power of ten."""
    return f"{math.exp(log_e):.3g}" if abs(log_e) < math.log(1e4) else f"1e{log_e / math.log(10):+.0f}"


def visible_kinds(result: Audit) -> str:
    """Return the sentence that says which biases the audit would have seen."""
    kinds = ", ".join(f"{kind} {tv:.2g}" for kind, tv in result.visible.items() if tv is not None)
    if not kinds:
        return f"no kind of bias would have been seen: audit {_more(result)}"
    line = f"biases of these kinds would have been seen in 9 of 10 audits from this total variation a token on: {kinds}"
    if result.visible_tv is None:
        unseen = ", ".join(kind for kind, tv in result.visible.items() if tv is None)
        line += f" (not seen, however strong: {unseen}; audit {_more(result)})"
    return f"{line}. Biases of other kinds may be there"


def _more(result: Audit) -> str:
    """Return how many tokens an audit needs."""
    return "more tokens" if result.needed is None else f"{result.needed:,} tokens"


def _sentence(result: Audit, dtype: str) -> str:
    lines = [
        f"{result.verdict}: e = {_power(result.log_e)} after {result.tokens} tokens (refuted from "
        f"{result.threshold:g} on); best bet: {result.best}",
        visible_kinds(result),
        f"{result.near} tokens at a cut of top-k or top-p bet nothing; distributions in {dtype}",
    ]
    if "draft" not in result.visible:
        lines.append(f"{UNKNOWN_DRAFTER}; name the drafter with --drafter")
    if result.verdict == "refuted":
        lines.append(OTHER_CAUSES)
    if result.impossible:
        lines.append(f"{result.impossible} tokens cannot be drawn at this setting")
    return "\n".join(lines)


def _print(rows: list[AuditedCell]) -> None:
    limit = f"refuted from e = {rows[0].audit.threshold:g} on, " if rows and rows[0].audit else ""
    say(f"audit: {limit}distributions in {', '.join(dict.fromkeys(row.dtype for row in rows))}\n")
    for setting, group in itertools.groupby(rows, lambda row: row.setting):
        _print_group(setting, list(group))


def _print_group(setting: str, rows: list[AuditedCell]) -> None:
    """Print the audits of one backbone, type, temperature and task."""
    lines, notes = [], []
    for row in rows:
        if row.audit is None:
            notes.append(f"not audited: {row.label}: {printable_line(row.reason or '')}")
            continue
        if row.audit.verdict == "refuted" and not row.refuted:
            notes.append(f"{row.label}: no fault, since it claims another distribution than the model's")
        if row.audit.visible_tv is None:
            notes.append(f"{row.label}: nothing seen in {row.audit.tokens:,} tokens; audit {_more(row.audit)}")
        visible = "-" if row.audit.visible_tv is None else f"{row.audit.visible_tv:.2g}"
        numbers = [_power(row.audit.log_e), str(row.audit.tokens), str(row.audit.near), visible, row.audit.best]
        lines.append([row.label, row.audit.verdict, *numbers, row.claim.name])
    if blind := [row.label for row in rows if row.audit is not None and "draft" not in row.audit.visible]:
        notes.append(f"{', '.join(blind)}: {UNKNOWN_DRAFTER}")
    columns = tuple(text_table.Column(key, key, rank=rank) for key, rank in COLUMNS.items())
    text_table.print_table(text_table.TextTable(setting, columns, lines, notes), Console())
