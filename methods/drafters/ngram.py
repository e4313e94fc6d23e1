"""Drafts copied from the text so far: the tokens that followed an earlier occurrence of its last tokens.

Source: Saxena 2023, prompt lookup decoding; transformers' prompt lookup.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.run import Run


@dataclass
class NgramDrafter:
    """An index of all n-grams read so far, extended by the new tokens only.

    Args:
        sizes: n-gram lengths to look up, longest first.
        length: tokens to copy.
        complete: only occurrences that ``length`` tokens follow count.
        last: the latest occurrence, else the earliest.
        index: where the continuation of each n-gram starts.
        read: by size, n-grams indexed so far.
    """

    sizes: tuple[int, ...]
    length: int
    complete: bool
    last: bool
    index: dict[tuple[int, ...], int] = field(default_factory=dict)
    read: dict[int, int] = field(default_factory=dict)

    def propose(self, run: Run) -> Draft:
        """Point masses on the copied tokens; empty where nothing matches or no room is left."""
        tokens = run.target.tokens
        self._learn(tokens)
        room = min(self.length, run.room - 1)
        for size in self.sizes:
            start = self.index.get(tuple(tokens[-size:])) if size < len(tokens) else None
            if start is not None and room > 0:
                copied = tokens[start : start + room]
                return Draft(torch.tensor(copied, dtype=torch.long, device=run.target.device))
        return run.nothing

    def _learn(self, tokens: list[int]) -> None:
        """Index each n-gram by where its continuation starts, once enough of it is there."""
        behind = self.length if self.complete else 1
        for size in self.sizes:
            begin = self.read.get(size, 0)
            end = max(begin, len(tokens) - size - behind + 1)
            for start in range(begin, end):
                gram = tuple(tokens[start : start + size])
                if self.last or gram not in self.index:
                    self.index[gram] = start + size
            self.read[size] = end
