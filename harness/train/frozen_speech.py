"""Whisper as an adapter learns beside it: the decoder of transformers, over recordings that were heard once.

The encoder's states and the greedy transcript of a recording lie in the cache, 1.5 MB for each of Whisper base.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor

from harness.backbones.speech.whisper import Whisper, read
from harness.backbones.speech.whisper_audio import FRAME
from harness.backbones.speech.whisper_decoder import linears
from harness.core.cache import Window
from harness.core.task import Prompt
from harness.errors import UsageError
from harness.platform.folders import cache_folder
from harness.train.frozen_text import FrozenModel
from harness.train.teacher import Passage

LONGEST = 160
"""Tokens of a transcript."""
FLOOR = -1e4
"""Logit of what is never said: its share is zero in any type, and zero times its logarithm is no nan."""


@final
class FrozenSpeech(FrozenModel):
    """A Whisper in fp32 for the adapter to learn beside, and in bf16 to hear and to write.

    Args:
        name: of a preset. params: what its adapter loads.
    """

    task = None

    def __init__(self, name: str, params: Mapping[str, Any]) -> None:
        loaded = read(name, params, "fp32", "cpu")
        self.model, self._whisper = loaded.model, Whisper.load(name, params, "bf16", "cpu")
        self.backbone = self._whisper
        self.linears, self._setup = linears(self.model), loaded.setup
        self.hears = FRAME * int(self.model.config.max_source_positions)
        self._home = cache_folder() / "distilled" / f"{name}-{self.backbone.fingerprint[:12]}" / "heard"

    def logits(
        self,
        ids: Int[Tensor, " N"],
        mask: Float[Tensor, "N N"],
        places: Int[Tensor, " N"],
        condition: npt.NDArray[Any] | None,
    ) -> Float[Tensor, "N V"]:
        """With what is never said at ``FLOOR``; ``condition``: the recording."""
        states, last = self._heard(condition)["states"].float(), self.backbone.capabilities.context - 1
        rows = self.model.model.decoder(
            input_ids=ids[None],
            attention_mask=mask[None, None],
            position_ids=places.clamp_max(last)[None],  # rows of windows behind the text's end count nothing
            encoder_hidden_states=states[None],
            use_cache=False,
        ).last_hidden_state[0]
        return self._said(self.model.proj_out(rows), places)

    def _said(self, logits: Float[Tensor, "N V"], places: Int[Tensor, " N"]) -> Float[Tensor, "N V"]:
        setup = self._setup
        silent: Bool[Tensor, "N V"] = torch.zeros(logits.shape, dtype=torch.bool)
        silent[:, setup.first] = (places == len(setup.prompt) - 1)[:, None]
        silent[:, setup.never] = True
        return logits.masked_fill(silent, FLOOR)

    def transcript(self, recording: npt.NDArray[Any]) -> Passage:
        """What it writes greedily; it ends with the end of text unless it is ``LONGEST`` tokens long."""
        tokens = self._heard(recording)["tokens"].tolist()
        return Passage(tuple(tokens), len(self._setup.prompt), recording)

    def _heard(self, recording: npt.NDArray[Any] | None) -> dict[str, Tensor]:
        """States and tokens of a recording, of the cache once they are there."""
        if recording is None:
            raise UsageError(f"{self.backbone.name}: a passage has no recording; Whisper writes what it hears")
        path = self._home / f"{hashlib.sha256(np.ascontiguousarray(recording).tobytes()).hexdigest()[:20]}.safetensors"
        if not path.is_file():
            states = self._whisper.hear(Prompt("a recording to train on", condition=recording))
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            save_file({"states": states.contiguous(), "tokens": self._written(states)}, part)
            part.replace(path)
        return load_file(path)

    @torch.inference_mode()
    def _written(self, states: Float[Tensor, "S E"]) -> Int[Tensor, " T"]:
        opening, capabilities = self._whisper.listen(states), self.backbone.capabilities
        cache, tokens, held = opening.cache(), list(opening.tokens), 0
        most = min(len(tokens) + LONGEST, capabilities.context)
        while len(tokens) < most and (held == 0 or tokens[-1] not in capabilities.eos):
            fed, at = torch.tensor(tokens[held:]), torch.arange(held, len(tokens))
            row = cache.extend(Window(fed, at, held, None, 1)).logits[-1]
            held = len(tokens)
            tokens.append(int(row.argmax()))  # the next pass reads it
        return torch.tensor(tokens)
