"""Tables 3, 4 and 7 to 17 of Cross-Regression, printed and measured: a line a printed figure.

A backbone that the paper has not stands beside the rows of one model where a table is about decodings, and in rows of
its own where it is about models. A task that is none of the paper's stands beside a table of one benchmark alone, and
has rows of its own elsewhere.
Source: Abulkhanov et al., Cross-Regression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pandas as pd

from reports.papers.cross_regression.facts import (
    BENCHMARKS,
    JOINT,
    METHOD,
    PLAIN,
    QUALITIES,
    REDRAWN,
    RELAXED,
    SEQUENTIAL,
    SPEECH,
    Fact,
    beside,
    cells,
    cross,
    fits,
    layers_of,
    preset,
    scaled,
)
from reports.papers.measured import Measured, Wanted, shown
from reports.papers.printed import printed
from reports.text_table import UNMEASURED, Column, TextTable

if TYPE_CHECKING:
    from harness.record.store import Store

Row = Mapping[str, str]
PLD, LOOKAHEAD, MEDUSA, EAGLE = (Wanted(name) for name in ("prompt_lookup", "lookahead", "medusa", "eagle1"))
DECODINGS = {
    **{"Baseline": PLAIN, "PLD": PLD, "Lookahead": LOOKAHEAD, "Medusa": MEDUSA, "Eagle": EAGLE, "Lossless": JOINT},
    **{"Cross-Regression": JOINT, "CLLM": Wanted("cllm")},
}
TASKS = {"GSM8K": "gsm8k", "HumanEval": "humaneval", "MT-bench": "mt_bench", "MT-Bench": "mt_bench"}
TOKENS = {"scr": "tokens a pass", "tau": "tokens a step", "": "score"}
HEADS = {
    **{"row": 0, "figure": 1, "tokens, printed": 3, "tokens, measured": 2, "score, printed": 6, "score, measured": 5},
    **{"wall speed-up": 4, "log p less AR's": 8, "n": 9, "verdict": 7},
}
"""Columns and the order in which a narrow terminal keeps them."""
NOTES = (
    "tokens a pass: output tokens / target passes, which the paper calls speed-up, acceptance rate and, of joint, "
    "acceptance length; a step of sequential is two passes, and its acceptance length is of a step",
    "wall speed-up: median over (prompt, seed) pairs of autoregressive ms/token over this, decoded in turn; log p: "
    "nats a token under the target at T = 1, less the baseline's",
)
LOSSY = (
    "threshold t is -tau; measured: mode det with clip, accepted where the smoothed energy is t nats below 0 at most"
)


def _table3(row: Row) -> Iterator[Fact]:
    method = row["Method"]
    name, _, number = method.rstrip(")").partition("=")
    diffusion = {"LLaDA (T": "llada-8b", "Dream (T": "dream-7b"}.get(name, "")
    if diffusion:
        wanted = Wanted("masked_diffusion", {"steps": int(number)})
    elif method.startswith("Lossy"):
        wanted = cross(mode="det", tau=-float(number))
    else:
        wanted = DECODINGS[method]
    for benchmark, score in (("GSM8K", "Acc@1"), ("HumanEval", "Pass@1")):
        values = row[f"{benchmark} Speedup [x]"], row[f"{benchmark} {score}"]
        yield Fact(
            *(method, benchmark, wanted, TASKS[benchmark], "scr", *values),
            backbone=preset(row["Base Model"]),
            elsewhere=diffusion,
        )


def _table4(row: Row) -> Iterator[Fact]:
    for column, value in row.items():
        if column.startswith("Whisper"):
            model = " ".join(column.split()[:2])
            at = float(row["Sampling"].removeprefix("Temperature "))
            yield Fact(model, f"T = {at:g}", JOINT, "librispeech", "scr", value, "", preset(model), temperature=at)


def _by_model(row: Row, task: str, tokens: str = "Acceptance Rate [tokens/fwd]", score: str = "") -> Iterator[Fact]:
    model, at = f"{row['Model']} {row.get('Size', '')}".strip(), float(row.get("Temperature") or row["Temp"])
    quality = row[score] if score else ""
    yield Fact(model, f"T = {at:g}", JOINT, task, "scr", row[tokens], quality, preset(model), temperature=at)


def _table11(row: Row) -> Iterator[Fact]:
    for task, column in {"math500": "MATH500", "gsm8k": "GSM8K", "humaneval": "HumanEval", "mbpp": "MBPP"}.items():
        model, value = row["Model"], row[f"{column} [%]"]
        yield Fact(model, column, PLAIN, task, "", "", value, preset(model), temperature=0.0)


def _grid(row: Row, task: str, score: str) -> Iterator[Fact]:
    t, beta = row["Threshold (= -tau)"], row["Smoothing (= beta)"]
    wanted = cross(mode="det", tau=-float(t), beta=float(beta))
    values = row["Accept Rate [tokens/fwd]"], row[score]
    yield Fact(f"threshold {t}, smoothing {beta}", "", wanted, task, "scr", *values, preset(row["Model"]))


def _table14(row: Row) -> Iterator[Fact]:
    for benchmark in ("MT-bench", "HumanEval", "GSM8K"):
        wanted = DECODINGS[row["Method"]]
        value = row[f"{benchmark} tau"]
        yield Fact(row["Method"], benchmark, wanted, TASKS[benchmark], "scr", value, "", preset(row["Model"]))


def _table15(row: Row) -> Iterator[Fact]:
    task, model = row["Benchmark"], preset(row["Model"])
    for layout, key, column in (
        (SEQUENTIAL, "tau", "Sequential: Acceptance Length"),
        (SEQUENTIAL, "scr", "Sequential: Tokens/Fwds"),
        (JOINT, "scr", "Joint: Acceptance Length"),
    ):
        figure = f"{layout.options['layout']}, {TOKENS[key]}"
        yield Fact(task, figure, layout, TASKS[task], key, row[column], "", model)


def _table16(row: Row) -> Iterator[Fact]:
    label = f"{row['Layer Range']}, {row['#Layers']} of 32"
    for layout, key, column in ((SEQUENTIAL, "tau", "tau_Seq"), (JOINT, "tau", "tau_Joint")):
        yield Fact(
            *(label, str(layout.options["layout"]), layout, "gsm8k", key, row[column], "", "llama2-7b"),
            layers=layers_of(label),
        )


def _table17(row: Row) -> Iterator[Fact]:
    model, at = f"{row['Model Series']} {row['Size']}", float(row["Temperature"])
    for benchmark in ("MT-bench", "HumanEval", "GSM8K"):
        values = row[f"{benchmark} tau"], "", preset(model)
        yield Fact(model, f"{benchmark}, T = {at:g}", JOINT, TASKS[benchmark], "scr", *values, temperature=at)


@dataclass(frozen=True)
class Layout:
    """How a printed table is filled.

    Args:
        facts: of a printed row. reference: the preset whose rows a backbone stands beside that the paper has not; "":
            rows are models. ours: decodings of which cells that no printed row is of follow. own: cells of tasks that
            are none of the paper's too. speech: of Whisper. percent: printed scores are per cent. note: of the table.
    """

    facts: Callable[[Row], Iterator[Fact]]
    reference: str = ""
    ours: tuple[Wanted, ...] = (JOINT, *REDRAWN)
    own: bool = True
    speech: bool = False
    percent: bool = True
    note: str = ""


ANY_LAYERS = tuple(
    replace(one, options={key: value for key, value in one.options.items() if key != "layers"})
    for one in (SEQUENTIAL, JOINT)
)
LAYOUTS = {
    "cross_regression_table3": Layout(
        _table3,
        "llama3-8b",
        (PLAIN, PLD, LOOKAHEAD, MEDUSA, EAGLE, JOINT, *REDRAWN, RELAXED),
        percent=False,
        note=LOSSY,
    ),
    "cross_regression_table4": Layout(_table4, speech=True),
    "cross_regression_table7": Layout(partial(_by_model, task="gsm8k", score="X-regression Accuracy [%]"), own=False),
    "cross_regression_table8": Layout(partial(_by_model, task="mt_bench"), own=False),
    "cross_regression_table9": Layout(partial(_by_model, task="humaneval"), own=False),
    "cross_regression_table10": Layout(
        partial(_by_model, task="gsm8k", tokens="Accept Rate [tokens/fwd]", score="Accuracy [%]"), own=False
    ),
    "cross_regression_table11": Layout(_table11, ours=(PLAIN,), own=False),
    "cross_regression_table12": Layout(
        partial(_grid, task="gsm8k", score="Accuracy [%]"), "llama3-8b", (RELAXED,), note=LOSSY
    ),
    "cross_regression_table13": Layout(
        partial(_grid, task="humaneval", score="Pass Rate [%]"), "llama3-8b", (RELAXED,), note=LOSSY
    ),
    "cross_regression_table14": Layout(_table14, "llama2-7b", (PLD, LOOKAHEAD, MEDUSA, JOINT, *REDRAWN)),
    "cross_regression_table15": Layout(_table15, "llama2-7b", (SEQUENTIAL, JOINT, *REDRAWN)),
    "cross_regression_table16": Layout(
        _table16,
        "llama2-7b",
        ANY_LAYERS,
        note="a range of ours stands beside the printed one that is nearest as a share of all layers; Full: all layers",
    ),
    "cross_regression_table17": Layout(_table17),
}


def table(name: str) -> Callable[[Store, Sequence[Measured]], list[TextTable]]:
    """Fills one of LAYOUTS: a sheet a type, and for tables of one model a backbone and temperature too."""
    return lambda store, groups: list(_sheets(name, groups))


def _sheets(name: str, groups: Sequence[Measured]) -> Iterator[TextTable]:
    layout, held, rows = LAYOUTS[name], printed(name), cells(groups)
    facts = [fact for row in held.rows.to_dict("records") for fact in layout.facts(cast("Row", row))]
    tasks = {fact.task for fact in facts}
    apart = ["dtype", *(["backbone", "temperature"] if layout.reference else [])]
    apart += ["task"] if layout.reference and len(tasks) == 1 else []
    rows = rows[rows["task"].isin(tasks) | (~rows["task"].isin(BENCHMARKS) & layout.own)]
    rows = rows[rows["task"].isin(SPEECH) == layout.speech]
    for _, ours in rows.groupby(apart, sort=False):
        if any(len(fits(ours, wanted)) for wanted in layout.ours if wanted.method in (METHOD, layout.ours[0].method)):
            yield _sheet(name, layout, rows, ours, facts)


def _sheet(name: str, layout: Layout, rows: pd.DataFrame, ours: pd.DataFrame, facts: Sequence[Fact]) -> TextTable:
    held, first = printed(name), ours.iloc[0]
    of = str(first["backbone"])
    if layout.reference:
        own = [fact for fact in facts if fact.backbone == of]
        facts = own or [fact for fact in facts if fact.backbone == layout.reference]
    alone = len({fact.task for fact in facts}) == 1 and bool(layout.reference)
    found = [_find(fact, rows, ours, alone) for fact in facts]
    body = [[fact.row, fact.figure, *_line(layout, fact, cell)] for fact, cell in zip(facts, found, strict=True)]
    used = {str(cell.name) for cell in found if cell is not None}
    body += list(_beyond(layout, ours, used))
    sampled = f"T = {first['temperature']:g}, {', '.join(dict.fromkeys(ours['task']))}"
    title = f"Cross-Regression, {held.where}: printed | measured, {first['dtype']}"
    if layout.reference:
        theirs = next(fact.backbone for fact in facts)
        title = f"Cross-Regression, {held.where}: printed of {theirs} | measured on {of} {first['dtype']}, {sampled}"
    columns = tuple(Column(head, head, rank=rank) for head, rank in HEADS.items())
    return TextTable(title, columns, body, [f"{held.where}: {held.caption}", *_notes(layout, held.rows)])


def _find(fact: Fact, rows: pd.DataFrame, ours: pd.DataFrame, alone: bool) -> pd.Series[Any] | None:
    """The first cell that a printed figure is of; ``alone``: of one benchmark, in whose place any task stands."""
    held = rows[rows["backbone"] == fact.elsewhere] if fact.elsewhere else ours
    if fact.temperature is not None:
        held = held[(held["temperature"] == fact.temperature) & (held["backbone"] == fact.backbone)]
    held = held if alone else held[held["task"] == fact.task]
    wanted = fact.wanted
    if fact.layers is not None:
        near = beside(held, fact.layers)
        if near is None:
            return None
        wanted = replace(wanted, options={**wanted.options, "layers": near})
    held = fits(held, wanted)
    return None if held.empty else held.iloc[0]


def _line(layout: Layout, fact: Fact, cell: pd.Series[Any] | None) -> list[str]:
    score = QUALITIES.get(fact.task if cell is None else str(cell["task"]), "")
    factor = 100.0 if layout.percent and score.startswith("score.") else 1.0
    judged = cell if cell is None or score not in cell.index else scaled(cell, score, factor)
    tokens = shown(cell, (fact.key,), 2) if fact.key else "-"
    figures = [fact.value or "-", tokens, fact.quality or "-", shown(judged, (score,), 1 if factor > 1 else 3)]
    if cell is None:
        return [*figures, UNMEASURED, UNMEASURED, "0", "-"]
    others = [shown(cell, ("speedup",), 2), shown(cell, ("logprob_diff",), 3)]
    return [*figures, *others, f"{cell['n_ok']:.0f}", str(cell["verdict"])]


def _beyond(layout: Layout, ours: pd.DataFrame, used: set[str]) -> Iterator[list[str]]:
    """Cells of the table's decodings that no printed figure stands beside."""
    left = ours[~ours.index.isin(used)]
    for wanted in layout.ours:
        for _, cell in fits(left, wanted).iterrows():
            label = str(cell["label"]) if layout.reference else f"{cell['backbone']}, {cell['label']}"
            fact = Fact(label, f"{cell['task']}, T = {cell['temperature']:g}", wanted, str(cell["task"]))
            for key in ("tau", "scr") if wanted.options.get("layout") == "sequential" else ("scr",):
                figure = fact.figure if key == "scr" else f"{fact.figure}, {TOKENS['tau']}"
                yield [fact.row, figure, *_line(layout, replace(fact, key=key), cell)]


def _notes(layout: Layout, rows: pd.DataFrame) -> list[str]:
    """Of the table, then what is to be known of printed rows, those of one remark together."""
    said: dict[str, list[str]] = {}
    for row in rows.to_dict("records"):
        labels = [str(value) for key, value in row.items() if key != "notes"][:3]
        for note in filter(None, str(row["notes"]).split("; ")):
            said.setdefault(note, []).append(" ".join(labels))
    few = {
        note: f" ({', '.join(labels)})" if len(labels) <= 4 else f" ({len(labels)} rows)"
        for note, labels in said.items()
    }
    own = [layout.note] if layout.note else []
    return [*own, *NOTES, *(f"printed{few[note]}: {note}" for note in said)]
