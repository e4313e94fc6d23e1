"""The requests of an engine's cell for its page: its figures, a row each for the table, and a document each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from stridebench.harness.errors import printable_line
from stridebench.harness.record.entries import CellMeta
from stridebench.harness.record.requests import counted, per_position, timings
from stridebench.reports.html.figures import GREY, PALETTE, Chart, Spec, bar_or_line, spec_of
from stridebench.reports.html.samples import SampleTable, write_table
from stridebench.reports.html.text import excerpt, figure_of, plain_list, text_of

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
    rows = [[str(place), f"{share:.1%}"] for place, share in enumerate(shares, start=1)]
    caption = "Share of passes with a draft that kept a token at this position."
    spec = _bars(1, shares, "position in the draft", {"title": {"text": "share accepted"}, "range": [0, 1.02]})
    return Chart("acceptance", "Acceptance by position", caption, spec, ("position", "accepted"), rows, 320)


def _kept(rows: pd.DataFrame) -> Chart:
    total = sum((Counter(dict(enumerate(map(int, row)))) for row in rows["histogram"]), Counter())
    counts = [total[n] for n in range(max(map(len, rows["histogram"])))]
    shares = [count / max(1, sum(counts)) for count in counts]
    table = [[str(n), str(count), f"{share:.1%}"] for n, (count, share) in enumerate(zip(counts, shares, strict=True))]
    caption = "How many drafts the passes with a draft kept."
    spec = _bars(0, shares, "accepted drafts of a pass", {"title": {"text": "share of passes with a draft"}})
    return Chart("kept", "Drafts kept in a pass", caption, spec, ("accepted", "passes", "share"), table, 320)


def _bars(first: int, shares: list[float], axis: str, y_axis: Spec) -> Spec:
    """Return a bar for each of the shares, of which the first stands at ``first``."""
    x_axis = {"title": {"text": axis}, "dtick": max(1, len(shares) // 12)}
    bars = bar_or_line(range(first, first + len(shares)), plain_list(shares, 5), "", PALETTE[0])
    return spec_of([bars], {"xaxis": x_axis, "yaxis": {**y_axis, "tickformat": ".0%"}})


def _latency(key: str, title: str, axis: str, values: Mapping[str, npt.NDArray[np.float64]]) -> Chart:
    """Return the share of requests that are at most so slow."""
    data = []
    for (name, one), colour in zip(values.items(), (PALETTE[0], GREY), strict=False):
        shares = np.arange(1, len(one) + 1) / len(one)
        drawn = np.unique(np.linspace(0, len(one) - 1, min(len(one), QUANTILES)).astype(int))
        x, y = [one[0], *one[drawn]], [0.0, *shares[drawn]]
        trace = bar_or_line(plain_list(x, 3), plain_list(y, 4), name, colour, "scatter")
        data.append({**trace, "mode": "lines", "line": {"color": colour, "width": 2, "shape": "hv"}})
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
IDS = "Ids of tokens: the engine tells no text."


def write_requests(requests: pd.DataFrame, prompts: Mapping[str, str], folder: Path, data: str) -> SampleTable:
    """Write the documents of a cell's requests, and return the part that its page holds.

    Args:
        requests: rows of requests.parquet.
        prompts: texts of prompts that cells of methods have stored, by id.
        folder: of the pages.
        data: of the shards, below ``folder``.
    """
    shown = requests[~requests["warmup"]].reset_index(drop=True)
    documents = (_document(request, prompts) for _, request in shown.iterrows())
    return write_table(COLUMNS, list(_rows(shown)), documents, folder, data)


def _rows(requests: pd.DataFrame) -> Iterator[list[Any]]:
    """Yield the rows of the table of requests."""
    for index, (_, row) in enumerate(requests.join(timings(requests)).iterrows()):
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
            _rounded(row["ttft_ms"], 1),
            _rounded(row["tpot_ms"], 2),
            _rounded((row["ended_ns"] - row["sent_ns"]) / 1e9, 3) if ok else None,
            None if _known(row["scheduled_ns"]) is None else _rounded((row["sent_ns"] - row["scheduled_ns"]) / 1e6, 1),
            _known(row["drafted"]),
            accepted,
            _rounded(1 + accepted / steps, 3) if steps and accepted is not None else None,
            _rounded(tokens / passes, 3) if passes and tokens is not None else None,
            printable_line(str(row["finish"] or "")),
            excerpt(text_of(row, "text" if ok else "error")),
        ]


def _document(row: pd.Series[Any], prompts: Mapping[str, str]) -> dict[str, object]:
    """Return the data for the view of one output."""
    ok, text, tokens = row["status"] == "ok", text_of(row, "text"), row["tokens"]
    told = bool(text)
    facts = [f"repetition {row['repetition']}", printable_line(str(row["category"] or "")), f"seed {row['seed']}"]
    read = _known(row["prompt_tokens"])
    facts += [f"{read} prompt tokens"] if read is not None else []
    return {
        "prompt": printable_line(str(row["prompt"])),
        "status": str(row["status"]),
        "error": text_of(row, "error") or text_of(row, "fault"),
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


def _known(value: Any) -> int | None:
    return None if value is None or value != value else int(value)


def _rounded(value: float, digits: int) -> float | None:
    return None if value != value else round(float(value), digits)
