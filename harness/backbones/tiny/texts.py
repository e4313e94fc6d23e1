"""Tiny language models, masked models and speech models, written as their makers publish them."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from stridebench.harness.backbones.text import masked as adapter
from stridebench.harness.backbones.text.chat import TEMPLATES


def byte_tokenizer(bos: bool, marks: tuple[str, ...] = (), template: str | None = None) -> PreTrainedTokenizerFast:
    """Return a lossless tokenizer of bytes with a token for each mark."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", *marks])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 256)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>" if bos else None, eos_token="</s>")
    fast.chat_template = template
    return fast


def character_tokenizer(special: Sequence[str], opens: bool = False) -> Any:
    """Return a tokenizer of one id a character behind the special words; with `opens`, texts begin with <s>."""
    words = ["<s>", "</s>", "<unk>", *special, *string.printable]
    words_only = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, "<unk>"))
    words_only.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    if opens:
        words_only.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=words_only, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.add_special_tokens({"additional_special_tokens": list(special)})
    return fast


CONTEXT = 8192
OWN = "{% for turn in messages %}{{ turn['role'] }}: {{ turn['content'] }}\n{% endfor %}assistant: "
"""The chat template of a stand-in's tokenizer."""
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.2,
}
DEEP = {"llama-2-7b": 32, "smollm2-135m": 30}
"""Layers of models that Cross-Regression's adapters of some layers are trained for."""
MASK = "<|mask|>"


CAUSAL: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (partial(Qwen3Config, head_dim=8), Qwen3ForCausalLM),
}
"""Language models by the architecture that their configurations name."""


def _repository(published: Mapping[str, Any]) -> str:
    """Return the name of a published model's repository, or of the file of its wheel."""
    source = published["source"]
    return str(source.get("hub", {}).get("id") or source.get("wheel", {}).get("file", "")).lower()


def causal_architecture(published: Mapping[str, Any]) -> str:
    """Return the architecture of a published language model, by the name of its repository."""
    name = _repository(published)
    return "qwen3" if "qwen3" in name else "qwen2" if "qwen" in name else "llama"


def causal(published: Mapping[str, Any], folder: Path) -> None:
    """Write a model of the published architecture, with its template's marks in the vocabulary."""
    repository, architecture = _repository(published), causal_architecture(published)
    template = published.get("template")
    marks = TEMPLATES[template].marks if template in TEMPLATES else ()
    tokenizer = byte_tokenizer(bos=architecture == "llama", marks=marks, template=OWN)
    ids = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id}
    if layers := [count for name, count in DEEP.items() if name in repository]:
        ids["num_hidden_layers"] = layers[0]
    torch.manual_seed(1)
    config, net = CAUSAL[architecture]
    model = net(config(**{**SIZES, **ids}))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def masked(published: Mapping[str, Any], folder: Path) -> None:
    """Write LLaDA, Dream or SDAR under the published names of their tensors."""
    tokenizer = byte_tokenizer(bos=False, marks=(MASK,), template=OWN)
    shared = {
        "vocab_size": len(tokenizer),
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "mask_token_id": tokenizer.convert_tokens_to_ids(MASK),
        "eos_token_id": tokenizer.eos_token_id,
    }
    repository = _repository(published)
    if "llada" in repository:
        config = {"model_type": "llada", "d_model": 32, "mlp_hidden_size": 48, "n_layers": 2, "n_heads": 4, **shared}
        config |= {"max_sequence_length": CONTEXT, "block_type": "llama"}
    elif "sdar" in repository:
        config = {"model_type": "sdar", **SIZES, "num_hidden_layers": 2, "head_dim": 8, **shared}
        config |= {"attention_bias": False, "block_size": 4}
    else:
        config = {"model_type": "Dream", **SIZES, "num_hidden_layers": 2, **shared}
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    decoder = adapter.read_config(folder.name, folder)
    random = torch.Generator().manual_seed(1)
    shapes = {key: tensor.shape for key, tensor in decoder.empty().state_dict().items()}
    state = {
        decoder.published_name(key): torch.ones(shape)
        if len(shape) == 1 and "norm" in key
        else torch.randn(shape, generator=random) * 0.3
        for key, shape in shapes.items()
    }
    save_file(state, folder / "model.safetensors")


def whisper(published: Mapping[str, Any], folder: Path) -> None:
    """Write a multilingual Whisper that reads up to 30 s."""
    marks = ("<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>")
    tokenizer = byte_tokenizer(bos=False, marks=marks)
    start, english, transcribe, plain = tokenizer.convert_tokens_to_ids(list(marks))
    end = tokenizer.eos_token_id
    ids = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    torch.manual_seed(1)
    sizes = {"encoder_layers": 1, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes |= {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_target_positions": 448}
    model = WhisperForConditionalGeneration(WhisperConfig(vocab_size=len(tokenizer), init_std=0.35, **sizes, **ids))
    model.generation_config = GenerationConfig(
        **{key: value for key, value in ids.items() if key != "bos_token_id"},
        is_multilingual=True,
        lang_to_id={"<|en|>": english},
        task_to_id={"transcribe": transcribe},
        no_timestamps_token_id=plain,
        suppress_tokens=[],
        begin_suppress_tokens=[end],
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
