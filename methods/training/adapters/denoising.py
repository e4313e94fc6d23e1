"""What an adapter of Cross-Regression learns from: windows of a backbone's own text, noise, weights and the loss.

Source: Abulkhanov et al., Cross-Regression, Algorithm 3 and appendix D.1.
Symbols: x tokens of a window, W of them; p control stream's law, q predictive stream's, s_t how many right guesses
follow token t without a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from harness.train.gated_lora import GatedLora
from harness.train.teacher import Passage


class Guesses(NamedTuple):
    """Which slots are guessed right, and which lie inside their passage."""

    right: Bool[Tensor, "n W"]
    inside: Bool[Tensor, "n W"]


class Denoising(nn.Module):
    """An adapter, the passages of both sides, and the replay buffer: what was guessed last in each window.

    Args:
        width: W. hop: 0: of each passage the made part is cut into whole windows, one behind the other; more: a window
            begins at every so many tokens, and what of it lies behind the passage's end counts nothing. least: see
            `noised`.
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
        found = [wanted(passage, width, hop) for passage in self.train_on]
        self.first = np.cumsum([0, *(len(each) for each in found)]).tolist()
        self.register_buffer("replay", torch.cat(found))

    def denoised(self, chosen: int, random: np.random.Generator) -> Tensor:
        """The loss of one passage's windows, whose guesses go into the buffer (Algorithm 3, lines 2 to 9)."""
        passage, vocabulary = self.train_on[chosen], self.adapted.backbone.capabilities.vocabulary
        held = slice(self.first[chosen], self.first[chosen + 1])
        text, at = torch.tensor(passage.tokens), roots(passage, self.width, self.hop)
        windows = seen(text, at, noised(self.replay[held], vocabulary, random, self.least))
        made = self.adapted(text, windows, at, passage.condition)
        q = made.predictive.float().log_softmax(-1)
        self.replay[held] = q.argmax(-1)
        within = inside(passage, self.width, self.hop)
        weight = weights((q.argmax(-1) == wanted(passage, self.width, self.hop)) & within) * within
        cross = -(made.control.float().softmax(-1).detach() * q).sum(-1)
        loss: Tensor = (weight * cross).sum() / weight.sum()
        return loss

    @torch.no_grad()
    def hits(self) -> Guesses:
        """Of windows of the development side, with random ids wherever a guess is to come."""
        found = []
        for number, passage in enumerate(self.check_on):
            text, at = torch.tensor(passage.tokens), roots(passage, self.width, self.hop)
            random = np.random.default_rng(number)
            ids = random.integers(self.adapted.backbone.capabilities.vocabulary, size=(len(at), self.width))
            windows = seen(text, at, torch.from_numpy(ids))
            guessed = self.adapted(text, windows, at, passage.condition).predictive.argmax(-1)
            within = inside(passage, self.width, self.hop)
            found.append(Guesses((guessed == wanted(passage, self.width, self.hop)) & within, within))
        return Guesses(*(torch.cat(each) for each in zip(*found, strict=True)))


def roots(passage: Passage, width: int, hop: int = 0) -> Int[Tensor, " n"]:
    """Where the windows begin: the token before the first of each, which is read again."""
    end = len(passage.tokens)
    return torch.arange(passage.start - 1, end - 1 if hop else end - width, hop or width)


def wanted(passage: Passage, width: int, hop: int = 0) -> Int[Tensor, "n W"]:
    """The tokens of each window; the last one again behind the end."""
    return torch.tensor(passage.tokens)[_places(passage, width, hop).clamp_max(len(passage.tokens) - 1)]


def inside(passage: Passage, width: int, hop: int = 0) -> Bool[Tensor, "n W"]:
    """Which slots lie before the passage's end."""
    return _places(passage, width, hop) < len(passage.tokens)


def _places(passage: Passage, width: int, hop: int) -> Int[Tensor, "n W"]:
    return roots(passage, width, hop)[:, None] + torch.arange(1, width + 1)


def seen(text: Int[Tensor, " N"], at: Int[Tensor, " n"], slots: Int[Tensor, "n W"]) -> Int[Tensor, "n W"]:
    """What the rows of each window read: the last token of the text, then all slots but the last."""
    return torch.cat([text[at][:, None], slots[:, :-1]], 1)


def noised(
    slots: Int[Tensor, "n W"], vocabulary: int, random: np.random.Generator, least: float = 0.0
) -> Int[Tensor, "n W"]:
    """Each id becomes a uniform one with its window's own probability; the paper names no noise.

    Args:
        least: that probability is uniform from here to 1; at 1 rows read random ids alone, as placeholders are.
    """
    share = least + (1 - least) * random.random((len(slots), 1))
    other = torch.from_numpy(random.integers(vocabulary, size=tuple(slots.shape)))
    return torch.where(torch.from_numpy(random.random(tuple(slots.shape)) < share), other, slots)


def weights(right: Bool[Tensor, "n W"]) -> Float[Tensor, "n W"]:
    """s_t + 1, where s_W = 0 and s_t = (s_{t+1} + 1) 1[guess t + 1 is right] (Algorithm 3, line 6)."""
    follow = torch.zeros(right.shape)
    for t in range(right.shape[1] - 2, -1, -1):
        follow[:, t] = (follow[:, t + 1] + 1) * right[:, t + 1]
    return follow + 1
