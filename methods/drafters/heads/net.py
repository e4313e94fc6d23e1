"""Heads that predict the tokens behind the next one, from the row that gave it: Medusa's and others'.

Sources: Cai et al. 2024, Medusa, arXiv:2401.10774, section 2.1; Stern et al. 2018, arXiv:1811.03115, section 6.
Symbols: D heads, E width, G branches of guidance, K ids proposed of the vocabulary V; M rows of a condition, C wide.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.errors import WeightsError, warn_unread
from stridebench.harness.kernels import int8
from stridebench.methods.drafters import checkpoint

# Medusa's heads as their authors publish them: those of Medusa-1 alone, or with a tuned model (Medusa-2).
# Source: FasterDecoding/Medusa, ``medusa_model.py``: head d is blocks ``d.l.linear`` and a last product ``d.L``.


FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", *checkpoint.FILES)
PREFIX = "medusa_head."
"""Of the heads' tensors in a file that holds the whole model."""
MEDUSA = """_name_or_path base_model_name_or_path hidden_size medusa_num_heads medusa_num_layers model_type torch_dtype
transformers_version version vocab_size"""
"""Keys of Medusa's configuration; the tensors show the numbers."""
BLOCK = {"linear.weight": "last", "linear.bias": "bias"}
LEAF = re.compile(r"(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)$")


