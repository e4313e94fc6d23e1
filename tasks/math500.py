"""MATH-500: 500 competition problems of MATH's test set, whose answers are expressions in a box.

Source: Hendrycks et al. 2021, arXiv:2103.03874; the 500 of Lightman et al. 2023, arXiv:2305.20050:
``prm800k/math_splits/test.jsonl`` of openai/prm800k, also the data set HuggingFaceH4/MATH-500.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.errors import one_of
from stridebench.harness.record.outputs import Output, as_text
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.files import Row, Where
from stridebench.tasks.loaders.texts import Published, raw, unique, until
from stridebench.tasks.metrics import latex_answers as latex

DATA = Published(
    "MATH-500",
    "math500/test.jsonl",
    "prm800k/math_splits of openai/prm800k (test.jsonl), or test.jsonl of HuggingFaceH4/MATH-500",
    "HuggingFaceH4/MATH-500@6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
)
FORMS = {
    "boxed": "{}\nPlease reason step by step, and put your final answer within \\boxed{{}}.",
    "minerva": "Problem:\n{}\n\nSolution:",
    "chat": "{}",
}
"""boxed: the prompt of Qwen2.5-Math and the DeepSeek distills. minerva: without its four examples."""
STOPS = {"boxed": (), "minerva": ("Problem:",), "chat": ()}


@TASKS.register("math500")
@dataclass(frozen=True)
class Math500(Task):
    """Solve a problem. The answer must equal the reference by Hendrycks' rules or by Minerva's, without algebra.

    Args:
        file: ``test.jsonl``.
        hub: ``official``, or ID@REVISION, instead of a file.
        form: boxed, minerva or chat.
    """

    file: str = ""
    hub: str = ""
    form: str = "boxed"

    source = "arXiv:2103.03874; arXiv:2305.20050 (MIT)"
    metrics = ("exact_match", "exact_match_minerva", "answered")

    def __post_init__(self) -> None:
        """Check the parameter.

        Raises:
            UsageError: there is no such form.
        """
        one_of("the task math500", "form", self.form, FORMS)

    def prompts(self) -> Sequence[Prompt]:
        """Return the problems in the order of the file; the categories are the seven subjects.

        Raises:
            UsageError: the file is missing, or a line is malformed.
        """
        rows = DATA.rows(self.file, self.hub, "test")
        return unique([_prompt(row, where, FORMS[self.form]) for where, row in rows], str(rows[0][0].path))

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Return three scores, each 1 or 0; no answer is a wrong answer.

        ``exact_match`` and ``answered`` read the last box only. ``exact_match_minerva`` also reads the last sentence of
        Minerva's answers.
        """
        text, right = until(as_text(output), STOPS[self.form]), str(prompt.data["answer"])
        answer, minerva_answer = latex.boxed(text), latex.final(text)
        return {
            "exact_match": float(answer is not None and latex.equal(answer, right)),
            "exact_match_minerva": float(
                minerva_answer is not None and latex.minerva(minerva_answer) == latex.minerva(right)
            ),
            "answered": float(answer is not None),
        }


def _prompt(row: Row, where: Where, form: str) -> Prompt:
    problem, level = raw(row, "problem", where), row.get("level")
    data = {"asked": problem, "answer": raw(row, "answer", where), "level": level}
    name = raw(row, "unique_id", where).removesuffix(".json")
    return Prompt(f"math500/{name}", form.format(problem), category=raw(row, "subject", where), data=data)
