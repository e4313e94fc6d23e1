"""The published mesh decoders that read a point cloud: BPT and DeepMesh. Nothing that their authors pickled is run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from stridebench.harness.backbones.base import TYPES, Identity
from stridebench.harness.backbones.checkpoints import components, files, sources
from stridebench.harness.backbones.mesh import bpt, bpt_tokens, deepmesh
from stridebench.harness.backbones.mesh.bpt import UNUSED, EncoderSizes
from stridebench.harness.backbones.mesh.deepmesh import Conditioned, HourglassCache
from stridebench.harness.backbones.mesh.network import PointCloudAdapter
from stridebench.harness.backbones.slots import lora
from stridebench.harness.backbones.slots.net import check_kept, check_window
from stridebench.harness.core.backbone import EncodedPrompt, TiedEmbeddings
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import tuned
from stridebench.harness.errors import ContractError, UsageError, WeightsError
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.registry import BACKBONES

Places = npt.NDArray[np.int64]
SLACK = 256
"""Positions behind a start after which the entries before it are given up; a later rollback reads them again."""


def start_of(positions: Places, window: int) -> Places:
    """Return the first position that each attends to: 0 in the first window, then a multiple of half a window."""
    half = window // 2
    return np.where(positions < window, 0, half + (positions - window) // half * half)


@dataclass(eq=False)
class _Stretch:
    """Entries that attend from one start on, and their places in the sequence."""

    cache: HourglassCache
    entries: Places


@final
class SlidingCache(Cache):
    """One sequence, in stretches that overlap by half a window: a cache of 9,000 entries that forgets half when full.

    `ar_sample_kvcache` of sample.py (zhaorw02/DeepMesh at 5c8ac4e) reads one token a pass. Once 9,001 tokens are there,
    and after every 4,500 more, it reads the last 4,501 again, in one pass over an empty cache, at their old positions.
    So the entry at position p attends from `start_of(p)` on. Here drafts may cross such a position. Those before it
    are read with the old entries, those behind it with the new ones. The old entries stay a while, for rejected drafts.
    """

    def __init__(self, net: Conditioned) -> None:
        self._net = net
        self._sizes = net.model.sizes
        self._tokens, self._positions = _none(), _none()
        self._stretches: dict[int, _Stretch] = {}

    @torch.inference_mode()
    def extend(self, window: Window) -> Rows:
        count = len(window.tokens)
        check_window(window, len(self._tokens), self._sizes.context)
        tokens, positions = np.array(window.tokens.tolist()), np.array(window.positions.tolist())
        starts = start_of(positions, self._sizes.window)
        logits = window.tokens.new_empty(0)
        for start in np.unique(starts).tolist():
            chosen = np.flatnonzero((positions >= start) & (starts <= start))
            rows = self._read(start, window, chosen, tokens, positions)
            if not len(logits):
                logits = rows.new_empty(window.rows, rows.shape[1])
            asked = np.flatnonzero((starts[chosen] == start) & (chosen >= count - window.rows))
            logits[chosen[asked] - (count - window.rows)] = rows[asked]
        self._tokens, self._positions = np.append(self._tokens, tokens), np.append(self._positions, positions)
        for start in [start for start in self._stretches if start + self._sizes.window + SLACK <= positions.min()]:
            del self._stretches[start]
        return Rows(logits)

    @torch.inference_mode()
    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        count = len(self._tokens)
        check_kept(length, entries, count)
        kept = np.array([*range(length), *(length + entry for entry in entries)], np.int64)
        for stretch in self._stretches.values():
            places = np.full(count, -1)
            places[stretch.entries] = np.arange(len(stretch.entries))
            own = places[kept]
            stretch.entries = np.flatnonzero(own >= 0)
            own = own[own >= 0]
            same = int((own == np.arange(len(own))).cumprod().sum())
            stretch.cache.keep(same, (own[same:] - same).tolist())
        self._tokens, self._positions = self._tokens[kept], self._positions[kept]

    def _read(self, start: int, window: Window, chosen: Places, tokens: Places, positions: Places) -> Tensor:
        """Read rows of a window into a stretch, after the sequence's entries that it lacks; return their logits."""
        length = len(self._tokens)
        starts = start_of(self._positions, self._sizes.window)
        held = np.flatnonzero((self._positions >= start) & (starts <= start))
        stretch = self._stretches.get(start)
        again = _none()
        if stretch is None or not np.array_equal(stretch.entries, held):
            stretch, again = _Stretch(HourglassCache(self._net), held), held
            if not np.array_equal(self._positions[held], start + np.arange(len(held))):
                raise ContractError(f"a tree holds position {start}, from which the window slides: draft fewer tokens")
            self._stretches[start] = stretch
        mask = None
        if window.sees is not None:
            sees = window.sees.cpu().numpy()
            every = np.concatenate([np.ones((len(sees), window.base), np.bool_), sees], 1)
            seen = every[chosen][:, np.append(held, length + chosen)]  # the stretch's entries, then the chosen rows
            mask = torch.from_numpy(np.concatenate([np.tri(len(again), seen.shape[1], dtype=np.bool_), seen]))
        device = window.tokens.device
        ids = torch.from_numpy(np.append(self._tokens[again], tokens[chosen])).to(device)
        places = torch.from_numpy(np.append(self._positions[again], positions[chosen]))
        base = len(held) - len(again) if mask is None else 0
        stretch.entries = np.append(held, length + chosen)
        asked = len(chosen) if window.rows else 0
        return stretch.cache.extend(Window(ids, places, base, mask, asked)).logits


