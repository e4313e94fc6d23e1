"""What is trained of a feature drafter, and what stands beside it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from harness.train.teacher import Teacher
from methods.drafters.eagle.net import FeatureNet
from methods.training.eagle.examples import Example


@dataclass(frozen=True)
class Beside:
    """What is read only: the backbone, its two ends in fp32, and passages of both sides."""

    teacher: Teacher
    embed: Float[Tensor, "V E"]
    unembed: Float[Tensor, "V E"]
    train: list[Example]
    development: list[Example]


class Student(nn.Module):
    """The net; what stands beside it is kept out of its weights.

    Attributes:
        ids: of the laws compared, [K]: those that it proposes, or that a cell may take; all where neither says.
        proposed: marks them among V where the net has a head of its own, else None.
    """

    def __init__(self, net: FeatureNet, beside: Beside) -> None:
        super().__init__()
        self.net = net
        self.beside = beside
        vocabulary, grid = len(beside.unembed), beside.teacher.capabilities.grid
        cells = range(vocabulary) if grid is None or grid.ids is None else grid.ids
        own = len(net.ids) > 0
        self.ids: Int[Tensor, " K"] = net.ids.clone() if own else torch.tensor(list(cells))
        self.proposed: Bool[Tensor, " V"] | None = None
        if own:
            self.proposed = torch.zeros(vocabulary, dtype=torch.bool).index_fill(0, net.ids, True)
        self._rows = (beside.unembed[self.ids],)

    def wanted(self, heads: Float[Tensor, "n E"]) -> Float[Tensor, "n K"]:
        """The backbone's logits."""
        return functional.linear(heads, self._rows[0]).float()

    def said(self, features: Float[Tensor, "n E"], net: FeatureNet | None = None) -> Float[Tensor, "n K"]:
        """The drafter's; ``net``: of another one of the same form."""
        return (self.net if net is None else net).logits(features[None], self._rows[0])[0].float()
