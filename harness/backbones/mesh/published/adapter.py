"""The published decoders of meshes that read a point cloud: BPT and DeepMesh."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, final

import torch
from torch import Tensor

from harness.backbones.checkpoints import components
from harness.backbones.mesh import bpt_tokens, deepmesh_tokens
from harness.backbones.mesh.published import bpt, checkpoint, deepmesh
from harness.backbones.mesh.published.hourglass_cache import Conditioned, HourglassCache
from harness.backbones.mesh.published.michelangelo import POINT, UNUSED, EncoderSizes
from harness.backbones.slots.cache import Masks, SlotCache
from harness.backbones.text.hf_causal import TYPES, spread
from harness.core.backbone import Backbone, EncodedPrompt, TiedEmbeddings
from harness.core.cache import Cache
from harness.core.capabilities import Capabilities, Requirement
from harness.core.task import Prompt
from harness.errors import UsageError
from harness.record.outputs import Mesh
from harness.registry import BACKBONES

Caches = Callable[[Tensor], EncodedPrompt]
"""Runs the encoder on points [n, 6]; the answer makes empty caches for them, and lends what BPT's encoder gave."""


@dataclass(frozen=True)
class Family:
    """An architecture: its sizes, its parameters, and what its tokens stand for."""

    sizes: Any
    model: Any
    decode: Callable[[Sequence[int]], Mesh]


FAMILIES = {
    "bpt": Family(bpt.Sizes, bpt.BPT, bpt_tokens.decode),
    "deepmesh": Family(deepmesh.Sizes, deepmesh.DeepMesh, deepmesh_tokens.decode),
}


@dataclass(frozen=True, eq=False)
class Parts:
    """A loaded model: offers, fingerprint, family, the forward's weights (BPT's only) and what makes caches."""

    capabilities: Capabilities
    fingerprint: str
    family: Family
    model: Any
    weights: bpt.Weights | None
    caches: Caches


@BACKBONES.register("point_mesh")
@final
class PointMesh(Backbone):
    """A mesh decoder with the point encoder of Michelangelo; a prompt is its point cloud.

    Args (of ``params``):
        architecture: bpt or deepmesh. parts: {model: ...}, the published file (see `checkpoints.parts`).
        sha256: of that file.
        random: {seed, sizes, encoder}: random weights instead, for tests.
    """

    def __init__(self, name: str, dtype: str, device: str, parts: Parts) -> None:
        self.name, self.dtype, self.device = name, dtype, device
        self.capabilities, self.fingerprint = parts.capabilities, parts.fingerprint
        self._parts = parts

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> PointMesh:
        """Read the published file; nothing is downloaded."""
        family = _family(name, params, dtype)
        if "random" in params:
            model = _random(name, family, params["random"])
            mark = hashlib.sha256(repr([params["architecture"], model.sizes, params["random"]]).encode()).hexdigest()
        else:
            path = checkpoint.locate(name, params["parts"], params.get("sha256"))
            with torch.device("meta"):
                model = family.model(family.sizes())
            checkpoint.fill(name, model, path, UNUSED)
            mark = components.digest({checkpoint.PART: path})
        model = model.to(device=device, dtype=TYPES[dtype]).eval().requires_grad_(False)
        weights = model.weights() if isinstance(model, bpt.BPT) else None
        capabilities = Capabilities(
            family.model.vocabulary, model.sizes.context, frozenset({family.model.eos}), cls.meets(params)
        )
        if weights is not None:
            sizes = model.sizes
            capabilities = replace(capabilities, layers=sizes.depth, width=sizes.dim, condition=sizes.encoder.out)
        masks = Masks(capabilities.context, TYPES[dtype], torch.device(device))
        caches = _hourglasses(model) if weights is None else _slots(weights, masks)
        return cls(name, dtype, device, Parts(capabilities, mark, family, model, weights, caches))

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        """Trees, and drafters of its own vocabulary; of BPT also hidden rows and the latents of the points."""
        more = {Requirement.HIDDEN, Requirement.CONDITION} if params.get("architecture") == "bpt" else set()
        return frozenset({Requirement.TREE_MASK, Requirement.DRAFTER} | more)

    @classmethod
    def reads_text(cls, params: Mapping[str, Any]) -> bool:
        """No."""
        return False

    @classmethod
    def modality(cls, params: Mapping[str, Any]) -> str:
        """Meshes."""
        return "mesh"

    def cache(self) -> Cache:
        """Refused: there is no mesh without points."""
        raise UsageError(f"the backbone {self.name!r} needs a point cloud: open a prompt of a mesh task")

    @torch.inference_mode()
    def open(self, prompt: Prompt) -> EncodedPrompt:
        """Encode the prompt's points: as many as the model was published with, positions in [-1, 1] and unit normals.

        Raises:
            UsageError: no points, or of another shape or number, or not finite.
        """
        points, wanted = prompt.condition, self._parts.model.sizes.points
        if points is None or points.shape != (wanted, POINT):
            found = "no condition" if points is None else f"a condition of shape {list(points.shape)}"
            raise UsageError(
                f"the backbone {self.name!r} reads points [{wanted}, {POINT}] (position and normal); the prompt "
                f"{prompt.id!r} has {found}. Give the mesh task points={wanted}."
            )
        cloud = torch.as_tensor(points, dtype=TYPES[self.dtype], device=self.device)
        if not bool(cloud.isfinite().all()):  # reads the device, once a prompt
            raise UsageError(f"the points of the prompt {prompt.id!r} are not all finite; leave that prompt out")
        return self._parts.caches(cloud)

    def tied_embeddings(self) -> TiedEmbeddings:
        """Of BPT alone.

        Raises:
            UsageError: it is another architecture.
        """
        return super().tied_embeddings() if self._parts.weights is None else self._parts.weights.tied_embeddings()

    def decode(self, tokens: Sequence[int]) -> Mesh:
        """The mesh of a sequence that ends with the end token."""
        return self._parts.family.decode(tokens)

    def variant(self, params: Mapping[str, str]) -> PointMesh:
        """``layers``, of BPT: how many are kept, evenly spread, the first and the last always.

        Raises:
            UsageError: another parameter or architecture, or a number of layers outside 2 to all of them.
        """
        if not params:
            return self
        weights = self._parts.weights
        if weights is None or set(params) != {"layers"}:
            only = "it has none" if weights is None else "it has layers=N"
            raise UsageError(f"the backbone {self.name!r} has no variant with {', '.join(sorted(params))}; {only}")
        kept = spread(len(weights.layers), params["layers"], self.name)
        masks = Masks(self.capabilities.context, TYPES[self.dtype], torch.device(self.device))
        mark = hashlib.sha256(f"{self.fingerprint} layers={kept}".encode()).hexdigest()
        fewer = weights.pick(kept)
        capabilities = replace(self.capabilities, layers=len(kept))
        parts = replace(
            self._parts, capabilities=capabilities, fingerprint=mark, weights=fewer, caches=_slots(fewer, masks)
        )
        return PointMesh(f"{self.name}/layers={len(kept)}", self.dtype, self.device, parts)


