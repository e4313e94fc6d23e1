"""A feature drafter in training, and what it learns from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.train.teacher import Teacher
from stridebench.methods.drafters.eagle.net import FeatureNet
from stridebench.methods.training.eagle.examples import Example


@dataclass(frozen=True)
class Lessons:
    """What a student learns from: the backbone, its tied embeddings in fp32, and examples of both sides."""

    teacher: Teacher
    embed: Float[Tensor, "V E"]
    unembed: Float[Tensor, "V F"]
    train: list[Example]
    development: list[Example]
    lift: Callable[[Tensor], Tensor] | None = None


class Student(nn.Module):
    """The net; its lessons are kept out of its weights.

    Attributes:
        ids: the K ids whose probabilities are compared, on the CPU: those that the net proposes, else those that a cell
            of the grid may take, else all.
        proposed: marks the proposed ids among V; None where the net proposes all.
    """

    def __init__(self, net: FeatureNet, lessons: Lessons) -> None:
        super().__init__()
        self.net = net
        self.lessons = lessons
        vocabulary, grid = len(lessons.unembed), lessons.teacher.capabilities.grid
        cells = range(vocabulary) if grid is None or grid.ids is None else grid.ids
        own = len(net.ids) > 0
        self.ids: Int[Tensor, " K"] = net.ids.cpu().clone() if own else torch.tensor(list(cells))
        self.proposed: Bool[Tensor, " V"] | None = None
        if own:
            self.proposed = torch.zeros(vocabulary, dtype=torch.bool).index_fill(0, self.ids, True)
        self._rows = (lessons.unembed[self.ids.to(lessons.unembed.device)],)

    @property
    def device(self) -> torch.device:
        """Where the net and the backbone's embeddings are."""
        return self._rows[0].device

    def target_logits(self, heads: Float[Tensor, "n E"]) -> Float[Tensor, "n K"]:
        """The backbone's logits of the compared ids."""
        return functional.linear(self._lifted(heads), self._rows[0]).float()

    def draft_logits(self, features: Float[Tensor, "n E"], net: FeatureNet | None = None) -> Float[Tensor, "n K"]:
        """The drafter's logits of the compared ids; ``net``: another net of the same shape."""
        chosen = self.net if net is None else net
        if chosen.shape.kind == "eagle3":  # its own head, which needs nothing of the backbone's
            return chosen.headed(features[None])[0].float()
        return chosen.logits(self._lifted(features)[None], self._rows[0])[0].float()

    def _lifted(self, rows: Float[Tensor, "n E"]) -> Float[Tensor, "n F"]:
        return rows if self.lessons.lift is None else self.lessons.lift(rows)
