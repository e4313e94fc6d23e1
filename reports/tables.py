"""Tables of a summary for the terminal, Markdown, CSV and LaTeX; one table a group of comparable cells."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from stridebench.harness.errors import UsageError
from stridebench.harness.record.entries import SAMPLING, sampling_words
from stridebench.reports.engine_rows import SETTING_OF_ENGINE, of_engine
from stridebench.reports.flags import on_toys_alone
from stridebench.reports.quality import main_score
from stridebench.reports.text_table import (
    CellRow,
    Column,
    TextTable,
    counts,
    described,
    e_value,
    escape_markdown,
    latex_tables,
    markdown_lines,
    markdown_section,
    number,
    print_table,
    word,
)

SETTING = ("backbone", "dtype", *SAMPLING, "task", "max_new_tokens")
GROUP = (*SETTING, "batch")
NESTED = ("sampling", "task_params", "options")
"""Columns of engines that hold objects, which no file of rows has."""
HALF = ("bf16", "fp16")
"""Types whose rounding turns near ties of real models."""
PERCENT = re.compile(r"\d+%")
ROUNDING = 1e-12
"""Total variation of distributions that are equal but for rounding; `harness.proof.prove` has the same limit."""
SMALL = 0.01
"""Total variation on small models that says nothing if a cell's log-probabilities differ from the baseline's."""


def _verdict(row: CellRow) -> str:
    variation, verdict = row.get("total_variation"), row["verdict"]
    if not isinstance(verdict, str):  # a cell without a good sample has none
        return "-"
    if verdict == "broken" and variation is not None and variation < ROUNDING:
        return f"broken ({'greedy output differs' if 'differ' in str(row.get('note')) else 'enumerated as exact'})"
    if on_toys_alone(row):
        return "exact on toys"
    if verdict == "approximate":
        return f"{verdict} ({_distance_to_target(row)})"
    lossy = verdict != "exact" and number(variation) != "-"
    return f"{verdict} (TV {variation:.2g})" if lossy else verdict or "-"


def _distance_to_target(row: CellRow) -> str:
    """Return the total variation of an approximate cell; a small one is left out if the cell's log-probs differ."""
    variation: Any = row.get("total_variation")
    low, high = (row.get(f"logprob_diff_{end}", math.nan) for end in ("low", "high"))
    differs = number(low) != "-" and number(high) != "-" and not low <= 0 <= high
    measured = number(variation) != "-"
    distance = f"TV {variation:.2g}" if measured else "TV not measured"
    if not differs:
        return distance
    return "differs from AR" if measured and variation < SMALL else f"{distance}, differs from AR"


def _tv(row: CellRow) -> str:
    """Return what the brackets of a verdict hold: how far a cell that is not exact is from the target."""
    return _verdict(row).partition(" (")[2].removesuffix(")").removeprefix("TV ") or "-"


def _samples(row: CellRow) -> str:
    return counts(row, "ok", "failed", "skipped")


def _step(row: CellRow) -> str:
    return " / ".join(number(row.get(f"step_{rank}_ms"), 1) for rank in ("p50", "p95"))


def _split(row: CellRow) -> str:
    return " / ".join(number(row.get(f"{phase}_ms"), 1) for phase in ("draft", "target", "verify", "host"))


def _test(row: CellRow) -> str:
    if number(row.get("tv")) == "-":
        return "-"
    return f"{number(row.get('tv'), 3)} ({number(row.get('tv_floor'), 3)}), {number(row.get('tv_p'), 3)}"


def _drafter(row: CellRow) -> str:
    """Return how far a drafter is from one that reads the same text anew, and the acceptance that it loses by that."""
    if number(row.get("drafter_acceptance_anew")) == "-":
        return "-"
    return f"{row['drafter_tv']:.2g} ({row['drafter_acceptance_anew'] - row['drafter_acceptance']:.3f})"


