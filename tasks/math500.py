"""MATH-500: 500 competition problems of MATH's test set, whose answers are expressions in a box.

Source: Hendrycks et al. 2021, arXiv:2103.03874; the 500 of Lightman et al. 2023, arXiv:2305.20050:
``prm800k/math_splits/test.jsonl`` of openai/prm800k, also the data set HuggingFaceH4/MATH-500. Answers are read and
compared by the package math-verify.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.errors import one_of
from stridebench.harness.record.outputs import Output, as_text
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.files import Row, Where
from stridebench.tasks.loaders.texts import PublishedTexts, raw, unique, until

DATA = PublishedTexts(
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
LIMIT_S = 5
STOPS = {"boxed": (), "minerva": ("Problem:",), "chat": ()}


@TASKS.register("math500")
@dataclass(frozen=True)
class Math500(Task):
    """Solve a problem. The answer must have the value of the reference, as math-verify finds it.

    Args:
        file: ``test.jsonl``.
        hub: ``official``, or ID@REVISION, instead of a file.
        form: boxed, minerva or chat.
    """

    file: str = ""
    hub: str = ""
    form: str = "boxed"

    source = "arXiv:2103.03874; arXiv:2305.20050 (MIT)"
    metrics = ("math_verify", "answered")

    def __post_init__(self) -> None:
        one_of("the task math500", "form", self.form, FORMS)

    def prompts(self) -> Sequence[Prompt]:
        """Return the problems in the order of the file; the categories are the seven subjects."""
        rows = DATA.rows(self.file, self.hub, "test")
        return unique([_prompt(row, where, FORMS[self.form]) for where, row in rows], str(rows[0][0].path))

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Return two scores, each 1 or 0; no answer is a wrong answer.

        The answer is the last box, or the last expression of an output without one. A box that stays open is an
        expression. `math_verify` compares expressions by algebra: 0.5 is 1/2.
        """
        answer = _parsed(until(as_text(output), STOPS[self.form]))
        right = _parsed(f"\\boxed{{{prompt.data['answer']}}}")
        return {"math_verify": float(_equal(right, answer)), "answered": float(bool(answer))}


def _parsed(text: str) -> list[Any]:
    """Return the answers that math-verify reads in a text; none if there are none."""
    from math_verify import parse  # brings sympy

    return list(parse(text, parsing_timeout=_limit()))


def _equal(right: list[Any], answer: list[Any]) -> bool:
    """Return whether math-verify takes one of the answers for right; one that takes it too long is not."""
    from math_verify import verify

    return bool(verify(right, answer, timeout_seconds=_limit()))


def _limit() -> int | None:
    """Return the time limit of math-verify, or None if the alarm that it needs is the run's (`sample_limit_s`)."""
    for name in ("parser", "grader", "utils"):
        logging.getLogger(f"math_verify.{name}").setLevel(logging.CRITICAL)  # any text may be an answer
    main = threading.current_thread() is threading.main_thread()
    return LIMIT_S if main and not signal.getitimer(signal.ITIMER_REAL)[0] else None


def _prompt(row: Row, where: Where, form: str) -> Prompt:
    problem, level = raw(row, "problem", where), row.get("level")
    data = {"asked": problem, "answer": raw(row, "answer", where), "level": level}
    name = raw(row, "unique_id", where).removesuffix(".json")
    return Prompt(f"math500/{name}", form.format(problem), category=raw(row, "subject", where), data=data)
