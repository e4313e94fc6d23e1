"""What a family of picture models is to the one adapter that runs them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.backbones.image.tokenizer import PictureTokenizer
from stridebench.harness.backbones.slots.net import Net, Tapped
from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.task import Prompt


@dataclass(frozen=True, eq=False)
class Reading:
    """A prompt as a model reads it.

    Args:
        tokens: P ids, which ``net`` reads.
        negative: U ids of the branch without the condition, which ``other`` reads.
    """

    tokens: tuple[int, ...]
    negative: tuple[int, ...]
    net: Net
    other: Net


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model.

    Args:
        net: the forward.
        vocabulary: V.
        context: entries that fit.
        grid: cells and forced ids.
        codes: the picture code of each id; -1: none.
        read: a prompt, read by a net that may lack layers of ``net``.
        paint: codes to pixels of about -1 to 1.
        codebook: the vector of each code.
        width: E of its hidden rows.
        tokenizer: reads the tokenizer of pictures in both directions; None: only its decoder is published or known.
    """

    net: Tapped
    vocabulary: int
    context: int
    grid: Grid
    codes: Int[Tensor, " V"]
    read: Callable[[Net, Prompt], Reading]
    paint: Callable[[Int[Tensor, "h w"]], Float[Tensor, "3 H W"]]
    codebook: Float[Tensor, "K C"]
    width: int
    tokenizer: Callable[[], PictureTokenizer] | None = None


@dataclass(frozen=True)
class Request:
    """What a family loads from: paths by component, the preset's settings, and where the model runs."""

    name: str
    components: Mapping[str, Path]
    settings: Mapping[str, Any]
    dtype: torch.dtype
    device: str


@dataclass(frozen=True)
class Family:
    """A kind of model.

    Args:
        load: builds it.
        components: files and folders that it needs.
        optional: files and folders that some prompts need.
        settings: what else a preset may set, with its default.
    """

    load: Callable[[Request], Model]
    components: tuple[str, ...]
    optional: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
