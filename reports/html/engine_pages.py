"""The engines of a run on its pages: their tables with links, and a page a finished cell with its requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pandas as pd

from stridebench.harness.errors import printable_line
from stridebench.harness.record.request_metrics import timings
from stridebench.harness.record.request_store import RequestStore
from stridebench.reports import engines
from stridebench.reports.html.engine_facts import HELP, engine_facts
from stridebench.reports.html.engine_figures import engine_charts
from stridebench.reports.html.samples import write_table
from stridebench.reports.html.text import DASH, excerpt, figure_of
from stridebench.reports.side_by_side import of_requests, times

if TYPE_CHECKING:
    from jinja2 import Environment

    from stridebench.harness.record.store import Store
    from stridebench.reports.html.run_facts import RunFacts

COLUMNS = (
    ("prompt", "id of the prompt; its link opens the output"),
    ("repetition", "each has a seed of its own"),
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
        self._cells = RequestStore.of(store.path, store.manifest)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a cell."""
        return engines.summarise(self._store) if self._cells.planned else pd.DataFrame()

    def page_of(self, cell: str) -> str:
        """The page of a cell, below the folder of the pages."""
        return f"engines/{self._prefix}{cell}.html"

    def tables(self) -> Iterator[EngineTable]:
        """The tables with the links of their rows."""
        for (title, rows), table in zip(engines.groups(self.frame), engines.text_tables(self.frame), strict=True):
            shown = [i for i, column in enumerate(table.columns) if column.rank < MEANS and column.key != "itl"]
            columns = [(c.title, HELP.get(c.key, ""), c.key) for c in (table.columns[index] for index in shown)]
            links = [quote(self.page_of(str(cell))) for cell in engines.finished(rows)["cell"]]
            texts = [[row[shown[0]], *(DASH if row[i] == "-" else row[i] for i in shown[1:])] for row in table.rows]
            yield EngineTable(
                title.removeprefix("engines: "), columns, list(zip(links, texts, strict=True)), table.notes
            )

    def write(self, templates: Environment, run: RunFacts, folder: Path, prompts: Mapping[str, str]) -> None:
        """Write the page of each finished cell.

        Args:
            templates: of the pages.
            run: what the pages say of the run.
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
        cell, data = self._cells.cell(str(row["cell"])), f"data/{self._prefix}engine-{row['cell']}"
        partner = self._plain(row)
        plain = None if partner is None else self._cells.cell(partner).requests
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
    """What the view of one output needs."""
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