COLUMNS = described(
    "table_of_methods",
    Column("label", "cell", rank=0, formatter=word("label")),
    Column("batch", "B", 0, rank=1),
    Column("verdict", "verdict", rank=1, formatter=_verdict),
    Column("samples", "ok/fail/skip", rank=6, formatter=_samples),
    Column("speedup", "speed-up", rank=2, whole=True),
    Column("predicted", "predicted", rank=5),
    Column("scr", "SCR", rank=5),
    Column("tau", "tau", rank=3),
    Column("acceptance", "accept/path", rank=5, page="acceptance"),
    Column("acceptance_per_node", "accept/node", rank=9),
    Column("nfe", "NFE", 0, rank=8),
    Column("drafter_c", "c", rank=9),
    Column("ms_per_token", "ms/token", 1, rank=8),
    Column("throughput", "tokens/s of the batch", 1, rank=4),
    Column("step", "step p50/p95 ms", 1, rank=8, formatter=_step),
    Column("split", "draft/target/verify/host ms", 1, rank=10, formatter=_split),
    Column("agreement", "agreement", 3, rank=4),
    Column("loss", "TV/100 tokens", rank=5),
    Column("logprob", "log-prob", 3, rank=7),
    Column("logprob_std", "log-prob sd", rank=10),
    Column("logprob_diff", "log-prob - AR", 3, rank=4, page="log-prob − AR"),
    Column("audit", "e (visible TV)", rank=3, short="e", formatter=e_value, page="e-value"),
    Column("test", "TV to AR (floor), p", rank=8, formatter=_test, whole=True),
    Column("drafter", "drafter TV (acceptance lost)", rank=8, formatter=_drafter),
    Column("peak_mb", "peak MB", 0, rank=9),
    Column("cpu_joules_per_token", "CPU J/token", 2, rank=9),
    Column("gpu_joules_per_token", "GPU J/token", 2, rank=9),
)
COLUMN = {column.key: column for column in COLUMNS}
TV = Column("tv", "TV", formatter=_tv, help="total variation to the target on small models")
"""A column that is shown if it is asked for; the verdict then has no brackets."""


def _latency(key: str, digits: int, *ranks: int) -> Callable[[CellRow], str]:
    """Return the formatter of some percentiles of a latency."""

    def formatted(row: CellRow) -> str:
        numbers = [number(row.get(f"{key}_ms_p{rank}"), digits) for rank in ranks]
        return "-" if set(numbers) == {"-"} else " / ".join(numbers)

    return formatted


def _same(row: CellRow) -> str:
    """Return the share of outputs that equal those of the plain decode, and the share that was compared."""
    share = number(row.get("visible_share"))
    return number(row.get("same"), 3) + (f" ({share})" if share != "-" else "")


COLUMNS_OF_ENGINES = described(
    "table_of_engines",
    Column("label", "engine", rank=0, formatter=word("label")),
    Column("load", "load", rank=1, formatter=word("load")),
    Column("verdict", "verdict", rank=1, formatter=word("verdict")),
    Column("samples", "ok/fail", rank=6, formatter=lambda row: counts(row, "ok", "failed")),
    Column("tokens_per_second", "tokens/s", 1, rank=2),
    Column("speedup", "x plain", 2, rank=2),
    Column("length_per_draft_pooled", "length a draft", 2, rank=2),
    Column("length_per_pass_pooled", "length a pass", 2, rank=2),
    Column("length_per_draft_mean", "length a draft, mean of means", 2, rank=9),
    Column("length_per_pass_mean", "length a pass, mean of means", 2, rank=9),
    Column("told_length_mean", "length, as told", 2, rank=9),
    Column("acceptance", "accepted/drafted", 2, rank=5),
    Column("ttft", "TTFT p50/p95 ms", rank=4, formatter=_latency("ttft", 0, 50, 95)),
    Column("tpot", "TPOT p50/p95 ms", rank=4, formatter=_latency("tpot", 1, 50, 95)),
    Column("itl", "ITL p50/p95/p99 ms", rank=5, formatter=_latency("itl", 1, 50, 95, 99)),
    Column("goodput", "good requests/s", 2, rank=6),
    Column("same", "same as plain (visible share)", rank=3, formatter=_same),
    Column("floor", "plain again", 3, rank=7),
    Column("audit", "e (visible TV)", rank=3, formatter=e_value),
)


def columns_of(frame: pd.DataFrame) -> list[Column]:
    """Return the columns that tables of a summary may have, with those of its scores; the main score comes early."""
    if of_engine(frame):
        return list(COLUMNS_OF_ENGINES)
    keys = [str(key) for key in frame if str(key).startswith(("score.", "set.")) and f"{key}_low" in frame]
    main = main_score(frame)
    return [*COLUMNS, *(Column(key, key.partition(".")[2], 2, 3 if key == main else 5) for key in keys)]


def check_columns(names: Sequence[str], *frames: pd.DataFrame) -> None:
    """Check that each name is the key or the heading of a column of these summaries."""
    columns = [column for frame in frames if len(frame) for column in _choices(frame)]
    known = dict.fromkeys(column.key.removeprefix("score.") for column in columns if column.key != "label")
    titles = {column.title for column in columns} | {column.key for column in columns}
    if wrong := [name for name in names if name not in known and name not in titles]:
        raise UsageError(f"there is no column {', '.join(map(repr, wrong))}; known: {', '.join(known)}")


