"""Folders of drafters as their authors publish them: tensors by name, and one error that says what does not fit."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError, WeightsError, listed
from stridebench.harness.kernels import int8

FILES = ("model.safetensors", "pytorch_model.bin")
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
Ignored = Callable[[str], bool]


def tensors(folder: Path, files: Iterable[str] = FILES, part: str = "") -> dict[str, Tensor]:
    """Return the tensors of the first of these files that is there. Nothing in it is executed.

    Args:
        part: of a whole model in several files, those that hold a key with this word are read, or all if none does.

    Raises:
        WeightsError: there is none, or it is damaged or holds anything but tensors.
    """
    path = next((folder / name for name in files if (folder / name).is_file()), None)
    if path is not None:
        return _read(path)
    index = next((folder / name for name in INDEXES if (folder / name).is_file()), None)
    if index is None:
        raise WeightsError(f"{folder} has no {' or '.join(files)}; fetch the whole folder")
    places = _places(index)
    part = part if any(part in key for key in places) else ""
    holders = sorted({file for key, file in places.items() if part in key})
    return {key: value for file in holders for key, value in _read(file).items() if part in key}


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return int8.read(path)
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, SafetensorError, ValueError) as error:
        raise WeightsError(f"{path} cannot be read as weights ({str(error)[:200]}); fetch it again") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise WeightsError(f"{path} holds more than tensors by name; it is not a published drafter")
    return state


def _places(index: Path) -> dict[str, Path]:
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = {str(key): str(file) for key, file in places.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{index} cannot be read as an index ({str(error)[:200]}); fetch it again") from error
    if outside := [name for name in names.values() if Path(name).name != name]:
        raise WeightsError(f"{index} names {outside[0]!r}, which is not a file of its folder; fetch it again")
    return {key: index.parent / name for key, name in names.items()}


def fill(folder: Path, module: nn.Module, state: Mapping[str, Tensor], read: Mapping[str, str]) -> None:
    """Put tensors into a module.

    Args:
        read: the published names behind each of the module's, for messages.

    Raises:
        WeightsError: some are missing, of another shape, or not the module's (names the first ten of each), or hold NaN
            or infinite numbers.
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
    check_finite(folder, module)


def check_finite(folder: Path, module: nn.Module) -> None:
    """Refuse weights that draft nothing."""
    state = {key: value for key, value in module.state_dict().items() if not value.is_meta}
    damaged = [key for key, value in state.items() if not bool(value.isfinite().all())]
    if damaged:
        raise WeightsError(
            f"{folder}: {listed(damaged)} {'holds' if len(damaged) == 1 else 'hold'} NaN or infinite numbers, so "
            f"its drafts mean nothing; fetch it or train it again"
        )


def _listed(verb: str, keys: Collection[str]) -> str:
    return f"{verb} {listed(list(keys))}" if keys else ""


LAYER_IDS = "eagle_aux_hidden_state_layer_ids"


def layers_of(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the target's layers that a configuration names, 0 for its embedding; () if it names none.

    speculators and vLLM count as we do. SpecForge and ModelOpt, whose ids lie in ``eagle_config``, count the decoder's
    layers from 0, as SGLang reads them.
    """
    nested = (config.get("eagle_config") or {}).get(LAYER_IDS) or ()
    return tuple(int(layer) + 1 for layer in nested) or tuple(int(layer) for layer in config.get(LAYER_IDS) or ())


def rope_rates(config: Mapping[str, Any], width: int, heads: int) -> tuple[tuple[float, ...], float]:
    """Return the rotation a position of each pair, and the factor of both; no rates if the base alone gives them."""
    rope = {**(config.get("rope_parameters") or {}), **(config.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return (), 1.0
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theta = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    rope = {key: value for key, value in rope.items() if key != "type"} | {"rope_type": kind, "rope_theta": theta}
    table = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=width,
            num_attention_heads=heads,
            head_dim=int(config.get("head_dim") or width // heads),
            max_position_embeddings=int(config.get("max_position_embeddings", 2048)),
            rope_parameters=rope,
        )
    )
    return tuple(table.inv_freq.tolist()), float(table.attention_scaling)


@runtime_checkable
class MadeFor(Protocol):
    """The target of a drafter, by its configuration."""

    @property
    def backbone(self) -> str:
        """Return the name of the target."""

    @property
    def fingerprint(self) -> str:
        """Return the hash of its weights and of the settings of its distributions, guidance included."""

    @property
    def branches(self) -> int:
        """Return the number of branches of guidance: 1 or 2."""


def check_shapes(folder: Path, run: Run, width: int, vocabulary: int) -> None:
    """Reject a published drafter whose sizes are not the target's.

    Args:
        vocabulary: ids that it knows; 0: any.

    Raises:
        WeightsError: says which size is another.
    """
    own = run.capabilities
    if width != own.width:
        raise WeightsError(
            f"the drafter in {folder} reads rows of width {width}, and those of {run.backbone} have {own.width}: take "
            f"the drafter that was published for it"
        )
    if vocabulary not in (0, own.vocabulary):
        raise WeightsError(
            f"the drafter in {folder} has a vocabulary of {vocabulary} ids, and {run.backbone} of {own.vocabulary}: "
            f"take the drafter that was published for it"
        )


def check_target(made_for: MadeFor, run: Run) -> None:
    """Reject a drafter of another backbone; a published one names none, and its shapes are held against the target's.

    Raises:
        UsageError: the target is guided, and the drafter has one branch.
        WeightsError: it was trained for another backbone.
    """
    if run.capabilities.branches > made_for.branches:
        raise UsageError(
            f"{run.backbone} is guided and its drafter was trained without guidance: take one trained with two "
            f"branches, or a target at guidance 1"
        )
    if made_for.fingerprint and made_for.fingerprint != run.fingerprint:
        raise WeightsError(
            f"the drafter was trained for {made_for.backbone} ({made_for.fingerprint[:12]}), and the target is "
            f"{run.backbone} ({run.fingerprint[:12]}): train one for it with `stride train drafter`"
        )
