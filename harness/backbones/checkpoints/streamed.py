"""Reads the weights of a model tensor by tensor, into a model that has shapes alone.

The loader of transformers maps a file whole. In the type of the file the model's tensors are parts of the mapping, so
that the whole file stays in memory beside what is packed from it. It also imports a library for distributed tensors.
Here a file is mapped in pieces, and each tensor is a copy in the model's type: bit for bit what that loader gives.
"""

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

DRAWS = frozenset({init.normal_, init.trunc_normal_, init.uniform_, init.kaiming_uniform_})
"""What fills the tensors of a new module."""
MAPPED_BYTES = 64 << 20
"""A file is closed and opened again after so many bytes, so that no more of it stays mapped."""
SERVED = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"})
"""Architectures whose tensors have the names of their files, and whose tables follow from the configuration alone."""


def read(folder: Path, config: Any, attn: str, dtype: torch.dtype) -> Any | None:
    """A causal language model of a folder, in evaluation mode.

    Returns:
        None where the loader of transformers must read it: another architecture, another form of file, quantised
        weights, or tensors that are not those of the model, of which that loader tells.

    Raises:
        OSError, SafetensorError: a file is damaged.
    """
    architecture = (getattr(config, "architectures", None) or [""])[0]
    places = _places(folder)
    if architecture not in SERVED or not places or getattr(config, "quantization_config", None) is not None:
        return None
    with NothingComputed(), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attn)
    shared = _names(model)
    stored = {name: names for names in shared for name in names if name in places}
    if len(stored) != len(places) or len(stored) != len(shared) or any(buffer.is_meta for buffer in model.buffers()):
        return None
    shapes = {name: tensor.shape for name, tensor in model.named_parameters(remove_duplicate=False)}
    for name, tensor in _tensors(places):
        if tensor.shape != shapes[name]:
            return None
        parameter = nn.Parameter(tensor.to(dtype, copy=True), requires_grad=False)
        for alias in stored[name]:
            module, _, leaf = alias.rpartition(".")
            setattr(model.get_submodule(module), leaf, parameter)
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model.eval()


def _places(folder: Path) -> dict[str, Path]:
    """The file of each tensor of a folder; none where it has no safetensors."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file():
        with safe_open(whole, "pt") as file:
            return dict.fromkeys(file.keys(), whole)
    if not index.is_file():
        return {}
    named = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return {name: folder / part for name, part in named.items()}


def _names(model: Any) -> list[list[str]]:
    """The names of each tensor that a file holds; tied ones have several."""
    names: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    return list(names.values())


def _tensors(places: Mapping[str, Path]) -> Iterator[tuple[str, Tensor]]:
    """Tensors with their names, each valid until the next is asked for."""
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
    """Nothing is computed on the device ``meta``, where a new model has shapes alone: torch's compiler would do it.

    Draws fill nothing there. Numbers of which a module computes a table are made on the CPU.
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