def _choices(frame: pd.DataFrame) -> list[Column]:
    return [*columns_of(frame), *([] if of_engine(frame) else [TV])]


def _chosen(frame: pd.DataFrame, names: Sequence[str]) -> list[Column]:
    """Return the columns of these keys or headings in the order of the names, behind the label; all are shown."""
    choices = _choices(frame)
    by_name = {name: one for one in choices for name in (one.title, one.key.removeprefix("score."), one.key)}
    columns = [by_name[name] for name in ("label", *names) if name in by_name]
    if TV in columns:
        words = Column("verdict", "verdict", formatter=lambda row: _verdict(row).partition(" (")[0])
        columns = [words if column.key == "verdict" else column for column in columns]
    return [replace(column, rank=0) for column in dict.fromkeys(columns)]


def text_tables(frame: pd.DataFrame, names: Sequence[str] = ()) -> Iterator[TextTable]:
    """Yield a table for each group of comparable cells of methods or of engines, in the summary's order.

    The batch size has a column only if it differs, and throughput only if a batch is larger than one. A plain decode of
    an engine that was made again has no row.

    Args:
        names: keys or headings of the columns. Default: all that hold a figure.
    """
    if frame.empty:
        return
    engines = of_engine(frame)
    candidates = _chosen(frame, names) if names else columns_of(frame)
    for _, rows in frame.groupby(list(SETTING_OF_ENGINE if engines else SETTING), sort=False, dropna=False):
        done = rows[(rows["status"] == "done") & ((rows["role"] != "floor") | (not engines))]
        first = rows.iloc[0]
        title = f"{'engines: ' if engines else ''}{setting_of(first, budget=True)}"
        if engines:
            yield table_of(title, candidates, done, notes_of_engines(rows))
            continue
        batches = rows["batch"].unique()
        redundant = {"batch"} if len(batches) == 1 else set()
        redundant |= {"throughput"} if max(batches) == 1 else set()
        redundant -= set(names)
        title += f", batch {batches[0]:g}" if len(batches) == 1 else ""
        columns = [column for column in candidates if column.key not in redundant]
        yield table_of(title, columns, done, [*cell_notes(rows), *rounding_notes(done)])


def setting_of(row: CellRow, budget: bool = False) -> str:
    """Return backbone, sampling and task of a cell in words."""
    model = row["backbone"] if of_engine(row) else f"{row['backbone']} {row['dtype']}"
    tokens = f", {row['max_new_tokens']:g} tokens" if budget else ""
    return f"{model}, {sampling_words(*(row[word] for word in SAMPLING))}, {row['task']}{tokens}"


def table_of(title: str, candidates: Sequence[Column], rows: pd.DataFrame, notes: list[str]) -> TextTable:
    """Return the table of some cells, without the columns in which no cell has a value."""
    cells = {column: [column.text(row) for _, row in rows.iterrows()] for column in candidates}
    columns = tuple(column for column in candidates if set(cells[column]) - {"-"} or column.rank == 0)
    lines = [list(row) for row in zip(*(cells[column] for column in columns), strict=True)]
    return TextTable(title, columns, lines, notes)


def notes_of_engines(rows: pd.DataFrame) -> list[str]:
    """Return the notes of cells of engines, and name those that are not finished."""
    named = [(f"{row['label']}, load {row['load']}", row) for _, row in rows.iterrows()]
    notes = [f"{name}: {row['note']}" for name, row in named if row["note"]]
    return notes + [f"not finished: {name}" for name, row in named if row["status"] != "done"]


def cell_notes(rows: pd.DataFrame) -> list[str]:
    """Say why cells are missing, and list the flags of the others. Cells with the same reason or flags share a note."""
    done = [row for _, row in rows.iterrows() if row["status"] == "done"]
    missing: dict[tuple[str, str], list[str]] = {}
    for _, row in rows[rows["status"] != "done"].iterrows():
        missing.setdefault((row["status"], row["reason"] or "not finished"), []).append(str(row["label"]))
    notes = [f"{status}: {', '.join(labels)}: {reason}" for (status, reason), labels in missing.items()]
    alike: dict[str, list[str]] = {}  # by their text without percentages
    labels: dict[str, list[str]] = {}
    for row in done:
        for flag in filter(None, row["flags"].split("; ")):
            alike.setdefault(PERCENT.sub("%", flag), []).append(flag)
            labels.setdefault(PERCENT.sub("%", flag), []).append(str(row["label"]))
    flags_by_labels: dict[tuple[str, ...], list[str]] = {}
    for text, texts in alike.items():
        flags_by_labels.setdefault(tuple(labels[text]), []).append(_one_flag(texts))
    for cells, flags in flags_by_labels.items():
        names = "all cells" if 1 < len(cells) == len(done) else ", ".join(cells)
        notes.append(f"! {names}: {'; '.join(flags)}")
    return notes