def _slots(weights: bpt.Weights, masks: Masks) -> Caches:
    def bound(points: Tensor) -> EncodedPrompt:
        latents = weights.model.conditioner(points)
        net = weights.bind(latents)
        return EncodedPrompt((bpt.BPT.prompt,), lambda: SlotCache(net, weights.model.sizes.context, masks), latents)

    return bound


def _hourglasses(model: deepmesh.DeepMesh) -> Caches:
    rotations = model.rotations()

    def bound(points: Tensor) -> EncodedPrompt:
        net = Conditioned.of(model, rotations, points)
        return EncodedPrompt((deepmesh.DeepMesh.prompt,), lambda: HourglassCache(net))

    return bound


def _family(name: str, params: Mapping[str, Any], dtype: str) -> Family:
    unknown = sorted(set(params) - {"architecture", "parts", "sha256", "random"})
    if unknown:
        raise UsageError(
            f"{name}: point_mesh has no parameter {unknown[0]!r}; it has architecture, parts, sha256, random"
        )
    if params.get("architecture") not in FAMILIES:
        raise UsageError(f"{name}: architecture is {params.get('architecture')!r}; choose one of {', '.join(FAMILIES)}")
    if ("parts" in params) == ("random" in params):
        raise UsageError(f"{name}: point_mesh needs one of parts and random; name a preset such as bpt")
    if dtype not in TYPES:
        raise UsageError(f"{name}: there is no dtype {dtype!r}; choose one of {', '.join(TYPES)}")
    return FAMILIES[str(params["architecture"])]


def _random(name: str, family: Family, given: Mapping[str, Any]) -> Any:
    """A model of random weights, the same for the same seed; generators are left as they were."""
    encoder = _sized(name, EncoderSizes, given.get("encoder", {}))
    sizes = replace(_sized(name, family.sizes, given.get("sizes", {})), encoder=encoder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(given.get("seed", 0)))
        return family.model(sizes)


def _sized(name: str, kind: Any, given: Mapping[str, Any]) -> Any:
    known = {field.name for field in fields(kind)} - {"encoder"}
    if set(given) - known:
        raise UsageError(f"{name}: {kind.__name__} has {', '.join(sorted(known))}; found {', '.join(sorted(given))}")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})
