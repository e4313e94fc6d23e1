"""DPG-Bench: a dense prompt's propositions asked as questions; a child counts only if its parents hold.

Source: Hu et al. 2024, arXiv:2403.05135; TencentQQGYLab/ELLA, dpg_bench/compute_dpg_bench.py, its quirks included.
The question answering (mPLUG-large of ModelScope) is not part of this: answers are recorded elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stridebench.harness.core.task import SetScore
from stridebench.harness.errors import OutputError
from stridebench.tasks.loaders.files import Where, lines, table, text_of
from stridebench.tasks.metrics.features import mean

CATEGORIES = ("global", "entity", "attribute", "relation", "other")
FIGURES = (*(f"dpg_{category}" for category in CATEGORIES), "dpg_bench")
ORIGIN = "dpg_bench of TencentQQGYLab/ELLA"

DETAIL = re.compile(r"(?P<picture>.*?), \((?P<crop>\d+, \d+, \d+, \d+)\), (?P<question>.*), (?P<answer>[^,]*)")


@dataclass(frozen=True)
class Proposition:
    """A proposition.

    Args:
        parents: ids of the propositions that it depends on; 0 is none.
        category: such as ``attribute - color``.
    """

    id: int
    parents: tuple[int, ...]
    category: str
    text: str


@dataclass(frozen=True)
class Marks:
    """The result of a picture.

    Args:
        score: the share of its propositions that hold, in [0, 1].
    """

    score: float
    answers: Mapping[int, bool]


def read_questions(path: Path) -> dict[str, tuple[Proposition, ...]]:
    """Read the questions of each prompt in ``dpg_bench.csv``.

    The first row of data is left out, as in the official code. A question that depends on its proposition cannot be
    scored, so its picture fails in both.

    Raises:
        UsageError: the file is missing, or a row is malformed.
    """
    out: dict[str, list[Proposition]] = {}
    for where, row in table(path, "DPG-Bench questions", ORIGIN, ",")[1:]:
        question = Proposition(
            _number(row, "proposition_id", where),
            tuple(
                _number({"dependency": part.strip()}, "dependency", where)
                for part in text_of(row, "dependency", where).split(",")
            ),
            text_of(row, "tuple", where).split("(")[0].strip(),
            text_of(row, "question_natural_language", where),
        )
        out.setdefault(text_of(row, "item_id", where), []).append(question)
    return {item: tuple(questions) for item, questions in out.items()}


def picture_marks(questions: Sequence[Proposition], crops: Sequence[Mapping[int, bool]]) -> Marks:
    """Score one picture, or a grid of several: the mean over its crops.

    Propositions are evaluated in the order of the file. A proposition is false if a parent is false by then. The
    categories use the raw answers of the last crop, as in the official code.

    Args:
        crops: answers of each crop by question id, true for "yes".

    Raises:
        OutputError: an answer is missing, or a parent is not among the questions.
    """
    shares = []
    for answers in crops:
        lacking = {q.id for q in questions} - set(answers)
        if lacking or not answers:
            raise OutputError(f"no answer to the questions {sorted(lacking)}; ask every one of the prompt")
        holds = {q.id: answers[q.id] for q in questions}
        for question in questions:
            for parent in filter(None, question.parents):
                if parent not in holds:
                    raise OutputError(
                        f"question {question.id} depends on {parent}, which is not among those of its prompt"
                    )
                if not holds[parent]:
                    holds[question.id] = False
                    break
        shares.append(sum(holds.values()) / len(holds))
    if not shares:
        raise OutputError("no crop was judged; give the answers of one at least")
    return Marks(sum(shares) / len(shares), {q.id: crops[-1][q.id] for q in questions})


def summary(
    questions: Mapping[str, Sequence[Proposition]], marks: Mapping[str, Marks], failures: int = 0
) -> dict[str, SetScore]:
    """Return ``dpg_bench``, the mean over pictures, and the share of yes in each broad category; all times 100."""
    ids: dict[str, list[str]] = {}
    values: dict[str, list[float]] = {}
    for item in sorted(marks):
        for question in questions[item]:
            name = question.category.split("-")[0].strip()
            ids.setdefault(name, []).append(item)
            values.setdefault(name, []).append(100.0 * marks[item].answers[question.id])
    out = {f"dpg_{name}": mean(ids.get(name, ()), values.get(name, ()), within=(0, 100)) for name in CATEGORIES}
    items = sorted(marks)
    return {**out, "dpg_bench": mean(items, [100 * marks[item].score for item in items], failures, (0, 100))}


def read_details(path: Path) -> dict[str, list[dict[str, bool]]]:
    """Read the answers in a ``*_detail.txt`` of the official code: for each item and crop, by question text."""
    out: dict[str, dict[str, dict[str, bool]]] = {}
    for where, line in lines(path, "DPG-Bench answers", "compute_dpg_bench.py of TencentQQGYLab/ELLA"):
        match = DETAIL.fullmatch(line)
        if match is None:
            raise where.fault("expected: picture path, (crop), question, answer")
        item = Path(match["picture"]).name.split(".")[0]
        out.setdefault(item, {}).setdefault(match["crop"], {})[match["question"]] = match["answer"] == "yes"
    return {item: list(crops.values()) for item, crops in out.items()}


def by_id(questions: Sequence[Proposition], answers: Mapping[str, bool]) -> dict[int, bool]:
    """Return answers by question id from answers by question text; questions without an answer are left out."""
    return {question.id: answers[question.text] for question in questions if question.text in answers}


def _number(row: Mapping[str, object], key: str, where: Where) -> int:
    text = text_of(row, key, where)
    if not text.strip().isdigit():
        raise where.fault(f"{key} is {text!r}, not a number")
    return int(text)
