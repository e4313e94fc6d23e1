"""The net of a feature drafter: a decoder layer that predicts the target's next hidden row.

Symbols: E width, H heads, D their width, J tapped layers, B branches or sequences, N entries, K ids proposed. Entry i
is the pair of token i + 1 and the target's row i. Its output stands for row i + 1, and gives token i + 2.
Sources: EAGLE-1, arXiv:2401.15077, section 3.1; EAGLE-3, arXiv:2503.01840, section 3.2; the released ``cnets``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, cast

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional

from harness.core import int8
from harness.errors import WeightsError
from methods.drafters.eagle.layers import Norm, Packed, rotate

Kind = Literal["eagle1", "eagle3"]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From queries [B, H, N, D], keys and values [B, H_kv, N, D] of new entries to attention outputs [B, H, N, D]."""


@dataclass(frozen=True)
class Shape:
    """Sizes and kind of a net, as in ``config.json``.

    Args:
        kind: eagle1: the pair is joined, and the target's own unembedding, or its rows of K ids, reads the output.
            eagle3: J taps are fused, the layer reads normed token and feature, and K ids have their own head.
        width, heads, kv_heads, inner: of the layer.
        taps, kept: J and K; with ``kept`` 0 all ids are proposed.
        theta, eps: of rotations and norms.
        branches, backbone, fingerprint: of the target that it was trained for.
    """

    kind: Kind
    width: int
    heads: int
    kv_heads: int
    inner: int
    taps: int = 1
    kept: int = 0
    branches: int = 1
    theta: float = 10000.0
    eps: float = 1e-5
    backbone: str = ""
    fingerprint: str = ""


class FeatureNet(nn.Module):
    """The weights; ``ids`` are the ids that it proposes, empty where it proposes all."""

    ids: Int[Tensor, " K"]

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        eagle3 = shape.kind == "eagle3"
        self.join = nn.Linear((shape.taps if eagle3 else 2) * width, width, bias=not eagle3)
        if eagle3:
            self.norm_token, self.norm_feature, self.norm = (Norm(width, shape.eps) for _ in range(3))
            self.unembed = nn.Linear(width, shape.kept, bias=False)
        self.qkv = nn.Linear((1 + eagle3) * width, width + 2 * shape.kv_heads * (width // shape.heads), bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm_inner = Norm(width, shape.eps)
        self.gate_up = nn.Linear(width, 2 * shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, width, bias=False)
        self._packed_unembedding: Packed | None = None
        self.register_buffer("ids", torch.zeros(shape.kept, dtype=torch.long))

    @classmethod
    def load(cls, folder: Path) -> FeatureNet:
        """The net in a folder, in fp32.

        Raises:
            WeightsError: ``config.json`` or ``model.safetensors`` is missing, damaged or of another net.
        """
        try:
            net = cls(Shape(**json.loads((folder / "config.json").read_text(encoding="utf-8"))))
            net.load_state_dict(int8.read(folder / "model.safetensors"))
        except (OSError, SafetensorError, RuntimeError, TypeError, ValueError) as error:
            raise WeightsError(
                f"{folder} holds no feature drafter ({error}). Make one: `stride train drafter` lists the recipes"
            ) from error
        return net.eval().requires_grad_(False)

    def packed(self) -> FeatureNet:
        """The same for inference, its products packed for a few rows. It keeps no weights to train or save."""
        for name, layer in list(self.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(self, name, Packed(layer.weight.data, None if layer.bias is None else layer.bias.data))
        return self

    def write_config(self, folder: Path) -> None:
        """Write ``config.json``, from which `load` builds the net."""
        (folder / "config.json").write_text(json.dumps(asdict(self.shape), indent=1) + "\n", encoding="utf-8")

    def forward(
        self,
        tokens: Float[Tensor, "B N E"],
        features: Float[Tensor, "B N J E"],
        positions: Int[Tensor, " N"],
        attend: Attend,
    ) -> Float[Tensor, "B N E"]:
        """The next features.

        Args:
            tokens: their embeddings.
            features: the target's taps, or the net's own output (J = 1).
        """
        if self.shape.kind == "eagle1":
            x = self.join(torch.cat([tokens, features[:, :, 0]], -1))
            read = x
        else:
            x = self.join(features.flatten(2)) if features.shape[2] > 1 else features[:, :, 0]
            read = torch.cat([self.norm_token(tokens), self.norm_feature(x)], -1)
        x = x + self.out(self._attended(self.qkv(read), positions, attend))
        gate, up = self.gate_up(self.norm_inner(x)).chunk(2, -1)
        return cast(Tensor, x + self.down(functional.silu(gate) * up))

    def logits(self, features: Float[Tensor, "B N E"], unembed: Float[Tensor, "U E"]) -> Float[Tensor, "B N K"]:
        """Logits of the ids proposed; eagle1: by ``unembed``, the target's rows of those ids."""
        return functional.linear(features, unembed) if self.shape.kind == "eagle1" else self.headed(features)

    def headed(self, features: Float[Tensor, "B N E"]) -> Float[Tensor, "B N K"]:
        """Logits by the head of eagle3."""
        return cast(Tensor, self.unembed(self.norm(features)))

    def head(self, unembed: Float[Tensor, "V E"]) -> Callable[[Tensor], Tensor]:
        """`logits` for inference, for a net with one target: the unembedding is packed once."""
        if self.shape.kind == "eagle3":
            return self.headed
        if self._packed_unembedding is None:
            self._packed_unembedding = Packed(unembed[self.ids] if self.shape.kept else unembed)
        return self._packed_unembedding

    def _attended(self, qkv: Tensor, positions: Tensor, attend: Attend) -> Float[Tensor, "B N E"]:
        heads, kv = self.shape.heads, self.shape.kv_heads
        split = qkv.view(*qkv.shape[:2], heads + 2 * kv, -1).transpose(1, 2)
        rotated = rotate(split[:, : heads + kv], positions, self.shape.theta)
        out = attend(rotated[:, :heads], rotated[:, heads:], split[:, heads + kv :])
        return out.transpose(1, 2).flatten(2)
