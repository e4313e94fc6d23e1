"""Scores that a judge gave elsewhere, in the format of FastChat's ``model_judgment/*_single.jsonl``.

Source: Zheng et al. 2023, arXiv:2306.05685. No model judges here: a score is read, and only where the text that was
judged holds the very output, so that it never stands for another method's or another run's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.task import Scored, SetScore
from harness.errors import OutputError
from harness.record.outputs import as_text
from tasks.loaders.files import Row, Where, json_lines
from tasks.metrics.image_stats import mean

UNPARSED = -1
"""The score of a judgement that gave none; it is left out, as FastChat does."""
LOWEST, HIGHEST = 1, 10
ORIGIN = "gen_judgment.py of FastChat's llm_judge, or your own with question_id, turn, score and answer"


@dataclass(frozen=True)
class Judgement:
    """A score. judged: the text that holds the answer, or the answer alone. model: whose it is said to be."""

    question: int
    turn: int
    model: str
    score: float
    judged: str


def read(path: Path) -> list[Judgement]:
    """All judgements of a file.

    Raises:
        UsageError: it is missing, or a line is malformed.
    """
    return [_judgement(row, where) for where, row in json_lines(path, "scores of a judge", ORIGIN)]


def score_of(output: Scored, judgements: Iterable[Judgement], model: str = "") -> float:
    """The mean of the scores of this output, from 1 to 10. model: whose alone count; "": anyone's.

    Raises:
        OutputError: nobody judged it, or no judgement of it gave a score.
    """
    text, data = as_text(output.output).strip(), output.prompt.data
    if not text:
        raise OutputError(f"the output of {output.prompt.id} is empty, so no score can be told to be of it")
    mine = [
        one.score
        for one in judgements
        if (one.question, one.turn) == (data["question"], data["turn"])
        and model in ("", one.model)
        and text in one.judged
    ]
    given = [score for score in mine if score != UNPARSED]
    if not given:
        why = "its judgement has no score" if mine else "nobody judged this text"
        raise OutputError(f"{output.prompt.id}, repetition {output.repetition}: {why}")
    return sum(given) / len(given)


def figures(name: str, outputs: Sequence[Scored], judgements: Sequence[Judgement], model: str) -> dict[str, SetScore]:
    """The mean score of all outputs as ``name``, and of each category as ``name_CATEGORY``; intervals over prompts."""
    groups: dict[str, list[Scored]] = {name: list(outputs)}
    for one in outputs:
        groups.setdefault(f"{name}_{one.prompt.category}", []).append(one)
    return {figure: _mean(held, judgements, model) for figure, held in groups.items()}


def _mean(outputs: Sequence[Scored], judgements: Sequence[Judgement], model: str) -> SetScore:
    ids, values, reasons = [], [], []
    for one in outputs:
        try:
            values.append(score_of(one, judgements, model))
            ids.append(one.prompt.id)
        except OutputError as error:
            reasons.append(str(error))
    if not values:
        return SetScore(None, 0, len(reasons), reason=f"no output has a score of a judge; {reasons[0]}")
    return mean(ids, values, len(reasons))


def _judgement(row: Row, where: Where) -> Judgement:
    numbers = [row.get(key) for key in ("question_id", "turn", "score")]
    question, turn, score = (one if isinstance(one, int | float) else None for one in numbers)
    if question is None or turn is None or score is None:
        raise where.fault(f"question_id, turn and score must be numbers; found {numbers}")
    if score != UNPARSED and not LOWEST <= score <= HIGHEST:
        raise where.fault(f"score is {score}; a judge gives {LOWEST} to {HIGHEST}, or {UNPARSED} for none")
    judged = row.get("answer", row.get("user_prompt"))
    if not isinstance(judged, str):
        raise where.fault("neither answer nor user_prompt says which text was judged")
    return Judgement(int(question), int(turn), str(row.get("model") or ""), float(score), judged)
