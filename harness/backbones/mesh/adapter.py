"""Mesh decoders of ours, conditioned on a point cloud."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from harness.backbones.checkpoints import sources
from harness.backbones.mesh import bpt_tokens
from harness.backbones.mesh.fused_net import MeshNet
from harness.backbones.mesh.fused_weights import Decoder
from harness.backbones.mesh.layers import Sizes
from harness.backbones.mesh.model import MeshModel
from harness.backbones.mesh.point_encoder import POINT, PointEncoder
from harness.backbones.slots.cache import Masks, SlotCache
from harness.backbones.text.hf_causal import TYPES, spread
from harness.core.backbone import Backbone, EncodedPrompt, TiedEmbeddings
from harness.core.capabilities import Capabilities, Requirement
from harness.core.task import Prompt
from harness.errors import UsageError, WeightsError
from harness.record.outputs import Mesh
from harness.registry import BACKBONES


@BACKBONES.register("mesh")
@final
class MeshBackbone(Backbone):
    """A mesh decoder; a prompt is its point cloud, and every sequence starts after SOS.

    Args (of ``params``):
        source: where the weights lie: shipped or folder; the folder of a recipe, with config.json.
    """

    def __init__(self, name: str, dtype: str, device: str, encoder: PointEncoder, decoder: Decoder, mark: str) -> None:
        self.name, self.dtype, self.device, self.fingerprint = name, dtype, device, mark
        width = decoder.table.shape[1]
        self.capabilities = Capabilities(
            bpt_tokens.VOCABULARY,
            len(decoder.cos),
            frozenset({bpt_tokens.EOS}),
            self.meets({"source": {}}),
            layers=len(decoder.layers),
            width=width,
            condition=width,
        )
        self._encoder, self._decoder = encoder, decoder
        self._masks = Masks(self.capabilities.context, TYPES[dtype], torch.device(device))

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> MeshBackbone:
        """Read a recipe's folder."""
        if set(params) != {"source"}:
            raise UsageError(f"{name}: mesh has the one parameter source; found {', '.join(sorted(params)) or 'none'}")
        if dtype not in TYPES:
            raise UsageError(f"{name}: there is no dtype {dtype!r}; choose one of {', '.join(TYPES)}")
        folder = sources.locate(name, sources.parse(name, params["source"]))
        model = read(name, folder).to(device=device, dtype=TYPES[dtype])
        return cls.of(model, name, dtype, device, sources.digest(folder))

    @classmethod
    def of(
        cls, model: MeshModel, name: str = "mesh", dtype: str = "fp32", device: str = "cpu", mark: str = "unsaved"
    ) -> MeshBackbone:
        """Around a model that is already in this type and on this device; ``mark`` is its fingerprint."""
        model = model.eval().requires_grad_(False)
        return cls(name, dtype, device, model.encoder, Decoder.of(model), mark)

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        """Trees, drafters of its own vocabulary, hidden rows, and the latents of the points."""
        return frozenset({Requirement.TREE_MASK, Requirement.DRAFTER, Requirement.HIDDEN, Requirement.CONDITION})

    @classmethod
    def modality(cls, params: Mapping[str, Any]) -> str:
        """Meshes."""
        return "mesh"

    @classmethod
    def reads_text(cls, params: Mapping[str, Any]) -> bool:
        """No."""
        return False

    def cache(self) -> SlotCache:
        """Refused: there is no mesh without points.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"the backbone {self.name!r} needs a point cloud: open a prompt of a mesh task")

    def open(self, prompt: Prompt) -> EncodedPrompt:
        """Encode the prompt's points, float [n, 6] of positions in [-1, 1] and unit normals.

        Raises:
            UsageError: no points, or of another shape, or not finite.
        """
        points = prompt.condition
        if points is None or points.ndim != 2 or points.shape[1] != POINT or not len(points):
            found = "no condition" if points is None else f"a condition of shape {points.shape}"
            raise UsageError(
                f"the backbone {self.name!r} reads points [n, {POINT}] (position and normal); the prompt {prompt.id!r} "
                f"has {found}. Use a mesh task."
            )
        cloud = torch.as_tensor(points, dtype=torch.float32, device=self.device)
        if not bool(cloud.isfinite().all()):  # reads the device, once a prompt
            raise UsageError(f"the points of the prompt {prompt.id!r} are not all finite; leave that prompt out")
        latents = self.latents(cloud)
        return EncodedPrompt((bpt_tokens.SOS,), lambda: self._slots(MeshNet(self._decoder, latents)), latents)

    def tied_embeddings(self) -> TiedEmbeddings:
        """One table is both."""
        return self._decoder.tied_embeddings()

    @torch.inference_mode()
    def latents(self, points: Float[Tensor, "n 6"]) -> Float[Tensor, "K E"]:
        """What the decoder reads of a point cloud."""
        out: Tensor = self._encoder(points[None])[0]
        return out

    def bind(self, points: Float[Tensor, "n 6"]) -> SlotCache:
        """An empty cache for these points."""
        return self._slots(MeshNet(self._decoder, self.latents(points)))

    def _slots(self, net: MeshNet) -> SlotCache:
        return SlotCache(net, self.capabilities.context, self._masks)

    def decode(self, tokens: Sequence[int]) -> Mesh:
        """The mesh, by `bpt_tokens.decode`."""
        return bpt_tokens.decode(tokens)

    def variant(self, params: Mapping[str, str]) -> MeshBackbone:
        """``layers``: how many decoder layers are kept, evenly spread, the first and the last always.

        Raises:
            UsageError: another parameter, or a number of layers outside 2 to all of them.
        """
        if not params:
            return self
        if set(params) != {"layers"}:
            raise UsageError(
                f"the backbone {self.name!r} has no variant with {', '.join(sorted(params))}: only layers=N"
            )
        kept = spread(len(self._decoder.layers), params["layers"], self.name)
        mark = hashlib.sha256(f"{self.fingerprint} layers={kept}".encode()).hexdigest()
        name = f"{self.name}/layers={len(kept)}"
        return MeshBackbone(name, self.dtype, self.device, self._encoder, self._decoder.pick(kept), mark)


def read(name: str, folder: Path) -> MeshModel:
    """The model of a recipe's folder, in fp32.

    Raises:
        WeightsError: a file is missing or damaged, or the tensors are not those of the configuration.
    """
    try:
        sizes = Sizes.read(name, json.loads((folder / "config.json").read_text(encoding="utf-8")))
        tensors = load_file(folder / "model.safetensors")
        model = MeshModel(sizes)
        model.load_state_dict(tensors)
    except (OSError, ValueError, SafetensorError, RuntimeError) as error:
        raise WeightsError(
            f"{name}: {folder} does not hold a mesh model ({error}). Make it again with `stride train backbone`"
        ) from error
    return model
