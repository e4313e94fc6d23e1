"""Which ids our own picture models have, and what their codes look like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from stridebench.harness.backbones.image.vq import VQ
from stridebench.harness.core.capabilities import Grid, Requirement
from stridebench.harness.errors import OutputError, UsageError, WeightsError, did_you_mean
from stridebench.harness.record.outputs import Picture

MEETS = frozenset(
    {
        Requirement.TREE_MASK,
        Requirement.DRAFTER,
        Requirement.HIDDEN,
        Requirement.GRID,
        Requirement.CODEBOOK,
        Requirement.ANY_ORDER,
    }
)
"""What every picture model of ours offers, published ones too."""


@dataclass(frozen=True)
class Layout:
    """The entry ``picture`` of config.json. Ids: the codes, the words, the empty caption, the begin of a picture, and
    where rows are closed the end of a row.

    Args:
        rows: of the picture.
        columns: of the picture.
        codes: ids that a cell may take.
        words: of captions.
        closed: each row ends with a forced token, as in Lumina-mGPT. It marks the column, which rotary positions
            hardly show.
    """

    rows: int
    columns: int
    codes: int
    words: tuple[str, ...]
    closed: bool = False

    @property
    def empty(self) -> int:
        """The id of the empty caption."""
        return self.codes + len(self.words)

    @property
    def begin(self) -> int:
        """Ends a prompt."""
        return self.empty + 1

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""
        return self.begin + 1 + self.closed

    @property
    def grid(self) -> Grid:
        """Where the cells lie."""
        return Grid(self.rows, self.columns, self.begin + 1 if self.closed else None, ids=range(self.codes))

    @property
    def cells(self) -> int:
        """Cells of a picture."""
        return self.rows * self.columns

    def written(self, cells: Int[Tensor, "*b n"]) -> Int[Tensor, "*b N"]:
        """The tokens of pictures: their cells, and the ends of rows where there are any."""
        grid = self.grid
        if grid.eol is None:
            return cells
        rows = functional.pad(cells.reshape(*cells.shape[:-1], self.rows, self.columns), (0, 1), value=grid.eol)
        return rows.flatten(-2)

    def places(self) -> Int[Tensor, " n"]:
        """Of the cells among the tokens of a picture."""
        grid = self.grid
        return torch.arange(grid.length).view(self.rows, grid.stride)[:, : self.columns].flatten()

    def config(self) -> dict[str, Any]:
        """Its entry in config.json."""
        entry: dict[str, Any] = {"rows": self.rows, "columns": self.columns, "codes": self.codes}
        return {"picture": {**entry, "words": list(self.words), **({"closed": True} if self.closed else {})}}

    @staticmethod
    def read(name: str, config: Any) -> Layout:
        """From a configuration of transformers.

        Raises:
            WeightsError: there is no such entry, or it does not fit the vocabulary.
        """
        entry: Any = getattr(config, "picture", None)
        try:
            sizes = (int(entry["rows"]), int(entry["columns"]), int(entry["codes"]))
            layout = Layout(*sizes, tuple(entry["words"]), bool(entry.get("closed", False)))
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise WeightsError(
                f"{name}: config.json has no entry `picture` with rows, columns, codes and words ({entry!r}); this is "
                f"no model of pictures"
            ) from error
        if min(layout.rows, layout.columns, layout.codes) < 1 or config.vocab_size != layout.vocabulary:
            raise WeightsError(
                f"{name}: {layout.codes} codes, {len(layout.words)} words and {2 + layout.closed} more ids do not make "
                f"up the vocabulary of {config.vocab_size} in config.json"
            )
        return layout

    def prompt(self, name: str, caption: str) -> list[int]:
        """Ids of a caption, ``begin`` included; a blank one is the empty caption.

        Raises:
            UsageError: a word that the model ``name`` was not trained on.
        """
        ids = []
        for word in caption.lower().split():
            if word not in self.words:
                raise UsageError(
                    f"the backbone {name!r} does not know the word {word!r}{did_you_mean(word, self.words) or '.'} "
                    f"It knows: {' '.join(self.words)}"
                )
            ids.append(self.codes + self.words.index(word))
        return [*(ids or [self.empty]), self.begin]


class Palette:
    """What codes look like: levels of grey, or the patches of a VQ.

    Attributes:
        codebook: a grey from 0 to 1, or a vector of the VQ, for each code.
        fingerprint: of the VQ's weights; "grey" without one.
    """

    def __init__(self, codes: int, vq: VQ | None = None, fingerprint: str = "grey") -> None:
        self.fingerprint = fingerprint
        self._vq = vq
        grey = torch.linspace(0, 1, codes)[:, None]
        self.codebook: Float[Tensor, "codes C"] = grey if vq is None else vq.codebook.detach()

    def tokenizer(self, name: str) -> VQ:
        """The VQ. UsageError: there is none."""
        if self._vq is None:
            raise UsageError(f"{name} has shades of grey for codes and no tokenizer, so pictures cannot be its data")
        return self._vq.requires_grad_(False)

    def paint(self, name: str, layout: Layout, tokens: Sequence[int]) -> Picture:
        """The picture of a whole grid of codes.

        Raises:
            OutputError: too few or too many tokens, one that is no code, or no end of a row where one is forced.
        """
        ids = torch.tensor(cells(name, layout.grid, tokens), dtype=torch.long)
        wrong = ids[(ids < 0) | (ids >= layout.codes)].tolist()
        if wrong:
            raise OutputError(f"token {wrong[0]} stands for no colour; the codes of {name!r} end at {layout.codes}")
        grid = ids.view(layout.rows, layout.columns)
        if self._vq is not None:
            return Picture(self._vq.decode(grid[None])[0].numpy())
        grey = (self.codebook[grid] * 255).round().to(torch.uint8).expand(-1, -1, 3)
        return Picture(np.ascontiguousarray(grey.numpy()))


def cells(name: str, grid: Grid, tokens: Sequence[int]) -> list[int]:
    """The ids of a picture's cells, in raster order, without the forced tokens.

    Raises:
        OutputError: there are fewer or more tokens than a picture has, or a forced one is another.
    """
    grid, ids = replace(grid, start=0), []
    if len(tokens) != grid.length:
        raise OutputError(
            f"a picture of {name!r} has {grid.length} tokens ({grid.rows} rows of {grid.stride}"
            f"{f' and {len(grid.tail)} more' if grid.tail else ''}) and {len(tokens)} were made: set max_new_tokens to "
            f"{grid.length}"
        )
    for place, token in enumerate(tokens):
        forced = grid.forced(place)
        if forced is None:
            ids.append(token)
        elif token != forced:
            raise OutputError(f"place {place} of a picture of {name!r} is id {forced}; found {token}")
    return ids
