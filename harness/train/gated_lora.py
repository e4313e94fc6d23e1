"""Low-rank matrices that learn beside a frozen model; only gated rows use them, as in decoding.

Source: Hu et al. 2021, LoRA, arXiv:2106.09685.
Axes: N tokens of a text, n windows of it, W rows of a window, V vocabulary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from stridebench.harness.backbones.slots import gated, lora
from stridebench.harness.backbones.slots.lora import LowRank
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets
from stridebench.harness.train.frozen_speech import FrozenSpeech
from stridebench.harness.train.frozen_text import FrozenModel, FrozenText, WindowedTokens
from stridebench.harness.train.windows import Windows

MODELS: dict[str, type[FrozenText] | type[FrozenSpeech]] = {"hf_causal": FrozenText, "whisper": FrozenSpeech}
"""The frozen model of each adapter of backbones."""


class Streams(NamedTuple):
    """Logits for each token of each window: of the text's own rows (control), and of the gated rows (predictive)."""

    control: Float[Tensor, "n W V"]
    predictive: Float[Tensor, "n W V"]


class Place(NamedTuple):
    """Where a frozen model is, and its type."""

    device: str = "cpu"
    dtype: str = "fp32"


ON_CPU = Place()


class GatedLora(nn.Module):
    """The matrices. The frozen model is not part of their state.

    Args:
        name: of a backbone of the adapter hf_causal or whisper.
        rank: of the matrices.
        alpha: their product is scaled by alpha / rank.
        layers: first and last layer that has matrices; None: all.
        place: of the frozen model. The matrices are in fp32.

    Raises:
        UsageError: the backbone is of another adapter, or has no such layers.
        WeightsError: its weights cannot be had.
    """

    def __init__(
        self, name: str, rank: int, alpha: int, layers: tuple[int, int] | None = None, place: Place = ON_CPU
    ) -> None:
        super().__init__()
        presets.fetch(name)
        spec = presets.resolve(name)
        if spec.adapter not in MODELS:
            raise UsageError(
                f"{name} is a backbone of {spec.adapter}; adapters are trained for those of {', '.join(MODELS)}"
            )
        self.frozen: FrozenModel = MODELS[spec.adapter](name, spec.params, *place)
        self.backbone, self.rank, self.alpha = self.frozen.backbone, rank, alpha
        self._linears = {key: layer for key, layer in self.frozen.linears.items() if _within(key, layers)}
        count = _count(self.frozen.linears)
        if not self._linears or (layers is not None and not 0 <= layers[0] <= layers[1] < count):
            raise UsageError(f"{name} has no linear layers in {layers}; it has {count} layers from 0")
        self.down = nn.ParameterList(
            nn.Parameter(torch.empty(rank, layer.in_features)) for layer in self._linears.values()
        )
        self.up = nn.ParameterList(
            nn.Parameter(torch.zeros(layer.out_features, rank)) for layer in self._linears.values()
        )
        for matrix in self.down:
            nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))  # as peft does

    @property
    def device(self) -> torch.device:
        """Where the matrices are."""
        matrix: Tensor = self.down[0]
        return matrix.device

    def forward(
        self,
        text: Int[Tensor, " N"],
        windows: Int[Tensor, "n W"],
        roots: Int[Tensor, " n"],
        condition: npt.NDArray[Any] | None = None,
    ) -> Streams:
        """One pass over a text and its windows.

        Args:
            text: its tokens.
            windows: tokens that each window reads. The first is the text's token at the root, which is read again.
            roots: position of the first token of each window.
            condition: the recording that the text was transcribed from.

        Returns:
            Both streams. Control rows past the end of the text repeat its last row.
        """
        count, (number, width) = len(text), windows.shape
        row = torch.arange(count + windows.numel(), device=text.device)
        window, slot = (row - count) // width, (row - count) % width
        gate, root = row >= count, roots[window.clamp_min(0)]
        places = torch.where(gate, root + slot, row)
        scale = self.alpha / self.rank
        pairs = [
            (layer, LowRank(down, up * scale))
            for layer, down, up in zip(self._linears.values(), self.down, self.up, strict=True)
        ]
        ids = torch.cat([text, windows.flatten()])
        with gated.hooked(pairs, gate[:, None].float()):
            logits = self.frozen.logits(WindowedTokens(ids, Windows(count, roots, width), places, condition))
        rows = (roots[:, None] + torch.arange(width, device=roots.device)).clamp_max(count - 1)
        return Streams(logits[rows], logits[count:].view(number, width, -1))

    def export(self, folder: Path) -> None:
        """Write the matrices in bf16 as peft reads them, and config.json, which ties them to the backbone."""
        pairs = zip(self._linears, self.down, self.up, strict=True)
        layers = {key: LowRank(down, up) for key, down, up in pairs}
        tie = {"backbone": self.backbone.name, "fingerprint": self.backbone.fingerprint}
        lora.write(folder, layers, self.alpha, self.frozen.task, tie)


def _count(linears: Mapping[str, nn.Linear]) -> int:
    return len({match[1] for key in linears if (match := re.search(r"\.(\d+)\.", key))})


def _within(key: str, layers: tuple[int, int] | None) -> bool:
    match = re.search(r"\.(\d+)\.", key)
    return layers is None or (match is not None and layers[0] <= int(match[1]) <= layers[1])
