"""A backbone that drafters learn from: what it goes on with after prompts, and the rows that it made on the way.

Nothing here knows what is learned; recipes may load no backbone themselves.
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

from harness.core.backbone import Backbone, EncodedPrompt
from harness.core.cache import Cache, Rows, Window, extend_all
from harness.core.capabilities import Capabilities, Tap
from harness.core.draws import Draws
from harness.core.hidden import resolve
from harness.core.sampling import Sampling, warp
from harness.core.task import Prompt
from harness.errors import UsageError
from harness.plan import presets
from harness.platform.folders import cache_folder


class Passage(NamedTuple):
    """Ids of a prompt and of what was made behind it; the prompt has ``start``. ``condition``: the prompt's."""

    tokens: tuple[int, ...]
    start: int
    condition: npt.NDArray[Any] | None = None


@final
class Teacher:
    """One backbone, read without gradients.

    Args:
        backbone: loaded. A drafter is built on its ``tied_embeddings()`` and ``capabilities``, and tied to its
            ``fingerprint``.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone

    @classmethod
    def load(cls, name: str, dtype: str = "bf16", device: str = "cpu") -> Teacher:
        """By the name of a backbone, fetched where it is not here yet.

        Raises:
            UsageError: no such name. WeightsError: its weights cannot be had.
        """
        return cls(presets.load(name, dtype, device))

    @property
    def capabilities(self) -> Capabilities:
        """Of the backbone."""
        return self.backbone.capabilities

    @property
    def home(self) -> Path:
        """A folder of the cache for what these weights have made; it may not exist yet."""
        return cache_folder() / "distilled" / f"{self.backbone.name}-{self.backbone.fingerprint[:12]}"

    @torch.no_grad()
    def continued(self, prompts: Sequence[Prompt], new: int, sampling: Sampling, draws: Draws) -> list[Passage]:
        """What it goes on with after each prompt, all of them in one pass a token.

        Args:
            new: tokens at most; a text ends with its end-of-text token, a picture when it is whole.
            draws: asked for one categorical token of each row a pass.

        Raises:
            UsageError: a prompt leaves no room for a token, or is none that the backbone reads.
        """
        rows = [self._open(prompt, new) for prompt in prompts]
        while alive := [row for row in rows if row.room > 0]:
            read = extend_all([row.cache for row in alive], [row.window() for row in alive])
            logits = torch.cat([_logits(each) for each in read])
            drawn = draws.categorical(warp(logits, sampling), "draft").tolist()
            for row, token in zip(alive, drawn, strict=True):
                row.add(token, token in self.capabilities.eos)
        made = zip(rows, prompts, strict=True)
        return [Passage(tuple(row.tokens), row.start, prompt.condition) for row, prompt in made]

    def condition(self, passage: Passage) -> Float[Tensor, "M C"]:
        """What the backbone makes of a passage's condition.

        Raises:
            UsageError: it lends nothing of that kind, or cannot read it.
        """
        found = self._opening(passage).condition
        if found is None:
            raise UsageError(f"the backbone {self.backbone.name!r} lends no condition; take one that meets CONDITION")
        return found

    @torch.no_grad()
    def read(self, passage: Passage, taps: Sequence[Tap], logits: bool = False) -> Rows:
        """One pass over a whole passage.

        Args:
            taps: of the layers whose rows are wanted. logits: also asked for, of every entry; those of the prompt are
                the conditional branch's alone where the backbone is guided.
        """
        tokens = torch.tensor(passage.tokens, device=self.backbone.device)
        cache = self._opening(passage).cache()
        places, rows = torch.arange(len(tokens), device=tokens.device), len(tokens) if logits else 0
        return cache.extend(Window(tokens, places, 0, None, rows, resolve(taps, self.capabilities)))

    def _opening(self, passage: Passage) -> EncodedPrompt:
        return self.backbone.open(Prompt("", tokens=passage.tokens[: passage.start], condition=passage.condition))

    def _open(self, prompt: Prompt, new: int) -> _Row:
        opening = self.backbone.open(prompt)
        grid = self.capabilities.grid
        room = min(new, self.capabilities.context - len(opening.tokens), *([grid.length] if grid else []))
        if room < 1:
            raise UsageError(f"prompt {prompt.id!r} has {len(opening.tokens)} tokens, which leaves no room for more")
        return _Row(opening.cache(), list(opening.tokens), len(opening.tokens), room, self.backbone.device)


@dataclass
class _Row:
    """A passage in the making."""

    cache: Cache
    tokens: list[int]
    start: int
    room: int
    device: str
    held: int = field(default=0)

    def window(self) -> Window:
        """Of the tokens that were not read yet."""
        fed, places = self.tokens[self.held :], torch.arange(self.held, len(self.tokens), device=self.device)
        made = Window(torch.tensor(fed, device=self.device), places, self.held, None, 1)
        self.held = len(self.tokens)
        return made

    def add(self, token: int, last: bool) -> None:
        """The token that follows."""
        self.tokens.append(token)
        self.room = 0 if last else self.room - 1


def _logits(read: Rows | Exception) -> Tensor:
    if isinstance(read, Exception):
        raise read
    return read.logits
