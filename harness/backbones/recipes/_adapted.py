"""A frozen language model with low-rank matrices that learn, and whose gated rows alone read them, as in decoding.

Source: Hu et al. 2021, LoRA, arXiv:2106.09685. Axes: N tokens of a text, n windows of it, W rows of each, V vocabulary.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn

from harness import presets
from harness.backbones._lora import PREFIX, LowRank
from harness.backbones.hf_causal import HFCausal
from harness.backbones.nets import gated
from harness.backbones.nets.generic import TransformersNet
from harness.errors import UsageError


class Streams(NamedTuple):
    """Logits of the rows of the text that give the tokens of each window, and of the gated rows that draft them."""

    control: Float[Tensor, "n W V"]
    predictive: Float[Tensor, "n W V"]


class Adapted(nn.Module):
    """The adapter; the model that it belongs to is no part of its state.

    Args:
        name: of a backbone that hf_causal serves. rank, alpha: of the matrices. layers: first and last to have some.

    Raises:
        UsageError: another kind of backbone, or one without such layers. WeightsError: its weights cannot be had.
    """

    def __init__(self, name: str, rank: int, alpha: int, layers: tuple[int, int] | None = None) -> None:
        super().__init__()
        presets.fetch(name)
        spec = presets.resolve(name)
        if spec.adapter != "hf_causal":
            raise UsageError(f"{name} is a backbone of {spec.adapter}; rows are gated of those of hf_causal")
        backbone = HFCausal.load(name, {**spec.params, "forward": "transformers"}, "fp32", "cpu")
        assert isinstance(backbone._net, TransformersNet), "what forward: transformers asks for"
        self.backbone, self.rank, self.alpha = backbone, rank, alpha
        self._model = (backbone._net.model,)  # in a tuple, which torch takes for no part of this module
        self._linears = {key: layer for key, layer in gated.linears(self._model[0]).items() if _within(key, layers)}
        if not self._linears:
            raise UsageError(f"{name} has no linear layers in {layers}; it has {backbone.offers.layers} layers from 0")
        self.down = nn.ParameterList(
            nn.Parameter(torch.empty(rank, each.in_features)) for each in self._linears.values()
        )
        self.up = nn.ParameterList(
            nn.Parameter(torch.zeros(each.out_features, rank)) for each in self._linears.values()
        )
        for matrix in self.down:
            nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))  # as peft does

    def forward(self, text: Int[Tensor, " N"], windows: Int[Tensor, "n W"], roots: Int[Tensor, " n"]) -> Streams:
        """One pass over a text and its windows.

        Args:
            windows: what each reads, its first token being the text's at ``roots``, which is read again.
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
            logits = self._model[0](
                input_ids=torch.cat([text, windows.flatten()])[None],
                attention_mask=mask[None, None],
                position_ids=places[None],
                use_cache=False,
            ).logits[0]
        rows = roots[:, None] + torch.arange(width)
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
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": self.backbone.name,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "bias": "none",
            "target_modules": sorted(self._linears),
        }
        tie = {"backbone": self.backbone.name, "fingerprint": self.backbone.fingerprint}
        for name, body in (("adapter_config.json", how), ("config.json", tie)):
            (folder / name).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def _within(key: str, layers: tuple[int, int] | None) -> bool:
    found = re.search(r"\.(\d+)\.", key)
    return layers is None or (found is not None and layers[0] <= int(found[1]) <= layers[1])
