"""A frozen model with low-rank matrices that learn, and whose gated rows alone read them, as in decoding.

Source: Hu et al. 2021, LoRA, arXiv:2106.09685. Axes: N tokens of a text, n windows of it, W rows of each, V vocabulary.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn

from harness.backbones.slots import gated
from harness.backbones.slots.lora import PREFIX, LowRank
from harness.errors import UsageError
from harness.plan import presets
from harness.train.frozen_speech import FrozenSpeech
from harness.train.frozen_text import FrozenModel as FrozenModel
from harness.train.frozen_text import FrozenText

BODIES: dict[str, type[FrozenText] | type[FrozenSpeech]] = {"hf_causal": FrozenText, "whisper": FrozenSpeech}
"""By the adapter of a backbone."""


class Streams(NamedTuple):
    """Logits of the rows of the text that give the tokens of each window, and of the gated rows that draft them."""

    control: Float[Tensor, "n W V"]
    predictive: Float[Tensor, "n W V"]


class GatedLora(nn.Module):
    """The adapter; the model that it belongs to is no part of its state.

    Args:
        name: of a backbone that hf_causal or whisper serves. rank, alpha: of the matrices. layers: first and last to
            have some.

    Raises:
        UsageError: another kind of backbone, or one without such layers. WeightsError: its weights cannot be had.
    """

    def __init__(self, name: str, rank: int, alpha: int, layers: tuple[int, int] | None = None) -> None:
        super().__init__()
        presets.fetch(name)
        spec = presets.resolve(name)
        if spec.adapter not in BODIES:
            raise UsageError(
                f"{name} is a backbone of {spec.adapter}; adapters are trained for those of {', '.join(BODIES)}"
            )
        self.body: FrozenModel = BODIES[spec.adapter](name, spec.params)
        self.backbone, self.rank, self.alpha = self.body.backbone, rank, alpha
        self._linears = {key: layer for key, layer in self.body.linears.items() if _within(key, layers)}
        if not self._linears:
            raise UsageError(
                f"{name} has no linear layers in {layers}; it has {_count(self.body.linears)} layers from 0"
            )
        self.down = nn.ParameterList(
            nn.Parameter(torch.empty(rank, each.in_features)) for each in self._linears.values()
        )
        self.up = nn.ParameterList(
            nn.Parameter(torch.zeros(each.out_features, rank)) for each in self._linears.values()
        )
        for matrix in self.down:
            nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))  # as peft does

    def forward(
        self,
        text: Int[Tensor, " N"],
        windows: Int[Tensor, "n W"],
        roots: Int[Tensor, " n"],
        condition: npt.NDArray[Any] | None = None,
    ) -> Streams:
        """One pass over a text and its windows.

        Args:
            windows: what each reads, its first token being the text's at ``roots``, which is read again. condition: the
                recording that the text was written from. Control rows behind the text's end are its last one.
        """
        count, (number, width) = len(text), windows.shape
        at = torch.arange(count + windows.numel())
        block, inside = (at - count) // width, (at - count) % width
        gate = at >= count
        sees = (at[:, None] >= at[None, :]) & (~gate[:, None] & ~gate[None, :])
        sees |= gate[:, None] & ~gate[None, :] & (at[None, :] < roots[block.clamp_min(0)][:, None])
        sees |= gate[:, None] & (block[:, None] == block[None, :]) & (at[:, None] >= at[None, :])
        places = torch.where(gate, roots[block.clamp_min(0)] + inside, at)
        scale = self.alpha / self.rank
        pairs = [
            (layer, LowRank(down, up * scale))
            for layer, down, up in zip(self._linears.values(), self.down, self.up, strict=True)
        ]
        mask = torch.zeros(sees.shape).masked_fill(~sees, -torch.inf)
        with gated.hooked(pairs, gate[:, None].float()):
            logits = self.body.logits(torch.cat([text, windows.flatten()]), mask, places, condition)
        rows = (roots[:, None] + torch.arange(width)).clamp_max(count - 1)
        return Streams(logits[rows], logits[count:].view(number, width, -1))

    def export(self, folder: Path) -> None:
        """As peft reads it, in bf16, with the tie to the backbone beside."""
        folder.mkdir(parents=True, exist_ok=True)
        pairs = zip(self._linears, self.down, self.up, strict=True)
        tensors = {
            f"{PREFIX}{key}.lora_{side}.weight": matrix.detach().bfloat16().contiguous()
            for key, down, up in pairs
            for side, matrix in (("A", down), ("B", up))
        }
        save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        (folder / "adapter_model.safetensors").chmod(0o644)  # safetensors writes for the owner alone
        how = {
            "peft_type": "LORA",
            "task_type": self.body.task,
            "base_model_name_or_path": self.backbone.name,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "bias": "none",
            "target_modules": sorted(self._linears),
        }
        tie = {"backbone": self.backbone.name, "fingerprint": self.backbone.fingerprint}
        for name, body in (("adapter_config.json", how), ("config.json", tie)):
            (folder / name).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def _count(linears: Mapping[str, nn.Linear]) -> int:
    return len({found[1] for key in linears if (found := re.search(r"\.(\d+)\.", key))})


def _within(key: str, layers: tuple[int, int] | None) -> bool:
    found = re.search(r"\.(\d+)\.", key)
    return layers is None or (found is not None and layers[0] <= int(found[1]) <= layers[1])
