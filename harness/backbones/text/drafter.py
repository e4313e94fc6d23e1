"""A small drafter that borrows its target's embedding, at both ends: only the layers between are its own.

Its laws cover the target's whole vocabulary; ids outside those that it was trained to propose get no probability,
which verification makes up for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness.backbones.checkpoints import sources, transformers_models
from harness.backbones.slots.cache import Masks, SlotCache
from harness.backbones.slots.fused_llama import FusedLlama
from harness.backbones.slots.net import Net, Slots
from harness.backbones.text import drafter_files
from harness.backbones.text.hf_causal import TYPES
from harness.core.backbone import Backbone
from harness.core.capabilities import Capabilities, Requirement
from harness.errors import UsageError
from harness.registry import BACKBONES

PARAMS = ("source", "body", "vocabulary")


@BACKBONES.register("drafter")
@final
class Drafter(Backbone):
    """Layers shaped like Llama's between the embedding of another model and some of its rows.

    Args (of ``params``):
        source: weights of the model whose embedding and tokenizer it uses, as in hf_causal. body: its own layers: a
            name among the shipped weights, or a folder. vocabulary: ids, where that is to be known before loading.
    """

    def __init__(
        self, name: str, dtype: str, device: str, net: Net, mark: str, capabilities: Capabilities, tokenizer: Any
    ) -> None:
        self.name, self.dtype, self.device = name, dtype, device
        self.fingerprint = mark
        self.capabilities = capabilities
        self._net = net
        self._tokenizer = tokenizer
        self._masks = Masks(capabilities.context, TYPES[dtype], torch.device(device))

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> Drafter:
        """Read the target's embedding and the layers; nothing is downloaded (see `presets.fetch`)."""
        _check(name, params, dtype)
        target = sources.locate(name, sources.parse(name, params["source"]))
        body = drafter_files.folder_of(str(params["body"]))
        model, kept = drafter_files.read(name, target, body)
        model = model.to(device=device, dtype=TYPES[dtype]).eval().requires_grad_(False)
        capabilities = replace(
            transformers_models.capabilities(model, cls.meets(params)), vocabulary=len(model.model.embed_tokens.weight)
        )
        mark = hashlib.sha256(f"{sources.digest(target)} {sources.digest(body)}".encode()).hexdigest()
        net = Spread(FusedLlama(model), kept.to(device), capabilities.vocabulary)
        return cls(name, dtype, device, net, mark, capabilities, transformers_models.read_tokenizer(target))

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        """As hf_causal."""
        return frozenset({Requirement.TREE_MASK, Requirement.DRAFTER})

    def cache(self) -> SlotCache:
        """Empty slots; they are allocated by the first pass."""
        return SlotCache(self._net, self.capabilities.context, self._masks)

    def encode(self, text: str) -> list[int]:
        """As the target's tokenizer."""
        return list(self._tokenizer(text).input_ids) if self._tokenizer is not None else super().encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """As the target's tokenizer, without special tokens; empty where there is none."""
        if self._tokenizer is None:
            return ""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))


@final
class Spread:
    """A net over some ids, its logits laid out over the whole vocabulary: -inf for the others.

    Args:
        inner: gives logits [R, K]. kept: the ids of its columns. vocabulary: V.
    """

    kind = "fused"

    def __init__(self, inner: Net, kept: Int[Tensor, " K"], vocabulary: int) -> None:
        self.layers = inner.layers
        self._inner, self._kept, self._vocabulary = inner, kept, vocabulary

    def __call__(
        self,
        tokens: Int[Tensor, " N"],
        positions: Int[Tensor, " N"],
        mask: Float[Tensor, "N T"] | None,
        slots: Slots,
        rows: int,
    ) -> Float[Tensor, "R V"]:
        """Logits of the last R rows."""
        few = self._inner(tokens, positions, mask, slots, rows)
        return few.new_full((rows, self._vocabulary), float("-inf")).index_copy_(1, self._kept, few)

    def pick(self, layers: Sequence[int]) -> Spread:
        """The same weights with these layers only."""
        return Spread(self._inner.pick(layers), self._kept, self._vocabulary)


def _check(name: str, params: Mapping[str, Any], dtype: str) -> None:
    unknown = sorted(set(params) - set(PARAMS))
    if unknown:
        raise UsageError(f"{name}: a drafter has no parameter {unknown[0]!r}; it has {', '.join(PARAMS)}")
    for key in ("source", "body"):
        if key not in params:
            raise UsageError(f"{name}: a drafter needs {key}: the target's weights, and its own layers")
    if dtype not in TYPES:
        raise UsageError(f"{name}: there is no dtype {dtype!r}; choose one of {', '.join(TYPES)}")
