"""Hydra's heads, which read the target's row, the last token and the tokens drafted before, and their trees.

Source: Ankner et al. 2024, Hydra, arXiv:2402.05109, sections 3 and 4; zankner/Hydra, ``hydra_heads/mlp_head.py`` and
``prefix_mlp_head.py``, whose files are read here.
Symbols: D heads, E width, V vocabulary, K nodes of a tree, n nodes of a level.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError, WeightsError, warn_unread
from stridebench.methods.drafters import checkpoint
from stridebench.methods.drafters.checkpoint import check_shapes
from stridebench.methods.drafters.eagle.net import FeatureCache, FeatureDrafterNet
from stridebench.methods.drafters.eagle.published import read_layer
from stridebench.methods.drafters.heads.drafter import CANDIDATES, UNKNOWN, wave
from stridebench.methods.drafters.tree_shapes import TreeShape, best_tree, published

FILES = ("hydra_lm_head.safetensors", "hydra_lm_head.pt", *checkpoint.FILES)
PREFIX = "prefix_embeding_layer."
BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(.+)$")
LEAVES = [f"{module}.{leaf}" for module in ("linear", "res_connection") for leaf in ("weight", "bias")]
HYDRA = """_name_or_path base_model_name_or_path dropout_rate grounded_heads head_dim hidden_size hidden_state_offset
hydra_head_arch hydra_num_heads hydra_num_layers lm_head_init_strategy model_type rms_norm_eps torch_dtype
transformers_version version vocab_size"""
"""Keys of Hydra's configuration that are read or change nothing at inference."""
HEAD_WIDTH = 128
"""Of the attention of every LLaMA that heads were published for; their configuration does not say."""


