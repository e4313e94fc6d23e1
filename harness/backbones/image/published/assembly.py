"""What the families' `assemble` functions share: the text of a prompt, ids of words and codes, and sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from stridebench.harness.backbones.image.published.family import Reading
from stridebench.harness.backbones.slots.net import Net
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, WeightsError


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
