"""The views that a query reads, with every column and what it means.

Columns of samples and steps are those of the stored tables. Their meaning is the docstring of `Sample` and of `Step`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import getdoc

import pyarrow as pa

from stridebench.harness.record.columns import Sample, Step
from stridebench.harness.record.metrics import METRICS
from stridebench.harness.record.requests import REQUESTS, Request
from stridebench.harness.record.store import SAMPLES, STEPS
from stridebench.reports.summary import INTERVALS, PLAIN

SQL_TYPES = {pa.string(): "VARCHAR", pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN"}
TEXT, INT, REAL, BOOL = SQL_TYPES


@dataclass(frozen=True)
class ViewColumn:
    """A column of a view: its name, its type in Arrow, and what it means with its unit."""

    name: str
    kind: pa.DataType
    meaning: str

    @property
    def sql_type(self) -> str:
        """The type as SQL writes it."""
        if pa.types.is_list(self.kind):
            return f"{SQL_TYPES[self.kind.value_type]}[]"
        return SQL_TYPES[self.kind]


@dataclass(frozen=True)
class View:
    """A view: its name, what a row is, and its columns."""

    name: str
    row: str
    columns: tuple[ViewColumn, ...]


def _columns(*rows: tuple[str, pa.DataType, str]) -> tuple[ViewColumn, ...]:
    return tuple(ViewColumn(*row) for row in rows)


RUN = ViewColumn("run", TEXT, "path or URL of the run, as it was named")
FACTS = (
    RUN,
    *_columns(
        ("cell", TEXT, "id of the cell in its run"),
        ("label", TEXT, "name of the cell in tables: the method with its parameters"),
        ("method", TEXT, "name of the method"),
        ("role", TEXT, "method, baseline, or floor (the second autoregressive set)"),
        ("backbone", TEXT, "name of the backbone"),
        ("dtype", TEXT, "fp32, bf16, fp16 or fp64"),
        ("task", TEXT, "name of the task"),
        ("temperature", REAL, "0 is greedy"),
    ),
)
"""Columns with which every view but ``runs`` begins."""


def _estimate(name: str, meaning: str) -> tuple[ViewColumn, ...]:
    return _columns(
        (name, REAL, meaning),
        (f"{name}_low", REAL, f"lower bound of the 95 % interval of {name}; null: too few prompts"),
        (f"{name}_high", REAL, f"upper bound of the 95 % interval of {name}"),
        (f"{name}_n", INT, f"prompts behind {name}"),
    )


def _metric(name: str) -> str:
    metric = METRICS[name]
    return f"{metric.formula}, {metric.unit}" if metric.unit else metric.formula


_RUNS = (
    RUN,
    *_columns(
        ("created", TEXT, "when the run was started, in UTC"),
        ("suite", TEXT, "name of the suite"),
        ("machine", TEXT, "fingerprint of the machine; seconds compare on equal machines only"),
        ("commit", TEXT, "git commit of the code; null: not run from a checkout"),
        ("schema", INT, "version of the stored tables"),
        ("cells", INT, "planned cells"),
        ("done", INT, "finished cells"),
        ("skipped", INT, "cells that cannot run here"),
        ("unfinished", INT, "cells that are not finished; their outputs are in no view yet"),
    ),
)
_CELLS = (
    *FACTS,
    *_columns(
        ("status", TEXT, "done, skipped or unfinished"),
        ("reason", TEXT, "why the cell is not done"),
        ("params", TEXT, "parameters of the method, as JSON"),
        ("claim", TEXT, "what the method promises of its output distribution"),
        ("source", TEXT, "the paper, down to the algorithm"),
        ("max_new_tokens", INT, "output tokens of a prompt, at most"),
        ("batch", INT, "prompts decoded in lock step"),
        ("top_k", INT, "0: no cut"),
        ("verdict", TEXT, "exact, approximate, broken or unverified"),
        ("total_variation", REAL, "of the enumerated output distribution to the target's"),
        ("greedy", TEXT, "what comparing greedy tokens with the target's own in fp32 gave; null: not compared"),
        ("note", TEXT, "what the verdict rests on"),
        ("audit_log_e", REAL, "natural log of the e-value of the bets against the cell"),
        ("audit_tokens", INT, "tokens that were bet on"),
        ("audit_visible_tv", REAL, "bias, in total variation a token, that 9 of 10 such audits refute"),
        ("audit_best", TEXT, "the bet that won most"),
        ("audit_reason", TEXT, "why there are no bets"),
        ("drafter_places", INT, "places whose drafts were made again by a drafter that reads the same text anew"),
        ("drafter_tv", REAL, "mean total variation between the drafts' distributions and those made anew"),
        ("drafter_tv_limit", REAL, "what rounding alone may give; the row is flagged above it"),
        ("drafter_acceptance", REAL, "probability that the target accepts the recorded draft, over these places"),
        ("drafter_acceptance_anew", REAL, "the same of the draft made anew"),
        ("drafter_reason", TEXT, "why no draft was made again"),
        ("flags", TEXT, "warnings, separated by semicolons"),
        ("valid", BOOL, "false: more than one sample in ten failed"),
        ("n_ok", INT, "counted samples"),
        ("n_failed", INT, "failed samples"),
        ("n_run", INT, "samples that ran"),
        ("n_skipped", INT, "samples that were planned and did not run"),
        ("nfe", REAL, "target passes of all counted samples together"),
    ),
    *_estimate("speedup", "median over (prompt, seed) pairs of the baseline's ms/token over this cell's"),
    ViewColumn("predicted", REAL, "speed-up that tau and the mean step times predict"),
    *(column for name in INTERVALS for column in _estimate(name, _metric(name))),
    *(ViewColumn(name, REAL, _metric(name)) for name in PLAIN),
    *_estimate("agreement", "common prefix with the baseline's output / the longer length, at T = 0"),
    *_estimate("logprob_diff", "paired difference of logprob to the baseline's, nat"),
    *_columns(
        ("logprob_std", REAL, "standard deviation of log p over tokens, nat"),
        ("step_p50_ms", REAL, "median wall time of a step, ms"),
        ("step_p95_ms", REAL, "95th percentile of the wall time of a step, ms"),
        ("draft_ms", REAL, "median time of a step in drafter passes, ms"),
        ("target_ms", REAL, "median time of a step in target passes, ms"),
        ("verify_ms", REAL, "median time of a step from the end of its target pass to the acceptance, ms"),
        ("host_ms", REAL, "median of the rest of a step, ms"),
        ("prefill_ms", REAL, "median time of reading a prompt, ms"),
        ("disturbed_steps", REAL, "share of steps in which threads waited for a core"),
        ("tv", REAL, "total variation between token histograms of this cell and of an autoregressive set"),
        ("tv_p", REAL, "p-value of tv"),
        ("tv_floor", REAL, "the same statistic for two autoregressive sets"),
        ("tv_floor_p", REAL, "p-value of tv_floor"),
        ("ks", REAL, "Kolmogorov-Smirnov distance of mean log-probabilities"),
        ("ks_p", REAL, "p-value of ks"),
    ),
)
_CELL_SCORES = (
    *FACTS,
    *_columns(
        ("kind", TEXT, "score: mean over outputs; set: of all outputs together"),
        ("name", TEXT, "name of the score"),
        ("value", REAL, "the score"),
        ("low", REAL, "lower bound of its 95 % interval; null: too few prompts"),
        ("high", REAL, "upper bound of its 95 % interval"),
        ("n", INT, "prompts, or outputs of a set"),
    ),
)
_SCORES = (
    *FACTS,
    *_columns(
        ("prompt", TEXT, "id of the prompt"),
        ("repetition", INT, "0, 1, ...; each has a seed of its own"),
        ("name", TEXT, "name of the score"),
        ("value", REAL, "the score of this output"),
    ),
)


def _meanings(kind: type) -> dict[str, str]:
    """What the docstring of a record says of each field, in one line each."""
    arguments = (getdoc(kind) or "").partition("Args:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n     +.*)*)", arguments, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def _stored(schema: pa.Schema, kind: type, **more: str) -> Iterator[ViewColumn]:
    meanings = _meanings(kind) | more
    known = {column.name for column in FACTS}
    return (
        ViewColumn(field.name, field.type, meanings.get(field.name, "")) for field in schema if field.name not in known
    )


_OF_SAMPLE = _meanings(Sample)
_KEY = {name: _OF_SAMPLE.get(name, "") for name in ("prompt", "repetition", "warmup")}
VIEWS = {
    view.name: view
    for view in (
        View("runs", "a run", _RUNS),
        View("cells", "a planned cell of a run, with the figures of `stride report`", _CELLS),
        View("cell_scores", "a score of a finished cell", _CELL_SCORES),
        View(
            "samples",
            "a decoded prompt of a finished cell",
            (*FACTS, *_stored(SAMPLES, Sample, sha256="SHA-256 of the output ids")),
        ),
        View("scores", "a score of one output, warm-ups left out", _SCORES),
        View(
            "steps",
            "a step of a decode",
            (*FACTS, *_stored(STEPS, Step, **_KEY, step="number of the step in its decode, from 0")),
        ),
        View(
            "requests",
            "a request to an engine; empty where no cell of the runs is an engine's",
            (*FACTS, *_stored(REQUESTS, Request)),
        ),
    )
}
"""All views, by name."""
