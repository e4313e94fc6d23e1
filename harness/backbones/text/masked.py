"""Masked diffusion models: LLaDA, Dream and SDAR, read into decoders of transformers of the same architecture.

A config.json of LLaDA's may also have block_size (`Capabilities.block`), and self_conditioning with a mask_token_id of
null: a model of uniform noise, as `stride train backbone sudoku-uniform` makes.

A row gives the distribution of its position and attends to both sides. LLaDA is Llama with other names of tensors,
Dream is Qwen2 and SDAR is Qwen3 with the same names; SDAR's rows see their block and earlier ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from stridebench.harness.backbones.base import TYPES, Identity
from stridebench.harness.backbones.checkpoints import components, sources, transformers_models
from stridebench.harness.backbones.slots.cache import SlotCache
from stridebench.harness.backbones.slots.fused_llama import forward_of
from stridebench.harness.backbones.slots.net import Tapped
from stridebench.harness.backbones.text import chat
from stridebench.harness.backbones.text.chat import TokenizedAdapter
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.errors import ContractError, UsageError, WeightsError, check_usual
from stridebench.harness.kernels import int8
from stridebench.harness.machine.surroundings import remedy
from stridebench.harness.registry import BACKBONES

LLADA = {
    "model.transformer.wte": "model.embed_tokens",
    "model.transformer.ln_f": "model.norm",
    "model.transformer.ff_out": "lm_head",
}
BLOCK = {
    "attn_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}
"""Names within a block of LLaDA, and within a layer of Llama."""
CONDITIONING = "self_conditioning"
"""Matrix W [E, E] of a model that reads its last logits: softmax(logits) @ embeddings @ W.T is added."""
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
"""The decoder's two tensors that are one if the configuration ties them."""
PLAIN = {
    "block_type": "llama",
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "rope": True,
    "alibi": False,
    "attention_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "scale_logits": False,
}
"""Values that LLaDA's configuration must have, because the decoder computes these only."""
QWEN_USUAL = {"hidden_act": "silu", "rope_scaling": None, "use_sliding_window": False}
"""The same of Dream and SDAR."""
SDAR_BLOCK, SDAR_MASK = 4, "<|MASK|>"
"""For an SDAR model whose configuration names none: the block size of its ``generate.py``, and its mask."""
TURN_END = {"LLaDA": "<|eot_id|>", "SDAR": "<|im_end|>"}
"""The token that ends a turn, and so an answer; config.json names only the end of text."""
LLADA_SIZES = {
    "hidden_size": "d_model",
    "intermediate_size": "mlp_hidden_size",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_sequence_length",
}
"""Sizes of transformers' configuration, and their names in LLaDA's."""
DECODERS = {"LLaDA": LlamaForCausalLM, "Dream": Qwen2ForCausalLM, "SDAR": Qwen3ForCausalLM}
"""Decoders of transformers by family."""


def llada_name(key: str) -> str:
    """Return LLaDA's name of a tensor of a Llama; `CONDITIONING` has the same in both."""
    stem, _, kind = key.rpartition(".")
    if stem == CONDITIONING:
        return key
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    names = {own: name for name, own in (BLOCK if layer else LLADA).items()}
    return f"model.transformer.blocks.{layer[1]}.{names[layer[2]]}.{kind}" if layer else f"{names[stem]}.{kind}"


@dataclass(frozen=True)
class PublishedCheckpoint:
    """A checkpoint of LLaDA, Dream or SDAR.

    Args:
        mask: id of a masked position, or None if the model knows uniform noise.
        shifted: whether the row of a position gives the distribution of the next one, as in an autoregressive model.
        block: as `Capabilities.block`.
        conditioned: whether it reads the logits of an earlier pass.
    """

    family: str
    config: Any
    mask: int | None
    eos: frozenset[int]
    shifted: bool
    block: int = 0
    conditioned: bool = False

    def name(self, key: str) -> str:
        """Return the decoder's name of a published tensor."""
        if self.family != "LLaDA":
            return key
        stem, _, kind = key.rpartition(".")
        block = re.fullmatch(r"model\.transformer\.blocks\.(\d+)\.(\w+)", stem)
        if block and block[2] in BLOCK:
            return f"model.layers.{block[1]}.{BLOCK[block[2]]}.{kind}"
        return f"{LLADA[stem]}.{kind}" if stem in LLADA else key

    def published_name(self, key: str) -> str:
        """Return the published name of a decoder's tensor."""
        return llada_name(key) if self.family == "LLaDA" else key

    def empty(self) -> Any:
        with torch.device("meta"):
            model = DECODERS[self.family](self.config)
            if self.conditioned:
                width = self.config.hidden_size
                model.add_module(CONDITIONING, nn.Linear(width, width, bias=False))
            return model


