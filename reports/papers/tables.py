"""Tables of the papers filled from a run: every figure as printed and as measured, side by side.

Rows stand in the paper's order and under its names; what else the run measured follows them. What a task that no paper
has scores stands in columns of its own, never under a published metric. A backbone that the paper has not stands beside
every model's row of the same method. A table is filled from the paper's own benchmark, or from a task that is none of
the papers' (emoji_scenes); the heading names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from reports.papers.measured import Measured, Wanted, over_seeds, shown
from reports.papers.printed import Printed, model_of, printed
from reports.text_table import UNMEASURED, Column, TextTable, number

BENCHMARKS = ("coco", "geneval", "partiprompts", "t2i_compbench", "dpg_bench")
PUBLISHED = {"reuse": "paper", "tau": 0.5}
"""SJD++ as its paper runs it."""

METHODS = {
    **dict.fromkeys(("AR", "Auto-regression", "Autoregressive Decoding"), Wanted("autoregressive")),
    "Jacobi Decoding": Wanted("jacobi"),
    "EAGLE": Wanted("eagle1"),
    "LANTERN": Wanted("lantern"),
    "ZipAR": Wanted("zipar"),
    "SJD": Wanted("sjd"),
    "SJD++": Wanted("sjdpp", PUBLISHED),
}
"""Names of the paper in our terms."""

INITS = {
    f"{way} {kind}".lower(): f"{way[0].lower()}-{kind.lower()}"
    for way in ("Horizontal", "Vertical")
    for kind in ("Sample", "Repeat")
} | {"random": "random"}


@dataclass(frozen=True)
class Figure:
    """A figure of a table: its printed column, the summary's keys (the first that was measured), and decimals."""

    title: str
    keys: tuple[str, ...]
    digits: int = 2


@dataclass(frozen=True)
class Layout:
    """How a printed table is filled.

    Args:
        labels: printed columns that name a row. figures: the others, each shown twice.
        wants: from a printed row to what it is of. tasks: the paper's benchmark; none: any task.
        whole: from all backbones of a run at once; of their cells, those of the methods that it wants.
        own: scores of tasks that no paper has, each a column where the run measured it; printed as "-".
    """

    labels: tuple[str, ...]
    figures: tuple[Figure, ...]
    wants: Callable[[Mapping[str, str]], Wanted]
    tasks: tuple[str, ...] = ()
    whole: bool = False
    own: tuple[Figure, ...] = ()

    def within(self, group: Measured) -> Layout:
        """With those scores of its own that the group has among the figures."""
        return replace(self, figures=(*self.figures, *(one for one in self.own if group.has(*one.keys))))


OWN = (
    Figure("Share of right pictures", ("score.overall",), 3),
    Figure("Share of digits named as asked", ("score.named",), 3),
)
"""Of emoji_scenes and of digits: quality where no published scorer has its weights, or could judge such pictures."""

SPEED = (
    Figure("Avg. Latency [s]", ("seconds",), 3),
    Figure("Latency acceleration [x]", ("speedup",)),
    Figure("Step acceleration [x]", ("scr",)),
)
HPS = Figure("HPSv2", ("set.hpsv2",), 4)
CLIP, CLIP_SCORE = (Figure(title, ("set.clip_score",)) for title in ("CLIP", "CLIP-Score"))


def _geneval(title: str, tag: str) -> Figure:
    """GenEval's own figure, or that of emoji_scenes, which is of the same families by another detector."""
    return Figure(title, (f"set.geneval_{tag}", f"set.{'families' if tag == 'overall' else tag}"), 4)


GENEVAL = tuple(
    _geneval(title, tag)
    for title, tag in {
        **{"Overall Score": "overall", "Counting": "counting", "Colors": "colors", "Two": "two_object"},
        **{"Position": "position", "ColorAttri": "color_attr", "Single": "single_object"},
    }.items()
)
COMPBENCH = tuple(
    Figure(title, (f"set.t2i_{name}",), 4)
    for title, name in {
        **{"Color": "color", "Shape": "shape", "Texture": "texture", "2D": "spatial", "3D": "3d_spatial"},
        **{"CLIP": "non_spatial", "3-in-1": "complex"},
    }.items()
)
PASSES = Figure("NFE (lower better)", ("passes",))
INVERSE = Figure("Step Compression = NFE/576 (lower better; inverse of S)", ("passes_per_token",), 4)


def _method(column: str) -> Callable[[Mapping[str, str]], Wanted]:
    return lambda row: METHODS[row[column]]


def _init(column: str, **options: Any) -> Callable[[Mapping[str, str]], Wanted]:
    return lambda row: Wanted("sjd", {"init": INITS[row[column].lower()], **options})


