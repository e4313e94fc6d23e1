"""Engines and methods over their plain decodes: side by side, and by the number of concurrent requests.

``x plain`` is the ratio of the sums of seconds a token, over the same requests.

Side by side, seconds are those of whole requests, the reading of the prompt included, one request at a time, and a
method is compared with autoregressive decoding here.

The crossover is the concurrency at which speculation stops to gain, from the cells of a closed loop. A request's
seconds count from when its place in the loop was free, so that a client which sends late is not counted in favour of
what delays it. While the loop is full this is the ratio of tokens a second as well. The last wave of requests is not
full, and few prompts are few waves: there tokens a second hang on the slowest request, so both stand in the table.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from stridebench.harness.record import stats
from stridebench.harness.record.entries import SAMPLING, sampling_words
from stridebench.harness.record.requests import counted
from stridebench.harness.record.stats import FloatArray
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import FinishedCell
from stridebench.reports.summary import set_interval
from stridebench.reports.text_table import Column, TextTable, number, word

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BESIDE = (
    Column("label", "decoder", rank=0, formatter=word("label")),
    Column("temperature", "T", 0, rank=0),
    Column("tokens_per_second", "tokens/s", 1, rank=1),
    Column("times", "x plain", rank=1),
    Column("length_per_draft", "length a draft", 2, rank=2),
    Column("length_per_pass", "length a pass", 2, rank=2),
    Column("verdict", "verdict", rank=1, formatter=word("verdict")),
)


def of_requests(requests: pd.DataFrame) -> pd.DataFrame:
    """Return seconds, tokens and seconds a token of each counted request, by (prompt, repetition)."""
    rows = counted(requests).set_index(["prompt", "repetition"]).sort_index()
    return _timed((rows["ended_ns"] - rows["sent_ns"]) / 1e9, rows["output_tokens"])


def of_samples(finished: FinishedCell) -> pd.DataFrame:
    """Return the same of each counted sample of a method, with the reading of its prompt."""
    samples, sums = finished.samples, finished.totals
    return _timed((samples["prefill_ns"] + samples.get("open_ns", 0)) / 1e9 + sums["wall_s"], sums["output"])


def _timed(seconds: pd.Series[Any], tokens: pd.Series[Any]) -> pd.DataFrame:
    frame = pd.DataFrame({"seconds": seconds.astype(float), "tokens": tokens.astype(float)})
    return frame.assign(each=frame["seconds"] / frame["tokens"].where(frame["tokens"] > 0)).sort_index()


def times(plain: pd.DataFrame, other: pd.DataFrame) -> stats.Interval | None:
    """How many times as fast: the ratio of the sums of seconds a token, over requests that both have."""
    return stats.ratio(pairs(plain, other), "plain", "other")


def pairs(plain: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Seconds a token of the requests that both have, as columns plain and other."""
    return pd.concat([plain["each"].rename("plain"), other["each"].rename("other")], axis=1, join="inner").dropna()


def side_by_side(
    store: Store, engines: pd.DataFrame, methods: pd.DataFrame, read: Callable[[str], FinishedCell]
) -> pd.DataFrame:
    """Return one row a decoder that finished an output: engines at one request at a time, then methods."""
    rows = []
    for decoder in (*_engines(store, engines), *_methods(methods, read)):
        row, timed, plain = decoder.row, decoder.outputs, decoder.plain
        facts = {name: row[name] for name in ("backbone", "task", "label", "temperature", "verdict")}
        speed = float(timed["tokens"].sum() / timed["seconds"].sum()) if len(timed) else None
        facts |= {"outputs": len(timed), "tokens_per_second": speed}
        if plain is not None and len(plain) and len(timed):
            set_interval(facts, "times", times(plain, timed))
        if "load" in row:
            facts |= {f"length_per_{unit}": row[f"length_per_{unit}_pooled"] for unit in ("draft", "pass")}
        else:
            steps = read(str(row["cell"])).cell.steps
            drafts = steps[~steps["warmup"] & (steps["drafted"] > 0)]
            if len(drafts):
                lengths = {"length_per_draft": 1 + drafts["accepted"].sum() / len(drafts)}
                facts |= {**lengths, "length_per_pass": row["scr"]}
        rows += [facts] if len(timed) else []
    keys = ("length_per_draft", "length_per_pass", "times", "times_low", "times_high", "times_n")
    frame = pd.DataFrame(rows)
    return frame.reindex(columns=list(dict.fromkeys([*frame, *keys]))) if rows else frame


