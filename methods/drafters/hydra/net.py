"""Hydra's heads: each reads the target's row, the last token and the tokens drafted before it.

Source: Ankner et al. 2024, Hydra, arXiv:2402.05109, sections 3 and 4; zankner/Hydra, ``hydra_heads/mlp_head.py`` and
``prefix_mlp_head.py``, whose files are read here.
Symbols: D heads, E width, V vocabulary, n nodes of a level.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.errors import WeightsError
from stridebench.methods.drafters import checkpoint
from stridebench.methods.drafters.eagle import published
from stridebench.methods.drafters.eagle.net import FeatureDrafterNet

FILES = ("hydra_lm_head.safetensors", "hydra_lm_head.pt", *checkpoint.FILES)
PREFIX = "prefix_embeding_layer."
BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(.+)$")
LEAVES = [f"{module}.{leaf}" for module in ("linear", "res_connection") for leaf in ("weight", "bias")]
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
        prefix: the layer that the target's rows pass first; None: there is none.
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
        """Logits of a head after rows, the last token and the tokens drafted so far, side by side."""
        return cast(Tensor, self.unembeds[head](self.heads[head](seen)))

    @classmethod
    def load(cls, folder: Path) -> HydraNet:
        """The heads of a published folder, in fp32.

        Raises:
            WeightsError: a key is missing, unknown or misshapen, or the heads are of another kind.
        """
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
        net.prefix = _prefix(folder, config, layer) if layer else None
        return net.eval().requires_grad_(False)


def _check(folder: Path, config: Mapping[str, Any]) -> None:
    """WeightsError: the heads are of a kind that is not read."""
    read = {"hydra_head_arch": ("mlp", "prefix-mlp"), "grounded_heads": (True,), "hidden_state_offset": (0,)}
    for key, known in read.items():
        if (setting := config.get(key, known[0])) not in known:
            raise WeightsError(
                f"{folder}: {key} is {setting!r}; heads with {key} {' or '.join(map(str, known))} are read"
            )


def _own(folder: Path, state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors under our names, and the published ones behind them; places of dropout between them fall away."""
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


def _prefix(folder: Path, config: Mapping[str, Any], state: Mapping[str, Tensor]) -> FeatureDrafterNet:
    """The layer of the target's own form that rows pass; its table of tokens is not read."""
    return published.read_layer(
        folder, {"rms_norm_eps": 1e-6, **config}, _without_table(state), HEAD_WIDTH, FeatureDrafterNet
    )


def _without_table(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: value for key, value in state.items() if not key.startswith("embed_tokens.")}


def toy(vocabulary: int, width: int, weights: Sequence[Tensor]) -> HydraNet:
    """Three heads of given weights, for models that are tables."""
    net = HydraNet(3, 1, width, vocabulary).double()
    for weight, values in zip(net.parameters(), weights, strict=True):
        weight.data = values
    return net.eval().requires_grad_(False)
