"""Masked diffusion models: LLaDA and Dream.

A row gives the distribution of its own position and attends to both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

from stridebench.harness.backbones.base import TYPES, Identity
from stridebench.harness.backbones.checkpoints import sources, transformers_models
from stridebench.harness.backbones.masked.llada_dream import Published, read_config, read_model
from stridebench.harness.backbones.slots.cache import SlotCache
from stridebench.harness.backbones.slots.fused_llama import forward_of
from stridebench.harness.backbones.slots.net import Net
from stridebench.harness.backbones.text import chat
from stridebench.harness.backbones.text.tokenized import TokenizedAdapter
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.errors import ContractError
from stridebench.harness.registry import BACKBONES


@BACKBONES.register("masked")
@final
class MaskedModel(TokenizedAdapter):
    """A published masked diffusion model and its tokenizer.

    Args (of ``params``):
        source: where the weights lie: hub or folder, as published.
        template: its chat template: own (the tokenizer's) or a name of `chat.TEMPLATES`.
        chat: true sends every text prompt through the template, as a user's turn.
    """

    default_dtype: ClassVar[str] = "bf16"
    kind = "masked"
    parameters = ("source", "template", "chat")
    advice = "name a preset such as llada-8b"

    def __init__(
        self, identity: Identity, net: Net, published: Published, tokenizer: Any, template: str | None
    ) -> None:
        super().__init__(identity, tokenizer, template)
        self._net, self._published = net, published

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> MaskedModel:
        """Read weights that are on this machine; nothing is downloaded (see `presets.fetch`)."""
        cls.check(name, params, dtype)
        template = chat.check(name, params)
        folder = sources.locate(name, sources.parse(name, params["source"]))
        published = read_config(name, folder)
        model = read_model(name, folder, published, TYPES[dtype]).to(device).eval().requires_grad_(False)
        tokenizer = _tokenizer(folder, published.family)
        chat.fit(name, template, tokenizer)
        config = published.config
        capabilities = Capabilities(
            config.vocab_size, config.max_position_embeddings, published.eos, cls.meets({}), mask=published.mask
        )
        identity = Identity(name, dtype, device, capabilities, sources.digest(folder))
        loaded = cls(identity, forward_of(model), published, tokenizer, template)
        loaded.task_template = params.get("template")
        return loaded

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        """Masked models attend to both sides."""
        return frozenset({Requirement.BIDIRECTIONAL})

    def cache(self) -> MaskedCache:
        """Empty slots."""
        return MaskedCache(self._slots(self._net), self._published.mask, self._published.shifted)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text up to the first id that ends one, without special tokens; empty where there is no tokenizer."""
        end_places = (at for at, token in enumerate(tokens) if token in self.capabilities.eos)
        return self._text(tokens[: next(end_places, len(tokens))])


def _tokenizer(folder: Path, family: str) -> Any:
    """The folder's tokenizer. Dream's is Qwen2's under a name of its own, whose code is not run.

    LLaDA's is read by its class, because the automatic class reads config.json first and warns of an unknown model.
    """
    with transformers_models.one_error(folder.name, folder, "has no tokenizer that can be read"):
        if family == "Dream" and (folder / "vocab.json").is_file():
            return Qwen2Tokenizer.from_pretrained(folder, local_files_only=True)
        if family == "LLaDA" and (folder / "tokenizer.json").is_file():
            return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return transformers_models.read_tokenizer(folder)


@final
class MaskedCache(Cache):
    """One sequence; the mask has no probability in any row.

    Args:
        slots: empty.
        mask: id of a masked position.
        shifted: the net's row of a position gives the distribution of the next one (Dream).
    """

    def __init__(self, slots: SlotCache, mask: int, shifted: bool) -> None:
        self._slots, self._mask, self._shifted = slots, mask, shifted

    def extend(self, window: Window) -> Rows:
        """Append a window; a row gives the distribution of its own position.

        Raises:
            ContractError: entries attend to earlier ones only; or rows are shifted and the window lacks the left
                neighbour of an entry.
        """
        count, rows = len(window.tokens), window.rows
        if window.sees is None and count > 1:
            raise ContractError("a masked model has no distribution of a next token; read the canvas with sees='all'")
        more = self._shifted and rows < count
        if self._shifted and not self._has_left_neighbours(window):
            raise ContractError("a model of shifted rows reads neighbouring positions, from 0 where all rows are asked")
        wider = Window(window.tokens, window.positions, window.base, window.sees, rows + more)
        logits = self._slots.extend(wider).logits.clone()
        if self._shifted and rows:
            logits = logits[:-1] if more else torch.cat([logits[:1], logits[:-1]])
        logits[:, self._mask] = float("-inf")
        return Rows(logits)

    def _has_left_neighbours(self, window: Window) -> bool:
        """Reads the device once a pass, because no other check notices rows of wrong neighbours."""
        places = window.positions
        consecutive = bool((places[1:] - places[:-1] == 1).all())
        return consecutive and (window.rows < len(places) or int(places[0]) == 0)

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """Keep these entries of the slots."""
        self._slots.keep(length, entries)
