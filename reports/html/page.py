"""Writes the pages of one or more runs: index.html, a page a finished cell, their data and their scripts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from stridebench.harness.errors import printable_line
from stridebench.harness.record import stats
from stridebench.reports import tables
from stridebench.reports.engines import COLUMNS
from stridebench.reports.html import figures, samples, text
from stridebench.reports.html.cell_facts import RunFacts, cell_facts
from stridebench.reports.html.engine_facts import WORDS as WORDS_OF_ENGINES
from stridebench.reports.html.engine_pages import Engines
from stridebench.reports.html.figures import Chart, TargetPasses
from stridebench.reports.html.headline import headline, setting_of
from stridebench.reports.html.text import figure_of, printed, safe_json
from stridebench.reports.summary import FinishedCell, summarise
from stridebench.reports.tables import GROUP

if TYPE_CHECKING:
    from stridebench.harness.record.store import SealedCell, Store
    from stridebench.reports.summary import FinishedCell


# Cells that a reader picked, beside the first: paired by prompt and repetition, with what cannot be compared.


@dataclass(frozen=True)
class Picked:
    """A cell, its run, and its row of the summary."""

    store: Store
    finished: FinishedCell
    row: pd.Series[Any]


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


TEMPLATES = Path(__file__).parent / "templates"
CACHED = 4
"""Cells in memory at once."""
MISSING = 200
"""Return the rows of the table of missing cells; those beyond its limit are counted."""

REASONS = 20
"""Reasons of failures of one cell; samples with further ones are counted."""
WORDS = {"samples": "Samples", "opens": "A prompt opens its output, token by token."}

Curve = Callable[["SealedCell"], Chart | str | None]
"""Return the chart of the e-value after each audited output, the reason why it is missing, or None without an audit."""


@dataclass(frozen=True)
class Missing:
    """Cells without figures for one reason, or failed samples of one cell with one reason.

    Args:
        what: skipped, unfinished or failed.
        cells: the cells that it shows.
        count: cells or samples.
        reason: in words.
    """

    what: str
    cells: str
    count: int
    reason: str


class _Run:
    """One run of a page.

    Args:
        store: the run.
        number: its place on the page, from 0.
        runs: how many there are.
    """

    def __init__(self, store: Store, number: int, runs: int, served: Served | None = None) -> None:
        self.store = store
        self.picked = [name for run, name in served.picked if run == number] if served else []
        self.prefix = f"{number + 1}-" if runs > 1 else ""
        self.facts = RunFacts.of(store)
        self.read = functools.lru_cache(maxsize=CACHED)(lambda name: FinishedCell.of(store.cell(name)))
        frame = summarise(store, self.read)
        if self.picked:
            frame = frame[frame["cell"].isin(self.picked)].reset_index(drop=True)
        planned = self.store.manifest.cells
        modality = [printable_line(planned[name].modality) for name in frame["cell"]]
        links = [f"cells/{quote(self.prefix + str(name))}.html" for name in frame["cell"]]
        folder = served.names[number] if served else ""
        own = printable_line(folder or store.address.rstrip("/").rpartition("/")[2])
        self.name = f"{number + 1}. {own}" if runs > 1 else self.facts.name
        picks = [f"{folder}/{cell}" for cell in frame["cell"]]
        shown = [f"{label} · {self.name}" if runs > 1 else str(label) for label in frame["label"]]
        self.frame = frame.assign(run=self.name, modality=modality, link=links, pick=picks, shown=shown)
        self.engines = Engines(store, self.prefix)

    def page_of(self, cell: str) -> str:
        """The page of a cell, below the folder of the pages."""
        return f"cells/{self.prefix}{cell}.html"

    def prompts(self) -> dict[str, str]:
        """Texts of prompts by id, from the baselines of the run's methods."""
        base = self.frame[(self.frame["status"] == "done") & (self.frame["role"] == "baseline")]
        texts: dict[str, str] = {}
        for name in base["cell"]:
            samples = self.read(str(name)).cell.samples
            if "prompt_text" in samples:
                texts |= {str(p): t for p, t in zip(samples["prompt"], samples["prompt_text"], strict=True) if t}
        return texts


@dataclass(frozen=True)
class Served:
    """The parts that only a page of `stride view` has.

    Args:
        names: of the runs, in addresses.
        follow: the address that tells the state of the runs; "" if they are finished.
        state: of the runs when the page was written.
        picked: runs by number, and cells, that the page is about; empty: all.
        known: whether the pages of finished cells that are there already are right.
    """

    names: tuple[str, ...]
    follow: str = ""
    state: str = ""
    picked: tuple[tuple[int, str], ...] = ()
    known: bool = False


