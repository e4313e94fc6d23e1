"""Models published in several components: a folder of transformers, a tokenizer of pictures, a text encoder.

A preset's ``parts`` name each component: ``{hub: ORG/NAME}`` for a folder, ``{hub: ORG/NAME, file: FILE}`` for a file,
with ``revision`` if it is pinned, or ``{path: PATH}`` for either on this machine.
"""

from __future__ import annotations

import argparse
import hashlib
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from stridebench.harness.backbones.checkpoints import files, sources
from stridebench.harness.backbones.checkpoints.files import Progress
from stridebench.harness.errors import UsageError, WeightsError, listed
from stridebench.harness.machine.surroundings import cache_folder, reason, remedy

if TYPE_CHECKING:
    from torch import Tensor, nn

FIELDS = ({"hub"}, {"hub", "file"}, {"hub", "revision"}, {"hub", "file", "revision"}, {"path"})
NESTED = ("state_dict", "model", "module", "sd")
"""Keys of a checkpoint under which trainers put the tensors."""

Component = Mapping[str, str]


def check(name: str, parts: Any, needed: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Component]:
    """Return the ``parts`` of a preset, or raise UsageError if one is missing, unknown or malformed."""
    values = parts.values() if isinstance(parts, Mapping) else [None]
    if any(not isinstance(part, Mapping) or set(part) not in FIELDS for part in values):
        raise UsageError(
            f"{name}: `parts` maps names to {{hub: ORG/NAME, file: FILE}} or {{path: PATH}}; found {parts!r}"
        )
    required, allowed = set(needed), {*needed, *optional}
    if not required <= set(parts) <= allowed:
        raise UsageError(
            f"{name}: `parts` has {', '.join(sorted(parts)) or 'nothing'} and must have {', '.join(sorted(required))}"
            + (f", and may have {', '.join(sorted(allowed - required))}" if allowed - required else "")
        )
    return {key: {field: str(value) for field, value in part.items()} for key, part in parts.items()}


def place(part: Component) -> Path:
    """Return where a component may be put by hand."""
    if "path" in part:
        return Path(part["path"]).expanduser()
    home = cache_folder() / "files" / part["hub"].replace("/", "--")
    return home / part["file"] if "file" in part else home


def find(part: Component) -> Path | None:
    """Return the path of a component on this machine, put there by hand or fetched from the hub, or None."""
    path = place(part)
    if path.is_file() if "file" in part else path.is_file() or (path / "config.json").is_file():
        return path
    return None if "path" in part else _hub(part, local=True)


def ready(parts: Mapping[str, Component]) -> bool:
    """Return whether all components are here."""
    return all(find(part) is not None for part in parts.values())


def locate(name: str, parts: Mapping[str, Component]) -> dict[str, Path]:
    """Return the paths of all components, or raise WeightsError that says where to get and put the missing ones."""
    paths = {key: find(part) for key, part in parts.items()}
    missing = [f"{key} is {_origin(parts[key])}: put it at {place(parts[key])}" for key in paths if paths[key] is None]
    if missing:
        raise WeightsError(
            f"the weights of {name!r} are not on this machine. Run `stride fetch {name}`, or by hand: "
            + "; ".join(missing)
        )
    return {key: path for key, path in paths.items() if path is not None}


def fetch(name: str, parts: Mapping[str, Component], progress: Progress = lambda line: None) -> None:
    """Download the components that are not here, or raise WeightsError if one cannot be had."""
    for key, part in parts.items():
        if find(part) is None and "path" not in part:
            progress(f"{name}: downloading {key}, {_origin(part)}")
            _hub(part, local=False)
    locate(name, parts)


def _origin(part: Component) -> str:
    if "path" in part:
        return f"the file or folder {part['path']} that the preset names"
    return f"{part['file']} of {part['hub']} on the hub" if "file" in part else f"{part['hub']} on the hub"


def _hub(part: Component, local: bool) -> Path | None:
    path = files.from_hub(part["hub"], part.get("revision"), local, part.get("file", sources.HUB_FILES))
    return path if path is None or path.is_file() or (path / "config.json").is_file() else None


def digest(paths: Mapping[str, Path]) -> str:
    """Return the hex sha256 over all components."""
    sha256 = hashlib.sha256()
    for key, path in sorted(paths.items()):
        component = files.remembered(path) if path.is_file() else sources.digest(path)
        sha256.update(f"{key} {component}\n".encode())
    return sha256.hexdigest()


def read_state(name: str, path: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint without the wrapping of a trainer. Nothing in the file is executed.

    Raises WeightsError if it is damaged, or holds more than tensors and plain settings.
    """
    import torch

    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        with torch.serialization.safe_globals([argparse.Namespace]):
            body: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, SafetensorError, ValueError) as error:
        raise WeightsError(f"{name}: {path} cannot be read as weights ({reason(error)}). {remedy(path)}") from error
    while isinstance(body, dict) and (inner := next((key for key in NESTED if isinstance(body.get(key), dict)), None)):
        body = body[inner]
    state = (
        {key: value for key, value in body.items() if isinstance(value, torch.Tensor)} if isinstance(body, dict) else {}
    )
    if not state:
        raise WeightsError(f"{name}: {path} holds no tensors by name; it is not the file that the preset means")
    return state


def fill(name: str, path: Path, module: nn.Module, state: Mapping[str, Tensor], unused: Iterable[str] = ()) -> None:
    """Put tensors into a module; one on the meta device takes the tensors themselves.

    Raises WeightsError if tensors other than ``unused`` are missing, of another shape, or not the module's; it names
    the first ten of each. ``name`` and ``path`` are for the message.
    """
    own = module.state_dict()
    missing = sorted(key for key in own if key not in state)
    shapes = sorted(
        f"{key} in the shape {tuple(state[key].shape)}, not {tuple(tensor.shape)}"
        for key, tensor in own.items()
        if key in state and state[key].shape != tensor.shape
    )
    extra = sorted(set(state) - set(own) - set(unused))
    problems = [
        text
        for keys, text in (
            (shapes, f"has {listed(shapes)}"),
            (missing, f"lacks {listed(missing)}"),
            (extra, f"has, and the model has not, {listed(extra)}"),
        )
        if keys
    ]
    if problems:
        counts = f"{len(missing)} tensors missing, {len(shapes)} of another shape, {len(extra)} unknown"
        raise WeightsError(
            f"{name}: {path} {'; '.join(problems)} ({counts}). It is another model's, or the configuration and "
            f"settings are another model's"
        )
    module.load_state_dict({key: state[key] for key in own}, assign=any(tensor.is_meta for tensor in own.values()))
