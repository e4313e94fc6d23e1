"""Sizes and kind of a feature drafter's net, as our ``config.json`` has them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["eagle1", "eagle3"]


@dataclass(frozen=True)
class Shape:
    """What a net is. The fields from ``head_width`` on are those of published nets (see `published`).

    Args:
        kind: eagle1: the pair is joined, and the target's own unembedding, or its rows of K ids, reads the output.
            eagle3: J taps are fused, the layer reads normed token and feature, and K ids have their own head.
        width, heads, kv_heads, inner: of the layer.
        taps, kept: J and K; with ``kept`` 0 all ids are proposed.
        theta, eps: of rotations and norms.
        branches, backbone, fingerprint: of the target that it was trained for; a published net names none.
        head_width: D; 0: the width over the heads.
        target: E of the target's rows; 0: the width.
        vocabulary: of its own embedding; 0: the target's embedding is used.
        layers: taps as numbers, where its configuration names them; (): those of its kind.
        joined: eagle1 reads the token too; else the feature alone, as the layer before Hydra's heads does.
        joined_bias, qkv_bias, out_bias: eagle1's join, and the layer's products, have a bias.
        pair_norm: eagle1's token and feature are normed before they are joined, as for multi-token prediction (MTP).
        entry_norm: eagle1's layer norms the joined pair, as Chameleon's layers do.
        head_norm: queries and keys are normed head by head: by root mean square (Qwen3) or whole (Chameleon).
        tap_norm: the taps are normed before they are fused, each by itself or all together.
        normed_residual: the layer adds to its normed feature.
        normed_output: what comes out is normed before it is read on.
        rates, sharpness: of scaled rotations; (): by theta alone.
        side: cells a side of a picture whose rows and columns rotate; 0: positions do.
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
    head_width: int = 0
    target: int = 0
    vocabulary: int = 0
    layers: tuple[int, ...] = ()
    joined: bool = True
    joined_bias: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    pair_norm: bool = False
    entry_norm: bool = False
    head_norm: Literal["", "rms", "whole"] = ""
    tap_norm: Literal["", "each", "all"] = ""
    normed_residual: bool = False
    normed_output: bool = False
    rates: tuple[float, ...] = ()
    sharpness: float = 1.0
    side: int = 0

    @property
    def depth(self) -> int:
        """D, the width of a head."""
        return self.head_width or self.width // self.heads

    @property
    def target_width(self) -> int:
        """E of the target's rows."""
        return self.target or self.width

    def write(self, folder: Path) -> None:
        """Write ``config.json``, from which `FeatureNet.load` builds the net."""
        (folder / "config.json").write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
