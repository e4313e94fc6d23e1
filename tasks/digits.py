"""Draw a handwritten digit of a named class. It is right if the nearest real digits have that class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stridebench.harness.core.task import Prompt, Task
from stridebench.harness.errors import within
from stridebench.harness.record.outputs import Output, as_picture
from stridebench.harness.registry import TASKS
from stridebench.harness.synthetic import digits

if TYPE_CHECKING:
    from jaxtyping import Int, UInt8

NEIGHBOURS = 3


@TASKS.register("digits")
@dataclass(frozen=True)
class DigitPictures(Task):
    """Draw a digit of a class; classes in turn, so that every ten prompts are balanced.

    ``named`` is 1 if the majority of the three nearest training digits has the class of the prompt. The same rule
    classifies 98.3 % of the 299 held-out real digits correctly.

    Args:
        limit: number of prompts.
    """

    limit: int = 40

    source = "scikit-learn digits (UCI Optical Recognition of Handwritten Digits, CC BY 4.0)"
    modality = "image"
    metrics = ("named",)
    eos = False

    def __post_init__(self) -> None:
        within("the task digits", 1, limit=self.limit)

    def prompts(self) -> Sequence[Prompt]:
        """Return captions such as "digit 3"; ``data["label"]`` is the class."""
        labels = [index % digits.CLASSES for index in range(self.limit)]
        return tuple(
            Prompt(
                f"digits/{index}", digits.caption(label), category=str(label), data={"label": label}, cluster=str(label)
            )
            for index, label in enumerate(labels)
        )

    def score(self, prompt: Prompt, output: Output, tokens: Sequence[int]) -> dict[str, float]:
        """Return ``named``, which is 1 or 0."""
        classes = classify(digits.levels(as_picture(output))[None])
        return {"named": float(classes[0] == prompt.data["label"])}


def classify(pictures: UInt8[np.ndarray, "n 8 8"]) -> Int[np.ndarray, " n"]:
    """Return the class of each picture: the majority of its three nearest training digits."""
    training = digits.load("train")
    pixels = training.levels.reshape(len(training.labels), -1).astype(np.int64)
    queries = pictures.reshape(len(pictures), -1).astype(np.int64)
    distances = (pixels**2).sum(1) - 2 * queries @ pixels.T
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :NEIGHBOURS]
    votes = training.labels[nearest][:, :, None] == np.arange(digits.CLASSES)
    classes: Int[np.ndarray, " n"] = votes.sum(1).argmax(1)
    return classes
