"""T2I-CompBench++: the scores that its evaluation writes, and the kind of a complex prompt.

Source: Huang et al. 2023, arXiv:2307.06350 (and its ++ edition); Karine-Huang/T2I-CompBench.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from stridebench.harness.core.task import SetScore
from stridebench.tasks.loaders.files import Where, json_file
from stridebench.tasks.metrics.features import mean

CATEGORIES = ("color", "shape", "texture", "spatial", "3d_spatial", "numeracy", "non_spatial", "complex")
FIGURES = tuple(f"t2i_{name}" for name in CATEGORIES)


Kind = Literal["spatial", "action", "both"]


def kind_of(prompt: str, spatial: Sequence[str], action: Sequence[str]) -> Kind:
    """Return the kind of a complex prompt, by ``complex_val_spatial.txt`` and ``complex_val_action.txt``."""
    first_sentence = _first_sentence(prompt)
    return (
        "spatial"
        if first_sentence in map(_first_sentence, spatial)
        else "action"
        if first_sentence in map(_first_sentence, action)
        else "both"
    )


def read_results(path: Path) -> dict[int, float]:
    """Read the scores of a ``vqa_result.json`` by question id; numbers may be written as text."""
    rows = json_file(path, "T2I-CompBench results", "the evaluation of Karine-Huang/T2I-CompBench")
    out: dict[int, float] = {}
    for index, row in enumerate(rows if isinstance(rows, list) else [rows]):
        try:
            number, value = int(row["question_id"]), float(row["answer"])
        except (TypeError, KeyError, ValueError) as error:
            raise Where(path, index + 1, "entry").fault("expected {question_id: a number, answer: a number}") from error
        if number in out:
            raise Where(path, index + 1, "entry").fault(f"question_id {number} is there twice")
        out[number] = value
    return out


def summary(results: Mapping[str, Mapping[int, float]], per_prompt: int = 10) -> dict[str, SetScore]:
    """Return the mean of each category. Question ids count pictures, ``per_prompt`` for each prompt in turn."""
    out = {}
    for name in CATEGORIES:
        rows = sorted(results.get(name, {}).items())
        ids, values = [str(number // per_prompt) for number, _ in rows], [value for _, value in rows]
        out[f"t2i_{name}"] = mean(ids, values, within=None if name == "non_spatial" else (0, 1))  # a cosine
    return out


def _first_sentence(prompt: str) -> str:
    return prompt.strip("\n").split(".")[0].lower()
