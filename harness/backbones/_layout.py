"""Which ids a picture model of ours has, and what its codes look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from harness.backbones.nets.vq import VQ
from harness.errors import OutputError, UsageError, WeightsError, did_you_mean
from harness.outputs import Picture


@dataclass(frozen=True)
class Layout:
    """The entry ``picture`` of config.json. Ids: the codes, the words, the empty caption, the begin of a picture.

    Args:
        rows, columns: of the picture. codes: ids that a cell may take. words: of captions.
    """

    rows: int
    columns: int
    codes: int
    words: tuple[str, ...]

    @property
    def empty(self) -> int:
        """Stands for the caption where there is none."""
        return self.codes + len(self.words)

    @property
    def begin(self) -> int:
        """Ends a prompt."""
        return self.empty + 1

    @property
    def vocabulary(self) -> int:
        """How many ids there are."""
        return self.begin + 1

    @property
    def cells(self) -> int:
        """Tokens of a picture."""
        return self.rows * self.columns

    def config(self) -> dict[str, Any]:
        """As it stands in config.json."""
        return {"picture": {"rows": self.rows, "columns": self.columns, "codes": self.codes, "words": list(self.words)}}

    @staticmethod
    def read(name: str, config: Any) -> Layout:
        """From a configuration of transformers.

        Raises:
            WeightsError: there is no such entry, or it does not fit the vocabulary.
        """
        found: Any = getattr(config, "picture", None)
        try:
            layout = Layout(int(found["rows"]), int(found["columns"]), int(found["codes"]), tuple(found["words"]))
        except (TypeError, KeyError, ValueError) as error:
            raise WeightsError(
                f"{name}: config.json has no entry `picture` with rows, columns, codes and words ({found!r}); this is "
                f"no model of pictures"
            ) from error
        if min(layout.rows, layout.columns, layout.codes) < 1 or config.vocab_size != layout.vocabulary:
            raise WeightsError(
                f"{name}: {layout.codes} codes, {len(layout.words)} words and two more ids do not make up the "
                f"vocabulary of {config.vocab_size} in config.json"
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
        codebook: a grey from 0 to 1, or a vector of the VQ, for each code. mark: which palette, for fingerprints.
    """

    def __init__(self, codes: int, vq: VQ | None = None, mark: str = "grey") -> None:
        self.mark = mark
        self._vq = vq
        grey = torch.linspace(0, 1, codes)[:, None]
        self.codebook: Float[Tensor, "codes C"] = grey if vq is None else vq.codebook.detach()

    def paint(self, name: str, layout: Layout, ids: Int[Tensor, " n"]) -> Picture:
        """The picture of a whole grid of codes.

        Raises:
            OutputError: too few or too many of them, or one that is no code.
        """
        if len(ids) != layout.cells:
            raise OutputError(
                f"a picture of {name!r} has {layout.rows}x{layout.columns} = {layout.cells} tokens and {len(ids)} "
                f"were made: set max_new_tokens to {layout.cells}"
            )
        wrong = ids[(ids < 0) | (ids >= layout.codes)].tolist()
        if wrong:
            raise OutputError(f"token {wrong[0]} stands for no colour; the codes of {name!r} end at {layout.codes}")
        grid = ids.view(layout.rows, layout.columns)
        if self._vq is not None:
            return Picture(self._vq.decode(grid[None])[0].numpy())
        grey = (self.codebook[grid] * 255).round().to(torch.uint8).expand(-1, -1, 3)
        return Picture(np.ascontiguousarray(grey.numpy()))
