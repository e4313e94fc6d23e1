"""Adapters of Cross-Regression: `stride train adapter cross-regression-embedded-code`.

Source: Abulkhanov et al., Cross-Regression, Algorithm 3, appendix D and Table 6.
Rows of the text do not use the adapter and rows of windows do, as in the joint layout of decoding.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from stridebench.harness.errors import UsageError
from stridebench.harness.registry import GENERAL_RECIPES
from stridebench.harness.synthetic import speech
from stridebench.harness.train.gated_lora import FrozenModel, GatedLora, ModelDevice, Streams
from stridebench.harness.train.passages import AnyPlan, PassagePlan, passages_of
from stridebench.harness.train.recipe import Recipe, autocast, round_to_bf16
from stridebench.harness.train.teacher import Passage
from stridebench.harness.train.windows import side_of

# Windows of a passage: their input, their labels, and the weight of each slot.
# Source: Abulkhanov et al., Cross-Regression, Algorithm 3 and appendix D.1. Symbols: n windows of W tokens x; s_t
# the number of consecutive right guesses after token t.


def roots(passage: Passage, width: int, hop: int = 0) -> Int[Tensor, " n"]:
    """Positions of the windows' roots: the token before a window's first one, which the window reads again."""
    first, end = passage.start - 1, len(passage.tokens)
    return torch.arange(first, max(first, end - 1 if hop else end - width), hop or width)


def targets(passage: Passage, width: int, hop: int = 0) -> Int[Tensor, "n W"]:
    """The tokens of each window; past the end of the passage its last token is repeated."""
    return torch.tensor(passage.tokens)[_places(passage, width, hop).clamp_max(len(passage.tokens) - 1)]


def inside(passage: Passage, width: int, hop: int = 0) -> Bool[Tensor, "n W"]:
    """Which slots lie before the passage's end."""
    return _places(passage, width, hop) < len(passage.tokens)


def _places(passage: Passage, width: int, hop: int) -> Int[Tensor, "n W"]:
    return roots(passage, width, hop)[:, None] + torch.arange(1, width + 1)


def inputs(text: Int[Tensor, " N"], at: Int[Tensor, " n"], slots: Int[Tensor, "n W"]) -> Int[Tensor, "n W"]:
    """Return the input of each window's rows: the token at the root, then all slots except the last."""
    return torch.cat([text[at][:, None], slots[:, :-1]], 1)


def noised(
    slots: Int[Tensor, "n W"], vocabulary: int, random: np.random.Generator, least: float = 0.0
) -> Int[Tensor, "n W"]:
    """Replace ids by uniformly drawn ones. The paper does not name its noise.

    Args:
        least: each window has a probability of replacement, drawn uniformly from here to 1. At 1 all ids are random,
            like placeholders.
    """
    share = least + (1 - least) * random.random((len(slots), 1))
    other = torch.from_numpy(random.integers(vocabulary, size=tuple(slots.shape)))
    return torch.where(torch.from_numpy(random.random(tuple(slots.shape)) < share), other, slots)


def weights(right: Bool[Tensor, "n W"]) -> Float[Tensor, "n W"]:
    """s_t + 1, where s_W = 0 and s_t = (s_{t+1} + 1) 1[guess t + 1 is right] (Algorithm 3, line 6)."""
    follow = torch.zeros(right.shape, device=right.device)
    for t in range(right.shape[1] - 2, -1, -1):
        follow[:, t] = (follow[:, t + 1] + 1) * right[:, t + 1]
    return follow + 1


# Recordings that a backbone transcribes, for an adapter to learn from.
# Recordings of a benchmark's voices or sentences are left out, by their transcripts in the folder and by those of
# the backbone (see `harness.synthetic.speech.in_benchmark`). So are recordings that are longer than the backbone
# reads, or whose transcript has no end. The side of a recording is decided by a hash of its transcript.


@dataclass(frozen=True)
class Recordings:
    """At most ``count`` recordings, evenly spread over the folder."""

    count: int = 1000


