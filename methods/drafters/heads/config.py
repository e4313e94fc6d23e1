"""What a folder of heads says of itself: their sizes, and the target that they were made for.

Symbols: D heads, E width, G branches of guidance, K ids proposed; C the width of a condition.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from stridebench.harness.errors import WeightsError
from stridebench.methods.drafters.heads import published


@dataclass(frozen=True)
class Config:
    """Sizes of the heads, and the target that they were made for.

    Args:
        backbone, fingerprint, guidance: of the target.
        width, heads: E and D.
        layers: residual blocks of each head.
        inner: 0 is Medusa's block x + SiLU(Wx); more is blockwise decoding's x + W' ReLU(Wx), through ``inner`` units.
        kept: K; 0: all.
        own: each head has its own unembedding, instead of the target's.
        ranks: how often the r-th best token of each head was right, on text that it was not trained on; () is unknown.
        condition: C, of the condition that the heads attend to before the blocks; 0: none.
        attention: heads of that attention.
    """

    backbone: str
    fingerprint: str
    width: int
    heads: int = 3
    layers: int = 1
    inner: int = 0
    kept: int = 0
    own: bool = False
    guidance: float = 1.0
    ranks: tuple[tuple[float, ...], ...] = ()
    condition: int = 0
    attention: int = 1

    @property
    def branches(self) -> int:
        """G."""
        return 1 if self.guidance == 1.0 else 2

    def write(self, folder: Path) -> None:
        """Write ``config.json``, from which heads are built."""
        (folder / "config.json").write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def read_config(folder: Path) -> Config:
    """The configuration that `Config.write` wrote, or what a published folder says by its tensors.

    Raises:
        WeightsError: it is missing, or of something else.
    """
    try:
        body = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if published.is_here(folder, body):
            own = published.read(folder)[0]
            layers = sum(key.endswith(".last") for key in own)
            return Config("", "", own["own"].shape[2], len(own["own"]), layers, own=True)
        return Config(**{**body, "ranks": tuple(map(tuple, body["ranks"]))})
    except (OSError, TypeError, KeyError, ValueError, IndexError) as error:
        raise damaged(folder, error) from error


def damaged(folder: Path, error: Exception) -> WeightsError:
    """The error of a folder that holds something else."""
    what = f"its config.json lacks {error}" if isinstance(error, KeyError) else error
    return WeightsError(f"{folder} holds no heads ({what}). Make them: `stride train drafter NAME`")