def _at_top_k(row: Mapping[str, str]) -> Wanted:
    return replace(METHODS[row["Decoding Methods"]], top_k=int(row["Sampling"].removeprefix("Top-")))


def _window(row: Mapping[str, str]) -> Wanted:
    return Wanted("sjdpp", {**PUBLISHED, "window": int(row["WS [tokens]"])})


def _at_resolution(row: Mapping[str, str]) -> Wanted:
    return replace(METHODS[row["Decoding Methods"]], pixels=int(row["Resolution [px]"]))


def _length(row: Mapping[str, str]) -> Wanted:
    return Wanted("autoregressive", tokens=int(row["Seq. Length [tokens]"]))


BY_MODEL = ("Model", "Method")
BY_RESOLUTION = ("Decoding Methods", "Resolution [px]")
LAYOUTS = {
    "sjdpp_table1": Layout(
        BY_MODEL, (*SPEED, Figure("FID", ("set.fid",)), HPS, CLIP), _method("Method"), ("coco",), own=OWN
    ),
    "sjdpp_table2": Layout(BY_MODEL, (*SPEED, *GENEVAL), _method("Method"), tasks=("geneval",)),
    "sjdpp_table3": Layout(BY_MODEL, (*SPEED, HPS, CLIP), _method("Method"), ("partiprompts",), own=OWN),
    "sjdpp_table4": Layout(BY_MODEL, (*SPEED, *COMPBENCH), _method("Method"), ("t2i_compbench",), own=OWN),
    "sjdpp_table5": Layout(
        ("Configuration",),
        (
            Figure("Acceleration Latency [x]", ("speedup",)),
            Figure("Acceleration Step [x]", ("scr",)),
            CLIP_SCORE,
        ),
        _method("Configuration"),
        tasks=("coco",),
        own=OWN,
    ),
    "sjdpp_table6": Layout(("Decoding Methods", "Sampling"), (CLIP_SCORE, HPS), _at_top_k, own=OWN),
    "sjdpp_fig6": Layout(
        BY_RESOLUTION,
        (Figure("Tokens", ("tokens",), 0), Figure("Step acceleration [x]", ("scr",))),
        _at_resolution,
        whole=True,
    ),
    "sjdpp_table7": Layout(BY_RESOLUTION, (CLIP_SCORE, HPS), _at_resolution, whole=True, own=OWN),
    "sjdpp_table8": Layout(("Token Initialization",), (CLIP_SCORE, HPS), _init("Token Initialization"), own=OWN),
    "sjdpp_table9": Layout(
        ("Decoding Methods",),
        (
            Figure("log p average [nats]", ("logprob",), 4),
            Figure("log p standard deviation", ("logprob_std",), 4),
        ),
        _method("Decoding Methods"),
    ),
    "sjdpp_table10": Layout(
        ("WS [tokens]",), (_geneval("Geneval", "overall"), PASSES, INVERSE), _window, tasks=("geneval",)
    ),
    "sjdpp_fig12": Layout(
        ("Init",),
        (Figure("Latency [s]", ("seconds",), 3), Figure("Steps", ("passes",), 0)),
        _init("Init", refine=False),
    ),
    "mulo_sd_table2": Layout(
        ("Resolution",),
        (Figure("Seq. Length [tokens]", ("tokens",), 0), Figure("Latency [s]", ("seconds",), 3)),
        _length,
        whole=True,
    ),
}


def tables(name: str, groups: Sequence[Measured]) -> list[TextTable]:
    """The printed table beside each group that may fill it.

    Raises:
        UnknownNameError: there is no such table.
    """
    layout, held = LAYOUTS[name], printed(name)
    if layout.whole and groups:
        wanted = {layout.wants(row).method for row in _printed_rows(layout, held)}
        rows = pd.concat([group.rows[group.rows["method"].isin(wanted)] for group in groups])
        tasks = ", ".join(dict.fromkeys(group.task for group in groups))
        names = ", ".join(dict.fromkeys(group.backbone for group in groups))
        groups = [Measured(names, groups[0].dtype, groups[0].temperature, tasks, rows)]
    fits = [group for group in groups if not layout.tasks or _stands_for(group, layout.tasks)]
    return [_fill(layout, held, group) for group in fits]


def _stands_for(group: Measured, tasks: tuple[str, ...]) -> bool:
    return group.task in tasks or group.task not in BENCHMARKS