@dataclass
class Transcribed:
    """Passages whose conditions are recordings, and the number of recordings left out for each reason."""

    train: list[Passage] = field(default_factory=list)
    development: list[Passage] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        """Count a recording that is left out."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1


def transcribed(model: FrozenModel, plan: Recordings) -> Transcribed:
    """Return the backbone's transcripts; recordings that were left out are named on standard error."""
    root, passages = speech.recordings_folder(), Transcribed()
    listed = speech.utterances(root)
    free = [utterance for utterance in listed if not speech.in_benchmark(utterance.speaker, utterance.text)]
    count = min(plan.count, len(free))
    for number in range(count):
        if number % 50 == 0:
            print(f"{model.backbone.name}: recording {number + 1} of {count}", file=sys.stderr, flush=True)
        _add(passages, model, free[len(free) * number // count])
    reasons = "".join(f", {number} {reason}" for reason, number in passages.skipped.items())
    dropped = len(listed) - len(free)
    summary = f"{root}: of {len(listed)} recordings {dropped} are a benchmark's, {count} were heard{reasons}"
    print(summary, file=sys.stderr, flush=True)
    if not passages.train or not passages.development:
        raise UsageError(
            f"{summary}: {len(passages.train)} are left to train on and {len(passages.development)} to check; give more"
        )
    return passages


def _add(passages: Transcribed, model: FrozenModel, utterance: speech.Utterance) -> None:
    recording = speech.read_sound(utterance.path)
    if len(recording) > model.hears > 0:
        passages.skip("are too long")
        return
    passage = model.transcript(recording)
    text = str(model.backbone.decode(passage.tokens))
    if passage.tokens[-1] not in model.backbone.capabilities.eos:
        passages.skip("have no end")
    elif speech.in_benchmark(utterance.speaker, text):
        passages.skip("are heard as a benchmark's")
    else:
        side = passages.train if side_of(text or utterance.text) == "train" else passages.development
        side.append(passage)


# How an adapter of Cross-Regression learns: windows of a text of its backbone, the replay buffer and the loss.
# Source: Abulkhanov et al., Cross-Regression, Algorithm 3 and appendix D.1. Symbols: n windows of W tokens; p and q
# the distributions of the control and the predictive stream.


class Guesses(NamedTuple):
    """Which slots are guessed right, and which lie inside their passage."""

    right: Bool[Tensor, "n W"]
    inside: Bool[Tensor, "n W"]


class Denoising(nn.Module):
    """An adapter, the passages of both sides, and the replay buffer with the last guesses of each window.

    Args:
        width: W.
        hop: distance between the starts of windows. 0: the generated part of a passage is cut into whole windows. More:
            windows overlap or leave gaps, and slots past the end of the passage are not counted.
        least: see `noised`.
    """

    replay: Tensor

    def __init__(
        self,
        adapted: GatedLora,
        train_on: Sequence[Passage],
        check_on: Sequence[Passage],
        width: int,
        hop: int = 0,
        least: float = 0.0,
    ) -> None:
        super().__init__()
        self.adapted, self.width, self.hop, self.least = adapted, width, hop, least
        self.train_on = [passage for passage in train_on if len(roots(passage, width, hop))]
        self.check_on = [passage for passage in check_on if len(roots(passage, width, hop))]
        if not self.train_on or not self.check_on:
            sides = f"{len(self.train_on)} of {len(train_on)} passages to train on"
            raise UsageError(
                f"{sides} and {len(self.check_on)} of {len(check_on)} to check on have an answer as long as a window "
                f"of {width} tokens; take more prompts, longer answers or a smaller width"
            )
        windows = [targets(passage, width, hop) for passage in self.train_on]
        self.first = np.cumsum([0, *(len(tokens) for tokens in windows)]).tolist()
        self.register_buffer("replay", torch.cat(windows))

    def denoised(self, chosen: int, random: np.random.Generator) -> Tensor:
        """The loss on one passage's windows; their guesses go into the buffer (Algorithm 3, lines 2 to 9)."""
        passage, vocabulary = self.train_on[chosen], self.adapted.backbone.capabilities.vocabulary
        rows = slice(self.first[chosen], self.first[chosen + 1])
        text, at = torch.tensor(passage.tokens), roots(passage, self.width, self.hop)
        windows = inputs(text, at, noised(self.replay[rows].cpu(), vocabulary, random, self.least))
        streams = self._read(text, windows, at, passage)
        log_q = streams.predictive.float().log_softmax(-1)
        self.replay[rows] = log_q.argmax(-1)
        within, right = (places(passage, self.width, self.hop).to(log_q.device) for places in (inside, targets))
        weight = weights((log_q.argmax(-1) == right) & within) * within
        cross = -(streams.control.float().softmax(-1).detach() * log_q).sum(-1)
        loss: Tensor = (weight * cross).sum() / weight.sum()
        return loss

    def _read(
        self, text: Int[Tensor, " N"], windows: Int[Tensor, "n W"], at: Int[Tensor, " n"], passage: Passage
    ) -> Streams:
        device = self.adapted.device
        streams: Streams = self.adapted(text.to(device), windows.to(device), at.to(device), passage.condition)
        return streams

    @torch.no_grad()
    def hits(self) -> Guesses:
        """Guesses in windows of the development side that read random ids."""
        guesses = []
        for number, passage in enumerate(self.check_on):
            text, at = torch.tensor(passage.tokens), roots(passage, self.width, self.hop)
            random = np.random.default_rng(number)
            ids = random.integers(self.adapted.backbone.capabilities.vocabulary, size=(len(at), self.width))
            windows = inputs(text, at, torch.from_numpy(ids))
            predicted = self._read(text, windows, at, passage).predictive.argmax(-1).cpu()
            within = inside(passage, self.width, self.hop)
            guesses.append(Guesses((predicted == targets(passage, self.width, self.hop)) & within, within))
        return Guesses(*(torch.cat(field) for field in zip(*guesses, strict=True)))


# Figures of a trained adapter and of its controls: without effect, or with its entries in another order.


@contextmanager
def control(adapted: GatedLora, key: str) -> Iterator[None]:
    """Within the context, switch the adapter off (_untrained), or reorder its matrices' entries (_shuffled)."""
    trained = [matrix.detach().clone() for matrix in adapted.up]
    order = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for matrix in adapted.up if key else ():
            mixed = matrix.flatten()[torch.randperm(matrix.numel(), generator=order)].view_as(matrix)
            matrix.copy_(mixed if key == "_shuffled" else torch.zeros_like(matrix))
        try:
            yield
        finally:
            for matrix, values in zip(adapted.up, trained, strict=True):
                matrix.copy_(values)


def development_figures(model: Denoising) -> dict[str, float]:
    """Figures on development windows that read random ids.

    - ``top1_slot*``: how often the guess of a slot is right.
    - ``run``: mean number of right guesses before the first wrong one.
    - ``_untrained``, ``_shuffled``: the same of a new adapter (the target alone), and of one whose matrices have
      their entries in another order.
    """
    figures: dict[str, float] = {}
    for key in ("", "_untrained", "_shuffled"):
        with control(model.adapted, key):
            right, inside = (slots.double().cpu() for slots in model.hits())
        share = right.sum(0) / inside.sum(0).clamp_min(1)
        figures |= {"windows": float(len(right)), "places": float(inside.sum(1).mean())}
        figures |= {f"top1_slot{k}{key}": float(share[k - 1]) for k in (1, 2, 4, model.width)}
        figures[f"run{key}"] = float(right.cumprod(1).sum(1).mean())
    return figures


@dataclass(frozen=True, kw_only=True)
class TrainAdapter(Recipe):
    """Denoise windows of the backbone's passages; only the low-rank matrices learn.

    Args:
        plan: of its passages, or of recordings that it transcribes.
        alpha: their product is scaled by alpha / rank.
        width: w, the tokens of a window.
        hop: see `Denoising`.
        least: see `noised`.
        layers: first and last layer with matrices (Table 16); all if None.
        device: that the adapter of a language model learns on; its frozen model is in the type of the plan there.
    """

    summary: str
    backbone: str
    plan: PassagePlan | AnyPlan | Recordings
    rank: int = 32
    alpha: int = 64
    width: int = 16
    hop: int = 0
    least: float = 0.0
    layers: tuple[int, int] | None = None
    batch: int = 4
    device: str = "cpu"

    kind = "adapter"
    source: str = "passages of the backbone itself, drawn with a fixed seed"
    steps: int = 600
    hours: float = 0.5
    rate: float = 5e-4
    warmup: int = 18
    per_step = "batch"
    paper = MappingProxyType({"epochs": 20, "batch": 8, "rate": 5e-4, "warmup_share": 0.03, "hours": 1e4})
    printed = MappingProxyType(
        {**paper, "width": 16, "hop": 0, "least": 0.0}
        | {"data.new": 16, "data.prefixes": 8, "data.longest": 2048, "data.temperature": 0.0}
    )
    fall = 0.97
    decay = 0.0
    betas = (0.9, 0.999)

    def build(self, requirements: Mapping[str, Path]) -> nn.Module:
        """Return a new adapter. Generates the backbone's passages first if the cache holds none."""
        plan = self.plan
        place = ModelDevice(self.device, "fp32" if self.device == "cpu" else str(getattr(plan, "dtype", "bf16")))
        adapted = GatedLora(self.backbone, self.rank, self.alpha, self.layers, place)
        sides = transcribed(adapted.frozen, plan) if isinstance(plan, Recordings) else passages_of(self.backbone, plan)
        return Denoising(adapted, sides.train, sides.development, self.width, self.hop, self.least)

    def loss(self, model: nn.Module, step: int, random: np.random.Generator) -> Tensor:
        assert isinstance(model, Denoising)
        device = model.adapted.device
        total = torch.zeros((), device=device)
        for chosen in random.choice(len(model.train_on), size=min(self.batch, len(model.train_on)), replace=False):
            with autocast(device=device.type):
                total = total + model.denoised(int(chosen), random)
        return total / self.batch

    def export(self, model: nn.Module, folder: Path) -> None:
        assert isinstance(model, Denoising)
        round_to_bf16(model.adapted.parameters())
        model.adapted.export(folder)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """See `development_figures`."""
        assert isinstance(model, Denoising)
        return development_figures(model)


GENERAL_RECIPES.register("cross-regression")(
    TrainAdapter(
        summary="adapter of a language model or a Whisper, as in Algorithm 3", backbone="", plan=PassagePlan("text")
    )
)


# Adapters of Cross-Regression on a range of layers: `stride train adapter cross-regression-l0-1-embedded-code`.
# Source: Abulkhanov et al., Cross-Regression, Table 16: quarters, halves and three quarters of the layers.


RANGES = {
    "embedded-code": ((0, 0), (1, 1), (2, 3), (4, 4), (0, 1), (1, 3), (2, 4), (0, 3), (1, 4)),
    "smollm2-135m": ((0, 7), (8, 14), (15, 22), (23, 29), (0, 14), (8, 22), (15, 29), (0, 22), (8, 29)),
}
"""First and last layer of each range; the backbones have 5 and 30 layers."""
