"""What a tokenizer of pictures is to trainings: pictures to codes, and vectors of codes to pixels with gradients."""

from __future__ import annotations

from typing import Protocol

from jaxtyping import Float, Int, UInt8
from torch import Tensor


class PictureTokenizer(Protocol):
    """A frozen tokenizer, of ours or of a published model.

    Attributes:
        codebook: the vector of each code.
        factor: pixels a side of one code.
    """

    @property
    def codebook(self) -> Float[Tensor, "K C"]: ...

    @property
    def factor(self) -> int: ...

    def encode(self, pictures: UInt8[Tensor, "B H W 3"]) -> Int[Tensor, "B h w"]:
        """Codes of pictures.

        Raises:
            UsageError: a side is no multiple of ``factor``, or the pixels are not uint8.
        """

    def paint(self, codes: Float[Tensor, "B h w C"]) -> Float[Tensor, "B 3 H W"]:
        """Pixels, about -1 to 1, of vectors of codes; gradients reach the vectors."""

    def decode(self, ids: Int[Tensor, "B h w"]) -> UInt8[Tensor, "B H W 3"]:
        """Pictures of codes."""
