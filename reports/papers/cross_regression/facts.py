"""Cross-Regression's printed figures in terms of a run: which cell stands beside which row, and how layers compare.

A printed row is one or more facts: a model, a decoding, a temperature, a benchmark and what was measured. Thresholds t
of the tables are -tau; the tables follow the deterministic test of clipped energies, the only one here that gives Table
13's equal rows at threshold 0. What the paper calls lossless stands beside mode std, which is.
Source: Abulkhanov et al., Cross-Regression, Tables 3, 4 and 7-17.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from harness.record import stats
from reports.papers.measured import Measured, Wanted
from reports.papers.printed import printed
from reports.summary import put

if TYPE_CHECKING:
    from harness.record.store import Store

METHOD = "cross_regression"
BENCHMARKS = ("gsm8k", "humaneval", "mt_bench", "mbpp", "math500", "librispeech")
SPEECH = ("librispeech", "utterances")
QUALITIES = {
    "gsm8k": "score.exact_match",
    "math500": "score.exact_match",
    "humaneval": "score.pass@1",
    "mbpp": "score.pass@1",
    "mt_bench": "set.judge_score",
    "programs": "score.body",
    **dict.fromkeys(SPEECH, "set.corpus_wer"),
}
"""The score of each benchmark, the paper's where it prints one: of Whisper it prints none."""
LAYERS = re.compile(r"-l(\d+)-(\d+)(?=-|$)")
"""In an adapter's name: the first and the last layer that it changes."""
DEPTH = 32
"""Layers of the model of Table 16."""
NEAR = 0.15
"""Of all layers: how far a range of ours may begin and end, together, from the printed one it stands beside."""
MODELS = {
    **dict.fromkeys(("llama38b",), "llama3-8b"),
    **dict.fromkeys(("qwen2.57b",), "qwen2.5-7b"),
    **dict.fromkeys(("llama27b",), "llama2-7b"),
    **{"llama213b": "llama2-13b", "vicuna33b": "vicuna-33b", "abel7b001": "abel-7b"},
    **dict.fromkeys(("deepseekllama8b", "dsllama38b", "deepseekr1distillllama8b"), "deepseek-r1-distill-8b"),
    **dict.fromkeys(("deepseekqwen1.5b", "qwen2.51.5b", "deepseekr1distillqwen1.5b"), "deepseek-r1-distill-1.5b"),
    **{f"whisper{size}": f"whisper-{size}-hub" for size in ("tiny", "small", "medium")},
    **{
        f"{series}{size}b": f"deepseek-r1-distill-{size}b"
        for series in ("deepseekqwen", "dsqwen2.5", "deepseekr1distillqwen")
        for size in (7, 14, 32)
    },
}
"""Presets by the paper's names for them, of which it has several; see `preset`."""


def preset(model: str) -> str:
    """What is registered here for a model by any of its printed names.

    Raises:
        KeyError: the paper has no such model.
    """
    return MODELS[re.sub(r"[- ]|chat", "", model.lower())]


def cross(layout: str = "joint", mode: str = "std", **options: Any) -> Wanted:
    """Cross-Regression with an adapter of all layers, as the tables run it unless changed."""
    plain = {"beta": 0.0} if mode == "std" else {"clip": True}
    return Wanted(METHOD, {"layout": layout, "mode": mode, "layers": None, "redraft": "none", **plain, **options})


JOINT, SEQUENTIAL = cross(), cross("sequential")
REDRAWN = tuple(cross(redraft=one) for one in ("drafts", "placeholders"))
"""Joint, every slot drawn anew: none of the paper's, but what makes most tokens a pass here."""
RELAXED = Wanted(METHOD, {"layout": "joint", "mode": "det", "clip": True, "layers": None})
PLAIN = Wanted("autoregressive")