def is_here(folder: Path, config: Mapping[str, object]) -> bool:
    """Whether a folder is one of Medusa's."""
    return "medusa_num_heads" in config or any((folder / name).is_file() for name in FILES[:2])


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors under the names of `Heads`, and the published names behind them."""
    state = checkpoint.tensors(folder, FILES, PREFIX)
    if any(key.startswith(PREFIX) for key in state):
        state = {key.removeprefix(PREFIX): value for key, value in state.items() if key.startswith(PREFIX)}
    leaves = {key: match for key in state if (match := LEAF.match(key))}
    if not leaves:
        raise WeightsError(f"{folder} has no heads of Medusa; its tensors are {', '.join(list(state)[:10])}")
    count = 1 + max(int(match[1]) for match in leaves.values())
    last = max(int(match[2]) for match in leaves.values())
    renamed = {f"{level}.{leaf}": f"blocks.{level}.{own}" for level in range(last) for leaf, own in BLOCK.items()}
    renamed |= {f"{last}.weight": "own"}
    own, names = {key: value for key, value in state.items() if key not in leaves}, dict[str, str]()
    for tail, name in renamed.items():
        keys = [f"{head}.{tail}" for head in range(count)]
        values = [state[key] for key in keys if key in state]
        names[name] = ", ".join([key for key in keys if key not in state] or keys)
        if len(values) == count and len({value.shape for value in values}) == 1:
            own[name] = torch.stack(values)[:, None] if name.endswith("bias") else torch.stack(values)
    if "own" not in own:
        raise WeightsError(f"{folder} lacks {names['own']}, or these have different shapes; fetch the folder again")
    own |= {key: state[key] for key, match in leaves.items() if f"{match[2]}.{match[3]}" not in renamed}
    return own, names


# Layers between a row of the target and the unembedding of a head. XSpecMesh, eq. 4, leaves norm and residual open:
# here are both, and the output starts at zero. Symbols: N rows; A heads of an attention, W = E / A.


class Residual(nn.Module):
    """One residual block of every head; it adds zero until it is trained.

    Args:
        inner: 0 is Medusa's block; more is blockwise decoding's, through ``inner`` units.
    """

    def __init__(self, heads: int, width: int, inner: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(heads, inner, width) * width**-0.5) if inner else None
        self.last = nn.Parameter(torch.zeros(heads, width, inner or width))
        self.bias = nn.Parameter(torch.zeros(heads, 1, width))

    def forward(self, x: Float[Tensor, "D N E"]) -> Float[Tensor, "D N E"]:
        """Return the rows of each head."""
        if self.first is None:
            return x + functional.silu(x @ self.last.transpose(1, 2) + self.bias)
        inside = functional.relu(x @ self.first.transpose(1, 2))
        return x + inside @ self.last.transpose(1, 2) + self.bias


class ConditionKV(NamedTuple):
    """Keys and values of a condition, for each head."""

    keys: Float[Tensor, "D A M W"]
    values: Float[Tensor, "D A M W"]


class CrossAttention(nn.Module):
    """A norm and attention of every head to the rows of a condition, added to the rows; zero until it is trained.

    Args:
        heads: D.
        width: E.
        condition: C.
        attention: A, which divides E.
    """

    def __init__(self, heads: int, width: int, condition: int, attention: int) -> None:
        super().__init__()
        self.attention = attention
        self.norm = nn.Parameter(torch.ones(heads, 1, width))
        self.query = nn.Parameter(torch.randn(heads, width, width) * width**-0.5)
        self.key = nn.Parameter(torch.randn(heads, condition, width) * condition**-0.5)
        self.value = nn.Parameter(torch.randn(heads, condition, width) * condition**-0.5)
        self.out = nn.Parameter(torch.zeros(heads, width, width))

    def look(self, condition: Float[Tensor, "M C"]) -> ConditionKV:
        """Return keys and values, computed once for a condition."""
        return ConditionKV(self._split(condition @ self.key), self._split(condition @ self.value))

    def forward(self, x: Float[Tensor, "D N E"], condition: ConditionKV) -> Float[Tensor, "D N E"]:
        """Return the rows of each head."""
        query = self._split((functional.layer_norm(x, x.shape[-1:]) * self.norm) @ self.query)
        scores = (query * query.shape[-1] ** -0.5) @ condition.keys.transpose(-1, -2)
        attended = scores.softmax(-1).to(condition.values.dtype) @ condition.values
        out: Tensor = x + attended.transpose(1, 2).flatten(2) @ self.out
        return out

    def _split(self, x: Float[Tensor, "D n E"]) -> Float[Tensor, "D A n W"]:
        return x.view(*x.shape[:-1], self.attention, -1).transpose(1, 2)


@dataclass(frozen=True)
class Config:
    """Sizes of the heads, and the target that they were made for.

    Args:
        backbone, fingerprint, guidance: of the target.
        width, heads: E and D.
        layers: residual blocks of each head.
        inner: 0 is Medusa's block x + SiLU(Wx); more is blockwise decoding's x + W' ReLU(Wx), through ``inner`` units.
        kept: K; 0: all.
        own: each head has another unembedding than the target's.
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
        """Return G."""
        return 1 if self.guidance == 1.0 else 2

    def write(self, folder: Path) -> None:
        """Write ``config.json``, from which heads are built."""
        (folder / "config.json").write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def read_config(folder: Path) -> Config:
    """Return the configuration that `Config.write` wrote, or that of a published folder by its tensors."""
    try:
        body = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if is_here(folder, body):
            if "architectures" not in body:  # not of Medusa-2's tuned model
                warn_unread(folder / "config.json", body, MEDUSA)
            own = read(folder)[0]
            layers = sum(key.endswith(".last") for key in own)
            return Config("", "", own["own"].shape[2], len(own["own"]), layers, own=True)
        return Config(**{**body, "ranks": tuple(map(tuple, body["ranks"]))})
    except (OSError, TypeError, KeyError, ValueError, IndexError) as error:
        raise damaged(folder, error) from error


def damaged(folder: Path, error: Exception) -> WeightsError:
    """Return the error of a folder that holds something else."""
    what = f"its config.json lacks {error}" if isinstance(error, KeyError) else error
    return WeightsError(f"{folder} holds no heads ({what}). Make them: `stride train drafter NAME`")


class Unembeds(Protocol):
    """The part of a model that heads use (see `TiedEmbeddings`)."""

    @property
    def lift(self) -> Callable[[Tensor], Tensor] | None:
        """Return the layers between normed hidden rows and ``unembed``, or None if there are none."""

    @property
    def unembed(self) -> Float[Tensor, "V E"]:
        """Return the rows whose products with normed hidden rows are raw logits."""