def read_config(name: str, folder: Path) -> PublishedCheckpoint:
    """Return the checkpoint that the config.json of a folder describes, or raise WeightsError."""
    file = folder / "config.json"
    try:
        fields: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        family = {"llada": _llada, "Dream": _dream, "sdar": _sdar}.get(str(fields.get("model_type")))
        if family is None:
            raise WeightsError(
                f"{name}: {file} is of model_type {fields.get('model_type')!r}; give llada, Dream or sdar"
            )
        return family(name, file, fields)
    except (OSError, ValueError, AttributeError) as error:
        raise WeightsError(f"{name}: {file} cannot be read ({error}). Fetch the folder again") from error
    except KeyError as error:
        raise WeightsError(f"{name}: {file} has no field {error}; it is another model's, or not whole") from error


def _llada(name: str, file: Path, fields: Mapping[str, Any]) -> PublishedCheckpoint:
    check_usual(file, fields, PLAIN, "models")
    sizes = {name: fields[published] for name, published in LLADA_SIZES.items()}
    sizes["vocab_size"] = fields.get("embedding_size") or fields["vocab_size"]
    sizes["num_key_value_heads"] = fields.get("n_kv_heads") or fields["n_heads"]
    sizes["tie_word_embeddings"] = bool(fields.get("weight_tying", False))
    return _checkpoint("LLaDA", LlamaConfig, fields, sizes)


def _dream(name: str, file: Path, fields: Mapping[str, Any]) -> PublishedCheckpoint:
    if fields.get("block_size"):
        raise ValueError(f"block_size is {fields['block_size']}; the shifted rows of Dream have no blocks here")
    return _checkpoint("Dream", Qwen2Config, fields, _qwen_sizes(file, fields))


def _sdar(name: str, file: Path, fields: Mapping[str, Any]) -> PublishedCheckpoint:
    block, mask = fields.get("block_size") or SDAR_BLOCK, fields.get("mask_token_id")
    if mask is None and (added := file.with_name("added_tokens.json")).is_file():
        mask = json.loads(added.read_text(encoding="utf-8")).get(SDAR_MASK)
    if mask is None:
        raise WeightsError(
            f"{name}: {file} has no mask_token_id, and no added_tokens.json beside it has {SDAR_MASK}; fetch the "
            f"whole folder"
        )
    if int(block) < 1:
        raise ValueError(f"block_size is {block}; an SDAR model has blocks of 1 or more")
    sizes = {"head_dim": fields["head_dim"], "attention_bias": bool(fields.get("attention_bias"))}
    stated = {**fields, "block_size": block, "mask_token_id": mask}
    return _checkpoint("SDAR", Qwen3Config, stated, {**_qwen_sizes(file, fields), **sizes})


