"""A decoder of transformers between an embedding and a head of its own, over the slot cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from stridebench.harness.backbones.checkpoints import transformers_models
from stridebench.harness.backbones.image.published.family import PictureRequest
from stridebench.harness.backbones.slots import cache, transformers_net
from stridebench.harness.backbones.slots.cache import PackedWindow
from stridebench.harness.backbones.slots.net import Net, SlotInputs
from stridebench.harness.backbones.slots.transformers_net import honours_masks, pick_layers, transformers_arguments
from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.cache import Rows
from stridebench.harness.errors import WeightsError


@final
class DecoderNet:
    """The forward of a multimodal model's text decoder.

    Args:
        decoder: a base model of transformers; its attention is changed (see `transformers_packed`).
        tied: vectors of ids, and what the head computes.
        head: a faster way to the same logits; None: by the products of ``tied``.
    """

    kind = "transformers"

    def __init__(self, decoder: Any, tied: TiedEmbeddings, head: Callable[[Tensor], Tensor] | None = None) -> None:
        transformers_net.prepare(decoder)
        self.decoder, self._tied, self._head = decoder, tied, head or tied.logits
        self.layers = int(decoder.config.get_text_config().num_hidden_layers)

    def __call__(self, inputs: SlotInputs, rows: int) -> Float[Tensor, "R V"]:
        """Logits of the last R rows."""
        return self.tapped(inputs, rows, ()).logits

    def tied_embeddings(self) -> TiedEmbeddings:
        """As given."""
        return self._tied

    def tapped(self, inputs: SlotInputs, rows: int, taps: Sequence[int]) -> Rows:
        """The same, with transformers' ``hidden_states`` of the tapped layers, whose last entry is normed."""
        count = len(inputs.tokens)
        return self._read(inputs.tokens, transformers_arguments(inputs), slice(count - rows, None), taps)

    def joins(self, other: Net) -> bool:
        """Itself only."""
        return other is self

    def packed(self, tokens: Int[Tensor, " N"], positions: Int[Tensor, " N"], parts: Sequence[PackedWindow]) -> Rows:
        """Several sequences in one pass (see `packed`)."""
        arguments = transformers_net.arguments(positions, cache.layers(parts, 1))
        return self._read(tokens, arguments, cache.last_rows(parts), parts[0].window.taps)

    def _read(self, tokens: Tensor, arguments: dict[str, Any], rows: slice | list[int], taps: Sequence[int]) -> Rows:
        embedded = functional.embedding(tokens, self._tied.embed)[None]
        out = self.decoder(inputs_embeds=embedded, output_hidden_states=bool(taps), **arguments)
        hidden = torch.stack([out.hidden_states[tap][0] for tap in taps], 1)[:, None] if taps else None
        return Rows(self._head(out.last_hidden_state[0, rows]), hidden)

    def pick(self, layers: Sequence[int]) -> DecoderNet:
        """The same tensors in a decoder of fewer layers; the original is not changed."""
        return DecoderNet(pick_layers(self.decoder, layers), self._tied, self._head)


def checked(name: str, net: DecoderNet, device: str, dtype: torch.dtype) -> DecoderNet:
    """The net. WeightsError: it ignores masks, so that it could verify no tree in one pass."""
    if not honours_masks(net, torch.device(device), dtype):
        raise WeightsError(
            f"{name}: {type(net.decoder).__name__} of this transformers ignores masks; use another version"
        )
    return net


def read_pretrained(
    request: PictureRequest, folder: Path, kind: type[Any], config: Any, unused: tuple[str, ...] = ()
) -> Any:
    """A model of transformers from a folder, on its device, in evaluation mode (see `transformers_models.read_whole`).

    Raises:
        WeightsError: a file is damaged, or tensors are missing or of another shape.
    """
    model = transformers_models.read_whole(request.name, folder, kind, unused, config=config, dtype=request.dtype)
    return model.to(request.device).eval().requires_grad_(False)


def read_config(request: PictureRequest, folder: Path, kind: type[Any]) -> Any:
    """The configuration of a folder.

    Raises:
        WeightsError: there is none, or it is another model's.
    """
    with transformers_models.one_error(request.name, folder, f"has no configuration of {kind.model_type}"):
        return kind.from_pretrained(folder, local_files_only=True)
