"""What a family of picture models is to the one adapter that runs them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.backbones.image.vq import PictureTokenizer
from stridebench.harness.backbones.slots.net import Net, Tapped
from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, WeightsError


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
class PictureRequest:
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

    load: Callable[[PictureRequest], Model]
    components: tuple[str, ...]
    optional: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


# What the families' `assemble` functions share: the text of a prompt, ids of words and codes, and sizes.


def text_of(name: str, prompt: Prompt) -> str:
    """The prompt's text. UsageError: it has none."""
    if prompt.text is None:
        raise UsageError(f"{name}: prompt {prompt.id!r} has no text, and this model draws what a text says")
    return prompt.text


def shared_net(net: Net, tokens: Sequence[int], negative: Sequence[int]) -> Reading:
    """A reading in which one net serves both branches."""
    return Reading(tuple(tokens), tuple(negative), net, net)


def cells_a_side(name: str, pixels: Any, factor: int) -> int:
    """Cells a side of a square picture.

    Raises:
        UsageError: the pixels are no multiple of ``factor``.
    """
    if not isinstance(pixels, int) or pixels < factor or pixels % factor:
        raise UsageError(f"{name}: pixels is {pixels!r}; give a whole multiple of {factor}")
    return pixels // factor


def code_table(vocabulary: int, codes: Mapping[int, int], device: str) -> Int[Tensor, " V"]:
    """The code of each id, -1 where there is none, from a map of ids to codes."""
    table = torch.full((vocabulary,), -1)
    table[list(codes)] = torch.tensor(list(codes.values()))
    return table.to(device)


def token_ids(name: str, tokenizer: Any, words: Sequence[str]) -> list[int]:
    """Ids of special tokens.

    Raises:
        WeightsError: the tokenizer is missing or does not know one.
    """
    if tokenizer is None:
        raise WeightsError(f"{name}: its folder has no tokenizer; fetch the whole folder")
    vocabulary = tokenizer.get_vocab()
    unknown = [word for word in words if word not in vocabulary]
    if unknown:
        raise WeightsError(f"{name}: its tokenizer has no token {unknown[0]!r}; it is another model's")
    return [int(vocabulary[word]) for word in words]
