"""An unchanged causal language model of transformers over the slot cache."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers.cache_utils import Cache as TransformersCache

from stridebench.harness.backbones.slots import gated as gates
from stridebench.harness.backbones.slots.lora import Adapter, LowRank
from stridebench.harness.backbones.slots.net import Net, SlotInputs, Slots
from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.cache import Rows
from stridebench.harness.errors import UsageError

Pairs = Sequence[tuple[nn.Linear, LowRank]]


@final
class TransformersNet:
    """The model's own forward.

    Args:
        model: a causal language model in evaluation mode.
    """

    kind = "transformers"

    def __init__(self, model: Any) -> None:
        self.model = model
        self._on: tuple[Pairs, Tensor] | None = None
        self.layers = int(model.config.get_text_config().num_hidden_layers)
        self._cuts = "logits_to_keep" in inspect.signature(model.forward).parameters

    def tied_embeddings(self) -> TiedEmbeddings:
        """Its embedding and unembedding."""
        return TiedEmbeddings(self.model.get_input_embeddings().weight, self.model.get_output_embeddings().weight)

    def __call__(self, inputs: SlotInputs, rows: int) -> Float[Tensor, "R V"]:
        """Logits of the last R rows. A prefill pays for one row, since transformers takes 0 for all."""
        logits: Tensor = self._run(inputs, rows).logits[0]
        return logits[logits.shape[0] - rows :]

    def tapped(self, inputs: SlotInputs, rows: int, taps: Sequence[int]) -> Rows:
        """The same, with transformers' ``hidden_states`` of the tapped layers, whose last entry is normed."""
        out = self._run(inputs, rows, output_hidden_states=True)
        logits = out.logits[0]
        hidden = torch.stack([out.hidden_states[tap][0].to(logits.device) for tap in taps], 1)[:, None]
        return Rows(logits[logits.shape[0] - rows :], hidden)

    def _run(self, inputs: SlotInputs, rows: int, **more: bool) -> Any:
        cut = {"logits_to_keep": max(rows, 1)} if self._cuts else {}
        with nullcontext() if self._on is None else gates.hooked(*self._on):
            return self.model(
                input_ids=inputs.tokens[None],
                **transformers_arguments(inputs),
                **cut,
                **more,
            )

    def fitted(self, adapter: Adapter) -> Pairs:
        """The adapter with the layers that it changes. WeightsError: one is missing, or of another shape."""
        layers = gates.linears(self.model)
        gates.check(adapter, gates.shapes_of(layers))
        return [(layers[name], low) for name, low in adapter.items()]

    def gated(self, fitted: Pairs, gate: Bool[Tensor, " N"]) -> TransformersNet:
        """The same model, with the adapter on in these rows."""
        switched = copy.copy(self)
        switched._on = fitted, gate[:, None].to(self.model.dtype)
        return switched

    def pick(self, layers: Sequence[int]) -> TransformersNet:
        """The same tensors in a model of fewer layers; the original is not changed."""
        return TransformersNet(pick_layers(self.model, layers))


def transformers_arguments(inputs: SlotInputs) -> dict[str, Any]:
    """How transformers takes the mask, the positions and the slots."""
    return {
        "attention_mask": None if inputs.mask is None else inputs.mask[None, None],
        "position_ids": inputs.positions[None],
        "past_key_values": TransformersCache(layers=inputs.slots),
        "use_cache": True,
    }


def pick_layers(model: Any, layers: Sequence[int]) -> Any:
    """A copy of the model's modules over the same tensors, with these layers only, numbered anew.

    Raises:
        UsageError: the model has no single list of layers.
    """
    shared: dict[int, Any] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    copied = copy.deepcopy(model, shared)
    total = copied.config.get_text_config().num_hidden_layers
    lists = [
        (parent, name)
        for parent in copied.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == total
    ]
    if len(lists) != 1:
        raise UsageError(f"{type(model).__name__} has {len(lists)} lists of {total} layers: none can be skipped")
    parent, name = lists[0]
    picked = nn.ModuleList([getattr(parent, name)[index] for index in layers])
    for new, layer in enumerate(picked):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                setattr(module, "layer_idx", new)  # noqa: B010  # modules declare no such attribute
    setattr(parent, name, picked)
    for config in {id(m.config): m.config for m in copied.modules() if hasattr(m, "config")}.values():
        _shrink(config, layers)
    return copied


def _shrink(config: Any, layers: Sequence[int]) -> None:
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[index] for index in layers]
    config.num_hidden_layers = len(layers)


def honours_masks(net: Net, device: torch.device, like: torch.dtype) -> bool:
    """Whether an entry that a mask hides has no effect on the logits of the others."""
    ids = torch.arange(3, device=device)
    positions = torch.tensor([0, 1, 1], device=device)
    mask = torch.zeros(3, 3, dtype=like, device=device)
    mask[0, 1:] = mask[1, 2] = mask[2, 1] = float("-inf")
    with torch.inference_mode():
        tree = net(SlotInputs(ids, positions, mask, Slots(net.layers, 8).layers), 1)
        chain = net(SlotInputs(ids[[0, 2]], ids[:2], None, Slots(net.layers, 8).layers), 1)
        unmasked = net(SlotInputs(ids, positions, None, Slots(net.layers, 8).layers), 1)
    near, far = (tree - chain).abs().max(), (unmasked - chain).abs().max()
    return bool(near <= 0.5 * far)  # rounding alone moves logits in bf16
