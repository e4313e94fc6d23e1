"""Low-rank matrices that learn while the model is frozen; only gated rows use them, as in decoding.

Source: Hu et al. 2021, LoRA, arXiv:2106.09685.
Axes: N tokens of a text, n windows of it, W rows of a window, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file, save
from torch import Tensor, nn

from stridebench.harness.backbones.recordings import FRAME
from stridebench.harness.backbones.slots import lora
from stridebench.harness.backbones.slots.lora import LowRank
from stridebench.harness.backbones.slots.transformers_net import TransformersNet
from stridebench.harness.backbones.speech import Whisper, linears, read
from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.cache import Window
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets
from stridebench.harness.train import windows
from stridebench.harness.train.passages import cached
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.harness.train.windows import Windows

# Frozen models that an adapter is trained on: their linear layers and their logits under a mask. Here: of text.


class WindowedTokens(NamedTuple):
    """The input of a pass of a frozen model."""

    ids: Int[Tensor, " N"]
    windows: Windows
    places: Int[Tensor, " N"]
    condition: npt.NDArray[Any] | None

    def mask(self) -> Float[Tensor, "1 1 N N"]:
        """Return the windows as a mask to add to attention scores."""
        visible = self.windows.visible()
        return torch.zeros(visible.shape, device=visible.device).masked_fill(~visible, -torch.inf)[None, None]


class FrozenModel(ABC):
    """The model.

    Attributes:
        hears: samples of the longest recording that it reads; 0: it reads none.
    """

    backbone: Backbone
    model: Any
    linears: Mapping[str, nn.Linear]
    task: str | None
    hears: int

    @abstractmethod
    def logits(self, inputs: WindowedTokens) -> Float[Tensor, "N V"]:
        """One pass over the tokens."""

    @abstractmethod
    def transcript(self, recording: npt.NDArray[Any]) -> Passage:
        """Return the greedy transcript of a recording, or raise UsageError if the model reads no recordings."""


@final
class FrozenText(FrozenModel):
    """A language model, through the forward of transformers."""

    task = "CAUSAL_LM"
    hears = 0

    def __init__(self, name: str, params: Mapping[str, Any], device: str = "cpu", dtype: str = "fp32") -> None:
        self.backbone = backbone = HFCausal.load(name, {**params, "forward": "transformers"}, dtype, device)
        assert isinstance(backbone._net, TransformersNet), "what forward: transformers asks for"
        self.model = backbone._net.model
        self.linears = lora.linears(self.model)
        self._in_blocks = windows.prepare(self.model)

    def logits(self, inputs: WindowedTokens) -> Float[Tensor, "N V"]:
        """The condition is ignored. Attention goes block by block where transformers lets it."""
        mask = inputs.ids.new_zeros(1, 1, 1, 1) if self._in_blocks else inputs.mask()  # blocks make their own masks
        with windows.read(inputs.windows) if self._in_blocks else nullcontext():
            out = self.model(
                input_ids=inputs.ids[None], attention_mask=mask, position_ids=inputs.places[None], use_cache=False
            )
        logits: Tensor = out.logits[0]
        return logits

    def transcript(self, recording: npt.NDArray[Any]) -> Passage:
        """Always refused."""
        raise UsageError(f"{self.backbone.name} reads text; recordings are for a backbone of whisper")


# A frozen Whisper that an adapter is trained on: the decoder of transformers, over recordings encoded once.
# The encoder's states and the greedy transcript of a recording are kept in the cache: 1.5 MB each for Whisper base.


LONGEST = 160
"""Tokens of a transcript."""
FLOOR = -1e4
"""Logit of suppressed tokens. It makes their probability zero in any type, and zero times this logarithm is not nan."""


@final
class FrozenSpeech(FrozenModel):
    """A Whisper: in fp32 for the adapter, and in bf16 to encode and transcribe recordings.

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
        logits: Tensor = self.model.proj_out(rows)
        setup = self._setup
        silent: Bool[Tensor, "N V"] = torch.zeros(logits.shape, dtype=torch.bool)
        silent[:, setup.first] = (inputs.places == len(setup.prompt) - 1)[:, None]
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


MODELS: dict[str, type[FrozenText] | type[FrozenSpeech]] = {"hf_causal": FrozenText, "whisper": FrozenSpeech}
"""The frozen model of each adapter of backbones."""


