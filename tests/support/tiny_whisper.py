"""A Whisper of random weights, small enough to decode with in a test, and recordings for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from stridebench.harness.backbones.speech import Whisper

VOCABULARY, CONTEXT, SECOND = 97, 64, 16_000
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_source_positions": 50,
    "max_target_positions": CONTEXT,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
    "init_std": 0.35,
}
NEVER, FIRST = [0, 7, 8, 30], [40, 41]
PLAIN = VOCABULARY - 1
"""No time stamps; ids behind it would be time stamps."""
SAID = [token for token in range(VOCABULARY) if token not in (*NEVER, *FIRST)]


def sound(seed: int = 0, seconds: float = 0.9) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Three tones with noise."""
    random = np.random.default_rng(seed)
    time = np.arange(int(seconds * SECOND)) / SECOND
    tones = sum(np.sin(2 * np.pi * random.uniform(100, 3000) * time) for _ in range(3))
    return np.asarray(0.2 * tones + 0.05 * random.standard_normal(len(time)), np.float32)


def tiny_whisper(**changes: Any) -> Any:
    """A tiny Whisper whose biases and norms are not those of a fresh one, which would hide their loss."""
    torch.manual_seed(3)
    model = WhisperForConditionalGeneration(WhisperConfig(**{**SIZES, **changes})).eval()
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            torch.nn.init.normal_(weight, float("norm.weight" in name), 0.2)
    torch.nn.init.normal_(
        model.model.decoder.embed_positions.weight, 0.0, 6.0
    )  # else it says few words again and again
    ids = {key: getattr(model.config, key) for key in ("eos_token_id", "pad_token_id", "decoder_start_token_id")}
    says = {"suppress_tokens": NEVER, "begin_suppress_tokens": FIRST, "no_timestamps_token_id": PLAIN}
    model.generation_config = GenerationConfig(**ids, **says, is_multilingual=False)
    return model


def load(folder: Path, dtype: str = "fp32", **params: Any) -> Whisper:
    return Whisper.load("tiny", {"source": {"folder": str(folder)}, **params}, dtype, "cpu")


def features(seed: int, positions: int = 50) -> Tensor:
    extract = WhisperFeatureExtractor()
    mel: Tensor = extract(sound(seed), sampling_rate=SECOND, max_length=320 * positions, return_tensors="pt")[
        "input_features"
    ]
    return mel
