"""The 7,000 problems of GSM8K on which Cross-Regression trains its adapters.

Source: Abulkhanov et al., Cross-Regression, appendix D.1. The seed is not given there; here draws are seeded, and no
prompt is a benchmark's (equal texts, whatever their case and white space; not similar ones). Clipping to 2,048 tokens
is left to the training, which knows the tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.core.task import Prompt, Task
from harness.registry import TASKS
from tasks.gsm8k import Gsm8k
from tasks.loaders.conversations import marks
from tasks.loaders.mixtures import draw, names, place


@TASKS.register("gsm8k_7k")
@dataclass(frozen=True)
class Gsm8k7k(Task):
    """Prompts to train on: problems of GSM8K's training split, drawn with a seed.

    Args:
        count: of the 7,473. seed: of the draw and of the order. file: train.jsonl, or hub:official. form: see the
            task gsm8k.
        without: tasks none of whose prompts may be among these; their data must be at hand.
    """

    count: int = 7000
    seed: int = 0
    file: str = ""
    form: str = "qa"
    without: tuple[str, ...] | str = field(default=("gsm8k",))

    source = "Cross-Regression, appendix D.1; arXiv:2110.14168"

    def prompts(self) -> Sequence[Prompt]:
        """``count`` prompts, in a random order.

        Raises:
            UsageError: data is missing, or there are too few problems.
        """
        found = Gsm8k("train", *place(self.file), form=self.form).prompts()
        return tuple(draw("gsm8k", found, self.count, self.seed, marks(names(self.without))))