class Streams(NamedTuple):
    """Return logits for each token of each window: of the text's rows (control), and of the gated rows (predictive)."""

    control: Float[Tensor, "n W V"]
    predictive: Float[Tensor, "n W V"]


class ModelDevice(NamedTuple):
    """Return the device and the type of a frozen model."""

    device: str = "cpu"
    dtype: str = "fp32"


ON_CPU = ModelDevice()


class GatedLora(nn.Module):
    """The matrices. The frozen model is not part of their state.

    Args:
        alpha: their product is scaled by alpha / rank.
        layers: first and last layer with matrices; all if None.
        place: of the frozen model. The matrices are in fp32.

    Raises:
        UsageError: the backbone is of another adapter, or has no such layers.
        WeightsError: its weights cannot be had.
    """

    def __init__(
        self, name: str, rank: int, alpha: int, layers: tuple[int, int] | None = None, place: ModelDevice = ON_CPU
    ) -> None:
        super().__init__()
        presets.fetch(name)
        spec = presets.resolve(name)
        if spec.adapter not in MODELS:
            raise UsageError(
                f"{name} is a backbone of {spec.adapter}; adapters are trained for those of {', '.join(MODELS)}"
            )
        self.frozen: FrozenModel = MODELS[spec.adapter](name, spec.params, *place)
        self.backbone, self.rank, self.alpha = self.frozen.backbone, rank, alpha
        self._linears = {key: layer for key, layer in self.frozen.linears.items() if _within(key, layers)}
        count = _count(self.frozen.linears)
        if not self._linears or (layers is not None and not 0 <= layers[0] <= layers[1] < count):
            raise UsageError(f"{name} has no linear layers in {layers}; it has {count} layers from 0")
        self.down = nn.ParameterList(
            nn.Parameter(torch.empty(rank, layer.in_features)) for layer in self._linears.values()
        )
        self.up = nn.ParameterList(
            nn.Parameter(torch.zeros(layer.out_features, rank)) for layer in self._linears.values()
        )
        for matrix in self.down:
            nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))  # as peft does

    @property
    def device(self) -> torch.device:
        """Return the device of the matrices."""
        matrix: Tensor = self.down[0]
        return matrix.device

    def forward(
        self,
        text: Int[Tensor, " N"],
        windows: Int[Tensor, "n W"],
        roots: Int[Tensor, " n"],
        condition: npt.NDArray[Any] | None = None,
    ) -> Streams:
        """One pass over a text and its windows.

        Args:
            windows: tokens that each window reads. The first is the text's token at the root, which is read again.
            roots: position of the first token of each window.
            condition: the recording that the text was transcribed from.

        Returns:
            Both streams. Control rows past the end of the text repeat its last row.
        """
        count, (number, width) = len(text), windows.shape
        row = torch.arange(count + windows.numel(), device=text.device)
        window, slot = (row - count) // width, (row - count) % width
        gate, root = row >= count, roots[window.clamp_min(0)]
        places = torch.where(gate, root + slot, row)
        scale = self.alpha / self.rank
        pairs = [
            (layer, LowRank(down, up * scale))
            for layer, down, up in zip(self._linears.values(), self.down, self.up, strict=True)
        ]
        ids = torch.cat([text, windows.flatten()])
        with lora.hooked(pairs, gate[:, None].float()):
            logits = self.frozen.logits(WindowedTokens(ids, Windows(count, roots, width), places, condition))
        rows = (roots[:, None] + torch.arange(width, device=roots.device)).clamp_max(count - 1)
        return Streams(logits[rows], logits[count:].view(number, width, -1))

    def export(self, folder: Path) -> None:
        """Write the matrices in bf16 as peft reads them, and config.json, which ties them to the backbone."""
        pairs = zip(self._linears, self.down, self.up, strict=True)
        layers = {key: LowRank(down, up) for key, down, up in pairs}
        tie = {"backbone": self.backbone.name, "fingerprint": self.backbone.fingerprint}
        lora.write(folder, layers, self.alpha, self.frozen.task, tie)


def _count(linears: Mapping[str, nn.Linear]) -> int:
    return len({match[1] for key in linears if (match := re.search(r"\.(\d+)\.", key))})


def _within(key: str, layers: tuple[int, int] | None) -> bool:
    match = re.search(r"\.(\d+)\.", key)
    return layers is None or (match is not None and layers[0] <= int(match[1]) <= layers[1])