@dataclass(frozen=True)
class Fact:
    """A printed figure or two of one cell.

    Args:
        row: what the paper calls it. figure: what was measured, and on what. wanted: the decoding. task: the benchmark.
        key: of the summary: "scr" (tokens a pass), "tau" (tokens a step) or "" (only quality). value, quality: as
            printed, "" where there is none. backbone: preset. elsewhere: the one decoded, where it is another than the
        table's. temperature: None: the run's. layers: of the printed adapter; None: all.
    """

    row: str
    figure: str
    wanted: Wanted
    task: str
    key: str = "scr"
    value: str = ""
    quality: str = ""
    backbone: str = ""
    elsewhere: str = ""
    temperature: float | None = None
    layers: tuple[int, int] | None = None


def cells(groups: Sequence[Measured]) -> pd.DataFrame:
    """Rows of all groups; ``options`` of Cross-Regression have ``layers``, None where its adapter changes all.

    Runs of before there was ``redraft`` had none.
    """
    rows = pd.concat([group.rows for group in groups])
    return rows.assign(options=pd.Series([_with_layers(options) for options in rows["options"]], index=rows.index))


def _with_layers(options: Mapping[str, Any]) -> dict[str, Any]:
    if "adapter" not in options:
        return dict(options)
    found = LAYERS.search(str(options["adapter"]))
    return {"redraft": "none", **options, "layers": (int(found[1]), int(found[2])) if found else None}


def fits(rows: pd.DataFrame, wanted: Wanted) -> pd.DataFrame:
    """Those that decode so."""
    options = [all(one.get(key) == value for key, value in wanted.options.items()) for one in rows["options"]]
    return rows[(rows["method"] == wanted.method) & pd.Series(options, rows.index, dtype=bool)]


def beside(rows: pd.DataFrame, theirs: tuple[int, int]) -> tuple[int, int] | None:
    """The layers of the adapter of ours that, as shares of all, are nearest to printed ones; None: none is near.

    Args:
        rows: cells of one backbone, whose number of layers is told by the last one that an adapter changes.
    """
    held = {one["layers"] for one in rows["options"] if one.get("layers")}
    if not held:
        return None
    depth = 1 + max(last for _, last in held)
    nearest = {one: min(PRINTED_RANGES, key=lambda each: _apart(one, depth, each)) for one in held}
    near = [one for one, each in nearest.items() if each == theirs and _apart(one, depth, each) <= NEAR]
    return min(near, key=lambda one: _apart(one, depth, theirs), default=None)


def _apart(ours: tuple[int, int], depth: int, theirs: tuple[int, int]) -> float:
    return abs(ours[0] / depth - theirs[0] / DEPTH) + abs((ours[1] + 1) / depth - (theirs[1] + 1) / DEPTH)


def layers_of(row: str) -> tuple[int, int] | None:
    """Of a label of Table 16; None: all."""
    found = re.match(r"Layers (\d+)-(\d+)", row)
    return (int(found[1]), int(found[2])) if found else None


PRINTED_RANGES = [one for label in printed("cross_regression_table16").rows["Layer Range"] if (one := layers_of(label))]


def paired_ratio(above: pd.DataFrame, below: pd.DataFrame, numerator: str, denominator: str) -> stats.Interval | None:
    """A ratio of totals over the same of another cell, with an interval over prompts that both decoded."""
    keys = [numerator, denominator]
    joined = above[keys].join(below[keys].add_suffix("_below"), how="inner")
    made = stats.bootstrap(joined, lambda s: (s[..., 0] / s[..., 1]) / (s[..., 2] / s[..., 3]))
    return made.interval() if made else None


def scaled(row: pd.Series[Any], key: str, factor: float) -> pd.Series[Any]:
    """The row with a figure and its interval in another unit."""
    names = [name for name in (key, f"{key}_low", f"{key}_high") if name in row.index]
    made: pd.Series[Any] = pd.concat([row.drop(names), row[names].astype(float) * factor])
    return made


def parameters(store: Store, backbone: str) -> float | None:
    """Of a preset, as its ``size`` tells the run; None: it does not say."""
    found = re.match(r"([\d.]+) ?([MB])\b", str(store.manifest.get("sizes", {}).get(backbone, "")))
    return float(found[1]) * {"M": 1e6, "B": 1e9}[found[2]] if found else None


def interval_row(found: stats.Interval | None, key: str) -> dict[str, Any]:
    """As columns of a row."""
    row: dict[str, Any] = {}
    put(row, key, found)
    return row
