"""Reads the scores of a judge, in the format of FastChat's ``model_judgment/*_single.jsonl``.

Source: Zheng et al. 2023, arXiv:2306.05685. A score counts only if the judged text contains the output, so that the
scores of another method or run are never used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stridebench.harness.core.task import Scored, SetScore
from stridebench.harness.errors import OutputError
from stridebench.harness.record.outputs import as_text
from stridebench.tasks.loaders.files import Row, Where, json_lines
from stridebench.tasks.metrics.features import mean

UNPARSED = -1
"""The score of a judgement without one; it is left out, as FastChat does."""
LOWEST, HIGHEST = 1, 10
ORIGIN = "gen_judgment.py of FastChat's llm_judge, or any file with question_id, turn, score and answer"


@dataclass(frozen=True)
class JudgeScore:
    """A score.

    Args:
        question: number of the question.
        turn: 1 or 2.
        model: the model that answered, according to the file.
        score: of the answer.
        judged: the answer, or a text that contains it.
    """

    question: int
    turn: int
    model: str
    score: float
    judged: str


def read(path: Path) -> list[JudgeScore]:
    """Read all judgements of a file.

    Raises:
        UsageError: the file is missing, or a line is malformed.
    """
    return [_judgement(row, where) for where, row in json_lines(path, "scores of a judge", ORIGIN)]


def score_of(output: Scored, judgements: Iterable[JudgeScore], model: str = "") -> float:
    """Return the mean score of this output, from 1 to 10, over judgements of ``model``; "" takes all models.

    Raises:
        OutputError: the output was not judged, or no judgement has a score.
    """
    text, data = as_text(output.output).strip(), output.prompt.data
    if not text:
        raise OutputError(f"the output of {output.prompt.id} is empty, so no score can be told to be of it")
    scores = [
        judgement.score
        for judgement in judgements
        if (judgement.question, judgement.turn) == (data["question"], data["turn"])
        and model in ("", judgement.model)
        and text in judgement.judged
    ]
    parsed = [score for score in scores if score != UNPARSED]
    if not parsed:
        why = "its judgement lacks a score" if scores else "nobody judged this text"
        raise OutputError(f"{output.prompt.id}, repetition {output.repetition}: {why}")
    return sum(parsed) / len(parsed)


def figures(name: str, outputs: Sequence[Scored], judgements: Sequence[JudgeScore], model: str) -> dict[str, SetScore]:
    """Return mean scores of all outputs as ``name`` and of each category as ``name_CATEGORY``."""
    groups: dict[str, list[Scored]] = {name: list(outputs)}
    for output in outputs:
        groups.setdefault(f"{name}_{output.prompt.category}", []).append(output)
    return {figure: _mean(group, judgements, model) for figure, group in groups.items()}


def _mean(outputs: Sequence[Scored], judgements: Sequence[JudgeScore], model: str) -> SetScore:
    ids, values, reasons = [], [], []
    for output in outputs:
        try:
            values.append(score_of(output, judgements, model))
            ids.append(output.prompt.id)
        except OutputError as error:
            reasons.append(str(error))
    if not values:
        return SetScore(None, 0, len(reasons), reason=f"no output has a score of a judge; {reasons[0]}")
    return mean(ids, values, len(reasons), (LOWEST, HIGHEST))


def _judgement(row: Row, where: Where) -> JudgeScore:
    numbers = [row.get(key) for key in ("question_id", "turn", "score")]
    question, turn, score = (number if isinstance(number, int | float) else None for number in numbers)
    if question is None or turn is None or score is None:
        raise where.fault(f"question_id, turn and score must be numbers; found {numbers}")
    if score != UNPARSED and not LOWEST <= score <= HIGHEST:
        raise where.fault(f"score is {score}; a judge gives {LOWEST} to {HIGHEST}, or {UNPARSED} for none")
    judged = row.get("answer", row.get("user_prompt"))
    if not isinstance(judged, str):
        raise where.fault("neither answer nor user_prompt says which text was judged")
    return JudgeScore(int(question), int(turn), str(row.get("model") or ""), float(score), judged)
