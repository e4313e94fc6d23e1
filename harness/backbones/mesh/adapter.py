"""Our own mesh decoders, conditioned on a point cloud."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor

from stridebench.harness.backbones.base import TYPES, Identity
from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.backbones.mesh import bpt_tokens
from stridebench.harness.backbones.mesh.fused_net import FusedWeights, MeshNet
from stridebench.harness.backbones.mesh.model import MeshModel, MeshSizes, PointCloudAdapter
from stridebench.harness.backbones.slots import lora
from stridebench.harness.backbones.slots.cache import SlotCache
from stridebench.harness.core.backbone import EncodedPrompt, TiedEmbeddings
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import WeightsError
from stridebench.harness.kernels import int8
from stridebench.harness.record.outputs import Mesh
from stridebench.harness.registry import BACKBONES

Encoder = Callable[[Tensor], Tensor]
"""From point clouds [B, n, 6] to latents [B, K, E]."""


@BACKBONES.register("mesh")
@final
class MeshBackbone(PointCloudAdapter):
    """A mesh decoder; every sequence starts after SOS.

    Args (of ``params``):
        source: where the weights lie: shipped or folder; the folder of a recipe, with config.json.
    """

    kind = "mesh"
    parameters = ("source",)
    advice = "name a preset such as embedded-mesh"

    def __init__(self, identity: Identity, encoder: Encoder, decoder: FusedWeights) -> None:
        super().__init__(identity)
        self._encoder, self._decoder = encoder, decoder

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> MeshBackbone:
        """Read a recipe's folder."""
        cls.check(name, params, dtype)
        folder = sources.locate(name, sources.parse(name, params["source"]))
        model = read(name, folder).to(device=device, dtype=TYPES[dtype])
        return cls.of(model, name, dtype, device, sources.digest(folder))

    @classmethod
    def of(
        cls,
        model: MeshModel,
        name: str = "mesh",
        dtype: str = "fp32",
        device: str = "cpu",
        fingerprint: str = "unsaved",
    ) -> MeshBackbone:
        """The backbone of a model that has this type and lies on this device."""
        model = model.eval().requires_grad_(False)
        decoder = FusedWeights.of(model)
        width = decoder.table.shape[1]
        capabilities = Capabilities(
            bpt_tokens.VOCABULARY,
            len(decoder.cos),
            frozenset({bpt_tokens.EOS}),
            cls.meets({}),
            layers=len(decoder.layers),
            width=width,
            condition=width,
        )
        shared = model.codes.coordinates() if model.sizes.shared_coordinates else None
        encoder = partial(model.encoder, coordinates=shared)
        return cls(Identity(name, dtype, device, capabilities, fingerprint), encoder, decoder)

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        """Trees, drafters of its own vocabulary, hidden rows, and the latents of the points."""
        return frozenset({Requirement.TREE_MASK, Requirement.DRAFTER, Requirement.HIDDEN, Requirement.CONDITION})

    def open(self, prompt: Prompt) -> EncodedPrompt:
        """Encode the prompt's points, float [n, 6] of positions in [-1, 1] and unit normals.

        Raises:
            UsageError: there are no points, or they have another shape or are not finite.
        """
        latents = self.latents(self._points(prompt, torch.float32))
        return EncodedPrompt((bpt_tokens.SOS,), lambda: self._slots(MeshNet(self._decoder, latents)), latents)

    def tied_embeddings(self) -> TiedEmbeddings:
        """One table serves as both."""
        return self._decoder.tied_embeddings()

    @torch.inference_mode()
    def latents(self, points: Float[Tensor, "n 6"]) -> Float[Tensor, "K E"]:
        """What the decoder reads of a point cloud."""
        return self._encoder(points[None])[0]

    def bind(self, points: Float[Tensor, "n 6"]) -> SlotCache:
        """An empty cache for these points."""
        return self._slots(MeshNet(self._decoder, self.latents(points)))

    def decode(self, tokens: Sequence[int]) -> Mesh:
        """The mesh, by `bpt_tokens.decode`."""
        return bpt_tokens.decode(tokens)

    def _layer_count(self) -> int:
        return len(self._decoder.layers)

    def _keep_layers(self, layers: Sequence[int], identity: Identity) -> MeshBackbone:
        return MeshBackbone(identity, self._encoder, self._decoder.pick(layers))


def read(name: str, folder: Path) -> MeshModel:
    """The model of a recipe's folder, in fp32. For an adapter's folder: its base model with the adapter added.

    Raises:
        WeightsError: a file is missing or damaged, or the tensors are not those of the configuration.
    """
    if lora.is_tuned(folder):
        base = lora.base(folder, sources.SHIPPED)
        model = read(name, base)
        model.load_state_dict(lora.merged(folder, sources.digest(base), model.state_dict()))
        return model
    try:
        sizes = MeshSizes.read(name, json.loads((folder / "config.json").read_text(encoding="utf-8")))
        tensors = int8.read(folder / "model.safetensors")
        model = MeshModel(sizes)
        model.load_state_dict(tensors)
    except (OSError, ValueError, SafetensorError, RuntimeError) as error:
        raise WeightsError(
            f"{name}: {folder} does not hold a mesh model ({error}). Make it again with `stride train backbone`"
        ) from error
    return model