def write(stores: Sequence[Store], folder: Path, curve: Curve | None = None, served: Served | None = None) -> Path:
    """Write the pages of runs into a folder; returns index.html.

    Args:
        stores: the runs; one may still be written.
        folder: made if it does not exist.
        curve: of the e-value of a cell.
        served: None for pages on the disk.
    """
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    text.write(folder / "assets")
    runs = [_Run(store, number, len(stores), served) for number, store in enumerate(stores)]
    frame = pd.concat([run.frame for run in runs], ignore_index=True)
    templates = environment()
    passes: dict[tuple[Any, ...], TargetPasses] = {}
    missing = [entry for run in runs for entry in _missing(run)]
    for run in runs:
        missing += _write_run(templates, run, folder, curve, passes, known=served is not None and served.known)
    picked = list(_picked(runs, served))
    drawn = frame.assign(label=frame["shown"])
    body = templates.get_template("index.html").render(
        runs=[run.facts for run in runs],
        names=[run.name for run in runs],
        title=", ".join(dict.fromkeys(run.facts.name for run in runs)),
        root="",
        counts=[*_counts(frame), *_engine_counts(runs)],
        headline=headline(frame),
        served=served,
        beside=beside_first(picked) if len(picked) > 1 else [],
        first=picked[0].row["label"] if picked else "",
        engines=[table for run in runs if not run.picked for table in run.engines.tables()],
        engine_words=WORDS_OF_ENGINES,
        engine_legend=[(column.title, column.help) for column in COLUMNS if column.help],
        methods=any(run.store.manifest.cells for run in runs),
        pareto=list(figures.pareto_charts(drawn)),
        speed=list(figures.speed_charts(drawn, passes)),
        missing=missing[:MISSING],
        more_missing=max(0, len(missing) - MISSING),
        legend=tables.legend(),
    )
    (folder / "index.html").write_text(body, encoding="utf-8")
    return folder / "index.html"


def _write_run(
    templates: Environment,
    run: _Run,
    folder: Path,
    curve: Curve | None,
    passes: dict[tuple[Any, ...], TargetPasses],
    known: bool,
) -> list[Missing]:
    """Write the pages of a run's cells; returns its failed samples.

    Args:
        passes: of each group of cells; those of the run are added.
        known: whether pages that are there already are right.
    """
    missing: list[Missing] = []
    done = run.frame[run.frame["status"] == "done"].reset_index(drop=True)
    for index, row in done.iterrows():
        finished = run.read(str(row["cell"]))
        passes.setdefault(tuple(row[name] for name in GROUP), TargetPasses()).add(finished.cell.steps)
        missing += _failures(row, finished)
        near = (int(str(index)) - 1, int(str(index)) + 1)
        neighbours = tuple(done.iloc[i] if 0 <= i < len(done) else None for i in near)
        if not known or not (folder / run.page_of(str(row["cell"]))).exists():
            _write_cell(templates, run, row, neighbours, folder, curve)
    if not run.picked and len(run.engines.frame):
        run.engines.write(templates, run.facts, folder, run.prompts())
    return missing


def _picked(runs: Sequence[_Run], served: Served | None) -> Iterator[Picked]:
    """The finished cells that were picked, in the order in which they were."""
    for number, name in served.picked if served else ():
        run = runs[number]
        rows = run.frame[(run.frame["cell"] == name) & (run.frame["status"] == "done")]
        for _, row in rows.iterrows():
            named = row.copy()
            named["label"] = row["shown"]
            yield Picked(run.store, run.read(name), named)


