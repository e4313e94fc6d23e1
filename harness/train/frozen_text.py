"""Frozen models that an adapter is trained on: their linear layers and their logits under a mask. Here: of text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple, final

import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from stridebench.harness.backbones.slots import gated
from stridebench.harness.backbones.slots.transformers_net import TransformersNet
from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.errors import UsageError
from stridebench.harness.train import windows
from stridebench.harness.train.teacher import Passage
from stridebench.harness.train.windows import Windows


class WindowedTokens(NamedTuple):
    """What a pass of a frozen model reads.

    Args:
        ids: of a text and its windows.
        windows: what each row sees.
        places: positions.
        condition: of the passage.
    """

    ids: Int[Tensor, " N"]
    windows: Windows
    places: Int[Tensor, " N"]
    condition: npt.NDArray[Any] | None

    def mask(self) -> Float[Tensor, "1 1 N N"]:
        """What the windows mean for attention scores, to be added to them."""
        visible = self.windows.visible()
        return torch.zeros(visible.shape, device=visible.device).masked_fill(~visible, -torch.inf)[None, None]


class FrozenModel(ABC):
    """The model.

    Attributes:
        backbone: the adapter is tied to its fingerprint.
        model: of transformers.
        linears: layers that may have low-rank matrices, by name.
        task: peft's name of the model's task.
        hears: samples of the longest recording that it reads; 0: it reads none.
    """

    backbone: Backbone
    model: Any
    linears: Mapping[str, nn.Linear]
    task: str | None
    hears: int

    @abstractmethod
    def logits(self, inputs: WindowedTokens) -> Float[Tensor, "N V"]:
        """One pass over the tokens."""

    @abstractmethod
    def transcript(self, recording: npt.NDArray[Any]) -> Passage:
        """The greedy transcript of a recording.

        Raises:
            UsageError: the model reads no recordings.
        """


@final
class FrozenText(FrozenModel):
    """A language model, through the forward of transformers.

    Args:
        name: of a preset.
        params: of its adapter.
        device: where it is.
        dtype: its type.
    """

    task = "CAUSAL_LM"
    hears = 0

    def __init__(self, name: str, params: Mapping[str, Any], device: str = "cpu", dtype: str = "fp32") -> None:
        self.backbone = backbone = HFCausal.load(name, {**params, "forward": "transformers"}, dtype, device)
        assert isinstance(backbone._net, TransformersNet), "what forward: transformers asks for"
        self.model = backbone._net.model
        self.linears = gated.linears(self.model)
        self._in_blocks = windows.prepare(self.model)

    def logits(self, inputs: WindowedTokens) -> Float[Tensor, "N V"]:
        """The condition is ignored. Attention goes block by block where transformers lets it."""
        mask = inputs.ids.new_zeros(1, 1, 1, 1) if self._in_blocks else inputs.mask()  # blocks make their own masks
        with windows.read(inputs.windows) if self._in_blocks else nullcontext():
            out = self.model(
                input_ids=inputs.ids[None], attention_mask=mask, position_ids=inputs.places[None], use_cache=False
            )
        logits: Tensor = out.logits[0]
        return logits

    def transcript(self, recording: npt.NDArray[Any]) -> Passage:
        """Always refused."""
        raise UsageError(f"{self.backbone.name} reads text; recordings are for a backbone of whisper")