def _fill(layout: Layout, held: Printed, group: Measured) -> TextTable:
    rows = _printed_rows(layout, held)
    layout = layout.within(group)
    wanted = [layout.wants(row) for row in rows]
    asked = sorted({wish.top_k for wish in wanted if wish.top_k is not None})
    ours = pair(asked, sorted(set(group.rows["top_k"]))) if asked else {}
    wanted = [w if w.top_k is None else replace(w, top_k=ours.get(w.top_k, w.top_k)) for w in wanted]
    cells = [
        group.find(wish) if _same_model(row, held, group) else None for row, wish in zip(rows, wanted, strict=True)
    ]
    lines = [_line(layout, row, group, cell) for row, cell in zip(rows, cells, strict=True)]
    labels = [[row[label] for label in layout.labels] for row in rows]
    for cell in group.rows.index.difference([cell for cell in cells if cell], sort=False):
        labels.append(_beyond(layout, group.row(cell)))
        lines.append(_line(layout, {}, group, cell))
    body = [[*label, *line] for label, line in zip(labels, lines, strict=True)]
    of = f" of {held.model}" if held.model else ""
    title = f"{held.paper.split(':')[0]}, {held.where}: printed{of} | measured on {group.title}"
    return TextTable(title, _columns(layout, lines), body, _notes(layout, held, group, ours))


def pair(theirs: Sequence[int], ours: Sequence[int]) -> dict[int, int]:
    """Our value for each of theirs: the same; else, where as many are left on both sides, the next in order."""
    found = {value: value for value in theirs if value in ours}
    left, right = ([v for v in values if v not in found] for values in (theirs, ours))
    return found | (dict(zip(left, right, strict=True)) if len(left) == len(right) else {})


def _printed_rows(layout: Layout, held: Printed) -> list[dict[str, str]]:
    """A row for each label; what is printed several times (ten pictures, say) as its mean."""
    rows = []
    for _, same in held.rows.groupby(list(layout.labels), sort=False):
        row = {str(key): str(value) for key, value in same.iloc[0].items()}
        if len(same) > 1:
            means = {figure.title: same[figure.title].astype(float).mean() for figure in layout.figures}
            row |= {title: f"{mean:.2f}" for title, mean in means.items()}
        rows.append(row)
    return rows


def _same_model(row: Mapping[str, str], held: Printed, group: Measured) -> bool:
    """A published model's figures stand beside its own rows alone."""
    model = model_of(group.backbone)
    return model is None or "Model" not in row or row["Model"] == model


def _line(layout: Layout, row: Mapping[str, str], group: Measured, cell: str | None) -> list[str]:
    found = None if cell is None else group.row(cell)
    pairs = ((row.get(figure.title) or "-", shown(found, figure.keys, figure.digits)) for figure in layout.figures)
    return [text for both in pairs for text in both]


def _beyond(layout: Layout, row: pd.Series[Any]) -> list[str]:
    """Labels of a measured row that the paper has not."""
    label = str(row["label"])
    if layout.labels == BY_MODEL:
        return [str(row["backbone"]), label]
    if layout.labels == BY_RESOLUTION:
        return [f"{label}, {row['backbone']}", number(row["pixels"], 0)]
    if layout.whole:
        return [str(row["backbone"])]
    return [label, f"Top-{row['top_k']}"] if "Sampling" in layout.labels else [label]


def _columns(layout: Layout, lines: Sequence[Sequence[str]]) -> tuple[Column, ...]:
    """Two a figure; on a narrow terminal those that nothing was measured for go first."""
    columns = [Column(label, label, rank=0) for label in layout.labels]
    for i, figure in enumerate(layout.figures):
        measured = any(line[2 * i + 1] != UNMEASURED for line in lines)
        rank = 2 + 2 * (i + (0 if measured else len(layout.figures)))
        sides = (("printed", rank + 1), ("measured", rank))
        columns += [Column(figure.title, f"{figure.title}, {side}", rank=at) for side, at in sides]
    return tuple(columns)


def _notes(layout: Layout, held: Printed, group: Measured, ours: Mapping[int, int]) -> list[str]:
    notes = [f"{held.where}: {held.caption}"]
    if over_seeds(group.rows):
        notes.append(over_seeds(group.rows))
    others = [one.title for one in layout.figures if not group.has(one.keys[0]) and group.has(*one.keys)]
    if others:
        notes.append(f"measured {', '.join(others)}: of {group.task} by a detector of its own, not the benchmark's")
    if "Model" in held.rows and model_of(group.backbone) is None:
        notes.append(f"{group.backbone} is none of the paper's models: it stands beside each row of the same method")
    for theirs, mine in ours.items():
        if theirs != mine:
            notes.append(f"the paper's Top-{theirs} stands beside top-k {mine} here")
    remarks = [str(note) for note in dict.fromkeys(held.rows.get("notes", ())) if note]
    return [*notes, *(f"printed: {note}" for note in remarks)]
