"""Folders of drafters as their authors publish them: tensors by name, and one error that says what does not fit."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from harness.core import int8
from harness.errors import WeightsError

FILES = ("model.safetensors", "pytorch_model.bin")
INDEX = "model.safetensors.index.json"
NAMED = 10
"""Keys that an error names."""

Ignored = Callable[[str], bool]


def tensors(folder: Path, files: Iterable[str] = FILES, part: str = "") -> dict[str, Tensor]:
    """The tensors of the first of these files that is there. Nothing in it is executed.

    Args:
        part: of a whole model in several files, those that hold a key with this word are read.

    Raises:
        WeightsError: there is none, or it is damaged or holds anything but tensors.
    """
    path = next((folder / name for name in files if (folder / name).is_file()), None)
    if path is None and (folder / INDEX).is_file():
        return _shards(folder, part)
    if path is None:
        raise WeightsError(f"{folder} has no {' or '.join(files)}; fetch the whole folder")
    try:
        if path.suffix == ".safetensors":
            return int8.read(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, SafetensorError, ValueError) as error:
        raise WeightsError(f"{path} cannot be read as weights ({str(error)[:200]}); fetch it again") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise WeightsError(f"{path} holds more than tensors by name; it is no published drafter")
    return state


def _shards(folder: Path, part: str) -> dict[str, Tensor]:
    try:
        places = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        names = sorted({file for key, file in places.items() if part in key})
        return {key: value for name in names for key, value in int8.read(folder / name).items() if part in key}
    except (OSError, ValueError, KeyError, AttributeError, SafetensorError) as error:
        raise WeightsError(f"{folder} cannot be read as weights ({str(error)[:200]}); fetch it again") from error


def fill(folder: Path, module: nn.Module, state: Mapping[str, Tensor], read: Mapping[str, str]) -> None:
    """Put tensors into a module.

    Args:
        state: under the module's names.
        read: the published names behind each of the module's, for messages.

    Raises:
        WeightsError: some are missing, of another shape, or not the module's; names the first ten of each.
    """
    own = module.state_dict()
    shapes = [
        f"{read.get(key, key)} in the shape {tuple(state[key].shape)}, not {tuple(own[key].shape)}"
        for key in own
        if key in state and state[key].shape != own[key].shape
    ]
    problems = [
        _listed("lacks", [read.get(key, key) for key in own if key not in state]),
        _listed("has", shapes),
        _listed("has, and this drafter does not read,", [read.get(key, key) for key in state if key not in own]),
    ]
    if any(problems):
        raise WeightsError(
            f"{folder} {'; '.join(filter(None, problems))}. It is another drafter's, or its config.json is"
        )
    module.load_state_dict(dict(state))


def _listed(verb: str, keys: Collection[str]) -> str:
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    return f"{verb} {', '.join(list(keys)[:NAMED])}{more}" if keys else ""