def _none() -> Places:
    return np.zeros(0, np.int64)


COMPONENT = "model"
"""The one component that a preset's ``parts`` names."""


class _Inert:
    """Stands for an object of DeepSpeed's optimiser that lies in a checkpoint, and is not used."""


class _Stage(IntEnum):
    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3


INERT: list[Any] = [
    (_Inert, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (_Inert, "deepspeed.utils.tensor_fragment.fragment_address"),
    (_Stage, "deepspeed.runtime.zero.config.ZeroStageEnum"),
]


def locate(name: str, parts: Any, sha256: str | None) -> Path:
    """Return the checkpoint's file; UsageError if ``parts`` is malformed, WeightsError if it is not the pinned file."""
    checked = components.check(name, parts, (COMPONENT,))
    path = components.locate(name, checked)[COMPONENT]
    actual = files.remembered(path) if sha256 else None
    if actual != sha256:
        raise WeightsError(f"{name}: {path} is not the pinned file: its sha256 is {actual}, wanted {sha256}")
    return path


def fill(name: str, model: nn.Module, path: Path, unused: Sequence[str]) -> None:
    """Give a model on the meta device the tensors of a file, or raise WeightsError.

    Names of tensors that the model does not use begin with one of ``unused``.
    """
    with torch.serialization.safe_globals(INERT):
        state = components.read_state(name, path)
    idle = [key for key in state if key.startswith(tuple(unused))]
    components.fill(name, path, model.to_empty(device="cpu"), state, idle)


@dataclass(frozen=True)
class MeshFamily:
    """An architecture: its sizes, its parameters and the decoder of its tokens."""

    sizes: Any
    model: Any
    decode: Callable[[Sequence[int]], Mesh]


FAMILIES = {
    "bpt": MeshFamily(bpt.BPTSizes, bpt.BPT, bpt_tokens.decode),
    "deepmesh": MeshFamily(deepmesh.DeepMeshSizes, deepmesh.DeepMesh, deepmesh.decode),
}


@BACKBONES.register("point_mesh")
@final
class PointMesh(PointCloudAdapter):
    """A mesh decoder with the point encoder of Michelangelo.

    Args (of ``params``):
        architecture: bpt or deepmesh.
        parts: {model: ...}, the published file (see `components`).
        sha256: of that file.
        random: {seed, sizes, encoder}: random weights instead, for tests; with ``fans`` they write valid meshes (bpt).
        lora: low-rank matrices that are added to the weights: a folder, or the recipe that trained them for this
            backbone (`stride train xspecmesh-cross-lora`).
    """

    kind = "point_mesh"
    parameters = ("architecture", "parts", "sha256", "random", "lora")

    def __init__(self, identity: Identity, family: MeshFamily, model: Any, weights: bpt.BPTWeights | None) -> None:
        super().__init__(identity)
        self._family, self._model, self._weights = family, model, weights
        self._rotations: Any = model.rotations() if weights is None else None

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> PointMesh:
        cls.check(name, params, dtype)
        family = _family(name, params)
        if "random" in params:
            model = _random(name, family, params["random"])
            fields = [params["architecture"], model.sizes, params["random"]]
            fingerprint = hashlib.sha256(repr(fields).encode()).hexdigest()
        else:
            path = locate(name, params["parts"], params.get("sha256"))
            with torch.device("meta"):
                model = family.model(family.sizes())
            fill(name, model, path, UNUSED)
            fingerprint = components.digest({COMPONENT: path})
        if "lora" in params:
            folder = tuned(str(params["lora"]), name)
            model.load_state_dict(lora.merged(folder, fingerprint, model.state_dict()))
            fingerprint = hashlib.sha256(f"{fingerprint} {sources.digest(folder)}".encode()).hexdigest()
        model = model.to(device=device, dtype=TYPES[dtype]).eval().requires_grad_(False)
        weights = model.weights() if isinstance(model, bpt.BPT) else None
        capabilities = Capabilities(
            family.model.vocabulary, model.sizes.context, frozenset({family.model.eos}), cls.meets(params)
        )
        if weights is not None:
            sizes = model.sizes
            capabilities = replace(capabilities, layers=sizes.depth, width=sizes.dim, condition=sizes.encoder.out)
        return cls(Identity(name, dtype, device, capabilities, fingerprint), family, model, weights)

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        more = {Requirement.HIDDEN, Requirement.CONDITION} if params.get("architecture") == "bpt" else set()
        return frozenset({Requirement.TREE_MASK, Requirement.DRAFTER} | more)

    @torch.inference_mode()
    def open(self, prompt: Prompt) -> EncodedPrompt:
        points = self._points(prompt, TYPES[self.dtype], self._model.sizes.points)
        tokens = (self._model.prompt,)
        if self._weights is None:
            hourglass = Conditioned.of(self._model, self._rotations, points)
            return EncodedPrompt(tokens, lambda: SlidingCache(hourglass))
        latents = self._model.conditioner(points)
        net = self._weights.bind(latents)
        return EncodedPrompt(tokens, lambda: self._slots(net), latents)

    def tied_embeddings(self) -> TiedEmbeddings:
        return super().tied_embeddings() if self._weights is None else self._weights.tied_embeddings()

    def decode(self, tokens: Sequence[int]) -> Mesh:
        return self._family.decode(tokens)

    def _layer_count(self) -> int:
        return 0 if self._weights is None else len(self._weights.layers)

    def _keep_layers(self, layers: Sequence[int], identity: Identity) -> PointMesh:
        assert self._weights is not None, "only BPT has a number of layers"
        return PointMesh(identity, self._family, self._model, self._weights.pick(layers))


def _family(name: str, params: Mapping[str, Any]) -> MeshFamily:
    if params.get("architecture") not in FAMILIES:
        raise UsageError(f"{name}: architecture is {params.get('architecture')!r}; choose one of {', '.join(FAMILIES)}")
    if ("parts" in params) == ("random" in params):
        raise UsageError(f"{name}: point_mesh needs one of parts and random; name a preset such as bpt")
    return FAMILIES[str(params["architecture"])]


def _random(name: str, family: MeshFamily, options: Mapping[str, Any]) -> Any:
    """Return a model of random weights, the same for the same seed; generators are left as they were."""
    encoder = _sized(name, EncoderSizes, options.get("encoder", {}))
    sizes = replace(_sized(name, family.sizes, options.get("sizes", {})), encoder=encoder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(options.get("seed", 0)))
        model = family.model(sizes)
        if options.get("fans"):
            bpt.draw_fans(model)
        return model


def _sized(name: str, kind: Any, sizes: Mapping[str, Any]) -> Any:
    names = {field.name for field in fields(kind)} - {"encoder"}
    if set(sizes) - names:
        raise UsageError(f"{name}: {kind.__name__} has {', '.join(sorted(names))}; found {', '.join(sorted(sizes))}")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in sizes.items()})
