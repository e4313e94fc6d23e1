"""A decoder of transformers between an embedding and a head of its own, over the slot cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from harness.backbones.checkpoints import transformers_models
from harness.backbones.image.published.family import Request
from harness.backbones.slots.net import SlotInputs
from harness.backbones.slots.transformers_net import honours_masks, pick_layers, transformers_arguments
from harness.errors import WeightsError

Embed = Callable[[Tensor], Tensor]


@final
class DecoderNet:
    """The forward of a multimodal model's text decoder.

    Args:
        decoder: a base model of transformers.
        embed: vectors of ids.
        head: logits of hidden rows.
    """

    kind = "transformers"

    def __init__(self, decoder: Any, embed: Embed, head: Embed) -> None:
        self.decoder, self._embed, self._head = decoder, embed, head
        self.layers = int(decoder.config.get_text_config().num_hidden_layers)

    def __call__(self, inputs: SlotInputs, rows: int) -> Float[Tensor, "R V"]:
        """Logits of the last R rows."""
        out = self.decoder(inputs_embeds=self._embed(inputs.tokens)[None], **transformers_arguments(inputs))
        hidden = out.last_hidden_state[0]
        return self._head(hidden[len(hidden) - rows :])

    def pick(self, layers: Sequence[int]) -> DecoderNet:
        """The same tensors in a decoder of fewer layers; the original is not changed."""
        return DecoderNet(pick_layers(self.decoder, layers), self._embed, self._head)


def checked(name: str, net: DecoderNet, device: str, dtype: torch.dtype) -> DecoderNet:
    """The net. WeightsError: it ignores masks, so that it could verify no tree in one pass."""
    if not honours_masks(net, torch.device(device), dtype):
        raise WeightsError(
            f"{name}: {type(net.decoder).__name__} of this transformers ignores masks; use another version"
        )
    return net


def read_pretrained(request: Request, folder: Path, kind: type[Any], config: Any, unused: tuple[str, ...] = ()) -> Any:
    """A model of transformers from a folder, on its device, in evaluation mode (see `transformers_models.read_whole`).

    Raises:
        WeightsError: a file is damaged, or tensors are missing or of another shape.
    """
    model = transformers_models.read_whole(request.name, folder, kind, unused, config=config, dtype=request.dtype)
    return model.to(request.device).eval().requires_grad_(False)


def read_config(request: Request, folder: Path, kind: type[Any]) -> Any:
    """The configuration of a folder.

    Raises:
        WeightsError: there is none, or it is another model's.
    """
    with transformers_models.one_error(request.name, folder, f"has no configuration of {kind.model_type}"):
        return kind.from_pretrained(folder, local_files_only=True)
