"""Solve a 4x4 sudoku of which few cells are given; any valid grid that keeps them is right.

Most puzzles have several answers, so cells that are filled in one pass, each independently, contradict each other.
Fewer passes therefore cost quality with any model, and the order of the cells matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stridebench.harness.core.task import Prompt, Scored, SetScore, Task
from stridebench.harness.errors import within
from stridebench.harness.record.outputs import Output, as_text
from stridebench.harness.registry import TASKS
from stridebench.harness.synthetic import sudoku
from stridebench.tasks.metrics.perplexity import distinct, judge, perplexity

GRAMS = (2, 4, 8)
MOST = 2000
"""Most puzzles that a task may have; some thousands exist."""
ONE, FEW = 1, 6
"""Bounds of the categories: puzzles with one answer, with up to six, with more."""


@TASKS.register("sudoku")
@dataclass(frozen=True)
class SudokuTask(Task):
    """Solve held-out puzzles: their texts were not trained on. Training saw all 288 grids.

    - ``solved`` is 1 if every row, column and box has each digit once and the given cells are kept.
    - ``units`` is the share of the 12 rows, columns and boxes that have each digit once.
    - ``nats`` is minus the log-probability of a token under the judge.

    Args:
        limit: number of puzzles.
        seed: of the draw.
        judge: model that computes the perplexity of the answers: weights of the package (the autoregressive twin), or
            a folder of a causal model of transformers.
    """

    limit: int = 64
    seed: int = 0
    judge: str = "sudoku-ar"

    source = "4x4 sudokus of this project (harness/synthetic/sudoku.py)"
    metrics = ("solved", "units", "nats")
    set_metrics = ("generative_perplexity", *(f"distinct_{n}" for n in GRAMS))
    eos = False

    def __post_init__(self) -> None:
        within("the task sudoku", 1, MOST, limit=self.limit)
        within("the task sudoku", 0, seed=self.seed)

    def prompts(self) -> Sequence[Prompt]:
        """Return different puzzles; the category is the number of answers."""
        puzzles: dict[str, None] = {}
        for puzzle in sudoku.puzzles(np.random.default_rng(self.seed), held_out=True):
            puzzles[puzzle.clues] = None
            if len(puzzles) == self.limit:
                break
        return tuple(
            Prompt(f"sudoku/{index}", cells + sudoku.ASK, category=_kind(cells), data={"shown": cells})
            for index, cells in enumerate(puzzles)
        )

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Return all three scores; an empty answer lacks ``nats``."""
        text = as_text(output)
        units = 1 - sudoku.faults(text) / len(sudoku.UNITS)
        scores = {"solved": float(sudoku.solves(prompt.data["shown"], text)), "units": units}
        if text:
            scores["nats"] = float(judge(self.judge).nats(prompt.text or "", text).mean())
        return scores

    def score_set(self, outputs: Sequence[Scored]) -> dict[str, SetScore]:
        """Return the perplexity under the judge, and distinct-n over characters."""
        judged = [scored for scored in outputs if "nats" in scored.scores]
        ids, nats = [scored.prompt.id for scored in judged], [scored.scores["nats"] for scored in judged]
        texts: dict[str, list[str]] = {}
        for scored in outputs:
            texts.setdefault(scored.prompt.id, []).append(as_text(scored.output))
        figures = {"generative_perplexity": perplexity(ids, nats, len(outputs) - len(judged))}
        return figures | {f"distinct_{n}": distinct(texts, n) for n in GRAMS}


def _kind(cells: str) -> str:
    count = sudoku.answers(cells)
    return "one answer" if count == ONE else f"2 to {FEW} answers" if count <= FEW else f"over {FEW} answers"
