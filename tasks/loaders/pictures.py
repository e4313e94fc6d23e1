"""Base class of picture tasks: the choice of prompts, and the scorers of the pictures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, final

from stridebench.harness.core.task import Prompt, Scored, SetScore, Task
from stridebench.harness.errors import one_of, within
from stridebench.tasks.loaders.texts import ranked
from stridebench.tasks.metrics import images
from stridebench.tasks.metrics.image_weights import OPENAI


@dataclass(frozen=True)
class PictureTask(Task):
    """A task of pictures, which are scored as a set.

    Args:
        limit: number of prompts; 0 takes all.
        seed: chooses the prompts if not all are taken. They stay in the order of the file.
        scorers: names such as ``clip_score, fid``, in one text or a tuple. Their weights must be installed.
        weights: see ``stridebench.tasks.metrics.images.Settings``, as for the following parameters.
        reference: real pictures or their statistics.
        minimum: fewest pictures of a Frechet distance.
        clip_model: name of the CLIP model.
        clip_weights: its checkpoint.
        clip_prefix: text before every prompt that CLIP reads.
        clip_resize: "", lanczos-256 or bilinear-299.
    """

    limit: int = 0
    seed: int = 0
    scorers: tuple[str, ...] | str = ()
    weights: str = ""
    reference: str = ""
    minimum: int = 0
    clip_model: str = OPENAI
    clip_weights: str = ""
    clip_prefix: str = ""
    clip_resize: str = ""

    modality = "image"
    eos = False
    set_metrics = images.FIGURES
    optional_set_metrics = images.FIGURES
    own: ClassVar[Mapping[str, images.Scorer]] = {}
    """Figures of the benchmark, computed whatever ``scorers`` says."""

    def __post_init__(self) -> None:
        within("a task of pictures", 0, limit=self.limit, minimum=self.minimum)
        one_of("a task of pictures", "clip_resize", self.clip_resize, images.RESIZES)
        images.names(self.scorers)

    @abstractmethod
    def every(self) -> Sequence[Prompt]:
        """Return all prompts in the order of the data, with unique ids."""

    @final
    def prompts(self) -> Sequence[Prompt]:
        if self.reference:
            images.reference_files(Path(self.reference).expanduser())  # before the first decode
        return choose(self.every(), self.limit, self.seed)

    @final
    def score_set(self, outputs: Sequence[Scored]) -> dict[str, SetScore]:
        settings = images.Settings(**{field.name: getattr(self, field.name) for field in fields(images.Settings)})
        return images.score(self.scorers, outputs, settings, self.own)


def choose(prompts: Sequence[Prompt], n: int, seed: int) -> Sequence[Prompt]:
    """Choose ``n`` of the prompts (0: all) by the seed and their ids alone. They stay in order."""
    if not n or n >= len(prompts):
        return tuple(prompts)
    chosen = {prompt.id for prompt in ranked(prompts, seed)[:n]}
    return tuple(prompt for prompt in prompts if prompt.id in chosen)