@dataclass(frozen=True)
class TimedDecoder:
    """A row of a summary, the times of its outputs, and those of its plain decode."""

    row: pd.Series[Any]
    outputs: pd.DataFrame
    plain: pd.DataFrame | None


def _engines(store: Store, frame: pd.DataFrame) -> Iterator[TimedDecoder]:
    if frame.empty:
        return
    rows = [row for _, row in shown(frame[frame["concurrency"] == 1]).iterrows()]
    tables = {str(row["cell"]): of_requests(store.cell(str(row["cell"])).requests) for row in rows}
    keys = ["backbone", *SAMPLING, "task"]
    plain = {(row["label"], *row[keys]): tables[str(row["cell"])] for row in rows if not row["plain"]}
    for row in rows:
        yield TimedDecoder(row, tables[str(row["cell"])], plain.get((row["plain"], *row[keys])))


def _methods(frame: pd.DataFrame, read: Callable[[str], FinishedCell]) -> Iterator[TimedDecoder]:
    done = set(frame.loc[frame["status"] == "done", "cell"])
    for _, row in shown(frame).iterrows():
        finished = read(str(row["cell"]))
        plain = str(finished.cell.meta.baseline)
        compared = of_samples(read(plain)) if plain in done and plain != row["cell"] else None
        yield TimedDecoder(row, of_samples(finished), compared)


