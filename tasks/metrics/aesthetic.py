"""LAION's improved aesthetic predictor: a stack of linear maps on OpenAI's CLIP ViT-L/14 embedding; about 1 to 10.

Source: christophschuhmann/improved-aesthetic-predictor, simple_inference.py.
"""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from harness.core.task import SetScore
from tasks.metrics import image_weights as weights
from tasks.metrics.clip import Clip
from tasks.metrics.image_stats import Shown, mean

WIDTH = 768


class Head(nn.Module):
    """768 -> 1024 -> 128 -> 64 -> 16 -> 1 without activations; numbered as in the checkpoint, dropouts included."""

    def __init__(self) -> None:
        super().__init__()
        first = (nn.Linear(WIDTH, 1024), nn.Dropout(0.2), nn.Linear(1024, 128), nn.Dropout(0.2))
        self.layers = nn.Sequential(*first, nn.Linear(128, 64), nn.Dropout(0.1), nn.Linear(64, 16), nn.Linear(16, 1))

    def forward(self, embedding: Float[Tensor, "N 768"]) -> Float[Tensor, " N"]:
        """A score for each unit embedding."""
        found: Tensor = self.layers(embedding)
        return found[:, 0]


def open_head(folder: str) -> Head:
    """The published head.

    Raises:
        WeightsError: its file is absent or of another layout.
    """
    return load_head(weights.find(weights.AESTHETIC, folder))


def load_head(path: Path) -> Head:
    """A head from a file.

    Raises:
        WeightsError: the file cannot be read or does not fit.
    """
    head = Head()
    weights.fill(head, weights.read(path), path)
    return head.eval()


def aesthetic(seen: Shown, clip: Clip, head: Head) -> SetScore:
    """Mean predicted score of the pictures; prompts play no part."""
    if not seen.pictures:
        return mean((), (), seen.failures)
    with torch.inference_mode():
        found = head(torch.from_numpy(clip.pictures(seen.pictures)).float())
    return mean(seen.ids, found.tolist(), seen.failures)
