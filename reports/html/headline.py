"""The tables of all cells: a row a cell, with the estimate, its interval and a number to sort by in each column."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from stridebench.harness.errors import printable_line
from stridebench.harness.record import stats
from stridebench.reports import tables
from stridebench.reports.engine_rows import of_engine
from stridebench.reports.html.text import figure_of, signed, text_of
from stridebench.reports.quality import is_quality, title_of
from stridebench.reports.tables import COLUMN, COLUMNS_OF_ENGINES
from stridebench.reports.text_table import Column, counts, number

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store
    from stridebench.reports.finished_cell import FinishedCell

KEYS = ("speedup", "predicted", "scr", "tau", "drafter_c", "acceptance", "ms_per_token", "agreement", "logprob_diff")
COLUMNS = tuple(replace(COLUMN[key], title=COLUMN[key].page or COLUMN[key].title) for key in (*KEYS, "audit"))
MEANS = 9
"""Rank of the columns of engines that only the page of a cell has, and the times between parts."""
HEADLINE_OF_ENGINES = tuple(
    column
    for column in COLUMNS_OF_ENGINES
    if column.rank < MEANS and column.key not in ("label", "verdict", "samples", "itl")
)
VERDICTS_OF_ENGINES = {
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
SCORES = 3
"""Columns of scores that the table has at most; the page of a cell has all."""
FACETS = ("run", "modality", "backbone", "task", "temperature", "verdict")
"""Attributes that filter the rows."""


@dataclass(frozen=True)
class HeadlineEntry:
    """One cell of the table: the estimate, its interval, and its sort key ("" sorts last)."""

    text: str
    interval: str
    order: str


@dataclass(frozen=True)
class HeadlineRow:
    """One row of the table.

    Args:
        link: the address of the cell's page; "" if it has none.
        pick: names the cell to `stride view`: its run's folder and its id.
        label: the method.
        setting: backbone, type, sampling and task in words.
        role: method, baseline or floor.
        verdict: the word, and in ``variation`` the total variation if it is not exact.
        kind, meaning: the colour of an engine's verdict, and the meaning of the word.
        samples: finished, failed and skipped samples.
        flags: what makes the row doubtful.
        facets: the values of ``FACETS``.
        entries: one a column.
    """

    link: str
    pick: str
    label: str
    setting: str
    role: str
    verdict: str
    variation: str
    samples: str
    flags: tuple[str, ...]
    facets: dict[str, str]
    kind: str
    meaning: str
    entries: tuple[HeadlineEntry, ...]


@dataclass(frozen=True)
class Headline:
    """A table: its columns, its rows, and the facets with at least two values."""

    columns: tuple[Column, ...]
    rows: tuple[HeadlineRow, ...]
    choices: dict[str, tuple[str, ...]]


def headline(frame: pd.DataFrame) -> Headline:
    """Build the table of the finished cells of methods, or of engines.

    Args:
        frame: of `stridebench.reports.summary`, with the columns run, modality, link and pick.
    """
    if frame.empty:
        return Headline((), (), {})
    engines = of_engine(frame)
    done = frame[(frame["status"] == "done") & ((frame["role"] != "floor") | (not engines))]
    scores = [str(key) for key in frame if is_quality(str(key)) and f"{key}_low" in frame][:SCORES]
    candidates = HEADLINE_OF_ENGINES if engines else (*COLUMNS, *(Column(key, title_of(key)) for key in scores))
    entries = {column: [entry(row, column) for _, row in done.iterrows()] for column in candidates}
    columns = tuple(column for column in candidates if any(item.order for item in entries[column]))
    several = done["run"].nunique() > 1
    rows = tuple(
        _row(row, tuple(entries[column][index] for column in columns), f"{row['run']}: " if several else "")
        for index, (_, row) in enumerate(done.iterrows())
    )
    choices = {facet: tuple(dict.fromkeys(row.facets[facet] for row in rows)) for facet in FACETS}
    return Headline(columns, rows, {facet: values for facet, values in choices.items() if len(values) > 1})


def entry(row: pd.Series[Any], column: Column) -> HeadlineEntry:
    """Build one cell of the table."""
    if column.key == "audit":
        text, log_e = column.text(row), row.get("audit_log_e")
        e_value, _, rest = text.replace(" (-)", "").partition(" ")
        return HeadlineEntry(signed(e_value), rest, "" if text == "-" or log_e is None else f"{log_e:.6g}")
    if column.formatter is not None:
        text = column.text(row)
        first = re.match(r"[\d.]+", text)
        return HeadlineEntry(signed(text), "", first[0] if first else "")
    value = row.get(column.key)
    low, high = (number(row.get(f"{column.key}_{end}"), column.digits) for end in ("low", "high"))
    n, order = number(row.get(f"{column.key}_n"), 0), number(value, 6)
    if order == "-":
        return HeadlineEntry(figure_of(None), "", "")
    between = f"[{signed(low)}, {signed(high)}]" if low != "-" else f"(n={n})" if n != "-" else ""
    return HeadlineEntry(figure_of(value, column.digits), between, order)


def verdict_of(row: pd.Series[Any]) -> tuple[str, str]:
    """The word of a verdict, and what stands in brackets behind it."""
    word, _, rest = COLUMN["verdict"].text(row).partition(" (")
    return word, rest.rstrip(")")


def setting_of(row: pd.Series[Any]) -> str:
    """The setting of a cell in words."""
    if of_engine(row):
        at_once = "one request at a time" if row["concurrency"] == 1 else f"{row['concurrency']} requests at once"
        load = f"{row['rate']:g} requests a second" if row["rate"] else at_once
        return printable_line(f"{tables.setting_of(row, budget=True)}, {load}")
    batch = f", batch {row['batch']:g}" if row["batch"] and row["batch"] > 1 else ""
    return f"{tables.setting_of(row)}{batch}"


def _row(row: pd.Series[Any], entries: tuple[HeadlineEntry, ...], run: str) -> HeadlineRow:
    word, variation = verdict_of(row)
    facets = {facet: str(row[facet] or "-") for facet in FACETS} | {"temperature": f"{row['temperature']:g}"}
    engine = of_engine(row)
    kind, meaning = VERDICTS_OF_ENGINES.get(word, ("", "")) if engine else ("", "")
    return HeadlineRow(
        link=str(row["link"]),
        pick=str(row["pick"]),
        label=str(row["label"]),
        setting=run + setting_of(row),
        role=str(row["role"] or "method"),
        verdict=word,
        variation=variation,
        samples=counts(row, "ok", "failed") if engine else COLUMN["samples"].text(row),
        flags=tuple(flag for flag in str(row["note" if engine else "flags"]).split("; ") if flag),
        facets=facets | {"verdict": word},
        kind=kind,
        meaning=meaning,
        entries=entries,
    )


# Cells that a reader picked, beside the first: paired by prompt and repetition, with what cannot be compared.


@dataclass(frozen=True)
class Picked:
    """A cell, its run, its row of the summary, and the folder of its data below that of the pages."""

    store: Store
    finished: FinishedCell
    row: pd.Series[Any]
    data: str


@dataclass(frozen=True)
class Beside:
    """A cell that is compared with the first.

    Args:
        label, link: as in the table of all cells.
        pairs: outputs of equal prompt and repetition.
        figures: speed, tokens a pass and share of equal outputs, with intervals.
        notes: figures that are not compared, and why.
    """

    label: str
    link: str
    pairs: int
    figures: tuple[str, str, str]
    notes: tuple[str, ...]


def beside_first(cells: Sequence[Picked]) -> list[Beside]:
    """Return the comparison of every further cell with the first."""
    return [_beside(cells[0], other) for other in cells[1:]]


def _beside(first: Picked, other: Picked) -> Beside:
    notes = tuple(_notes(first, other))
    a, b = first.finished.totals, other.finished.totals
    both = a.index.intersection(b.index)
    timed = _machine(first) == _machine(other)
    times = [frame.loc[both, "wall_ms"] / frame.loc[both, "output"] for frame in (a, b)]
    tokens = [picked.finished.samples.loc[both, "tokens"].map(tuple) for picked in (first, other)]
    equal = (tokens[0] == tokens[1]).astype(float)
    return Beside(
        label=str(other.row["label"]),
        link=str(other.row["link"]),
        pairs=len(both),
        figures=(
            _text(stats.median_ratio(times[0], times[1], named=a["cluster"]) if timed and len(both) else None),
            _text(stats.difference(a, b, "output", "nfe") if len(both) else None, sign="+"),
            _text(stats.bounded_mean(equal, named=a["cluster"]) if len(both) else None),
        ),
        notes=notes,
    )


def _notes(first: Picked, other: Picked) -> Iterator[str]:
    if first.finished.totals.index.intersection(other.finished.totals.index).empty:
        yield "no prompt in common"
    if _machine(first) != _machine(other):
        yield "made on another machine, so times are not compared"
    for key, meaning in (("backbone", "tokens of two models are not the same unit"), ("temperature", ""), ("task", "")):
        if first.row[key] != other.row[key]:
            yield f"other {key}: {first.row[key]} and {other.row[key]}" + (f"; {meaning}" if meaning else "")


def _machine(picked: Picked) -> object:
    return picked.store.manifest.provenance.fingerprint


def _text(interval: stats.Interval | None, sign: str = "") -> str:
    if interval is None:
        return figure_of(None)
    estimate = ("+" if sign and interval.estimate > 0 else "") + figure_of(interval.estimate)
    if interval.low is None or interval.high is None:
        return f"{estimate} (n={interval.n})"
    return f"{estimate} [{figure_of(interval.low)}, {figure_of(interval.high)}]"


OUTPUTS, LONGEST = 12, 600
"""Prompts whose outputs are shown side by side, and characters of each output."""


@dataclass(frozen=True)
class ShownOutput:
    """The output of a cell: its text, or the address of its picture."""

    text: str
    picture: str = ""


def outputs_beside(
    cells: Sequence[Picked], media: Callable[[Picked, pd.Series[Any]], Mapping[str, object]]
) -> list[tuple[str, list[ShownOutput]]]:
    """Return the first prompts that picked cells share, each with the output of every cell.

    Args:
        media: the picture of a sample, as `stridebench.reports.html.samples.media_of` returns it.
    """
    keys = cells[0].finished.samples.index
    for other in cells[1:]:
        keys = keys.intersection(other.finished.samples.index, sort=False)
    rows = []
    for prompt, repetition in keys[:OUTPUTS]:
        samples = [cell.finished.samples.loc[(prompt, repetition)] for cell in cells]
        outputs = [_shown(sample, media(cell, sample)) for cell, sample in zip(cells, samples, strict=True)]
        rows.append((f"{prompt}, repetition {repetition}" if repetition else str(prompt), outputs))
    return rows


def _shown(sample: pd.Series[Any], media: Mapping[str, object]) -> ShownOutput:
    whole = text_of(sample, "text")
    lost = str(media.get("lost", "a mesh" if "mesh" in media else ""))
    return ShownOutput(whole[:LONGEST] + "…" * (len(whole) > LONGEST) or lost, str(media.get("picture", "")))


# The tiles on top of a page.


def tiles(frame: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Return number, word and kind of the tiles on top."""
    done = frame[frame["status"] == "done"]
    methods = done[done["role"] == "method"]
    counted = [(len(done), "cells measured", "")]
    counted += [
        (int(methods["verdict"].astype(str).str.startswith(word).sum()), word, word)
        for word in ("exact", "approximate", "broken", "unverified")
    ]
    counted.append((int(done["n_ok"].sum()) if "n_ok" in done else 0, "samples", ""))
    failed = int(done["n_failed"].sum()) if "n_failed" in done else 0
    counted.append((failed, "failed samples", "broken" if failed else ""))
    counted += [
        (int((frame["status"] == word).sum()), f"cells {word}", "") for word in ("skipped", "unfinished", "planned")
    ]
    return _shown_tiles(counted)


def tiles_of_engines(frame: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Return the tiles of the engines."""
    if frame.empty:
        return []
    done = frame["status"] == "done"
    ok, failed = (int(frame[name].fillna(0).sum()) if name in frame else 0 for name in ("n_ok", "n_failed"))
    counted = [(int(done.sum()), "cells of engines", ""), (int((~done).sum()), "cells of engines unfinished", "")]
    return _shown_tiles([*counted, (ok, "requests", ""), (failed, "failed requests", "broken")])


def _shown_tiles(tiles: Sequence[tuple[int, str, str]]) -> list[tuple[str, str, str]]:
    return [
        (f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}"), word, kind) for number, word, kind in tiles if number
    ]
