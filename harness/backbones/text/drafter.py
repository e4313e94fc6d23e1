"""A small drafter that borrows its target's embedding and unembedding: only the layers between are its own.

Its distributions cover the target's whole vocabulary. Ids that it was not trained to propose have probability zero;
verification corrects for that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.backbones.base import TYPES, Identity, check_dtype
from stridebench.harness.backbones.checkpoints import sources, transformers_models
from stridebench.harness.backbones.slots.cache import SlotCache
from stridebench.harness.backbones.slots.fused_llama import FusedLlama
from stridebench.harness.backbones.slots.net import Net, SlotInputs
from stridebench.harness.backbones.text import drafter_files
from stridebench.harness.backbones.text.tokenized import TokenizedAdapter
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.errors import UsageError, check_parameters
from stridebench.harness.registry import BACKBONES


@BACKBONES.register("drafter")
@final
class Drafter(TokenizedAdapter):
    """Layers shaped like Llama's between the embedding of another model and some of its rows.

    Args (of ``params``):
        source: weights of the model whose embedding and tokenizer it uses, as in hf_causal.
        body: its own layers: a name among the shipped weights, or a folder.
        vocabulary: the number of token ids, if it must be known before loading.
    """

    kind = "a drafter"
    parameters = ("source", "body", "vocabulary")

    def __init__(self, identity: Identity, net: Net, tokenizer: Any) -> None:
        super().__init__(identity, tokenizer)
        self._net = net

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> Drafter:
        """Read the target's embedding and the layers; nothing is downloaded (see `presets.fetch`)."""
        check_parameters(f"{name}: {cls.kind}", params, cls.parameters)
        for key in ("source", "body"):
            if key not in params:
                raise UsageError(f"{name}: a drafter needs {key}: the target's weights, and its own layers")
        check_dtype(name, dtype)
        target = sources.locate(name, sources.parse(name, params["source"]))
        body = drafter_files.folder_of(str(params["body"]))
        model, ids = drafter_files.read(name, target, body)
        model = transformers_models.place(model, device, TYPES[dtype]).eval().requires_grad_(False)
        capabilities = replace(
            transformers_models.capabilities(model, cls.meets(params)), vocabulary=len(model.model.embed_tokens.weight)
        )
        fingerprint = hashlib.sha256(f"{sources.digest(target)} {sources.digest(body)}".encode()).hexdigest()
        net = Spread(FusedLlama(model), ids.to(device), capabilities.vocabulary)
        identity = Identity(name, dtype, device, capabilities, fingerprint)
        return cls(identity, net, transformers_models.read_tokenizer(target))

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        """Trees, and drafters of its own vocabulary."""
        return frozenset({Requirement.TREE_MASK, Requirement.DRAFTER})

    def cache(self) -> SlotCache:
        """Empty slots."""
        return self._slots(self._net)

    def decode(self, tokens: Sequence[int]) -> str:
        """As the target's tokenizer, without special tokens; empty where there is none."""
        return self._text(tokens, clean_up_tokenization_spaces=False)


@final
class Spread:
    """A net over some ids, its logits laid out over the whole vocabulary: -inf for the others.

    Args:
        inner: gives logits [R, K].
        ids: of its columns.
        vocabulary: V.
    """

    kind = "fused"

    def __init__(self, inner: Net, ids: Int[Tensor, " K"], vocabulary: int) -> None:
        self.layers = inner.layers
        self._inner, self._ids, self._vocabulary = inner, ids, vocabulary

    def __call__(self, inputs: SlotInputs, rows: int) -> Float[Tensor, "R V"]:
        """Logits of the last R rows."""
        few = self._inner(inputs, rows)
        return few.new_full((rows, self._vocabulary), float("-inf")).index_copy_(1, self._ids, few)

    def pick(self, layers: Sequence[int]) -> Spread:
        """The same weights with these layers only."""
        return Spread(self._inner.pick(layers), self._ids, self._vocabulary)
