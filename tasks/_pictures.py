"""What the tasks of pictures share: which prompts, and the scorers of what came of them."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, final

from harness.core.task import Prompt, Scored, SetScore, Task
from harness.errors import UsageError
from tasks.metrics import images
from tasks.metrics.clip import OPENAI


@dataclass(frozen=True)
class PictureTask(Task):
    """Prompts for pictures, scored as a set.

    Args:
        n: how many of the prompts; 0: all. seed: which ones, if not all; they stay in the order of the file.
        scorers: names such as ``clip_score, fid``, in one text or a tuple; their weights must be at hand.
        weights, reference, minimum, clip_model, clip_weights: see ``tasks.metrics.images.Settings``.
    """

    n: int = 0
    seed: int = 0
    scorers: tuple[str, ...] | str = ()
    weights: str = ""
    reference: str = ""
    minimum: int = 0
    clip_model: str = OPENAI
    clip_weights: str = ""

    modality = "image"
    eos = False
    set_metrics = images.FIGURES
    own: ClassVar[Mapping[str, images.Scorer]] = {}
    """The benchmark's own figures, computed whatever ``scorers`` says."""

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            UsageError: a number below 0, or an unknown scorer.
        """
        if self.n < 0 or self.minimum < 0:
            raise UsageError(f"n is {self.n} and minimum {self.minimum}; both must be 0 or more")
        images.names(self.scorers)

    @abstractmethod
    def every(self) -> Sequence[Prompt]:
        """All prompts of the data, in its order, with unique ids.

        Raises:
            UsageError: the data is missing or malformed.
        """

    @final
    def prompts(self) -> Sequence[Prompt]:
        return choose(self.every(), self.n, self.seed)

    @final
    def score_set(self, outputs: Sequence[Scored]) -> dict[str, SetScore]:
        settings = images.Settings(self.weights, self.reference, self.minimum, self.clip_model, self.clip_weights)
        return images.score(self.scorers, outputs, settings, self.own)


def choose(prompts: Sequence[Prompt], n: int, seed: int) -> Sequence[Prompt]:
    """``n`` of the prompts (0: all), in their order; which ones depends on the seed and on their ids alone."""
    if not n or n >= len(prompts):
        return tuple(prompts)
    ranked = sorted(prompts, key=lambda prompt: hashlib.sha256(f"{seed}/{prompt.id}".encode()).digest())
    kept = {prompt.id for prompt in ranked[:n]}
    return tuple(prompt for prompt in prompts if prompt.id in kept)
