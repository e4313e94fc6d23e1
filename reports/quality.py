"""Which scores say something of quality, which are better where they are lower, and which one stands for a task.

Scores of each output are columns ``score.NAME`` of the summary, and scores of all outputs together ``set.NAME``.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

PREFIXES = ("score.", "set.")
LOWER_IS_BETTER = frozenset(
    {
        *("wer", "wer_no_spelling", "cer", "corpus_wer", "corpus_wer_no_spelling"),
        *("chamfer", "hausdorff", "fragments", "open_edges"),
        *("nats", "perplexity", "generative_perplexity"),
        *("fid", "clean_fid_256", "kid", "fd_efflite0"),
    }
)
NEUTRAL = frozenset(
    {
        *("tokens", "units", "answered", "faces", "components"),
        *("floor_chamfer", "retrieval_chamfer", "swapped_chamfer", "swapped"),
        *("diversity_lpips", "diversity_efflite0"),
    }
)
"""Scores that say nothing of quality: counts, controls and floors, and the diversity of pictures of one prompt."""
MAIN = {
    "pass@1": "solved",
    "math_verify": "answers right",
    "exact_match": "answers right",
    "body": "bodies right",
    "overall": "captions right",
    "named": "digits named",
    "solved": "solved",
    "contains_reference": "answers found",
    "judge_score": "judge",
    "geneval_overall": "GenEval",
    "dpg_overall": "DPG-Bench",
    "corpus_wer": "WER",
    "wer": "WER",
    "chamfer": "Chamfer",
    "clip_score": "CLIP score",
    "fid": "FID",
}
"""Scores that stand for their task, and their names in a picture; the first that a task has is taken."""
SHARES = frozenset(["pass@1", "math_verify", "exact_match", "body", "overall", "named", "solved", "contains_reference"])
"""Scores that are printed in per cent."""


def is_quality(key: str) -> bool:
    """Whether a column of the summary is a score that says something of quality."""
    return key.startswith(PREFIXES) and _name(key) not in NEUTRAL and not key.endswith(("_low", "_high", "_n"))


def lower_is_better(key: str) -> bool:
    """Return whether less of a score is better; higher agreement and log-probability are better."""
    return _name(key) in LOWER_IS_BETTER


def title_of(key: str) -> str:
    """The name of a score for an axis."""
    return f"{_name(key)}, lower is better" if lower_is_better(key) else _name(key)


def main_score(rows: pd.DataFrame) -> str | None:
    """Return the column of the score that stands for a task, or None if these cells have no score of quality."""
    measured = [str(key) for key in rows if is_quality(str(key)) and f"{key}_low" in rows and rows[key].notna().any()]
    ranks = {name: rank for rank, name in enumerate(MAIN)}
    return min(measured, key=lambda key: (ranks.get(_name(key), len(ranks)), key), default=None)


def in_words(row: pd.Series[Any], key: str) -> str:
    """Return a score with its name, such as ``captions right 95 %``."""
    return f"{MAIN.get(_name(key), _name(key))} {amount(row, key)}"


def amount(row: pd.Series[Any], key: str) -> str:
    """Return the value of a score, in per cent if it is a share."""
    return f"{row[key]:.0%}".replace("%", " %") if _name(key) in SHARES else f"{row[key]:.3g}"


def _name(key: str) -> str:
    return next((key.removeprefix(prefix) for prefix in PREFIXES if key.startswith(prefix)), key)
