"""The figures of an engine's cell: acceptance by position, drafts kept in a step, latencies, and requests in time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from stridebench.harness.record.request_metrics import per_position, timings
from stridebench.harness.record.requests import counted
from stridebench.reports.html.figures import GREY, PALETTE, Chart, bar_or_line, spec_of
from stridebench.reports.html.text import figure_of, plain_list

LATENCIES = (
    ("ttft_ms", "ttft", "Time to the first token", "ms from sending to the first part of the output"),
    ("tpot_ms", "tpot", "Time a token after the first", "ms a token, after the first part of the output"),
)
QUANTILES = 200
"""Points of a curve of latencies, at most."""


def engine_charts(requests: pd.DataFrame, plain: pd.DataFrame | None, meta: Mapping[str, Any]) -> Iterator[Chart]:
    """Yield the charts of a cell; what the engine does not tell is left out.

    Args:
        requests: rows of requests.parquet.
        plain: of its plain decode under the same load; None: it is that, or it is not finished.
        meta: of the cell.
    """
    rows = counted(requests)
    shares = per_position(requests) or _from_counters(meta)
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


def _from_counters(meta: Mapping[str, Any]) -> list[float]:
    """Acceptance by position from the server's counters; empty: not told."""
    counters = meta.get("counters") or {}
    steps, kept = (counters.get("growth") or {}).get("draft_steps"), counters.get("per_position") or []
    return [float(count) / float(steps) for count in kept] if steps else []


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
