"""Writes the pages of one or more runs: index.html, a page a finished cell, their data and their scripts."""

from __future__ import annotations

import base64
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment
from markupsafe import Markup
from pyarrow.parquet import read_metadata

from stridebench.harness.errors import printable_line
from stridebench.reports import forest, pareto, tables
from stridebench.reports.crossover import of_requests, times
from stridebench.reports.engine_rows import SETTING_OF_ENGINE, of_engine, summarise_engines
from stridebench.reports.finished_cell import FinishedCell
from stridebench.reports.html import figures, requests, samples, text
from stridebench.reports.html.cell_facts import CellFacts, RunFacts, cell_facts, engine_facts
from stridebench.reports.html.figures import Chart, TargetPasses
from stridebench.reports.html.headline import (
    Picked,
    beside_first,
    headline,
    outputs_beside,
    setting_of,
    tiles,
    tiles_of_engines,
)
from stridebench.reports.html.samples import Missing, SampleTable, failures, media_of
from stridebench.reports.html.text import environment
from stridebench.reports.ranked import conclusions
from stridebench.reports.summary import summarise
from stridebench.reports.tables import COLUMNS_OF_ENGINES, GROUP
from stridebench.reports.text_table import estimate_text

if TYPE_CHECKING:
    from stridebench.harness.record.cell_files import SealedCell
    from stridebench.harness.record.store import Store


CACHED, SMALL = 4, 300_000
"""Cells in memory at once, and the steps of a run up to which all of them are, so that each is read once."""
MISSING = 200
"""Rows of the table of missing cells; those beyond it are counted."""

PICTURES_OF_FILE = 8
"""Pictures of each cell in a page that is one file."""
WORDS = {"samples": "Samples", "opens": "A prompt opens its output, token by token.", "part": "Method"}
WORDS_OF_ENGINE = {"samples": "Requests", "opens": "A prompt opens its output.", "part": "Engine"}

Curve = Callable[["SealedCell"], Chart | str | None]
"""Return the chart of the e-value after each audited output, the reason why it is missing, or None without an audit."""


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
        self.finished = set(store.cells())
        steps = sum(read_metadata(file).num_rows for file in store.path.glob("cells/*/steps.parquet"))
        kept = None if steps <= SMALL else CACHED
        self.read = functools.lru_cache(maxsize=kept)(lambda name: FinishedCell.of(store.cell(name)))
        frame, engines = summarise(store, self.read), summarise_engines(store)
        if self.picked:
            frame, engines = frame[frame["cell"].isin(self.picked)].reset_index(drop=True), pd.DataFrame()
        folder = served.names[number] if served else ""
        own = printable_line(folder or store.address.rstrip("/").rpartition("/")[2])
        self.name = f"{number + 1}. {own}" if runs > 1 else self.facts.name
        picks = [f"{folder}/{cell}" for cell in frame["cell"]]
        self.frame = self._linked(frame, runs > 1).assign(pick=picks)
        self.engines = self._linked(engines, runs > 1) if len(engines) else engines

    def _linked(self, frame: pd.DataFrame, named: bool) -> pd.DataFrame:
        """Return the rows with their pages, modality and names.

        Args:
            named: whether the names have the run's.
        """
        planned = self.store.manifest.cells | self.store.manifest.engines
        modality = [printable_line(planned[name].modality) for name in frame["cell"]]
        links = [f"cells/{quote(self.prefix + str(name))}.html" for name in frame["cell"]]
        shown = [f"{label} · {self.name}" if named else str(label) for label in frame["label"]]
        return frame.assign(run=self.name, modality=modality, link=links, pick="", shown=shown)

    def forest(self, folder: Path) -> list[str]:
        """Draw the forest plot of the run into the assets, and return its name; nothing if no method has a speed-up."""
        written = forest.write(self.frame, folder / "assets", self.facts.name, [f"{self.prefix}forest.svg"])
        return [path.name for path in written]

    def page_of(self, cell: str) -> str:
        """The page of a cell, below the folder of the pages."""
        return f"cells/{self.prefix}{cell}.html"

    def data_of(self, cell: str) -> str:
        """The folder of a cell's data, below the folder of the pages."""
        return f"data/{self.prefix}{cell}"

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
    frame, engines = (
        pd.concat(frames, ignore_index=True) for frames in zip(*((run.frame, run.engines) for run in runs), strict=True)
    )
    templates = environment()
    passes: dict[tuple[Any, ...], TargetPasses] = {}
    missing = [entry for run in runs for entry in _missing(run)]
    for run in runs:
        missing += _write_run(templates, run, folder, curve, passes, known=served is not None and served.known)
    picked = list(_picked(runs, served))

    def shown(cell: Picked, sample: pd.Series[Any]) -> Mapping[str, object]:
        return media_of(sample, cell.store.path, folder, cell.data)

    drawn = frame.assign(label=frame["shown"])
    body = templates.get_template("index.html").render(
        runs=[run.facts for run in runs],
        names=[run.name for run in runs],
        title=", ".join(dict.fromkeys(run.facts.name for run in runs)),
        root="",
        counts=[*tiles(frame), *tiles_of_engines(engines)],
        headline=headline(frame),
        engines=headline(engines),
        served=served,
        beside=beside_first(picked) if len(picked) > 1 else [],
        outputs=outputs_beside(picked, shown) if len(picked) > 1 else [],
        picked=[str(one.row["label"]) for one in picked],
        engine_legend=tables.legend(COLUMNS_OF_ENGINES),
        methods=any(run.store.manifest.cells for run in runs),
        sentences=[sentence for run in runs for sentence in conclusions(run.frame)],
        forests=[name for run in runs if not run.picked for name in run.forest(folder)],
        pareto=list(figures.pareto_charts(drawn)),
        speed=list(figures.speed_charts(drawn, passes)),
        missing=missing[:MISSING],
        more_missing=max(0, len(missing) - MISSING),
        legend=tables.legend(),
    )
    (folder / "index.html").write_text(body, encoding="utf-8")
    return folder / "index.html"


