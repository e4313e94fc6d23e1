"""Causal language models of transformers whose weights are read when they are needed, tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import init
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM, GenerationConfig

from stridebench.harness.machine.device import give_back

DRAWS = frozenset({init.normal_, init.trunc_normal_, init.uniform_, init.kaiming_uniform_})
"""What fills the tensors of a new module."""

MAPPED_BYTES = 64 << 20
"""A file is closed and opened again after so many bytes, so that no more of it stays mapped."""

SERVED = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"})
"""Architectures whose tensors have the names of their files, and whose tables follow from the configuration alone."""


def read(folder: Path, config: Any, attn: str, dtype: torch.dtype, device: str = "cpu") -> Any | None:
    """Return a causal language model of a folder, whose weights are read when `fill` asks for them.

    Returns None if the loader of transformers must read it: another architecture or form of file, quantised weights, or
    tensors that are not those of the model, which that loader reports. Raises OSError or SafetensorError.
    """
    architecture = (getattr(config, "architectures", None) or [""])[0]
    places = _places(folder)
    if architecture not in SERVED or not places or getattr(config, "quantization_config", None) is not None:
        return None
    if config.rope_parameters.get("rope_type") == "longrope":  # its frequencies cannot be made on no device
        return None
    with NothingComputed(), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attn)
    shared = _names(model)
    stored = {name: names for names in shared for name in names if name in places}
    if len(stored) != len(places) or len(stored) != len(shared) or any(buffer.is_meta for buffer in model.buffers()):
        return None
    shapes = {name: tuple(tensor.shape) for name, tensor in model.named_parameters(remove_duplicate=False)}
    if any(shapes[name] != shape for name, shape in _shapes(places)):
        return None
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    for name, buffer in model.named_buffers():
        module, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(module), leaf, buffer.to(device))
    model.fill = _Weights(places, list(stored.values()), device)
    return model.eval()


def fill(model: Any, module: Any = None) -> Any:
    """Read the weights of one of the model's modules, or of all, if they are not there yet; return the module."""
    module = model if module is None else module
    if (weights := getattr(model, "fill", None)) is not None:
        weights(model, module)
    return module


class _Weights:
    """Reads weights into a model. Several names of one weight stay one tensor."""

    def __init__(self, places: Mapping[str, Path], names: list[list[str]], device: str) -> None:
        self._places, self._device = places, device
        self._read_bytes = 0
        self._names = {name: shared for shared in names for name in shared}

    def __call__(self, model: Any, module: Any) -> None:
        prefix = next(name for name, part in model.named_modules() if part is module)
        empty = [name for name, tensor in module.named_parameters() if tensor.is_meta]
        aliases = [self._names[f"{prefix}.{name}" if prefix else name] for name in empty]
        stored = {next(name for name in shared if name in self._places): shared for shared in aliases}
        for name, tensor in _tensors({name: self._places[name] for name in stored}):
            like = model.get_parameter(name)
            weight = tensor.to(device=self._device, dtype=like.dtype, copy=True)
            parameter = nn.Parameter(weight, requires_grad=False)
            self._read_bytes += tensor.nbytes
            for alias in stored[name]:
                holder, _, leaf = alias.rpartition(".")
                setattr(model.get_submodule(holder), leaf, parameter)
        if self._read_bytes > MAPPED_BYTES:  # of the modules before, whose weights were packed and freed
            self._read_bytes = 0
            give_back()


def _places(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor of a folder; none without safetensors."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        with safe_open(whole, "pt") as file:
            return dict.fromkeys(file.keys(), whole)
    if not index.is_file():
        return {}
    named = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return {name: folder / part for name, part in named.items()}


def _shapes(places: Mapping[str, Path]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for path in set(places.values()):
        with safe_open(path, "pt") as file:
            names = [name for name, place in places.items() if place == path]
            yield from ((name, tuple(file.get_slice(name).get_shape())) for name in names)


def _names(model: Any) -> list[list[str]]:
    """Return the names of each tensor that a file holds; tied ones have several."""
    names: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    return list(names.values())


def _tensors(places: Mapping[str, Path]) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors with their names, each valid until the next is asked for."""
    for path in sorted(set(places.values())):
        names = [name for name, place in places.items() if place == path]
        while names:
            mapped = 0
            with safe_open(path, "pt") as file:
                while names and mapped < MAPPED_BYTES:
                    name = names.pop(0)
                    tensor = file.get_tensor(name)
                    mapped += tensor.nbytes
                    yield name, tensor
                    del tensor


class NothingComputed(TorchFunctionMode):
    """Computes nothing on the device ``meta``, where a new model has shapes alone: torch's compiler would do it.

    Draws fill nothing there. Positions of which a module computes a table are made on the CPU.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func in DRAWS and (tensor := named.get("tensor", *args[:1])).is_meta:
            return tensor
        if func is torch.arange and torch.device(named.get("device") or "cpu").type == "meta":
            named["device"] = "cpu"
        return func(*args, **named)
