"""Medusa's heads as their authors publish them: those of Medusa-1 alone, or beside a tuned model (Medusa-2).

Source: FasterDecoding/Medusa, ``medusa_model.py``: head d is blocks ``d.l.linear`` and a last product ``d.L``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from stridebench.harness.errors import WeightsError
from stridebench.methods.drafters import checkpoint

FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", *checkpoint.FILES)
PREFIX = "medusa_head."
"""Of the heads' tensors in a file that holds the whole model."""
BLOCK = {"linear.weight": "last", "linear.bias": "bias"}
LEAF = re.compile(r"(\d+)\.(\d+)\.(linear\.weight|linear\.bias|weight)$")


def is_here(folder: Path, config: Mapping[str, object]) -> bool:
    """Whether a folder is one of Medusa's."""
    return "medusa_num_heads" in config or any((folder / name).is_file() for name in FILES[:2])


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors under the names of `Heads`, and the published names behind them.

    Raises:
        WeightsError: a key is missing or unknown, or the heads have different shapes.
    """
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