def _one_flag(texts: Sequence[str]) -> str:
    """One text for flags that differ in a percentage at most: its least and its greatest value stand in it."""
    if len(set(texts)) == 1:
        return texts[0]
    shares = [int(match.group()[:-1]) for flag in texts for match in PERCENT.finditer(flag)]
    return PERCENT.sub(f"{min(shares)} to {max(shares)}%", texts[0])


def rounding_notes(done: pd.DataFrame) -> list[str]:
    """Say why a method can be exact and its outputs differ from the baseline's: one note for a table, or none."""
    if "agreement" not in done or not len(done):
        return []
    dtype, greedy = str(done["dtype"].iloc[0]), float(done["temperature"].iloc[0]) == 0
    exact = done[(done["verdict"] == "exact") & (done["agreement"] < 1)]
    if not greedy or dtype not in HALF or exact.empty:
        return []
    lowest = exact["agreement"].min()
    return [
        f"exact with an agreement of {lowest:.2f} is no contradiction: in {dtype} a pass over several tokens rounds "
        f"otherwise than a pass over one, a near tie then goes the other way, and all later tokens differ. The verdict "
        f"is proved by enumeration and by equal greedy tokens in fp32."
    ]


def terminal(frame: pd.DataFrame, console: Console | None = None, names: Sequence[str] = ()) -> None:
    """Print every table, with the columns that the console is wide enough for, or with those of these names."""
    console = console or Console()
    for table in text_tables(frame, names):
        print_table(table, console)


def markdown(
    frame: pd.DataFrame,
    categories: pd.DataFrame | None = None,
    more: Sequence[TextTable] = (),
    sentences: Sequence[str] = (),
) -> str:
    """Return ``sentences``, the tables of methods, the table by category, further tables, and the legend."""
    shown = [f"- {escape_markdown(sentence)}" for sentence in sentences]
    parts = ["# Results", "", *shown, *([""] if shown else [])]
    parts += [line for table in text_tables(frame) for line in markdown_section(table)]
    if categories is not None and len(categories):
        columns = [column for column in COLUMNS if column.key in _BY_CATEGORY]
        rows = [
            [f"{row['backbone']} {row['dtype']} T={row['temperature']:g}", str(row["category"])]
            + [column.text(row) for column in columns]
            for _, row in categories.iterrows()
        ]
        titles = ["group", "category", *(column.title for column in columns)]
        parts += ["## By category", "", *markdown_lines(titles, rows), ""]
    parts += [line for table in more for line in markdown_section(table)]
    columns = [*(COLUMNS if len(frame) or not more else ()), *(column for table in more for column in table.columns)]
    return "\n".join([*parts, "## Legend", "", *(f"- {line}" for line in legend(columns)), ""])


_BY_CATEGORY = ("label", "speedup", "scr", "tau", "acceptance")


def legend(columns: Iterable[Column] = COLUMNS) -> list[str]:
    """Return one line a column with its meaning, and the form of intervals."""
    helps = dict.fromkeys(f"{column.title}: {column.help}" for column in columns if column.help)
    form = "[low, high]: 95 % interval over prompts, of one prompt alone over its repetitions; (n=3): too few for one"
    return [*helps, form]


def write(
    outdir: Path,
    frame: pd.DataFrame,
    categories: pd.DataFrame | None = None,
    engines: pd.DataFrame | None = None,
    more: Sequence[TextTable] = (),
    sentences: Sequence[str] = (),
) -> list[Path]:
    """Write summary.md, summary.tex, summary.csv and engines.csv into ``outdir``; returns their paths.

    Args:
        frame: of ``summarise``; of a run of engines alone it is empty and has no file.
    """
    outdir.mkdir(parents=True, exist_ok=True)
    engines = pd.DataFrame() if engines is None else engines
    of_engines = [*text_tables(engines), *more]
    texts = {"summary.md": markdown(frame, categories, of_engines, sentences)}
    if len(frame) or engines.empty:
        texts["summary.csv"] = frame.to_csv(index=False)
    texts["summary.tex"] = latex_tables([*text_tables(frame), *of_engines])
    if len(engines):
        texts["engines.csv"] = engines.drop(columns=list(NESTED), errors="ignore").to_csv(index=False)
    for name, content in texts.items():
        (outdir / name).write_text(content, encoding="utf-8")
    return [outdir / name for name in texts]
