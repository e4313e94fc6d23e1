"""What Cross-Regression's tables need beyond their YAML: scores of benchmarks, layers of adapters, sizes of models.

Source: Abulkhanov et al., Cross-Regression, Tables 3, 4 and 7-17.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from stridebench.harness.record import stats
from stridebench.reports.papers.engine import Facts, Line, Scene, scaled, with_options
from stridebench.reports.papers.measured import fits
from stridebench.reports.papers.paper_files import model_name, papers, printed
from stridebench.reports.text_table import measured_text

if TYPE_CHECKING:
    from stridebench.harness.record.store import Store

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


def joint() -> dict[str, Any]:
    """Return the paper's lossless joint decoding."""
    return papers()[METHOD].named("Lossless")


def options(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add ``layers`` to the options, None where the adapter changes all layers; old runs had no ``redraft``."""
    if "adapter" not in params:
        return params
    layers = LAYERS.search(str(params["adapter"]))
    return {"redraft": "none", **params, "layers": (int(layers[1]), int(layers[2])) if layers else None}


def with_layers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the cells with these ``options``."""
    return with_options(rows, options)


def layers_of(row: str) -> Range | None:
    """Parse a label of Table 16; None means all layers."""
    layers = re.match(r"Layers (\d+)-(\d+)", row)
    return (int(layers[1]), int(layers[2])) if layers else None


def beside(rows: pd.DataFrame, label: Range) -> Range | None:
    """Return the measured range of layers nearest to a printed one, as shares of all layers; None: none is near.

    Args:
        rows: cells of one backbone. The last layer that an adapter changes gives its number of layers.
        label: the printed range.
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


def applies(scene: Scene) -> bool:
    """Return whether a cell decodes as the table's method, or as its first decoding."""
    decodings = [other.rows for other in scene.layout.other_rows]
    methods = (METHOD, decodings[0]["method"])
    return any(len(fits(scene.cells, **rows)) for rows in decodings if rows["method"] in methods)


def model(scene: Scene) -> str:
    """Return the model whose printed rows a sheet shows: the backbone, or the reference where the paper lacks it."""
    backbone = str(scene.cells["backbone"].iloc[0])
    backbone = model_name(backbone)
    return backbone if any(line.model == backbone for line in scene.lines) else scene.layout.reference


def lines(scene: Scene) -> Iterator[Line]:
    """Yield the rows of one model for any backbone, or of all models for their own backbones.

    Another task stands in for the paper's benchmark where all rows are of one benchmark.
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


def fields(scene: Scene) -> Mapping[str, str]:
    """Return the fields of the heading of a table that shows one model."""
    cells = scene.cells
    sampled = f"T = {cells['temperature'].iloc[0]:g}, {', '.join(dict.fromkeys(cells['task']))}"
    return {"model": model(scene), "sampled": sampled}


def _score(cell: pd.Series[Any] | None, line: Line, factor: float = 1.0) -> str:
    """Format the benchmark's score, in per cent with a factor of 100."""
    task = str((line.selection or {}).get("task")) if cell is None else str(cell["task"])
    key = QUALITIES.get(task, "")
    factor = factor if key.startswith("score.") else 1.0
    row = cell if cell is None or key not in cell.index else scaled(cell, [key], factor)
    return measured_text(row, key, digits=1 if factor > 1 else 3)


def _tokens(cell: pd.Series[Any] | None, line: Line) -> str:
    """Format tokens a pass; of a masked model, tokens of the completion a denoising step, as the paper counts."""
    masked = cell is not None and cell["method"] == MASKED and line.key == "scr"
    return measured_text(cell, "completion_per_step" if masked else line.key) if line.key else "-"


def notes(scene: Scene) -> Iterator[str]:
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


FACTS = Facts(
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
    """Return the number of parameters of a preset by its stored ``size``; None where it has none."""
    size = re.match(r"([\d.]+) ?([MB])\b", str(store.manifest.get("sizes", {}).get(backbone, "")))
    return float(size[1]) * {"M": 1e6, "B": 1e9}[size[2]] if size else None