class Heads(nn.Module):
    """All heads together; new heads predict at every depth as the target predicts the next token.

    Args:
        ids: those proposed, or None for all.
    """

    ids: Int[Tensor, " K"]
    shared: Float[Tensor, "K E"]

    def __init__(self, config: Config, unembed: Float[Tensor, "V E"], ids: Int[Tensor, " K"] | None = None) -> None:
        super().__init__()
        self.config = config
        self.lift: Callable[[Tensor], Tensor] | None = None
        heads, width = config.heads, config.width
        self.cross = CrossAttention(heads, width, config.condition, config.attention) if config.condition else None
        self.blocks = nn.ModuleList(Residual(heads, width, config.inner) for _ in range(config.layers))
        chosen = torch.arange(len(unembed)) if ids is None else ids
        self.register_buffer("ids", chosen, persistent=ids is not None)
        rows = unembed if ids is None else unembed[ids.to(unembed.device)]
        self.register_buffer("shared", rows, persistent=False)
        self.own = nn.Parameter(rows.float().repeat(config.heads, 1, 1)) if config.own else None

    @classmethod
    def load(cls, folder: Path, tied_embeddings: Callable[[], Unembeds]) -> Heads:
        """Return the heads of a folder, on the device and in the type of the target's unembedding."""
        try:
            config, tied = read_config(folder), tied_embeddings()
            unembed = tied.unembed
            if config.fingerprint:
                tensors = int8.read(folder / "model.safetensors")
                heads = cls(config, unembed, tensors["ids"].long() if config.kept else None)
                heads.load_state_dict(tensors)
                checkpoint.check_finite(folder, heads)
            else:
                heads = cls._published(folder, config, unembed)
            heads.lift = tied.lift
        except (OSError, SafetensorError, RuntimeError, LookupError) as error:
            raise damaged(folder, error) from error
        heads = heads.to(unembed.device, unembed.dtype).eval().requires_grad_(False)
        if heads.own is not None:  # a product with one row is three times as fast on a contiguous transpose
            heads.own.data = heads.own.data.transpose(1, 2).contiguous().transpose(1, 2)
        return heads

    @classmethod
    def _published(cls, folder: Path, config: Config, unembed: Float[Tensor, "V E"]) -> Heads:
        """Return heads that name no target: their sizes must be those of its unembedding."""
        tensors, names = read(folder)
        vocabulary = len(unembed) if "own" not in tensors else tensors["own"].shape[1]
        if (vocabulary, config.width) != tuple(unembed.shape):
            raise WeightsError(
                f"the heads in {folder} have a vocabulary of {vocabulary} ids and rows of width {config.width}, and "
                f"the target of {len(unembed)} and {unembed.shape[1]}: take the heads that were published for it"
            )
        heads = cls(config, unembed)
        checkpoint.fill(folder, heads, tensors, names)
        return heads

    def look(self, condition: Float[Tensor, "M C"] | None) -> ConditionKV | None:
        """Return keys and values of the condition, computed once for all rows, or None if the heads attend to none."""
        return None if self.cross is None or condition is None else self.cross.look(condition)

    def forward(self, rows: Float[Tensor, "N G E"], condition: ConditionKV | None = None) -> Float[Tensor, "D N K"]:
        """Return logits of the ids proposed, branches mixed; head d, from 0, predicts token d + 2 after a row's."""
        count, branches = rows.shape[:2]
        x = rows.reshape(1, count * branches, -1).expand(self.config.heads, -1, -1)
        if self.cross is not None and condition is not None:
            x = self.cross(x, condition)
        for block in self.blocks:
            x = block(x)
        if self.lift is not None:
            x = self.lift(x)
        if self.own is None:
            z = functional.linear(x.reshape(-1, x.shape[-1]), self.shared)
        else:
            z = x @ self.own.transpose(1, 2)
        z = z.view(self.config.heads, count, branches, -1)
        return z[:, :, 0] if branches == 1 else torch.lerp(z[:, :, 1], z[:, :, 0], self.config.guidance)
