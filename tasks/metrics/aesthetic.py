"""LAION's improved aesthetic predictor: linear maps of the embedding of OpenAI's CLIP ViT-L/14; about 1 to 10.

Source: christophschuhmann/improved-aesthetic-predictor, simple_inference.py.
"""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from stridebench.harness.core.task import SetScore
from stridebench.tasks.metrics import image_weights as weights
from stridebench.tasks.metrics.clip import Clip
from stridebench.tasks.metrics.image_stats import PictureSet, mean

WIDTH = 768


class Head(nn.Module):
    """768 -> 1024 -> 128 -> 64 -> 16 -> 1 without activations. Layers are numbered as in the checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        first = (nn.Linear(WIDTH, 1024), nn.Dropout(0.2), nn.Linear(1024, 128), nn.Dropout(0.2))
        self.layers = nn.Sequential(*first, nn.Linear(128, 64), nn.Dropout(0.1), nn.Linear(64, 16), nn.Linear(16, 1))

    def forward(self, embedding: Float[Tensor, "N 768"]) -> Float[Tensor, " N"]:
        """Return a score for each unit embedding."""
        scores: Tensor = self.layers(embedding)
        return scores[:, 0]


def open_head(folder: str) -> Head:
    """Open the published head.

    Raises:
        WeightsError: its file is missing or has another layout.
    """
    return load_head(weights.find(weights.AESTHETIC, folder))


def load_head(path: Path) -> Head:
    """Read a head from a file.

    Raises:
        WeightsError: the file cannot be read or does not fit.
    """
    head = Head()
    weights.fill(head, weights.read(path), path)
    return head.eval()


def aesthetic(picture_set: PictureSet, clip: Clip, head: Head) -> SetScore:
    """Return the mean predicted score of the pictures; prompts are not used."""
    if not picture_set.pictures:
        return mean((), (), picture_set.failures)
    with torch.inference_mode():
        scores = head(torch.from_numpy(clip.pictures(picture_set.pictures)).float())
    return mean(picture_set.ids, scores.tolist(), picture_set.failures)