def shown(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of finished cells, without those that decode once more what another does."""
    return frame[(frame["status"] == "done") & (frame["role"] != "floor")]


def beside_table(frame: pd.DataFrame) -> TextTable:
    """Return the rows of `side_by_side` as text."""
    lines = [[column.text(row) for column in BESIDE] for row in frame.to_dict("records")]
    return TextTable("engines and methods, one request at a time", BESIDE, lines, [])


def _draw_beside(frame: pd.DataFrame, path: Path) -> None:
    """Draw a bar of tokens a second for each decoder, a panel for each temperature."""
    from stridebench.reports.pareto import BROKEN, COLOURS

    panels = list(frame.groupby("temperature", sort=True))
    tallest = max(len(part) for _, part in panels)
    with _sheet(5.2 * len(panels), 0.9 + 0.34 * tallest) as sheet:
        for axes, (temperature, part) in zip(sheet.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            places = np.arange(len(part))
            colours = np.where(part["times"].isna(), COLOURS[5], COLOURS[0])
            axes.barh(
                places,
                part["tokens_per_second"],
                color=list(np.where(part["verdict"] == "broken", BROKEN, colours)),
                height=0.7,
            )
            for place, row in zip(places, part.to_dict("records"), strict=True):
                gain = [] if pd.isna(row["times"]) else [f"{row['times']:.2f}x"]
                text = ", ".join([*gain, *([row["verdict"]] if row["verdict"] else [])])
                axes.text(row["tokens_per_second"], place, f" {text}", va="center", fontsize=7)
            axes.set_yticks(places, list(part["label"]), fontsize=8)
            axes.invert_yaxis()
            axes.set_xlim(0, 1.6 * float(part["tokens_per_second"].max()))
            axes.set_xlabel("tokens/s")
            axes.set_title(f"T = {temperature:g}", fontsize=9)
        sheet.savefig(path, dpi=120)


RESAMPLES = 10_000


@dataclass(frozen=True)
class Crossover:
    """The concurrency at which the speed-up falls to 1.

    Args:
        at: between two measured ones by a straight line of log speed-up over log concurrency; infinite: above 1 at all
            measured ones; the lowest measured one: at or below 1 there already.
        low: 2.5 % quantile over resampled prompts, or None if there are fewer than six.
        high: 97.5 % quantile.
    """

    at: float
    low: float | None
    high: float | None


def crossing(concurrency: FloatArray, speedups: FloatArray) -> FloatArray:
    """Where each row of speed-ups (R x C) falls to 1 for the first time (R)."""
    places, heights = np.log(concurrency), np.log(np.atleast_2d(speedups))
    out = np.full(len(heights), np.inf)
    for left in reversed(range(len(places) - 1)):
        before, after = heights[:, left], heights[:, left + 1]
        falls = (before > 0) & (after <= 0)
        share = before / np.where(falls, before - after, np.inf)
        out = np.where(falls, np.exp(places[left] + share * (places[left + 1] - places[left])), out)
    result: FloatArray = np.where(heights[:, 0] <= 0, concurrency[0], out)
    return result


def crossover(tables: Mapping[int, tuple[pd.DataFrame, pd.DataFrame]]) -> Crossover | None:
    """The crossover of one pair of entries.

    Returns:
        None where fewer than two concurrencies share prompts.
    """
    levels = sorted(tables)
    parts = [pairs(*tables[level]).add_suffix(f"_{level}") for level in levels]
    if len(levels) < 2:
        return None
    sums = pd.concat(parts, axis=1, join="inner").dropna().groupby(level=0).sum().to_numpy()
    if not len(sums):
        return None
    concurrency = np.array(levels, dtype=np.float64)

    def at(totals: FloatArray) -> FloatArray:
        return crossing(concurrency, totals[..., 0::2] / totals[..., 1::2])

    estimate = float(at(sums.sum(axis=0))[0])
    if len(sums) < stats.FEWEST:
        return Crossover(estimate, None, None)
    drawn = at(stats.resample_counts(len(sums), RESAMPLES, 0) @ sums)
    low, high = np.quantile(drawn, (0.025, 0.975), method="nearest")
    return Crossover(estimate, float(low), float(high))


Tables = Mapping[int, tuple[pd.DataFrame, pd.DataFrame]]
"""Plain and speculative requests (`of_requests`) by concurrency."""


WAVES = 3
"""Fewer requests a concurrent one than these make tokens a second those of its slowest requests."""


@dataclass(frozen=True)
class CrossoverComparison:
    """An entry and its plain decode.

    Args:
        rates: tokens a second by concurrency, the plain decode's first; None if not known.
    """

    tables: Tables
    rates: Mapping[int, tuple[float | None, float | None]]


def compared(store: Store, engines: pd.DataFrame) -> dict[str, CrossoverComparison]:
    """Return, by title, each entry that was measured at two concurrencies or more, with its plain decode."""
    if engines.empty:
        return {}
    frame = shown(engines[engines["concurrency"] > 0])
    keys = ["backbone", "task", "max_new_tokens", *SAMPLING]
    out: dict[str, CrossoverComparison] = {}
    for names, rows in frame[frame["plain"] != ""].groupby(["label", "plain", *keys], sort=False):
        label, plain, *setting = names
        beside = frame[(frame["label"] == plain) & (frame[keys] == setting).all(axis=1)].set_index("concurrency")
        both = {
            int(row["concurrency"]): (beside.loc[row["concurrency"]], row)
            for _, row in rows.iterrows()
            if row["concurrency"] in beside.index
        }
        if len(both) > 1:
            plainly, own = (
                {level: in_turn(store.cell(str(pair[side]["cell"])).requests, level) for level, pair in both.items()}
                for side in (0, 1)
            )
            sampling = sampling_words(*(rows.iloc[0][word] for word in SAMPLING))
            several = [f"{rows.iloc[0][key]}" for key in ("backbone", "max_new_tokens") if frame[key].nunique() > 1]
            out[", ".join([f"{label} over {plain}", sampling, str(setting[1]), *several])] = CrossoverComparison(
                {level: (plainly[level], own[level]) for level in both},
                {level: (pair[0]["tokens_per_second"], pair[1]["tokens_per_second"]) for level, pair in both.items()},
            )
    return out


def in_turn(requests: pd.DataFrame, concurrency: int) -> pd.DataFrame:
    """`of_requests`, with seconds from when a request's place in the closed loop was free."""
    begun: dict[Hashable, int] = {}
    for _, rows in requests[~requests["warmup"]].groupby("session"):
        free = [0] * concurrency
        for index, row in rows.sort_values("sent_ns").iterrows():
            begun[index] = heapq.heapreplace(free, int(row["ended_ns"]))
    return of_requests(requests.assign(sent_ns=pd.Series(begun, dtype="int64")))


def write(panels: Mapping[str, CrossoverComparison], beside: pd.DataFrame, folder: Path) -> list[Path]:
    """Draw every comparison into crossover.png, and decoders side by side into side_by_side.png.

    Returns:
        The files; none of a kind without rows.
    """
    files = []
    if len(beside):
        files.append(folder / "side_by_side.png")
        _draw_beside(beside, files[-1])
    if panels:
        files.append(folder / "crossover.png")
        with _sheet(4.8 * len(panels), 3.4) as sheet:
            places = sheet.subplots(1, len(panels), squeeze=False)[0]
            for axes, (title, comparison) in zip(places, panels.items(), strict=True):
                _draw(axes, title, comparison.tables)
            sheet.savefig(files[-1], dpi=120)
    return files


@contextmanager
def _sheet(width: float, height: float) -> Iterator[Figure]:
    """Yield an empty figure; matplotlib is imported here, so that tables are read without it."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from stridebench.reports.pareto import STYLE

    with rc_context(STYLE):
        sheet = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(sheet)
        yield sheet


def _draw(axes: Any, title: str, tables: Tables) -> None:
    """Draw the speed-up with its interval at each concurrency, and the concurrency at which it falls to 1."""
    from stridebench.reports.pareto import COLOURS, DASHES

    levels = sorted(tables)
    gains = [(level, gain) for level in levels if (gain := times(*tables[level])) is not None]
    axes.plot([level for level, _ in gains], [gain.estimate for _, gain in gains], "o-", color=COLOURS[0])
    for level, gain in gains:
        if gain.low is not None and gain.high is not None:
            axes.plot([level, level], [gain.low, gain.high], color=COLOURS[0], linewidth=1.2)
    axes.axhline(1, color=COLOURS[5], linestyle=DASHES, linewidth=1)
    axes.margins(y=0.15)
    end = crossover(tables)
    if end is not None and end.low is not None and end.high is not None:
        axes.axvspan(min(end.low, levels[-1]), min(end.high, levels[-1]), color=COLOURS[1], alpha=0.25, linewidth=0)
    if end is not None:
        axes.annotate(_told(end, levels[-1]), (0.03, 0.94), xycoords="axes fraction", fontsize=8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(levels, [str(level) for level in levels])
    axes.set_xlabel("requests at once")
    axes.set_ylabel("times the plain decode")
    axes.set_title(title, fontsize=9)


def speed_up_table(title: str, comparison: CrossoverComparison) -> TextTable:
    """Return tokens a second and speed-up at each concurrency, and the end of the speed-up."""
    columns = (
        Column("load", "concurrency", rank=0),
        Column("plain", "plain tokens/s", 1, rank=0),
        Column("own", "tokens/s", 1, rank=0),
        Column("times", "x plain", rank=0),
    )
    tables, lines, notes = comparison.tables, [], []
    for level in sorted(tables):
        interval = times(*tables[level])
        told = "-" if interval is None else _span(interval.estimate, interval.low, interval.high)
        lines.append([str(level), *(number(rate, 1) for rate in comparison.rates[level]), told])
        count = len(pairs(*tables[level]))
        if level > 1 and count < WAVES * level:
            notes.append(f"{count} requests at a concurrency of {level}: tokens/s hang on the slowest")
    end = crossover(tables)
    if end is not None:
        notes.insert(0, f"x plain: seconds a token of the same requests; {_told(end, max(tables))}")
    return TextTable(f"speed-up by concurrency: {title}", columns, lines, notes)


def _told(end: Crossover, highest: int) -> str:
    """Return the concurrency at which the speed-up ends, in words."""
    if end.at == np.inf and end.low in (None, np.inf):
        return f"the speed-up has not ended at a concurrency of {highest}"
    return f"the speed-up ends at a concurrency of {_span(end.at, end.low, end.high)}"


def _span(value: float, low: float | None, high: float | None) -> str:
    def text(one: float | None) -> str:
        return "more than measured" if one == np.inf else number(one)

    return text(value) if low is None or high is None else f"{text(value)} [{text(low)}, {text(high)}]"
