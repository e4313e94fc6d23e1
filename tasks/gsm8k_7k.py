"""The 7,000 problems of GSM8K on which Cross-Regression trains its adapters.

Source: Abulkhanov et al., Cross-Regression, appendix D.1. The paper gives no seed; here draws are seeded. Prompts that
equal a benchmark's up to case and white space are left out; similar prompts are not. The training clips to 2,048
tokens, because it knows the tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.registry import TASKS
from stridebench.tasks.gsm8k import Gsm8k
from stridebench.tasks.loaders.conversations import draw, marks, names, place


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
