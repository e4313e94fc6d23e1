"""The published mesh decoders that read a point cloud: BPT and DeepMesh."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from stridebench.harness.backbones.base import TYPES, Identity
from stridebench.harness.backbones.checkpoints import components, sources
from stridebench.harness.backbones.mesh import bpt_tokens, deepmesh_tokens
from stridebench.harness.backbones.mesh.point_cloud import PointCloudAdapter
from stridebench.harness.backbones.mesh.published import bpt, checkpoint, deepmesh
from stridebench.harness.backbones.mesh.published.hourglass_cache import Conditioned
from stridebench.harness.backbones.mesh.published.michelangelo import UNUSED, EncoderSizes
from stridebench.harness.backbones.mesh.published.sliding_cache import SlidingCache
from stridebench.harness.backbones.slots import lora
from stridebench.harness.core.backbone import EncodedPrompt, TiedEmbeddings
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import tuned
from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.registry import BACKBONES

Encode = Callable[[Tensor], EncodedPrompt]
"""Runs the encoder on points [n, 6]."""


@dataclass(frozen=True)
class Family:
    """An architecture: its sizes, its parameters and the decoder of its tokens."""

    sizes: Any
    model: Any
    decode: Callable[[Sequence[int]], Mesh]


FAMILIES = {
    "bpt": Family(bpt.Sizes, bpt.BPT, bpt_tokens.decode),
    "deepmesh": Family(deepmesh.Sizes, deepmesh.DeepMesh, deepmesh_tokens.decode),
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

    def __init__(self, identity: Identity, family: Family, model: Any, weights: bpt.Weights | None) -> None:
        super().__init__(identity)
        self._family, self._model, self._weights = family, model, weights
        self._encode = self._encode_hourglass() if weights is None else self._encode_slots(weights)

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> PointMesh:
        """Read the published file; nothing is downloaded."""
        cls.check(name, params, dtype)
        family = _family(name, params)
        if "random" in params:
            model = _random(name, family, params["random"])
            fields = [params["architecture"], model.sizes, params["random"]]
            fingerprint = hashlib.sha256(repr(fields).encode()).hexdigest()
        else:
            path = checkpoint.locate(name, params["parts"], params.get("sha256"))
            with torch.device("meta"):
                model = family.model(family.sizes())
            checkpoint.fill(name, model, path, UNUSED)
            fingerprint = components.digest({checkpoint.COMPONENT: path})
        if "lora" in params:
            fingerprint = _tune(model, fingerprint, tuned(str(params["lora"]), name))
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
        """Trees, and drafters of its own vocabulary; of BPT also hidden rows and the latents of the points."""
        more = {Requirement.HIDDEN, Requirement.CONDITION} if params.get("architecture") == "bpt" else set()
        return frozenset({Requirement.TREE_MASK, Requirement.DRAFTER} | more)

    @torch.inference_mode()
    def open(self, prompt: Prompt) -> EncodedPrompt:
        """Encode the prompt's points: the number that the model was published with, in [-1, 1], with unit normals.

        Raises:
            UsageError: there are no points, or they have another shape or number, or are not finite.
        """
        return self._encode(self._points(prompt, TYPES[self.dtype], self._model.sizes.points))

    def tied_embeddings(self) -> TiedEmbeddings:
        """Of BPT alone.

        Raises:
            UsageError: it is another architecture.
        """
        return super().tied_embeddings() if self._weights is None else self._weights.tied_embeddings()

    def decode(self, tokens: Sequence[int]) -> Mesh:
        """The mesh of a sequence that ends with the end token."""
        return self._family.decode(tokens)

    def _layer_count(self) -> int:
        return 0 if self._weights is None else len(self._weights.layers)

    def _keep_layers(self, layers: Sequence[int], identity: Identity) -> PointMesh:
        assert self._weights is not None, "only BPT has a number of layers"
        return PointMesh(identity, self._family, self._model, self._weights.pick(layers))

    def _encode_slots(self, weights: bpt.Weights) -> Encode:
        def encode(points: Tensor) -> EncodedPrompt:
            latents = weights.model.conditioner(points)
            net = weights.bind(latents)
            return EncodedPrompt((bpt.BPT.prompt,), lambda: self._slots(net), latents)

        return encode

    def _encode_hourglass(self) -> Encode:
        model, rotations = self._model, self._model.rotations()

        def encode(points: Tensor) -> EncodedPrompt:
            net = Conditioned.of(model, rotations, points)
            return EncodedPrompt((deepmesh.DeepMesh.prompt,), lambda: SlidingCache(net))

        return encode


def _family(name: str, params: Mapping[str, Any]) -> Family:
    if params.get("architecture") not in FAMILIES:
        raise UsageError(f"{name}: architecture is {params.get('architecture')!r}; choose one of {', '.join(FAMILIES)}")
    if ("parts" in params) == ("random" in params):
        raise UsageError(f"{name}: point_mesh needs one of parts and random; name a preset such as bpt")
    return FAMILIES[str(params["architecture"])]


def _tune(model: Any, fingerprint: str, folder: Path) -> str:
    """Add the matrices of a folder to a model; returns the fingerprint of the sums.

    Raises:
        WeightsError: the folder is damaged, or was trained for other weights.
    """
    model.load_state_dict(lora.merged(folder, fingerprint, model.state_dict()))
    return hashlib.sha256(f"{fingerprint} {sources.digest(folder)}".encode()).hexdigest()


def _random(name: str, family: Family, options: Mapping[str, Any]) -> Any:
    """A model of random weights, the same for the same seed; generators are left as they were."""
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
