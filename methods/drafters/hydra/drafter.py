"""A tree of Hydra's heads: each level reads the tokens of the path above it.

Symbols: D heads, E width, V vocabulary, K nodes, m nodes of the level above, n of a level.
Source: Ankner et al. 2024, Hydra, arXiv:2402.05109, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.run import Run
from stridebench.harness.core.session import Session
from stridebench.harness.errors import UsageError
from stridebench.methods.drafters.draft_model import check_shapes
from stridebench.methods.drafters.eagle.drafter import FeatureCache
from stridebench.methods.drafters.heads.drafter import CANDIDATES, UNKNOWN, wave
from stridebench.methods.drafters.hydra.net import HydraNet, toy
from stridebench.methods.trees.shapes import TreeShape, best_tree, published
from stridebench.methods.trees.structure import space


@dataclass(frozen=True)
class HydraDrafter:
    """Heads, the target's embedding and the form of the trees; opened in every step, from cached weights.

    Args:
        name: of the heads.
        net: in the target's type.
        embed: vectors of ids.
        shape: of the tree.
    """

    name: str
    net: HydraNet
    embed: Float[Tensor, "V E"]
    shape: TreeShape

    @classmethod
    def open(cls, run: Run, name: str, tree: str, nodes: int) -> HydraDrafter:
        """The heads of this folder, with a published tree or the best one of ``nodes`` nodes.

        Raises:
            WeightsError: they are not there, or made for another target. UsageError: the target is guided.
        """
        if run.capabilities.branches > 1:
            raise UsageError(f"{run.backbone} is guided and Hydra's heads have one branch: take a target at guidance 1")
        folder = run.component("drafter", name)
        if folder is None:
            net, embed = _toy(run.capabilities.vocabulary, run.capabilities.width)
        else:
            embed = run.tied_embeddings().embed
            net = _load(folder, embed.dtype, embed.device)
            check_shapes(folder, run, net.width, net.vocabulary)
        return cls(name, net, embed, _shape(net.depth, net.vocabulary, tree, nodes, run.target.device))

    def read_prompt(self, run: Run) -> None:
        """Pass the prompt's rows through the prefix layer, where there is one."""
        if self.net.prefix is not None and len(run.target) > 1:
            session = self._session(run)
            session.prefill(run.target.hidden[: len(session) - 1])

    def propose(self, run: Run) -> Draft:
        """A tree of point masses, cut to the room that is left; nothing while there is no row to read."""
        rows, shape = run.target.hidden, self.shape.cut(run.room - 1, space(run))
        if not len(rows) or not shape.sizes:
            return run.nothing
        row = rows[-1, 0, 0] if self.net.prefix is None else self._prefixed(run)
        last = torch.tensor(run.target.tokens[-1:], device=row.device)
        return Draft(run.timed(self.grow)(row, last, shape), parents=shape.parents)

    def grow(self, row: Float[Tensor, " E"], last: Int[Tensor, " one"], shape: TreeShape) -> Int[Tensor, " K"]:
        """Tokens of a tree of this form: the r-th best child of each parent by the head of its level."""
        seen, tokens = torch.cat([row[None], self.embed[last]], 1), []
        above, first = -1, 0
        for level, size in enumerate(shape.sizes):
            nodes = slice(first, first + size)
            parents = shape.parents[nodes] - above
            best = self.net(level, seen).topk(min(CANDIDATES, self.net.vocabulary)).indices
            tokens.append(best[parents, shape.ranks[nodes]])
            seen = torch.cat([seen[parents], self.embed[tokens[-1]]], 1)
            above, first = first, first + size
        return torch.cat(tokens)

    def _prefixed(self, run: Run) -> Float[Tensor, " E"]:
        session = self._session(run)
        session.sync(run.target.tokens[1:])
        session.forward(features=run.target.hidden[session.cached : len(session)])
        return session.newest[-1, 0, 0]

    def _session(self, run: Run) -> Session:
        fresh = self.name not in run.opened
        session = run.features(self.name, lambda: self._cache(run))
        if fresh:
            session.tap((-1,))
        return session

    def _cache(self, run: Run) -> FeatureCache:
        assert self.net.prefix is not None, "only a prefix layer has entries"
        rows = TiedEmbeddings(self.embed, self.embed[:1])  # the heads read its rows, so its logits are not used
        return FeatureCache(self.net.prefix, rows, run.capabilities, len(run.target))


@lru_cache(maxsize=4)
def _load(folder: Path, dtype: torch.dtype, device: torch.device) -> HydraNet:
    return HydraNet.load(folder).to(device=device, dtype=dtype)


@lru_cache(maxsize=16)
def _shape(depth: int, vocabulary: int, tree: str, nodes: int, device: torch.device) -> TreeShape:
    width = min(CANDIDATES, vocabulary)
    chosen = published(tree, depth, width) if tree else best_tree([row[:width] for row in UNKNOWN[:depth]], nodes)
    return chosen.on(device)


@lru_cache(maxsize=8)
def _toy(vocabulary: int, width: int) -> tuple[HydraNet, Tensor]:
    shapes = [weight.shape for weight in HydraNet(3, 1, width, vocabulary).parameters()]
    return toy(vocabulary, width, [wave(*shape) + 0.1 * n for n, shape in enumerate(shapes)]), wave(vocabulary, width)