@functools.cache
def environment() -> Environment:
    """The templates; whatever they write is printable and escaped."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=printed,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters["json"] = lambda value: Markup(safe_json(value))  # it has no character that HTML reads
    return templates


def _write_cell(
    environment: Environment,
    run: _Run,
    row: pd.Series[Any],
    neighbours: tuple[pd.Series[Any] | None, ...],
    folder: Path,
    curve: Curve | None,
) -> None:
    name = str(row["cell"])
    finished, base = run.read(name), finished_baseline(run.read, run.store, name)
    data = f"data/{run.prefix}{name}"
    table = samples.write_samples(finished, run.store.path, folder, data)
    charts = list(figures.cell_charts(finished, base, row))
    evidence = curve(finished.cell) if curve is not None else None
    body = environment.get_template("cell.html").render(
        run=run.facts,
        title=f"{row['label']}, {setting_of(row)}",
        root="../",
        facts=cell_facts(row, finished, evidence if isinstance(evidence, str) else ""),
        charts=[*charts, *([evidence] if isinstance(evidence, Chart) else [])],
        table=table,
        data=f"../{quote(data)}/",
        grid=finished.cell.meta.stored().get("grid"),
        legend=samples.LEGEND,
        neighbours=neighbours,
        show=f"stride show {run.store.address} {name} --prompt ID",
        words=WORDS,
    )
    (folder / run.page_of(name)).write_text(body, encoding="utf-8")


def finished_baseline(read: Callable[[str], FinishedCell], store: Store, name: str) -> FinishedCell | None:
    """Return the baseline of a cell, if it is finished."""
    baseline = read(name).cell.meta.baseline
    return read(baseline) if baseline in set(store.cells()) else None


def _counts(frame: pd.DataFrame) -> list[tuple[str, str, str]]:
    """Return number, word and kind of the tiles on top."""
    done = frame[frame["status"] == "done"]
    methods = done[done["role"] == "method"]
    tiles = [(len(done), "cells measured", "")]
    tiles += [
        (int(methods["verdict"].astype(str).str.startswith(word).sum()), word, word)
        for word in ("exact", "approximate", "broken", "unverified")
    ]
    tiles.append((int(done["n_ok"].sum()) if "n_ok" in done else 0, "samples", ""))
    failed = int(done["n_failed"].sum()) if "n_failed" in done else 0
    tiles.append((failed, "failed samples", "broken" if failed else ""))
    tiles += [
        (int((frame["status"] == word).sum()), f"cells {word}", "") for word in ("skipped", "unfinished", "planned")
    ]
    return _tiles(tiles)


def _engine_counts(runs: Sequence[_Run]) -> list[tuple[str, str, str]]:
    """Return the tiles of the engines."""
    frames = [run.engines.frame for run in runs if not run.picked and len(run.engines.frame)]
    if not frames:
        return []
    frame = pd.concat(frames, ignore_index=True)
    done = frame["status"] == "done"
    totals = {name: int(frame[name].fillna(0).sum()) if name in frame else 0 for name in ("n_ok", "n_failed")}
    return _tiles(
        [
            (int(done.sum()), "cells of engines", ""),
            (int((~done).sum()), "cells of engines unfinished", ""),
            (totals["n_ok"], "requests", ""),
            (totals["n_failed"], "failed requests", "broken"),
        ]
    )


def _tiles(tiles: Sequence[tuple[int, str, str]]) -> list[tuple[str, str, str]]:
    return [
        (f"{number:,}".replace(",", "\N{NARROW NO-BREAK SPACE}"), word, kind) for number, word, kind in tiles if number
    ]


def _missing(run: _Run) -> list[Missing]:
    """Return the cells without figures, grouped by reason; of an unfinished cell, how far it is."""
    rows = run.frame[run.frame["status"] != "done"]
    groups: dict[tuple[str, str], list[str]] = {}
    for _, row in rows.iterrows():
        status = "unfinished" if row["status"] == "planned" else str(row["status"])
        reason = str(row["reason"] or _progress(run.store, str(row["cell"])))
        groups.setdefault((status, reason), []).append(f"{row['shown']} on {setting_of(row)}")
    return [Missing(status, "; ".join(cells[:8]), len(cells), reason) for (status, reason), cells in groups.items()]


def _progress(store: Store, cell: str) -> str:
    """Return how many decodes of an unfinished cell are stored."""
    stored = store.stored(cell)
    expected = store.manifest.cells[cell].expected
    of = f" of {expected}" if expected else ""
    return f"not finished: {stored}{of} decodes are stored" if stored else "not started"


def _failures(row: pd.Series[Any], finished: FinishedCell) -> list[Missing]:
    """Return the failed samples of a cell by their reason, the most frequent first."""
    counted = finished.cell.samples[~finished.cell.samples["warmup"].astype(bool)]
    errors = counted.loc[counted["status"] != "ok", "error"].fillna("no reason is stored")
    cells = f"{row['shown']} on {setting_of(row)}"
    reasons = errors.map(printable_line).value_counts()
    failed = [Missing("failed", cells, int(count), str(reason)) for reason, count in reasons.head(REASONS).items()]
    rest = reasons.iloc[REASONS:]
    if len(rest):
        other = f"{len(rest)} further reasons; the page of the cell has every sample"
        failed.append(Missing("failed", cells, int(rest.sum()), other))
    return failed
