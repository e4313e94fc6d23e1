"""MBPP: short Python functions from a sentence and three tests, scored by the tests.

Source: Austin et al. 2021, arXiv:2108.07732; ``mbpp.jsonl`` and ``sanitized-mbpp.json`` of google-research.
Problems 11-510 are for evaluation (500, or 257 of the sanitized); the prompt shows problems 2, 3 and 4.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.errors import UsageError, one_of
from stridebench.harness.record.outputs import Output, as_text
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.files import Row, Where
from stridebench.tasks.loaders.texts import PublishedTexts, raw, texts, unique, until
from stridebench.tasks.metrics import sandbox

HUB = "google-research-datasets/mbpp@4bb6404fdc6cacfda99d4ac4205087b89d32030c"
ORIGIN = "the folder mbpp of google-research/google-research"
DATA = {
    "full": PublishedTexts("MBPP", "mbpp/mbpp.jsonl", f"{ORIGIN} (mbpp.jsonl)", HUB, "full"),
    "sanitized": PublishedTexts(
        "sanitized MBPP", "mbpp/sanitized-mbpp.json", f"{ORIGIN} (sanitized-mbpp.json)", HUB, "sanitized"
    ),
}
QUESTION = {"full": "text", "sanitized": "prompt"}
"""The field of the question, by variant. It distinguishes the two files."""
TESTED = range(11, 511)
SHOWN = (2, 3, 4)
HEAD = (
    "You are an expert Python programmer, and here is your task: {} Your code should pass these tests:\n\n{}\n[BEGIN]\n"
)
FENCED = re.compile(r"```(?:[Pp]ython|py)?[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)


@TASKS.register("mbpp")
@dataclass(frozen=True)
class Mbpp(Task):
    """Write a function that passes its tests; pass@1 is 1 when it does, else 0.

    Args:
        variant: full or sanitized.
        file: the file of the variant.
        hub: ``official``, or ID@REVISION, instead of a file.
        shots: how many of the three examples of the published prompt are shown, from the first on.
        timeout_s: wall time of one program.
        memory_mb: its address space, in MiB.
    """

    variant: str = "full"
    file: str = ""
    hub: str = ""
    shots: int = 3
    timeout_s: float = 5.0
    memory_mb: int = 1024

    source = "arXiv:2108.07732 (CC BY 4.0)"
    metrics = ("pass@1",)
    runs_code = True

    def __post_init__(self) -> None:
        one_of("the task mbpp", "variant", self.variant, DATA)
        if not 0 <= self.shots <= len(SHOWN):
            raise UsageError(f"the task mbpp was given shots={self.shots}; the published prompt has 0 to {len(SHOWN)}")
        self._limits()

    def _limits(self) -> sandbox.Limits:
        return sandbox.Limits(timeout_s=self.timeout_s, memory_mb=self.memory_mb)

    def prompts(self) -> Sequence[Prompt]:
        """Return problems 11-510 of the file as published: the examples, the task, its tests and [BEGIN]."""
        rows = self._rows()
        problems = {number: (where, row) for where, row in rows if (number := _number(row, where))}
        lacking = [number for number in SHOWN[: self.shots] if number not in problems]
        if lacking:
            raise UsageError(f"{rows[0][0].path} lacks the examples {lacking} of the published prompt; lower shots")
        shown = [problems[number] for number in SHOWN[: self.shots]]
        examples = [f"{self._head(where, row)}{raw(row, 'code', where)}\n[DONE]\n\n" for where, row in shown]
        prompts = [
            Prompt(f"mbpp/{number}", "".join(examples) + self._head(where, row), data=self._data(where, row))
            for where, row in rows
            if (number := _number(row, where)) in TESTED
        ]
        return unique(prompts, str(rows[0][0].path))

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Run the program against the tests, in the sandbox."""
        setup, tests, names = (prompt.data[key] for key in ("setup", "tests", "names"))
        code = f"{setup}\n{body(as_text(output))}\n"
        return {"pass@1": float(sandbox.run(code, f"{setup}\n{tests}\n", names, limits=self._limits()).passed)}

    def _rows(self) -> list[tuple[Where, Row]]:
        if not self.hub:
            return DATA[self.variant].rows(self.file, "", "")
        splits = ("prompt", "test") if self.shots else ("test",)
        return [row for split in splits for row in DATA[self.variant].rows("", self.hub, split)]

    def _head(self, where: Where, row: Row) -> str:
        tests = "\n".join(texts(row, "test_list", where, least=1))
        return HEAD.format(raw(row, QUESTION[self.variant], where), tests)

    def _data(self, where: Where, row: Row) -> dict[str, object]:
        before = [str(row.get("test_setup_code") or ""), *texts({"test_imports": (), **row}, "test_imports", where)]
        tests = "\n".join(texts(row, "test_list", where))
        question = raw(row, QUESTION[self.variant], where)
        names = re.findall(r"^(?:def|class)\s+(\w+)", raw(row, "code", where), re.MULTILINE)
        return {"asked": question, "setup": "\n".join(filter(None, before)), "tests": tests, "names": names}


def body(text: str) -> str:
    """Return the program in an output: the text before [DONE], or its first fenced block if it has one."""
    text = until(text, ("[DONE]",))
    block = FENCED.search(text)
    return block[1] if block else text


def _number(row: Row, where: Where) -> int:
    number = row.get("task_id")
    if not isinstance(number, int) or number < 1:
        raise where.fault(f"task_id is {number!r}, not a number from 1")
    return number