@dataclass(frozen=True)
class WholeCell:
    """A cell of a page that is one file: its facts, its first outputs, and its pictures as data addresses."""

    id: str
    facts: CellFacts
    table: SampleTable
    pictures: list[tuple[str, str]]


def write_file(store: Store, file: Path) -> Path:
    """Write one file that needs no other: the table of a run, its plots, and each method's facts and first outputs.

    It has no script.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        run = _Run(store, 0, 1)
        run.frame["link"] = "#" + run.frame["cell"].map(quote)
        cells = [_whole_cell(run, row, folder) for _, row in run.frame[run.frame["status"] == "done"].iterrows()]
        plots = [folder / "assets" / name for name in run.forest(folder)] + pareto.write(run.frame, folder)
        body = (
            environment()
            .get_template("file.html")
            .render(
                run=run.facts,
                title=run.facts.name,
                root="",
                style=Markup((text.STATIC / "page.css").read_text(encoding="utf-8")),  # our own
                sentences=conclusions(run.frame),
                plots=[_inline(path) for path in plots if path.suffix == ".svg"],
                counts=tiles(run.frame),
                headline=headline(run.frame),
                cells=cells,
                missing=list(_missing(run))[:MISSING],
                legend=tables.legend(),
            )
        )
    file.write_text(body, encoding="utf-8")
    return file


def _whole_cell(run: _Run, row: pd.Series[Any], folder: Path) -> WholeCell:
    name = str(row["cell"])
    finished = run.read(name)
    table = samples.write_samples(finished, run.store.path, folder, run.data_of(name))
    pictures = [(_inline(folder / address), prompt) for address, prompt in table.pictures[:PICTURES_OF_FILE]]
    return WholeCell(name, cell_facts(row, finished), table, pictures)


def _inline(picture: Path) -> str:
    """Return an address that holds a PNG or SVG file."""
    kind = "svg+xml" if picture.suffix == ".svg" else "png"
    return f"data:image/{kind};base64,{base64.b64encode(picture.read_bytes()).decode()}"


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
        missing += failures(row, finished.cell.samples)
        near = (int(str(index)) - 1, int(str(index)) + 1)
        neighbours = tuple(done.iloc[i] if 0 <= i < len(done) else None for i in near)
        if not known or not (folder / run.page_of(str(row["cell"]))).exists():
            _write_cell(templates, run, row, neighbours, folder, curve)
    prompts = run.prompts() if len(run.engines) else {}
    for _, row in run.engines[run.engines["status"] == "done"].iterrows() if len(run.engines) else ():
        missing += _write_engine(templates, run, row, folder, prompts)
    return missing


def _picked(runs: Sequence[_Run], served: Served | None) -> Iterator[Picked]:
    """The finished cells that were picked, in the order in which they were."""
    for number, name in served.picked if served else ():
        run = runs[number]
        rows = run.frame[(run.frame["cell"] == name) & (run.frame["status"] == "done")]
        for _, row in rows.iterrows():
            named = row.copy()
            named["label"] = row["shown"]
            yield Picked(run.store, run.read(name), named, run.data_of(name))


@dataclass(frozen=True)
class CellPage:
    """The parts of the page of a cell.

    Args:
        facts: in words.
        charts: its figures.
        table: of its samples or requests.
        steps: word, address and label of the pages that one reads before or after it.
        words: the names of its parts.
        grid: of a cell of pictures.
    """

    facts: CellFacts
    charts: list[Chart]
    table: SampleTable
    steps: list[tuple[str, str, str]]
    words: Mapping[str, str]
    grid: object = None


def _write_page(templates: Environment, run: _Run, name: str, page: CellPage, folder: Path) -> None:
    body = templates.get_template("cell.html").render(
        run=run.facts,
        title=f"{page.facts.label}, {page.facts.setting}",
        root="../",
        facts=page.facts,
        charts=page.charts,
        table=page.table,
        data=f"../{quote(run.data_of(name))}/",
        grid=page.grid,
        legend=samples.LEGEND if page.words is WORDS else (),
        steps=page.steps,
        show=f"stride show {run.store.address} {name} --prompt ID",
        words=page.words,
    )
    (folder / run.page_of(name)).write_text(body, encoding="utf-8")


def _write_cell(
    templates: Environment,
    run: _Run,
    row: pd.Series[Any],
    neighbours: tuple[pd.Series[Any] | None, ...],
    folder: Path,
    curve: Curve | None,
) -> None:
    name = str(row["cell"])
    finished = run.read(name)
    baseline = finished.cell.meta.baseline
    base = run.read(baseline) if baseline in run.finished else None
    table = samples.write_samples(finished, run.store.path, folder, run.data_of(name))
    charts = list(figures.cell_charts(finished, base, row))
    evidence = curve(finished.cell) if curve is not None else None
    facts = cell_facts(row, finished, evidence if isinstance(evidence, str) else "")
    named = zip(("previous", "next"), neighbours, strict=True)
    steps = [(word, f"../{other['link']}", str(other["label"])) for word, other in named if other is not None]
    charts += [evidence] if isinstance(evidence, Chart) else []
    grid = finished.cell.meta.stored().get("grid")
    _write_page(templates, run, name, CellPage(facts, charts, table, steps, WORDS, grid), folder)


def _write_engine(
    templates: Environment, run: _Run, row: pd.Series[Any], folder: Path, prompts: Mapping[str, str]
) -> list[Missing]:
    """Write the page of an engine's cell; returns its failed requests.

    Args:
        prompts: texts of prompts that cells of methods have stored, by id.
    """
    name, rows = str(row["cell"]), run.engines
    cell = run.store.cell(name)
    keys = [*SETTING_OF_ENGINE, "concurrency", "rate"]
    same = (rows["role"] == "plain") & (rows["status"] == "done") & (rows["label"] == row["plain"])
    plains = rows[same & (rows[keys] == row[keys]).all(axis=1)].head(1 if row["plain"] else 0)
    plain = run.store.cell(str(plains["cell"].iloc[0])).requests if len(plains) else None
    ratio = times(of_requests(plain), of_requests(cell.requests)) if plain is not None else None
    facts = engine_facts(row, cell, text.signed(estimate_text(ratio)) if ratio else "")
    charts = list(requests.engine_charts(cell.requests, plain, cell.meta))
    table = requests.write_requests(cell.requests, prompts, folder, run.data_of(name))
    steps = [("its plain decode", f"../{link}", str(row["plain"])) for link in plains["link"]]
    _write_page(templates, run, name, CellPage(facts, charts, table, steps, WORDS_OF_ENGINE), folder)
    return failures(row, cell.requests)


def _missing(run: _Run) -> list[Missing]:
    """Return the cells without figures, grouped by reason; of an unfinished cell, how far it is."""
    rows = [row for frame in (run.frame, run.engines) for _, row in frame.iterrows() if row["status"] != "done"]
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        status = "unfinished" if row["status"] == "planned" else str(row["status"])
        reason = str(row.get("reason") or row.get("note") or _progress(run.store, row))
        groups.setdefault((status, reason), []).append(f"{row['shown']} on {setting_of(row)}")
    return [Missing(status, "; ".join(cells[:8]), len(cells), reason) for (status, reason), cells in groups.items()]


def _progress(store: Store, row: pd.Series[Any]) -> str:
    """Return how many decodes or requests of an unfinished cell are stored."""
    cell = str(row["cell"])
    stored = int(row["n_ok"]) if of_engine(row) else store.stored(cell)
    expected = (store.manifest.cells | store.manifest.engines)[cell].expected
    of = f" of {expected}" if expected else ""
    return f"not finished: {stored}{of} decodes are stored" if stored else "not started"
