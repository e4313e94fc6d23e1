"""Words and numbers of the page of an engine's cell: verdict, engine, setting, measures."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from stridebench.harness.errors import printable_line
from stridebench.harness.record.entries import SAMPLING, CellMeta, StoredVerdict, sampling_words
from stridebench.harness.record.store import SealedCell
from stridebench.reports.engines import COLUMNS, SETTING, notes_of
from stridebench.reports.html.text import e_value, figure_of, signed, visible
from stridebench.reports.text_table import number

WORDS = {
    "same tokens": ("exact", "Every output has the tokens of the plain decode with the same seed."),
    "not refuted": ("approximate", "The audit bet against the tokens, and they refute nothing."),
    "near ties": (
        "approximate",
        "Some outputs differ from the plain decode's. At the first difference, the reference's two logits are so close "
        "that rounding decides.",
    ),
    "as its plain decode again": (
        "approximate",
        "Some outputs differ from the plain decode's, and no more of them than the plain decode changes when it is "
        "made again in another order and batch.",
    ),
    "differs": ("broken", "Some outputs differ from the plain decode's, and rounding does not explain each of them."),
    "broken": (
        "broken",
        "The audit refutes the tokens, and has nothing against the plain decode: drafts change the distribution.",
    ),
    "refuted": (
        "broken",
        "The audit refutes the tokens. Without a plain decode, the fault may be the engine's or its drafts'.",
    ),
    "other arithmetic": (
        "unverified",
        "The audit refutes these tokens and those of the plain decode, or, of greedy outputs, both depart from the "
        "reference alike: the engine computes another distribution than the backbone. That says nothing about its "
        "drafts.",
    ),
    "other weights or arithmetic": (
        "unverified",
        "The audit refutes the tokens of the plain decode: the engine computes another distribution than the backbone.",
    ),
    "inconclusive": ("unverified", "There are too few tokens, or the plain decode is in doubt too."),
    "unverified": ("unverified", "Nothing could be compared: the engine tells no ids, or there was no reference."),
    "synthetic acceptance": ("unverified", "The server accepts drafts by chance, so its tokens are not looked at."),
}
"""Verdicts of an engine: the colour, and the meaning of the word."""
PLAIN = "A plain greedy decode. Decodes with drafts are compared with it."
TILES = ("tokens_per_second", "speedup", "length_per_draft_pooled", "length_per_pass_pooled", "ttft", "tpot", "audit")
DIFFERENCES = 20
"""First differences that a page lists."""


@dataclass(frozen=True)
class EngineFacts:
    """A cell of an engine in words.

    Args:
        label: of the engine in the suite.
        setting: backbone, sampling, task, budget and load in words.
        verdict, kind, meaning: the word, its colour, and its meaning.
        evidence: the comparisons and bets behind the verdict.
        engine: its name, version and settings.
        settings: of the cell.
        tiles: title and text of the main measures.
        measures: title, text and meaning of all.
        differences: prompt, position and margin of the first tokens that differ from the plain decode's.
        notes: what makes the figures doubtful.
    """

    label: str
    setting: str
    verdict: str
    kind: str
    meaning: str
    evidence: tuple[tuple[str, str], ...]
    engine: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str], ...]
    tiles: tuple[tuple[str, str], ...]
    measures: tuple[tuple[str, str, str], ...]
    differences: tuple[tuple[str, str, str], ...]
    notes: tuple[str, ...]


def engine_facts(row: pd.Series[Any], cell: SealedCell, paired: str) -> EngineFacts:
    """Return the facts of a finished cell.

    Args:
        row: of `stridebench.reports.engines.summarise`.
        cell: with its requests.
        paired: the speed-up over requests that the plain decode has too, with its interval; "": there is none.
    """
    meta, verdict = cell.meta, cell.meta.judged
    word, stored = verdict.verdict, meta.stored()
    kind, meaning = WORDS.get(word, ("unverified", PLAIN if meta.verdict else "The run has not judged it yet."))
    shown = {column: column.text(row) for column in COLUMNS if column.key not in ("label", "verdict", "load")}
    titles = {column.key: (column.title, signed(text)) for column, text in shown.items() if text != "-"}
    helps = {column.key: column.help for column in COLUMNS}
    measures = [(title, text, helps[key]) for key, (title, text) in titles.items()]
    if paired:
        measures.append(("x plain, paired", paired, "plain seconds a token over this cell's, over the same requests"))
    return EngineFacts(
        label=printable_line(str(row["label"])),
        setting=setting_of(row),
        verdict=word,
        kind=kind,
        meaning=meaning,
        evidence=_texts(_evidence(verdict)),
        engine=_texts(_engine(meta)),
        settings=_texts((name, _value(stored.get(name))) for name in (*_SETTINGS, "cell")),
        tiles=tuple(titles[key] for key in TILES if key in titles),
        measures=tuple(measures),
        differences=tuple(
            (printable_line(one.prompt), str(one.at), figure_of(one.margin, 3))
            for one in (verdict.differences or [])[:DIFFERENCES]
        ),
        notes=tuple(printable_line(note) for note in notes_of(cell.requests, meta)),
    )


_SETTINGS = (*(name for name in SETTING if name not in SAMPLING), "dtype", "sampling")
_SETTINGS += ("task_params", "ignore_eos", "seed")


def setting_of(row: pd.Series[Any]) -> str:
    """The setting of a cell in words."""
    sampling = sampling_words(*row[list(SAMPLING)])
    return printable_line(
        f"{row['backbone']}, {sampling}, {row['task']}, {row['max_new_tokens']} tokens, {load_of(row)}"
    )


def load_of(row: pd.Series[Any]) -> str:
    """The load in words."""
    if row["rate"]:
        return f"{row['rate']:g} requests a second"
    return "one request at a time" if row["concurrency"] == 1 else f"{row['concurrency']} requests at once"


def _evidence(verdict: StoredVerdict) -> Iterator[tuple[str, str]]:
    if verdict.same is not None:
        yield "same as the plain decode", f"{verdict.same:.1%} of {verdict.pairs} outputs"
    if verdict.visible_share is not None:
        yield "share of differing outputs that 9 of 10 such checks see", f"{verdict.visible_share:.1%}"
    if verdict.floor is not None:
        yield "the plain decode made again", f"{verdict.floor:.1%} of its outputs are the same"
    if (departure := verdict.departure) is not None:
        yield "the plain decode's tokens lie below the reference's best logit by at most", figure_of(departure, 3)
    for audit, title in ((verdict.audit, "audit"), (verdict.plain_audit, "plain decode")):
        if audit:
            refutes = f"; {audit.threshold:g} refutes" if audit.threshold else ""
            yield f"e-value of the {title}", e_value(audit.log_e) + refutes
    if audit := verdict.audit:
        yield "audited tokens", figure_of(audit.tokens, 0)
        yield "strongest bet", audit.best
        yield "bias that 9 of 10 audits refute", visible(audit.visible_tv)
    if verdict.identities_checked:
        yield "requests whose numbers were compared with each other", str(verdict.identities_checked)
    for line in verdict.broken_identities:
        yield "contradiction", line


def _engine(meta: CellMeta) -> Iterator[tuple[str, str]]:
    yield "engine", meta.engine
    yield "drafts", _drafts(meta)
    yield "started server", meta.serve
    yield "way of drafting", meta.way
    for name, value in meta.options.items():
        yield f"option {name}", _value(value)
    for name, value in meta.told.items():
        yield f"told: {name}", _value(value)
    for name, value in meta.growth.items():
        yield f"counter {name}", number(value, 0)


def _drafts(meta: CellMeta) -> str:
    if meta.role == "speculative":
        return f"yes; its plain decode is {meta.plain}"
    return "this is the plain decode" + (", made again in another order" if meta.role == "floor" else "")


def _value(item: Any) -> str:
    if item is None or item == {} or item == "":
        return ""
    return item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)


def _texts(pairs: Iterator[tuple[str, str]] | Any) -> tuple[tuple[str, str], ...]:
    return tuple((printable_line(str(name)), printable_line(text)) for name, text in pairs if text)
