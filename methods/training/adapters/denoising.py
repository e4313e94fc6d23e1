"""How an adapter of Cross-Regression learns: windows of a backbone's own text, the replay buffer and the loss.

Source: Abulkhanov et al., Cross-Regression, Algorithm 3 and appendix D.1.
Symbols: n windows of W tokens; p and q the distributions of the control and the predictive stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from stridebench.harness.errors import UsageError
from stridebench.harness.train.gated_lora import GatedLora, Streams
from stridebench.harness.train.teacher import Passage
from stridebench.methods.training.adapters.passage_windows import inputs, inside, noised, roots, targets, weights


class Guesses(NamedTuple):
    """Which slots are guessed right, and which lie inside their passage."""

    right: Bool[Tensor, "n W"]
    inside: Bool[Tensor, "n W"]


class Denoising(nn.Module):
    """An adapter, the passages of both sides, and the replay buffer with the last guesses of each window.

    Args:
        adapted: the adapter with its frozen model.
        train_on: passages of the loss.
        check_on: passages of the figures.
        width: W.
        hop: distance between the starts of windows. 0: the generated part of a passage is cut into whole windows. More:
            windows overlap or leave gaps, and slots past the end of the passage are not counted.
        least: see `passage_windows.noised`.
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
