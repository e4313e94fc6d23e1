"""Answer a 4x4 sudoku of which few cells are given; any grid that keeps them is right.

Most puzzles have several answers, so that cells filled at once, each by its own law, contradict each other: here fewer
passes cost quality whatever the model is, and which cells come first matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.core.task import Prompt, Scored, SetScore, Task
from harness.errors import UsageError
from harness.record.outputs import Output, as_text
from harness.registry import TASKS
from harness.synthetic import sudoku
from tasks.metrics.perplexity import distinct, judge, perplexity

GRAMS = (2, 4, 8)
MOST = 2000
"""Puzzles that can be asked for; there are some thousands."""
ONE, FEW = 1, 6
"""Puzzles by how many grids they allow: one, up to six, more."""


@TASKS.register("sudoku")
@dataclass(frozen=True)
class SudokuTask(Task):
    """Held-out puzzles: their text never stood in training, whose grids are all of the 288.

    ``solved`` is 1 where rows, columns and boxes hold every digit once and the given cells are kept; ``units`` is the
    share of the 12 rows, columns and boxes that hold every digit once; ``nats`` a token are those of the judge.

    Args:
        n: puzzles. seed: another draw of them. judge: whose perplexity of the answers is told: weights of the package
            (the autoregressive twin), or a folder of a causal model of transformers.
    """

    n: int = 64
    seed: int = 0
    judge: str = "sudoku-ar"

    source = "4x4 sudokus of this project (harness/worlds/sudoku.py)"
    metrics = ("solved", "units", "nats")
    set_metrics = ("generative_perplexity", *(f"distinct_{n}" for n in GRAMS))
    eos = False

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UsageError: a number of puzzles outside 1 to 2000, or a seed below 0.
        """
        if not 1 <= self.n <= MOST or self.seed < 0:
            raise UsageError(
                f"the task sudoku was given n={self.n}, seed={self.seed}; n must be 1 to {MOST} and seed 0 or more"
            )

    def prompts(self) -> Sequence[Prompt]:
        """Different puzzles; the category is how many grids each allows."""
        shown: dict[str, None] = {}
        for puzzle in sudoku.puzzles(np.random.default_rng(self.seed), held_out=True):
            shown[puzzle.shown] = None
            if len(shown) == self.n:
                break
        return tuple(
            Prompt(f"sudoku/{index}", cells + sudoku.ASK, category=_kind(cells), data={"shown": cells})
            for index, cells in enumerate(shown)
        )

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """All three; no ``nats`` of an empty answer."""
        text = as_text(output)
        units = 1 - sudoku.faults(text) / len(sudoku.UNITS)
        found = {"solved": float(sudoku.solves(prompt.data["shown"], text)), "units": units}
        if text:
            found["nats"] = float(judge(self.judge).nats(prompt.text or "", text).mean())
        return found

    def score_set(self, outputs: Sequence[Scored]) -> dict[str, SetScore]:
        """Perplexity under the judge, and distinct-n over characters."""
        told = [one for one in outputs if "nats" in one.scores]
        ids, nats = [one.prompt.id for one in told], [one.scores["nats"] for one in told]
        texts: dict[str, list[str]] = {}
        for one in outputs:
            texts.setdefault(one.prompt.id, []).append(as_text(one.output))
        found = {"generative_perplexity": perplexity(ids, nats, len(outputs) - len(told))}
        return found | {f"distinct_{n}": distinct(texts, n) for n in GRAMS}


def _kind(shown: str) -> str:
    count = sudoku.answers(shown)
    return "one answer" if count == ONE else f"2 to {FEW} answers" if count <= FEW else f"over {FEW} answers"
