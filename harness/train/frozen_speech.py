"""A frozen Whisper that an adapter is trained on: the decoder of transformers, over recordings encoded once.

The encoder's states and the greedy transcript of a recording are kept in the cache: 1.5 MB each for Whisper base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file, save
from torch import Tensor

from stridebench.harness.backbones.speech.whisper import Whisper, read
from stridebench.harness.backbones.speech.whisper_audio import FRAME
from stridebench.harness.backbones.speech.whisper_decoder import linears
from stridebench.harness.core.cache import Window
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.train.frozen_text import FrozenModel, WindowedTokens
from stridebench.harness.train.passages import cached
from stridebench.harness.train.teacher import Passage, Teacher

LONGEST = 160
"""Tokens of a transcript."""
FLOOR = -1e4
"""Logit of suppressed tokens. It makes their probability zero in any type, and zero times this logarithm is not nan."""


@final
class FrozenSpeech(FrozenModel):
    """A Whisper: in fp32 for the adapter, and in bf16 to encode and transcribe recordings.

    Args:
        name: of a preset.
        params: of its adapter.
        device: cpu.
        dtype: fp32.

    Raises:
        UsageError: another device.
    """

    task = None

    def __init__(self, name: str, params: Mapping[str, Any], device: str = "cpu", dtype: str = "fp32") -> None:
        if device != "cpu":
            raise UsageError(f"adapters of {name} learn on the CPU; leave --device {device} out")
        loaded = read(name, params, "fp32", "cpu")
        self.model, self._whisper = loaded.model, Whisper.load(name, params, "bf16", "cpu")
        self.backbone = self._whisper
        self.linears, self._setup = linears(self.model), loaded.setup
        self.hears = FRAME * int(self.model.config.max_source_positions)
        self._home = Teacher(self.backbone).home / "heard"

    def logits(self, inputs: WindowedTokens) -> Float[Tensor, "N V"]:
        """The condition is the recording; suppressed tokens have the logit ``FLOOR``."""
        states, last = self._encoded(inputs.condition)["states"].float(), self.backbone.capabilities.context - 1
        rows = self.model.model.decoder(
            input_ids=inputs.ids[None],
            attention_mask=inputs.mask(),
            position_ids=inputs.places.clamp_max(last)[None],  # rows past the end of the text are not counted
            encoder_hidden_states=states[None],
            use_cache=False,
        ).last_hidden_state[0]
        return self._suppressed(self.model.proj_out(rows), inputs.places)

    def _suppressed(self, logits: Float[Tensor, "N V"], places: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        setup = self._setup
        silent: Bool[Tensor, "N V"] = torch.zeros(logits.shape, dtype=torch.bool)
        silent[:, setup.first] = (places == len(setup.prompt) - 1)[:, None]
        silent[:, setup.never] = True
        return logits.masked_fill(silent, FLOOR)

    def transcript(self, recording: npt.NDArray[Any]) -> Passage:
        """The greedy transcript, which ends with the end of text unless it is ``LONGEST`` tokens long."""
        tokens = self._encoded(recording)["tokens"].tolist()
        return Passage(tuple(tokens), len(self._setup.prompt), recording)

    def _encoded(self, recording: npt.NDArray[Any] | None) -> dict[str, Tensor]:
        """States and transcript of a recording, from the cache once they are there."""
        if recording is None:
            raise UsageError(f"{self.backbone.name}: a passage has no recording; Whisper writes what it hears")

        def content() -> bytes:
            with torch.autocast("cpu", enabled=False):  # a loss may ask, whose products are in bf16
                states = self._whisper.hear(Prompt("a recording to train on", condition=recording))
                return save({"states": states.contiguous(), "tokens": self._transcribed(states)})

        digest = hashlib.sha256(np.ascontiguousarray(recording).tobytes()).hexdigest()[:20]
        return load_file(cached(self._home / f"{digest}.safetensors", content))

    @torch.inference_mode()
    def _transcribed(self, states: Float[Tensor, "S E"]) -> Int[Tensor, " T"]:
        encoded, capabilities = self._whisper.listen(states), self.backbone.capabilities
        cache, tokens, count = encoded.cache(), list(encoded.tokens), 0
        most = min(len(tokens) + LONGEST, capabilities.context)
        while len(tokens) < most and (count == 0 or tokens[-1] not in capabilities.eos):
            new, places = torch.tensor(tokens[count:]), torch.arange(count, len(tokens))
            row = cache.extend(Window(new, places, count, None, 1)).logits[-1]
            count = len(tokens)
            tokens.append(int(row.argmax()))  # the next pass reads it
        return torch.tensor(tokens)
