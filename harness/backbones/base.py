"""Shared by the adapters: their parameters, the types they run in, their slots, and variants of fewer layers."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from stridebench.harness.backbones.slots import lora
from stridebench.harness.backbones.slots.cache import Masks, SlotCache
from stridebench.harness.backbones.slots.graphs import Graphs
from stridebench.harness.backbones.slots.net import Net
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.errors import UsageError, check_parameters

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}


@dataclass(frozen=True, eq=False)
class Identity:
    """The name of a loaded model, its type (a key of ``TYPES``), its device, and the digest of its weights."""

    name: str
    dtype: str
    device: str
    capabilities: Capabilities
    fingerprint: str


class Adapter(Backbone):
    """A backbone whose caches are slots.

    Attributes:
        parameters: keys of a preset.
    """

    kind: ClassVar[str]
    parameters: ClassVar[tuple[str, ...]]
    advice: ClassVar[str] = "name a preset"

    def __init__(self, identity: Identity) -> None:
        self.name, self.dtype, self.device = identity.name, identity.dtype, identity.device
        self.capabilities, self.fingerprint = identity.capabilities, identity.fingerprint
        self._identity = identity
        self._masks = Masks(identity.capabilities.context, TYPES[identity.dtype], torch.device(identity.device))
        self._fitted: dict[Path, Any] = {}
        self._graphs: Graphs | None = None

    @classmethod
    def check(cls, name: str, params: Mapping[str, Any], dtype: str) -> None:
        """Raise UsageError, before anything is read, if a parameter or dtype is unknown or the source is missing."""
        check_parameters(f"{name}: {cls.kind}", params, cls.parameters)
        if "source" in cls.parameters and "source" not in params:
            raise UsageError(f"{name}: {cls.kind} needs a source of weights; {cls.advice}")
        check_dtype(name, dtype)

    def use_graphs(self) -> None:
        """Capture passes of fixed shapes from now on, but for nets of one prompt (meshes, speech) and packed passes."""
        like = torch.zeros((), dtype=TYPES[self.dtype], device=self.device)
        self._graphs = Graphs(self.capabilities.context, like)

    def _slots(self, net: Net, lasting: bool = False) -> SlotCache:
        """Return empty slots over a net. If it serves all prompts (``lasting``), its passes may be captured."""
        return SlotCache(net, self.capabilities.context, self._masks, self._graphs if lasting else None)

    def _fit_adapter(self, folder: Path | None, fit: Callable[[lora.Adapter], Any]) -> Any:
        """Return the low-rank adapter of a folder in the form of a net; each folder is read once (see `lora.read`)."""
        assert folder is not None, "only toys have an adapter without a folder"
        if folder not in self._fitted:
            self._fitted[folder] = fit(lora.read(folder, self, TYPES[self.dtype]))
        return self._fitted[folder]


class LayeredAdapter(Adapter):
    """An adapter with variants of fewer layers."""

    @abstractmethod
    def _layer_count(self) -> int:
        """Return how many layers a variant may keep, or 0 if none."""

    @abstractmethod
    def _keep_layers(self, layers: Sequence[int], identity: Identity) -> Self:
        """Return the same weights with these layers only."""

    def variant(self, params: Mapping[str, str]) -> Self:
        """Return a variant of ``layers`` layers, evenly spread; tensors are shared. UsageError: there is none such."""
        if not params:
            return self
        count, capabilities = self._layer_count(), self.capabilities
        if not count or set(params) != {"layers"}:
            available = "layers=N" if count else "none"
            raise UsageError(
                f"the backbone {self.name!r} has no variant with {', '.join(sorted(params))}; it has {available}"
            )
        layers = spread(count, params["layers"], self.name)
        if capabilities.layers:
            capabilities = replace(capabilities, layers=len(layers))
        identity = replace(
            self._identity,
            name=f"{self.name}/layers={len(layers)}",
            capabilities=capabilities,
            fingerprint=hashlib.sha256(f"{self.fingerprint} layers={layers}".encode()).hexdigest(),
        )
        kept = self._keep_layers(layers, identity)
        if self._graphs is not None:
            kept.use_graphs()
        return kept


def check_dtype(name: str, dtype: str) -> None:
    """Raise UsageError if a type is not among ``TYPES``."""
    if dtype not in TYPES:
        raise UsageError(f"{name}: there is no dtype {dtype!r}; choose one of {', '.join(TYPES)}")


def spread(total: int, text: str, name: str) -> tuple[int, ...]:
    """Return evenly spread indices of ``text`` layers, the first and the last included, or raise UsageError."""
    count = int(text) if text.isdecimal() else 0
    if not 2 <= count <= total:
        raise UsageError(f"layers={text}: {name!r} has {total} layers; keep a whole number from 2 to {total}")
    return tuple(round(i * (total - 1) / (count - 1)) for i in range(count))
