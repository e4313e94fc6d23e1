"""What Cross-Regression's tables need beyond their YAML: scores of benchmarks, layers of adapters, sizes of models.

Source: Abulkhanov et al., Cross-Regression, Tables 3, 4 and 7-17.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from stridebench.harness.record import stats
from stridebench.harness.record.cell_files import SealedCell
from stridebench.harness.record.store import Store
from stridebench.reports.finished_cell import FinishedCell
from stridebench.reports.papers.charts import ChartData, source
from stridebench.reports.papers.drawing import sheet
from stridebench.reports.papers.filled_tables import PaperFacts, SheetLine, SheetScene, scaled, with_options
from stridebench.reports.papers.measured import KEYS, CellGroup, MeasuredRun, cycles, fits, plain
from stridebench.reports.papers.paper_files import model_name, papers, printed
from stridebench.reports.text_table import UNMEASURED, TextTable, estimate_text, measured_text, number

METHOD = "cross_regression"
MASKED = "masked_diffusion"
QUALITIES = {
    "gsm8k": "score.exact_match_flexible",
    "math500": "score.math_verify",
    "humaneval": "score.pass@1",
    "mbpp": "score.pass@1",
    "mt_bench": "set.judge_score",
    "programs": "score.body",
    "librispeech": "set.corpus_wer",
    "utterances": "set.corpus_wer",
}
"""The score of each benchmark; the paper's score where it prints one. It prints none of Whisper."""
LAYERS = re.compile(r"-l(\d+)-(\d+)(?=-|$)")
"""The first and the last layer that an adapter changes, in its name."""
DEPTH = 32
"""Layers of the model of Table 16."""
NEAR = 0.15
"""Most distance of a measured range from the printed one, begin and end together, as a share of all layers."""
Range = tuple[int, int]
"""First and last layer."""


def joint() -> dict[str, object]:
    """Return the paper's lossless joint decoding."""
    return papers()[METHOD].named("Lossless")


