"""A backbone that drafters learn from: how it continues prompts, and its hidden rows and logits on a passage.

Recipes decide about the learning; they never load a backbone themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.core.backbone import Backbone, EncodedPrompt
from stridebench.harness.core.cache import Cache, Rows, Window, extend_all, resolve
from stridebench.harness.core.capabilities import Capabilities, Tap
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.device import NATIVE, native_dtype
from stridebench.harness.machine.surroundings import cache_folder
from stridebench.harness.plan import presets


class Passage(NamedTuple):
    """A prompt and its continuation.

    Args:
        text: of the prompt, for backbones that read nothing else.
    """

    tokens: tuple[int, ...]
    start: int
    condition: npt.NDArray[Any] | None = None
    text: str | None = None


@final
class Teacher:
    """One backbone, read without gradients.

    Args:
        backbone: a loaded one. A drafter is built on its ``tied_embeddings()`` and ``capabilities``, and is tied to
            its ``fingerprint``.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone

    @classmethod
    def load(cls, name: str, dtype: str = NATIVE, device: str = "cpu") -> Teacher:
        """Return the backbone of a name, fetched if it is not on this machine yet."""
        return cls(presets.load(name, native_dtype(device) if dtype == NATIVE else dtype, device))

    @property
    def capabilities(self) -> Capabilities:
        """Of the backbone."""
        return self.backbone.capabilities

    @property
    def home(self) -> Path:
        """The folder of the cache for what these weights generated; it may not exist yet."""
        return cache_folder() / "distilled" / f"{self.backbone.name}-{self.backbone.fingerprint[:12]}"

    @torch.no_grad()
    def continued(self, prompts: Sequence[Prompt], new: int, sampling: Sampling, draws: Draws) -> list[Passage]:
        """Prompts with their continuations, all extended by one token in each pass.

        Args:
            new: tokens at most; a text ends with its end-of-text token, a picture when it is complete.
            draws: asked for one categorical token of each row in a pass.
        """
        rows = [self._open(prompt, new) for prompt in prompts]
        while alive := [row for row in rows if row.room > 0]:
            results = extend_all([row.cache for row in alive], [row.window() for row in alive])
            logits = torch.cat([_logits(result) for result in results])
            drawn = draws.categorical(warp(logits, sampling), "draft").tolist()
            for row, token in zip(alive, drawn, strict=True):
                row.add(token, token in self.capabilities.eos)
        pairs = zip(rows, prompts, strict=True)
        return [Passage(tuple(row.tokens), row.start, prompt.condition, prompt.text) for row, prompt in pairs]

    def condition(self, passage: Passage) -> Float[Tensor, "M C"]:
        """Return the rows into which the backbone encodes a passage's condition."""
        condition = self._encode(passage).condition
        if condition is None:
            raise UsageError(f"the backbone {self.backbone.name!r} lends no condition; take one that meets CONDITION")
        return condition

    @torch.no_grad()
    def read(self, passage: Passage, taps: Sequence[Tap], logits: bool = False) -> Rows:
        """One pass over a whole passage.

        Args:
            logits: whether the logits of every entry are returned too. On a guided backbone those of the prompt are of
                the conditional branch alone.
        """
        tokens = torch.tensor(passage.tokens, device=self.backbone.device)
        cache = self._encode(passage).cache()
        places, rows = torch.arange(len(tokens), device=tokens.device), len(tokens) if logits else 0
        return cache.extend(Window(tokens, places, 0, None, rows, resolve(taps, self.capabilities)))

    def _encode(self, passage: Passage) -> EncodedPrompt:
        ids = passage.tokens[: passage.start]
        return self.backbone.open(Prompt("", passage.text, ids, passage.condition))

    def _open(self, prompt: Prompt, new: int) -> _Row:
        encoded = self.backbone.open(prompt)
        grid = self.capabilities.grid
        room = min(new, self.capabilities.context - len(encoded.tokens), *([grid.length] if grid else []))
        if room < 1:
            raise UsageError(f"prompt {prompt.id!r} has {len(encoded.tokens)} tokens, which leaves no room for more")
        return _Row(encoded.cache(), list(encoded.tokens), len(encoded.tokens), room, self.backbone.device)


@dataclass
class _Row:
    """A passage that is being written; its cache has entries for the first ``cached`` tokens."""

    cache: Cache
    tokens: list[int]
    start: int
    room: int
    device: str
    cached: int = field(default=0)

    def window(self) -> Window:
        """The tokens that have no entry yet."""
        tokens = torch.tensor(self.tokens[self.cached :], device=self.device)
        places = torch.arange(self.cached, len(self.tokens), device=self.device)
        window = Window(tokens, places, self.cached, None, 1)
        self.cached = len(self.tokens)
        return window

    def add(self, token: int, last: bool) -> None:
        """Append the next token."""
        self.tokens.append(token)
        self.room = 0 if last else self.room - 1


def _logits(result: Rows | Exception) -> Tensor:
    if isinstance(result, Exception):
        raise result
    return result.logits
