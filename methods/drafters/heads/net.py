"""Heads that predict the tokens behind the next one, from the row that gave it: Medusa's and others'.

Sources: Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.1; Stern et al. 2018, arXiv:1811.03115, section 6.
Symbols: D heads, E width, G branches of guidance, K ids proposed of the vocabulary V; M rows of a condition, C wide.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.core import int8
from stridebench.harness.errors import WeightsError
from stridebench.methods.drafters import checkpoint
from stridebench.methods.drafters.heads import published
from stridebench.methods.drafters.heads.config import Config, damaged, read_config
from stridebench.methods.drafters.heads.layers import ConditionKV, CrossAttention, Residual


class Unembeds(Protocol):
    """The part of a model that heads use (see `TiedEmbeddings`)."""

    @property
    def lift(self) -> Callable[[Tensor], Tensor] | None:
        """The layers between normed hidden rows and ``unembed``."""

    @property
    def unembed(self) -> Float[Tensor, "V E"]:
        """The rows whose products with normed hidden rows are raw logits."""


class Heads(nn.Module):
    """All heads together; new heads predict at every depth what the target predicts for the next token.

    Args:
        unembed: the target's.
        ids: those proposed; None: all.
    """

    ids: Int[Tensor, " K"]
    shared: Float[Tensor, "K E"]

    def __init__(self, config: Config, unembed: Float[Tensor, "V E"], ids: Int[Tensor, " K"] | None = None) -> None:
        super().__init__()
        self.config = config
        self.lift: Callable[[Tensor], Tensor] | None = None
        heads, width = config.heads, config.width
        self.cross = CrossAttention(heads, width, config.condition, config.attention) if config.condition else None
        self.blocks = nn.ModuleList(Residual(heads, width, config.inner) for _ in range(config.layers))
        chosen = torch.arange(len(unembed)) if ids is None else ids
        self.register_buffer("ids", chosen, persistent=ids is not None)
        rows = unembed if ids is None else unembed[ids.to(unembed.device)]
        self.register_buffer("shared", rows, persistent=False)
        self.own = nn.Parameter(rows.float().repeat(config.heads, 1, 1)) if config.own else None

    @classmethod
    def load(cls, folder: Path, tied_embeddings: Callable[[], Unembeds]) -> Heads:
        """The heads of a folder, on the device and in the type of the target's unembedding.

        Raises:
            WeightsError: ``config.json`` or ``model.safetensors`` is missing, damaged or of other heads.
        """
        try:
            config, tied = read_config(folder), tied_embeddings()
            unembed = tied.unembed
            if config.fingerprint:
                tensors = int8.read(folder / "model.safetensors")
                heads = cls(config, unembed, tensors["ids"].long() if config.kept else None)
                heads.load_state_dict(tensors)
                checkpoint.check_finite(folder, heads)
            else:
                heads = cls._published(folder, config, unembed)
            heads.lift = tied.lift
        except (OSError, SafetensorError, RuntimeError, LookupError) as error:
            raise damaged(folder, error) from error
        heads = heads.to(unembed.device, unembed.dtype).eval().requires_grad_(False)
        if heads.own is not None:  # a product with one row is three times as fast on a contiguous transpose
            heads.own.data = heads.own.data.transpose(1, 2).contiguous().transpose(1, 2)
        return heads

    @classmethod
    def _published(cls, folder: Path, config: Config, unembed: Float[Tensor, "V E"]) -> Heads:
        """Heads that name no target: their sizes must be those of its unembedding."""
        tensors, names = published.read(folder)
        vocabulary = len(unembed) if "own" not in tensors else tensors["own"].shape[1]
        if (vocabulary, config.width) != tuple(unembed.shape):
            raise WeightsError(
                f"the heads in {folder} have a vocabulary of {vocabulary} ids and rows of width {config.width}, and "
                f"the target of {len(unembed)} and {unembed.shape[1]}: take the heads that were published for it"
            )
        heads = cls(config, unembed)
        checkpoint.fill(folder, heads, tensors, names)
        return heads

    def look(self, condition: Float[Tensor, "M C"] | None) -> ConditionKV | None:
        """Keys and values of the condition, computed once for all rows; None for heads that attend to none."""
        return None if self.cross is None or condition is None else self.cross.look(condition)

    def forward(self, rows: Float[Tensor, "N G E"], condition: ConditionKV | None = None) -> Float[Tensor, "D N K"]:
        """Logits of the ids proposed, branches mixed; head d, from 0, predicts token d + 2 after a row's own."""
        count, branches = rows.shape[:2]
        x = rows.reshape(1, count * branches, -1).expand(self.config.heads, -1, -1)
        if self.cross is not None and condition is not None:
            x = self.cross(x, condition)
        for block in self.blocks:
            x = block(x)
        if self.lift is not None:
            x = self.lift(x)
        if self.own is None:
            z = functional.linear(x.reshape(-1, x.shape[-1]), self.shared)
        else:
            z = x @ self.own.transpose(1, 2)
        z = z.view(self.config.heads, count, branches, -1)
        return z[:, :, 0] if branches == 1 else torch.lerp(z[:, :, 1], z[:, :, 0], self.config.guidance)