def _qwen_sizes(file: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    check_usual(file, fields, QWEN_USUAL, "models")
    sizes = {name: fields[name] for name in ("vocab_size", "num_key_value_heads", *LLADA_SIZES)}
    return {**sizes, "tie_word_embeddings": bool(fields.get("tie_word_embeddings", False))}


def _checkpoint(family: str, kind: Any, fields: Mapping[str, Any], sizes: Mapping[str, Any]) -> PublishedCheckpoint:
    config = kind(
        rms_norm_eps=fields["rms_norm_eps"],
        rope_parameters={"rope_type": "default", "rope_theta": fields["rope_theta"]},
        **sizes,
    )
    mask, eos = fields["mask_token_id"], transformers_models.end_ids(fields["eos_token_id"])
    block, conditioned = int(fields.get("block_size") or 0), bool(fields.get("self_conditioning"))
    if (mask is None) != conditioned:
        raise ValueError(f"mask_token_id is {mask!r} and self_conditioning {conditioned}; one of the two is needed")
    mask = None if mask is None else int(mask)
    return PublishedCheckpoint(family, config, mask, eos, family == "Dream", block, conditioned)


def read_model(name: str, folder: Path, published: PublishedCheckpoint, dtype: torch.dtype) -> Any:
    """Return the decoder with the folder's tensors, on the CPU, or raise WeightsError."""
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise WeightsError(f"{name}: there is no *.safetensors in {folder}; fetch the whole folder")
    state: dict[str, Tensor] = {}
    for file in files:
        try:
            state |= {published.name(key): tensor.to(dtype) for key, tensor in int8.read(file).items()}
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{name}: {file} is damaged ({error}). {remedy(file)}") from error
    model = published.empty()
    if published.config.tie_word_embeddings and EMBEDDING in state:
        state.setdefault(HEAD, state[EMBEDDING])
    components.fill(name, folder, model, state)
    model.model.rotary_emb = type(model.model.rotary_emb)(published.config)  # its buffers are in no checkpoint
    return model


@BACKBONES.register("masked")
@final
class MaskedModel(TokenizedAdapter):
    """A published masked diffusion model and its tokenizer.

    Args (of ``params``):
        source: where the weights lie: hub or folder, as published.
        template: its chat template: own (the tokenizer's) or a name of `chat.TEMPLATES`.
        chat: true sends every text prompt through the template, as a user's turn.
        noise: "uniform" if it has no mask and reads its last logits; by default "mask".
    """

    default_dtype: ClassVar[str] = "bf16"
    kind = "masked"
    parameters = ("source", "template", "chat", "noise")
    advice = "name a preset such as llada-8b"

    def __init__(
        self, identity: Identity, net: Tapped, published: PublishedCheckpoint, tokenizer: Any, template: str | None
    ) -> None:
        super().__init__(identity, tokenizer, template)
        self._net, self._published = net, published
        self._conditioning: Tensor | None = None

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> MaskedModel:
        cls.check(name, params, dtype)
        template = chat.check(name, params)
        folder = sources.locate(name, sources.parse(name, params["source"]))
        published = read_config(name, folder)
        if published.conditioned != (Requirement.LAST_LOGITS in cls.meets(params)):
            kind = "uniform" if published.conditioned else "mask"
            raise UsageError(f"{name}: the model in {folder} has noise {kind}; set `noise: {kind}` in its preset")
        model = read_model(name, folder, published, TYPES[dtype]).to(device).eval().requires_grad_(False)
        tokenizer = _tokenizer(folder, published.family)
        chat.fit(name, template, tokenizer)
        config = published.config
        vocabulary = {} if tokenizer is None else tokenizer.get_vocab()
        turn_end = vocabulary.get(TURN_END.get(published.family))
        turn_ends = frozenset(() if turn_end is None else (turn_end,))
        capabilities = Capabilities(
            config.vocab_size,
            config.max_position_embeddings,
            published.eos | turn_ends,
            cls.meets(params),
            mask=published.mask,
            block=published.block,
            turn_ends=turn_ends - published.eos,
        )
        identity = Identity(name, dtype, device, capabilities, sources.digest(folder))
        loaded = cls(identity, forward_of(model), published, tokenizer, template)
        if published.conditioned:
            loaded._conditioning = model.self_conditioning.weight.data
        loaded.task_template = params.get("template")
        return loaded

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        uniform = params.get("noise") == "uniform"
        return frozenset({Requirement.BIDIRECTIONAL, *([Requirement.LAST_LOGITS] if uniform else [])})

    def cache(self) -> MaskedCache:
        given = None if self._conditioning is None else self._net.tied_embeddings().embed @ self._conditioning.T
        return MaskedCache(self._slots(self._net), self._published.mask, self._published.shifted, given)

    def decode(self, tokens: Sequence[int]) -> str:
        end_places = (at for at, token in enumerate(tokens) if token in self.capabilities.eos)
        return self._text(tokens[: next(end_places, len(tokens))])


def _tokenizer(folder: Path, family: str) -> Any:
    """Return the folder's tokenizer. Dream's is Qwen2's under another name, whose code is not run; SDAR's is Qwen2's.

    They are read by class, because the automatic class reads config.json first and warns of an unknown model.
    """
    with transformers_models.one_error(folder.name, folder, "lacks a readable tokenizer"):
        if family != "LLaDA" and (folder / "vocab.json").is_file():
            return Qwen2Tokenizer.from_pretrained(folder, local_files_only=True)
        if (folder / "tokenizer.json").is_file():
            return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return transformers_models.read_tokenizer(folder)


@final
class MaskedCache(Cache):
    """One sequence; the mask has probability zero in all rows (``shifted`` as in `PublishedCheckpoint`).

    Args:
        given: row v is added to an entry, times the probability of id v by an earlier pass; None if it reads none.
    """

    def __init__(
        self, slots: SlotCache, mask: int | None, shifted: bool, given: Float[Tensor, "V E"] | None = None
    ) -> None:
        self._slots, self._mask, self._shifted, self._given = slots, mask, shifted, given

    def extend(self, window: Window) -> Rows:
        """Append a window; a row gives the distribution of its position.

        Raises ContractError if entries attend to earlier ones only, or a left neighbour of shifted rows is missing.
        """
        count, rows = len(window.tokens), window.rows
        if window.sees is None and count > 1:
            raise ContractError("a masked model gives no distribution of a next token; read the canvas with sees='all'")
        more = self._shifted and rows < count
        if self._shifted and not self._has_left_neighbours(window):
            raise ContractError("a model of shifted rows reads neighbouring positions, from 0 where all rows are asked")
        added = None
        if window.features is not None:
            if self._given is None:
                raise ContractError("this model reads no logits of an earlier pass; take one that meets LAST_LOGITS")
            added = self._given.new_zeros(count, self._given.shape[1])
            added[count - rows :] = window.features.to(self._given.dtype).softmax(-1) @ self._given
        wider = Window(window.tokens, window.positions, window.base, window.sees, rows + more, features=added)
        logits = self._slots.extend(wider).logits.clone()
        if self._shifted and rows:
            logits = logits[:-1] if more else torch.cat([logits[:1], logits[:-1]])
        if self._mask is not None:
            logits[:, self._mask] = float("-inf")
        return Rows(logits)

    def _has_left_neighbours(self, window: Window) -> bool:
        """Read the device once a pass, because no other check notices rows of wrong neighbours."""
        places = window.positions
        consecutive = bool((places[1:] - places[:-1] == 1).all())
        return consecutive and (window.rows < len(places) or int(places[0]) == 0)

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        self._slots.keep(length, entries)
