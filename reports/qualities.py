"""Which scores say something of quality, and which of them are better where they are lower.

Scores of each output are columns ``score.NAME`` of the summary, and scores of all outputs together ``set.NAME``.
"""

from __future__ import annotations

PREFIXES = ("score.", "set.")
LOWER_IS_BETTER = frozenset(
    {
        *("wer", "wer_no_spelling", "cer", "corpus_wer", "corpus_wer_no_spelling"),
        *("chamfer", "hausdorff", "fragments", "open_edges"),
        *("nats", "perplexity", "generative_perplexity"),
        *("fid", "kid", "fd_efflite0"),
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


def is_quality(key: str) -> bool:
    """Whether a column of the summary is a score that says something of quality."""
    return key.startswith(PREFIXES) and _name(key) not in NEUTRAL and not key.endswith(("_low", "_high", "_n"))


def lower_is_better(key: str) -> bool:
    """Whether less of a score is better; agreement and log-probability are better where they are higher."""
    return _name(key) in LOWER_IS_BETTER


def title_of(key: str) -> str:
    """The name of a score for an axis."""
    return f"{_name(key)}, lower is better" if lower_is_better(key) else _name(key)


def _name(key: str) -> str:
    return next((key.removeprefix(prefix) for prefix in PREFIXES if key.startswith(prefix)), key)
