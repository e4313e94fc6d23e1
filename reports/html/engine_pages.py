"""The engines of a run on its pages: their tables with links, and a page a finished cell with its requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pandas as pd

from stridebench.harness.errors import printable_line
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.requests import counted, per_position, timings
from stridebench.harness.record.store import Store
from stridebench.reports import engines
from stridebench.reports.html.engine_facts import engine_facts
from stridebench.reports.html.figures import GREY, PALETTE, Chart, bar_or_line, spec_of
from stridebench.reports.html.samples import write_table
from stridebench.reports.html.text import DASH, excerpt, figure_of, plain_list
from stridebench.reports.side_by_side import of_requests, times

if TYPE_CHECKING:
    from jinja2 import Environment

    from stridebench.harness.record.store import Store
    from stridebench.reports.html.cell_facts import RunFacts


# The figures of an engine's cell: acceptance by position, drafts kept in a step, latencies, and requests in time.


LATENCIES = (
    ("ttft_ms", "ttft", "Time to the first token", "ms from sending to the first part of the output"),
    ("tpot_ms", "tpot", "Time a token after the first", "ms a token, after the first part of the output"),
)
QUANTILES = 200
"""Points of a curve of latencies, at most."""


def engine_charts(requests: pd.DataFrame, plain: pd.DataFrame | None, meta: CellMeta) -> Iterator[Chart]:
    """Yield the charts of a cell; figures that the engine does not tell are left out.

    Args:
        requests: rows of requests.parquet.
        plain: of its plain decode under the same load, or None if this is the plain decode or it is not finished.
        meta: of the cell.
    """
    rows = counted(requests)
    steps, kept = meta.growth.get("draft_steps"), meta.counters.per_position if meta.counters else []
    shares = per_position(requests) or ([count / steps for count in kept] if steps else [])
    if shares:
        yield _acceptance(shares)
    if len(rows) and rows["histogram"].notna().all():
        yield _kept(rows)
    own, beside = timings(rows), timings(counted(plain)) if plain is not None else None
    for column, key, title, axis in LATENCIES:
        curves = {"this cell": own[column]} | ({"plain decode": beside[column]} if beside is not None else {})
        values = {name: np.sort(one.dropna().to_numpy(float)) for name, one in curves.items()}
        if len(values["this cell"]):
            yield _latency(key, title, axis, {name: one for name, one in values.items() if len(one)})
    if len(rows):
        yield _in_time(rows)


def _acceptance(shares: list[float]) -> Chart:
    x = list(range(1, len(shares) + 1))
    layout = {
        "xaxis": {"title": {"text": "position in the draft"}, "dtick": max(1, len(x) // 12)},
        "yaxis": {"title": {"text": "share accepted"}, "range": [0, 1.02], "tickformat": ".0%"},
    }
    spec = spec_of([bar_or_line(x, plain_list(shares, 5), "accepted", PALETTE[0])], layout)
    rows = [[str(place), f"{share:.1%}"] for place, share in zip(x, shares, strict=True)]
    caption = "Share of passes with a draft that kept a token at this position."
    return Chart("acceptance", "Acceptance by position", caption, spec, ("position", "accepted"), rows, 320)


def _kept(rows: pd.DataFrame) -> Chart:
    histograms = [np.asarray(row, dtype=np.int64) for row in rows["histogram"]]
    total = np.zeros(max(map(len, histograms)), dtype=np.int64)
    for histogram in histograms:
        total[: len(histogram)] += histogram
    shares = (total / max(1, total.sum())).tolist()
    x = list(range(len(total)))
    layout = {
        "xaxis": {"title": {"text": "accepted drafts of a pass"}, "dtick": max(1, len(x) // 12)},
        "yaxis": {"title": {"text": "share of passes with a draft"}, "tickformat": ".0%"},
    }
    spec = spec_of([bar_or_line(x, plain_list(shares, 5), "passes", PALETTE[0])], layout)
    table = [[str(n), str(count), f"{share:.1%}"] for n, count, share in zip(x, total, shares, strict=True)]
    caption = "How many drafts the passes with a draft kept."
    return Chart("kept", "Drafts kept in a pass", caption, spec, ("accepted", "passes", "share"), table, 320)


def _latency(key: str, title: str, axis: str, values: Mapping[str, npt.NDArray[np.float64]]) -> Chart:
    """Return the share of requests that are at most so slow."""
    data = []
    for (name, one), colour in zip(values.items(), (PALETTE[0], GREY), strict=False):
        shares = np.arange(1, len(one) + 1) / len(one)
        drawn = np.unique(np.linspace(0, len(one) - 1, min(len(one), QUANTILES)).astype(int))
        x, y = [one[0], *one[drawn]], [0.0, *shares[drawn]]
        trace = bar_or_line(plain_list(x, 3), plain_list(y, 4), name, colour, "scatter")
        data.append(trace | {"mode": "lines", "line": {"color": colour, "width": 2, "shape": "hv"}})
    layout = {
        "xaxis": {"title": {"text": axis}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "share of requests"}, "range": [0, 1.02], "tickformat": ".0%"},
        "legend": {"orientation": "h", "y": 1.14},
    }
    ranks = (50, 90, 95, 99)
    rows = [
        [name, *(figure_of(np.percentile(one, rank), 1) for rank in ranks), str(len(one))]
        for name, one in values.items()
    ]
    columns = ("", *(f"p{rank} ms" for rank in ranks), "requests")
    caption = "Share of requests that were at most so slow. A curve further left is faster."
    return Chart(key, title, caption, spec_of(data, layout), columns, rows, 320)


def _in_time(rows: pd.DataFrame) -> Chart:
    """Return how long each request took, by when it was sent."""
    sent, seconds = rows["sent_ns"] / 1e9, (rows["ended_ns"] - rows["sent_ns"]) / 1e9
    trace = {
        "type": "scatter",
        "mode": "markers",
        "cliponaxis": False,
        "x": plain_list(sent, 3),
        "y": plain_list(seconds, 4),
        "marker": {"color": PALETTE[0], "size": 7},
        "hovertemplate": "sent at %{x:.1f} s, answered after %{y:.2f} s<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "sent, seconds after the start"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "seconds to the whole answer"}, "rangemode": "tozero"},
    }
    ranks = (0, 50, 95, 100)
    table = [["seconds", *(figure_of(np.percentile(seconds, rank), 2) for rank in ranks)]]
    columns = ("", "least", "median", "p95", "most")
    caption = "A point a request. Points that rise to the right say that requests queue."
    return Chart("in-time", "Requests in time", caption, spec_of([trace], layout), columns, table, 320)


COLUMNS = (
    ("prompt", "id of the prompt; its link opens the output"),
    ("repetition", "each has another seed"),
    ("category", "the prompt's"),
    ("status", "ok, or the kind of the failure"),
    ("tokens", "of the output"),
    ("TTFT ms", "from sending the request to the first part of the output"),
    ("TPOT ms", "time a token after the first part"),
    ("seconds", "from sending the request to the whole answer"),
    ("late ms", "sent after it was due, in an open loop"),
    ("drafted", "drafted tokens"),
    ("accepted", "drafted tokens kept"),
    ("length a draft", "1 + accepted / passes with a draft"),
    ("length a pass", "output tokens / passes of the target"),
    ("finish", "why the output ended, in the engine's word"),
    ("output", "its beginning, or the reason of the failure"),
)
"""Headings of the table of requests."""
WORDS = {"samples": "Requests", "opens": "A prompt opens its output."}
IDS = "Ids of tokens: the engine tells no text."


MEANS = 9
"""Rank of the columns that only the page of a cell has, and the times between parts."""


@dataclass(frozen=True)
class EngineTable:
    """A table of engines on a page.

    Args:
        title: above it.
        columns: title, meaning and key of each.
        rows: the page of a cell and the texts of its row.
        notes: lines below it.
    """

    title: str
    columns: list[tuple[str, str, str]]
    rows: list[tuple[str, list[str]]]
    notes: list[str]


class Engines:
    """The engines of a run.

    Args:
        store: the run.
        prefix: of the names of its pages.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a cell."""
        return engines.summarise(self._store) if self._store.manifest.engines else pd.DataFrame()

    def page_of(self, cell: str) -> str:
        """The page of a cell, below the folder of the pages."""
        return f"engines/{self._prefix}{cell}.html"

    def tables(self) -> Iterator[EngineTable]:
        """The tables with the links of their rows."""
        for (title, rows), table in zip(engines.groups(self.frame), engines.text_tables(self.frame), strict=True):
            shown = [i for i, column in enumerate(table.columns) if column.rank < MEANS and column.key != "itl"]
            columns = [(c.title, c.help, c.key) for c in (table.columns[index] for index in shown)]
            links = [quote(self.page_of(str(cell))) for cell in engines.finished(rows)["cell"]]
            texts = [[row[shown[0]], *(DASH if row[i] == "-" else row[i] for i in shown[1:])] for row in table.rows]
            yield EngineTable(
                title.removeprefix("engines: "), columns, list(zip(links, texts, strict=True)), table.notes
            )

    def write(self, templates: Environment, run: RunFacts, folder: Path, prompts: Mapping[str, str]) -> None:
        """Write the page of each finished cell.

        Args:
            templates: of the pages.
            run: the facts about the run.
            folder: of all pages.
            prompts: texts of prompts that cells of methods have stored, by id.
        """
        if self.frame.empty or not (self.frame["status"] == "done").any():
            return
        (folder / "engines").mkdir(exist_ok=True)
        for _, row in self.frame[self.frame["status"] == "done"].iterrows():
            body = self._page(templates, run, row, folder, prompts)
            (folder / self.page_of(str(row["cell"]))).write_text(body, encoding="utf-8")

    def _page(
        self, templates: Environment, run: RunFacts, row: pd.Series[Any], folder: Path, prompts: Mapping[str, str]
    ) -> str:
        cell, data = self._store.cell(str(row["cell"])), f"data/{self._prefix}engine-{row['cell']}"
        partner = self._plain(row)
        plain = None if partner is None else self._store.cell(partner).requests
        shown = cell.requests[~cell.requests["warmup"]].reset_index(drop=True)
        documents = (_document(request, prompts) for _, request in shown.iterrows())
        facts = engine_facts(row, cell, _paired(plain, cell.requests))
        return templates.get_template("engine_cell.html").render(
            run=run,
            title=f"{facts.label}, {facts.setting}",
            root="../",
            facts=facts,
            plain=(str(row["plain"]), f"../{quote(self.page_of(partner))}") if partner else None,
            charts=list(engine_charts(cell.requests, plain, cell.meta)),
            table=write_table(COLUMNS, list(_rows(shown)), documents, folder, data),
            data=f"../{quote(data)}/",
            grid=None,
            legend=(),
            show="",
            words=WORDS,
        )

    def _plain(self, row: pd.Series[Any]) -> str | None:
        """The finished plain decode of a cell under the same load."""
        keys = [*engines.SETTING, "concurrency", "rate"]
        others = self.frame[(self.frame["role"] == "plain") & (self.frame["status"] == "done")]
        same = others[(others["label"] == row["plain"]) & (others[keys] == row[keys]).all(axis=1)]
        return str(same["cell"].iloc[0]) if row["plain"] and len(same) else None


def _paired(plain: pd.DataFrame | None, requests: pd.DataFrame) -> str:
    interval = times(of_requests(plain), of_requests(requests)) if plain is not None else None
    if interval is None:
        return ""
    if interval.low is None:
        return f"{figure_of(interval.estimate)} (n={interval.n})"
    return f"{figure_of(interval.estimate)} [{figure_of(interval.low)}, {figure_of(interval.high)}]"


def _rows(requests: pd.DataFrame) -> Iterator[list[Any]]:
    """Yield the rows of the table of requests."""
    latencies = timings(requests)
    for index, (row, ttft, tpot) in enumerate(
        zip(requests.to_dict("records"), latencies["ttft_ms"], latencies["tpot_ms"], strict=True)
    ):
        ok, steps = row["status"] == "ok", _known(row["draft_steps"])
        tokens, accepted, passes = (_known(row[name]) for name in ("output_tokens", "accepted", "target_passes"))
        if passes is None and tokens is not None and accepted is not None:
            passes = tokens - accepted
        yield [
            index,
            printable_line(str(row["prompt"])),
            int(row["repetition"]),
            printable_line(str(row["category"] or "")),
            "ok" if ok else printable_line(str(row["fault"] or "failed")),
            tokens,
            _rounded(ttft, 1),
            _rounded(tpot, 2),
            _rounded((row["ended_ns"] - row["sent_ns"]) / 1e9, 3) if ok else None,
            None if _known(row["scheduled_ns"]) is None else _rounded((row["sent_ns"] - row["scheduled_ns"]) / 1e6, 1),
            _known(row["drafted"]),
            accepted,
            _rounded(1 + accepted / steps, 3) if steps and accepted is not None else None,
            _rounded(tokens / passes, 3) if passes and tokens is not None else None,
            printable_line(str(row["finish"] or "")),
            excerpt(str(row["error"] or "") if not ok else _text_of(row["text"])),
        ]


def _document(row: pd.Series[Any], prompts: Mapping[str, str]) -> dict[str, Any]:
    """Return the data for the view of one output."""
    ok, text, tokens = row["status"] == "ok", _text_of(row["text"]), row["tokens"]
    told = bool(text)
    facts = [f"repetition {row['repetition']}", printable_line(str(row["category"] or "")), f"seed {row['seed']}"]
    read = _known(row["prompt_tokens"])
    facts += [f"{read} prompt tokens"] if read is not None else []
    return {
        "prompt": printable_line(str(row["prompt"])),
        "status": str(row["status"]),
        "error": _text_of(row["error"]) or _text_of(row["fault"]),
        "asked": prompts.get(str(row["prompt"]), ""),
        "text": text,
        "kinds": None,
        "pieces": None,
        "tokens": None if told or tokens is None else [int(token) for token in tokens],
        "steps": {},
        "count": 0,
        "facts": [fact for fact in facts if fact],
        "remark": IDS if ok and not told else "",
    }


def _text_of(value: Any) -> str:
    """A text that may be missing."""
    return value if isinstance(value, str) else ""


def _known(value: Any) -> int | None:
    return None if value is None or value != value else int(value)


def _rounded(value: float, digits: int) -> float | None:
    return None if value != value else round(float(value), digits)