def options(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add ``layers`` to the options, or None if the adapter changes all layers; old runs lack ``redraft``."""
    if "adapter" not in params:
        return params
    layers = LAYERS.search(str(params["adapter"]))
    return {"redraft": "none", **params, "layers": (int(layers[1]), int(layers[2])) if layers else None}


def layers_of(row: str) -> Range | None:
    """Parse a label of Table 16; None means all layers."""
    layers = re.match(r"Layers (\d+)-(\d+)", row)
    return (int(layers[1]), int(layers[2])) if layers else None


def beside(rows: pd.DataFrame, label: Range) -> Range | None:
    """Return the measured range of layers nearest to a printed one, as shares of all layers, or None if none is near.

    Args:
        rows: cells of one backbone. The last layer that an adapter changes gives its number of layers.
    """
    ranges = {params["layers"] for params in rows["options"] if params.get("layers")}
    if not ranges:
        return None
    depth = 1 + max(last for _, last in ranges)
    labels = [layers for row in printed(f"{METHOD}_table16").rows["Layer Range"] if (layers := layers_of(row))]
    near = [
        layers
        for layers in ranges
        if min(labels, key=lambda other: _distance(layers, depth, other)) == label
        and _distance(layers, depth, label) <= NEAR
    ]
    return min(near, key=lambda layers: _distance(layers, depth, label), default=None)


def _distance(layers: Range, depth: int, printed_layers: Range) -> float:
    return abs(layers[0] / depth - printed_layers[0] / DEPTH) + abs(
        (layers[1] + 1) / depth - (printed_layers[1] + 1) / DEPTH
    )


def applies(scene: SheetScene) -> bool:
    """Return whether a cell decodes as the table's method, or as its first decoding."""
    decodings = [other.rows for other in scene.layout.other_rows]
    methods = (METHOD, decodings[0]["method"])
    return any(len(fits(scene.cells, **rows)) for rows in decodings if rows["method"] in methods)


def model(scene: SheetScene) -> str:
    """Return the model whose printed rows a sheet shows: the backbone, or the reference if the paper lacks it."""
    backbone = str(scene.cells["backbone"].iloc[0])
    backbone = model_name(backbone)
    return backbone if any(line.model == backbone for line in scene.lines) else scene.layout.reference


def lines(scene: SheetScene) -> Iterator[SheetLine]:
    """Yield the rows of one model for any backbone, or of each model for its backbone.

    Another task stands in for the paper's benchmark if all rows are of one benchmark.
    """
    reference = scene.layout.reference
    rows = [line for line in scene.lines if not reference or line.model == model(scene)]
    alone = bool(reference) and len({line.selection["task"] for line in rows if line.selection}) == 1
    for line in rows:
        selection = dict(line.selection or {})
        if not reference:
            selection["backbone"] = line.model
        if alone:
            selection["task"] = None
        if label := layers_of(str(selection.get("layers"))):
            selection["layers"] = beside(scene.cells, label)
            yield replace(line, selection=selection if selection["layers"] else None)
            continue
        yield replace(line, selection=selection | ({"layers": None} if "layers" in selection else {}))


def fields(scene: SheetScene) -> Mapping[str, str]:
    """Return the fields of the heading of a table that shows one model."""
    cells = scene.cells
    sampled = f"T = {cells['temperature'].iloc[0]:g}, {', '.join(dict.fromkeys(cells['task']))}"
    return {"model": model(scene), "sampled": sampled}


def _score(cell: pd.Series[Any] | None, line: SheetLine, factor: float = 1.0) -> str:
    """Format the benchmark's score, in per cent with a factor of 100."""
    task = str((line.selection or {}).get("task")) if cell is None else str(cell["task"])
    key = QUALITIES.get(task, "")
    factor = factor if key.startswith("score.") else 1.0
    row = cell if cell is None or key not in cell.index else scaled(cell, [key], factor)
    return measured_text(row, key, digits=1 if factor > 1 else 3)


def _tokens(cell: pd.Series[Any] | None, line: SheetLine) -> str:
    """Format tokens a pass; of a masked model, tokens of the completion a denoising step, as the paper counts."""
    masked = cell is not None and cell["method"] == MASKED and line.key == "scr"
    return measured_text(cell, "completion_per_step" if masked else line.key) if line.key else "-"


def notes(scene: SheetScene) -> Iterator[str]:
    """Yield the rule by which answers of GSM8K are scored, and what tokens of a masked model are."""
    if "gsm8k" in set(scene.cells["task"]):
        yield (
            "score of gsm8k: exact_match_flexible, the last number of the answer; exact_match wants '#### N', which no "
            "answer has without worked examples"
        )
    if MASKED in set(scene.every["method"]):
        yield (
            "tokens of LLaDA and Dream: completion / steps, the tokens up to the end of text over the denoising steps; "
            "canvas / passes counts the positions behind it too"
        )


FACTS = PaperFacts(
    options=options,
    applies=applies,
    lines=lines,
    fields=fields,
    notes=notes,
    measures={"tokens": _tokens, "score": _score, "percent": lambda cell, line: _score(cell, line, 100.0)},
)


def paired_ratio(above: pd.DataFrame, below: pd.DataFrame, numerator: str, denominator: str) -> stats.Interval | None:
    """Divide a ratio of totals by that of another cell; the interval is over prompts that both decoded."""
    keys = [numerator, denominator]
    joined = above[keys].join(below[keys].add_suffix("_below"), how="inner")
    sample = stats.bootstrap(joined, lambda s: (s[..., 0] / s[..., 1]) / (s[..., 2] / s[..., 3]))
    return sample.interval() if sample else None


def parameters(store: Store, backbone: str) -> float | None:
    """Return the number of parameters of a preset by its stored ``size``, or None if it has none."""
    size = re.match(r"([\d.]+) ?([MB])\b", str(store.manifest.sizes.get(backbone, "")))
    return float(size[1]) * {"M": 1e6, "B": 1e9}[size[2]] if size else None


# Cross-Regression's energies: tests of Assumption 4.3 and of the gain of smoothing in Theorem 4.4.
# Symbols: E_k energy of draft k of a test, log p - log q in nats, before clipping and smoothing; mu, sigma its mean
# and standard deviation; L accepted drafts a step; beta memory of the running mean. Theorem 4.4: E[L_beta] >= E[L_0]
# (1 + c sigma / |mu| beta + O(beta^2)) with one c > 0 for all. No c is enough: L is at most gamma while sigma /
# |mu| is unbounded. A run can show whether L_beta >= L_0, and which c its cells imply. Source: Abulkhanov et al.,
# Cross-Regression, section 4.3 and appendix B.2.


IMPOSSIBLE = -1e29
"""Lower energies belong to drafts that the target cannot emit; their energy is minus infinity."""
LEAST = 10
"""Fewest tests of a place whose share of acceptances is drawn."""
NOTES = (
    "energies of all drafts that a step held against the target, reached or not; impossible: p = 0, left out of mu and "
    "sigma, which Assumption 4.3 wants finite; at T = 0 every other energy is 0",
    "neighbours' correlation: of E_k and E_(k+1) of one step, 0 under Assumption 4.3, which also has mu < 0",
    "L_beta / L_0: against the cell that differs in beta alone and has beta = 0, over prompts of both; its mu and "
    "sigma imply c = (L_beta / L_0 - 1) |mu| / (sigma beta)",
    "Theorem 4.4 as stated cannot hold: L is at most gamma, and sigma / |mu| unbounded. Its proof has the sign of the "
    "event turned round, and takes the variance of a mean for that of a sum; Tables 12 and 13 have L fall with beta at "
    "threshold 4. Only its direction is a claim that a run can check",
)


def energies(cell: SealedCell) -> pd.DataFrame:
    """Return one row a draft of counted outputs: prompt, repetition, ``place`` in the test from 1 and ``energy``.

    ``following`` is the energy of the next place, NaN after the last. Without stored energies the frame is empty.
    """
    steps = cycles(cell)
    if "energies" not in steps:
        return pd.DataFrame(columns=[*KEYS, "place", "energy", "following"])
    lists = [np.asarray(() if values is None else values, dtype=np.float64) for values in steps["energies"]]
    sizes = [len(values) for values in lists]
    frame = steps[KEYS].loc[steps.index.repeat(sizes)].reset_index(drop=True)
    step = np.repeat(np.arange(len(lists)), sizes)
    frame = frame.assign(place=1, energy=np.concatenate([*lists, np.zeros(0)]))
    frame["place"] = frame.groupby(step)["place"].cumsum()
    return frame.assign(following=frame.groupby(step)["energy"].shift(-1))


@sheet("cross_regression_energies")
def table(run: MeasuredRun) -> Iterator[TextTable]:
    """Return statistics of energies, one row a cell."""
    for group in run.groups:
        lines = [line for name in group.cells(METHOD) if (line := _line(run.store, group, name)) is not None]
        title = f"Cross-Regression, Assumption 4.3 and Theorem 4.4 | measured on {group.title}"
        yield from plain(title, lines, NOTES)


def _line(store: Store, group: CellGroup, name: str) -> dict[str, str] | None:
    drafts = energies(store.cell(name))
    if drafts.empty:
        return None
    possible = drafts[drafts["energy"] > IMPOSSIBLE]
    mu, sigma = _moments(possible)
    by_output = possible.assign(one=1.0).groupby(KEYS)[["energy", "one"]].sum()
    mean = stats.ratio(by_output, "energy", "one") if len(by_output) else None
    neighbours = possible[possible["following"] > IMPOSSIBLE]
    frame = FinishedCell.of(store.cell(name)).totals
    ratio, c = _gain(store, group, name, frame)
    return {
        "decoding": group.label(name),
        "drafts tested": str(len(drafts)),
        "impossible": f"{1 - len(possible) / len(drafts):.1%}",
        "mu, nat": estimate_text(mean, 3),
        "sigma, nat": number(sigma, 3),
        "sigma / |mu|": number(sigma / abs(mu), 2) if mu else "-",
        "neighbours' correlation": (
            number(neighbours["energy"].corr(neighbours["following"]), 2) if sigma and len(neighbours) > 2 else "-"
        ),
        "L, accepted a step": estimate_text(stats.ratio(frame, "accepted", "steps")),
        "L_beta / L_0": ratio,
        "implied c": c,
    }


def _moments(possible: pd.DataFrame) -> tuple[float, float]:
    values = possible["energy"].to_numpy(dtype=np.float64)
    return (float(values.mean()), float(values.std())) if len(values) else (0.0, 0.0)


def _gain(store: Store, group: CellGroup, name: str, frame: pd.DataFrame) -> tuple[str, str]:
    """Return L_beta / L_0 and the implied c, compared with the cell that differs in beta alone."""
    options = dict(group.row(name)["options"])
    beta = float(options["beta"])
    if not beta:
        return "1", "-"
    base = group.find(method=METHOD, **{**options, "beta": 0})
    if base is None:
        return UNMEASURED, UNMEASURED
    ratio = paired_ratio(frame, FinishedCell.of(store.cell(base)).totals, "accepted", "steps")
    drafts = energies(store.cell(base))
    mu, sigma = _moments(drafts[drafts["energy"] > IMPOSSIBLE])
    if ratio is None or not sigma:
        return estimate_text(ratio), "-"
    return estimate_text(ratio), f"{(ratio.estimate - 1) * abs(mu) / (sigma * beta):.2g}"


@source("cross_regression_energies")
def by_place(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield mean energy and its deviation by place in the test, and the share of accepted tests."""
    for group in run.groups:
        parts = []
        for name in group.cells(METHOD):
            cell = run.store.cell(name)
            drafts = energies(cell)
            if drafts.empty:
                continue
            places = drafts[drafts["energy"] > IMPOSSIBLE].groupby("place")["energy"]
            mean, deviation = places.mean(), places.std(ddof=0)
            accepted, tested = (cycles(cell)[key].to_numpy() for key in ("accepted", "tested"))
            often = [k for k in range(1, int(tested.max(initial=0)) + 1) if (tested >= k).sum() >= LEAST]
            share = pd.Series([(accepted >= k).sum() / (tested >= k).sum() for k in often], often, dtype=float)
            columns = {"mean": mean, "mean_low": mean - deviation, "mean_high": mean + deviation, "share": share}
            parts.append(pd.DataFrame(columns).assign(line=group.label(name)).rename_axis("place").reset_index())
        if parts:
            yield ChartData(group.title, pd.concat(parts))


# Rows of the figures of Cross-Regression: layers that an adapter changes, and Fig. 1 over model sizes.
# Source: Abulkhanov et al., Cross-Regression, Fig. 1, Tables 16 and 17.


SERIES = ("GSM8K tau", "HumanEval tau", "MT-bench tau")
"""Columns of Table 17."""


@source("cross_regression_layers")
def layers(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield Table 16: for each layout, tokens a step of the first cell near each printed range of layers."""
    table = printed("cross_regression_table16").rows
    for group in run.groups:
        rows = fits(with_options(group.rows, options), method=METHOD, mode="std", beta=0.0)
        if not any(params.get("layers") for params in rows["options"]):
            continue
        cells, values = [], []
        for layout, column in (("sequential", "tau_Seq"), ("joint", "tau_Joint")):
            of_layout = fits(rows, layout=layout)
            for place, (label, value) in enumerate(zip(table["Layer Range"], table[column], strict=True)):
                asked = layers_of(label)
                near = beside(of_layout, asked) if asked else None
                cell = fits(of_layout, layers=near).iloc[:1] if near or not asked else of_layout.iloc[:0]
                shown = cell if len(cell) else pd.DataFrame({"tau": [math.nan]})
                cells.append(shown.assign(layout=layout, layers=label.removeprefix("Layers "), line="measured"))
                values.append(("printed, Llama-2-7B-chat", layout, place, float(value)))
        frame = pd.DataFrame(values, columns=["label", "key", "x", "y"])
        yield ChartData(group.title, pd.concat(cells), printed=frame)


@source("cross_regression_sizes")
def scaling(run: MeasuredRun) -> Iterator[ChartData]:
    """Yield Fig. 1: the lossless joint decoding by parameters, with Table 17's values and the two in the text.

    The paper prints no values of the figure.
    """
    if not run.groups:
        return
    rows = with_options(pd.concat([group.rows for group in run.groups]), options)
    rows = fits(rows, **papers()[METHOD].named("Lossless"))
    rows = rows[~rows[["backbone", "task", "temperature", "dtype"]].duplicated()]
    sizes = [parameters(run.store, str(name)) or math.nan for name in rows["backbone"]]
    rows = rows.assign(size=sizes).dropna(subset=["size"]).sort_values(["task", "temperature", "dtype", "size"])
    lines = [f"{row['task']} {row['dtype']}, T = {row['temperature']:g}" for _, row in rows.iterrows()]
    marks = rows["backbone"].where(~rows["backbone"].duplicated(), "")
    yield ChartData("", rows.copy().assign(line=lines, mark=marks), printed=_printed_sizes(run))


def _printed_sizes(run: MeasuredRun) -> pd.DataFrame:
    table = printed("cross_regression_table17")
    points = []
    for column in SERIES:
        for _, row in table.rows[table.rows["Temperature"] == "0"].iterrows():
            size = parameters(run.store, table.paper.preset(f"{row['Model Series']} {row['Size']}"))
            label = f"printed, {column.removesuffix(' tau')}, T = 0"
            points += [(label, "scr", size, float(row[column]))] if size else []
    for _, row in printed("cross_regression_fig1").rows.iterrows():
        size = float(row["Size"].removesuffix("B")) * 1e9
        points.append(("said of Fig. 1, GSM8K", "scr", size, float(row["GSM8K speed-up"])))
    return pd.DataFrame(points, columns=["label", "key", "x", "y"])
