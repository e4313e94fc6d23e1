"""Waveforms into the rows of Whisper's encoder."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import WhisperFeatureExtractor

from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError

RATE = 16_000
"""Samples a second."""

FRAME = 320
"""Samples that become one state of the encoder."""

LOUDEST = 1.5
"""A waveform lies within -1 and 1. Resampling may exceed that a little; unscaled integers exceed it by far."""


class AudioEncoder:
    """From a waveform to the states of Whisper's encoder."""

    def __init__(self, model: Any) -> None:
        self._encoder = model.model.encoder
        self._most = FRAME * int(model.config.max_source_positions)
        self._features = WhisperFeatureExtractor(feature_size=model.config.num_mel_bins, sampling_rate=RATE)

    def samples(self, name: str, prompt: Prompt) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the waveform of a prompt, cut to the length that the model hears, or raise UsageError."""
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
        """Return the encoder's states of a waveform, padded with silence to the length that the model takes."""
        mel = self._features(wave, sampling_rate=RATE, max_length=self._most, return_tensors="pt").input_features
        like = self._encoder.conv1.weight
        states: Tensor = self._encoder(mel.to(like)).last_hidden_state[0]
        return states