class HydraBlock(nn.Module):
    """A residual block; the first one of a head narrows what it reads by a product of its own."""

    def __init__(self, taken: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(taken, width)
        self.res_connection = nn.Linear(taken, width) if taken != width else None

    def forward(self, x: Float[Tensor, "n I"]) -> Float[Tensor, "n E"]:
        kept = x if self.res_connection is None else self.res_connection(x)
        return cast(Tensor, kept + functional.silu(self.linear(x)))


class HydraNet(nn.Module):
    """All heads.

    Args:
        heads: D.
        layers: blocks of each.
        width: E.
        vocabulary: V.
        prefix: the layer that the target's rows pass first, or None if there is none.
    """

    def __init__(
        self, heads: int, layers: int, width: int, vocabulary: int, prefix: FeatureDrafterNet | None = None
    ) -> None:
        super().__init__()
        self.width, self.vocabulary, self.depth = width, vocabulary, heads
        self.heads = nn.ModuleList(
            nn.Sequential(*(HydraBlock((head + 2) * width if level == 0 else width, width) for level in range(layers)))
            for head in range(heads)
        )
        self.unembeds = nn.ModuleList(nn.Linear(width, vocabulary) for _ in range(heads))
        self.prefix = prefix

    def forward(self, head: int, seen: Float[Tensor, "n I"]) -> Float[Tensor, "n V"]:
        """Return logits of a head after rows, the last token and the tokens drafted so far, concatenated."""
        return cast(Tensor, self.unembeds[head](self.heads[head](seen)))

    @classmethod
    def load(cls, folder: Path) -> HydraNet:
        """Return the heads of a published folder, in fp32."""
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise WeightsError(f"{folder} holds no heads of Hydra ({error}); fetch the whole folder") from error
        _check(folder, config)
        state = checkpoint.tensors(folder, FILES)
        layer = {key.removeprefix(PREFIX): value for key, value in state.items() if key.startswith(PREFIX)}
        rest = {key: value for key, value in state.items() if not key.startswith(PREFIX)}
        own, names = _own(folder, rest)
        last = own.get("unembeds.0.weight")
        if last is None or last.ndim != 2:
            raise WeightsError(f"{folder} lacks the last product of its first head; fetch it again")
        heads, layers = (1 + max(int(key.split(".")[place]) for key in own if key[:5] == "heads") for place in (1, 2))
        net = cls(heads, layers, last.shape[1], last.shape[0])
        checkpoint.fill(folder, net, own, names)
        if layer:  # of the target's form; its table of tokens is not read
            kept = {key: value for key, value in layer.items() if not key.startswith("embed_tokens.")}
            net.prefix = read_layer(folder, {"rms_norm_eps": 1e-6, **config}, kept, HEAD_WIDTH, FeatureDrafterNet)
        return net.eval().requires_grad_(False)


def _check(folder: Path, config: Mapping[str, Any]) -> None:
    """Raise WeightsError if the heads are of a kind that is not read."""
    read = {"hydra_head_arch": ("mlp", "prefix-mlp"), "grounded_heads": (True,), "hidden_state_offset": (0,)}
    for key, known in read.items():
        if (setting := config.get(key, known[0])) not in known:
            raise WeightsError(
                f"{folder}: {key} is {setting!r}; heads with {key} {' or '.join(map(str, known))} are read"
            )
    warn_unread(folder / "config.json", config, HYDRA)


def _own(folder: Path, state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors under our names, and the published names behind them; places of dropout are left out."""
    places: dict[str, set[int]] = {}
    for key in state:
        if match := BLOCK.match(key):
            places.setdefault(match[1], set()).add(int(match[2]))
    if not places:
        raise WeightsError(f"{folder} has no heads of Hydra; its tensors are {', '.join(list(state)[:10])}")
    names: dict[str, str] = {}
    for key in state:
        if match := BLOCK.match(key):
            level = sorted(places[match[1]]).index(int(match[2]))
            names[f"heads.{match[1]}.{level}.{match[3]}"] = key
        else:
            names[re.sub(r"^hydra_lm_head\.(\d+)\.(?:1\.)?(\w+)$", r"unembeds.\1.\2", key)] = key
    own = {name: state[key] for name, key in names.items()}
    for head, there in places.items():
        for level, place in enumerate(sorted(there)):
            for leaf in LEAVES:
                names.setdefault(f"heads.{head}.{level}.{leaf}", f"hydra_mlp.{head}.{place}.{leaf}")
    return own, names


@dataclass(frozen=True)
class HydraDrafter:
    """Heads, the target's embedding and the form of the trees; opened in every step, from cached weights."""

    name: str
    net: HydraNet
    embed: Float[Tensor, "V E"]
    shape: TreeShape

    @classmethod
    def open(cls, run: Run, name: str, tree: str, nodes: int) -> HydraDrafter:
        """Open the heads of this folder, with a published tree or the best one of ``nodes`` nodes."""
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
        """Pass the prompt's rows through the prefix layer, if there is one."""
        if self.net.prefix is not None and len(run.target) > 1:
            session = run.features(self.name, lambda: self._cache(run))
            session.prefill(run.target.hidden[: len(session) - 1])

    def propose(self, run: Run) -> Draft:
        """Return a tree of point masses, cut to the room that is left; nothing while there is no row to read."""
        rows, shape = run.target.hidden, self.shape.cut(run.room - 1, run.space)
        if not len(rows) or not shape.sizes:
            return run.nothing
        row = rows[-1, 0, 0] if self.net.prefix is None else self._prefixed(run)
        last = torch.tensor(run.target.tokens[-1:], device=row.device)
        return Draft(run.timed(self.grow)(row, last, shape), parents=shape.parents)

    def grow(self, row: Float[Tensor, " E"], last: Int[Tensor, " one"], shape: TreeShape) -> Int[Tensor, " K"]:
        """Return the tokens of a tree of this form: the r-th best child of each parent by the head of its level."""
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
        session = run.features(self.name, lambda: self._cache(run))
        session.sync(run.target.tokens[1:])
        session.forward(features=run.target.hidden[session.cached : len(session)])
        return session.newest[-1, 0, 0]

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
    """Return three heads of fixed weights and an embedding, for models that are tables."""
    net = HydraNet(3, 1, width, vocabulary).double()
    for number, weight in enumerate(net.parameters()):
        weight.data = wave(*weight.shape) + 0.1 * number
    return net.eval().requires_grad_(False), wave(vocabulary, width)
