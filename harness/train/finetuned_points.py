"""Decoders of meshes that learn further by low-rank matrices: our own, and BPT in its published layout.

Source: Chen et al., XSpecMesh, section 4.3.
"""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.backbones.mesh.published.adapter import PointMesh
from stridebench.harness.backbones.mesh.published.bpt import BPT
from stridebench.harness.backbones.slots import lora
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets
from stridebench.harness.train.finetuned_mesh import FinetunedMesh
from stridebench.harness.train.finetuning import Tuning, low_rank_of, with_low_rank

LINEARS = r"decoder\.layers\.\d+\.1\.(to_q|to_k|to_v|to_out|ff\.0\.proj|ff\.2)"
"""The linear layers of BPT's decoder. The encoder's stand below ``conditioner``; ``to_logits`` stays."""


class FinetunedBPT(nn.Module):
    """The model of a preset of BPT, used as `FinetunedMesh` is. Its encoder of points stays frozen.

    Args:
        name: of a backbone of the adapter point_mesh.
        tuning: of rank 1 or more.

    Raises:
        WeightsError: its weights cannot be had.
        UsageError: the rank is 0, or peft is not installed.
    """

    def __init__(self, name: str, tuning: Tuning) -> None:
        super().__init__()
        if tuning.rank < 1:
            raise UsageError(f"{name} learns by low-rank matrices; found a rank of {tuning.rank}, give 1 or more")
        self.name, self.tuning = name, tuning
        backbone = PointMesh.load(name, presets.resolve(name).params, "fp32", "cpu")
        self.fingerprint = backbone.fingerprint
        self.model: nn.Module = with_low_rank(backbone._model, tuning, LINEARS)

    @property
    def _bpt(self) -> BPT:
        bpt = self.model.get_base_model()  # type: ignore[operator]  # of peft
        assert isinstance(bpt, BPT)
        return bpt

    def table(self) -> Float[Tensor, "V E"]:
        """The frozen embeddings."""
        return self._bpt.table()

    def forward(
        self, tokens: Int[Tensor, " N"], points: Float[Tensor, "n 6"], table: Float[Tensor, "V E"]
    ) -> Float[Tensor, "N E"]:
        """Hidden rows of a sequence after the last norm, as heads read them."""
        bpt = self._bpt
        with torch.no_grad():
            latents = bpt.conditioner(points)
        return bpt.weights().states(tokens, latents)

    def logits(self, rows: Float[Tensor, "N E"], table: Float[Tensor, "V E"]) -> Float[Tensor, "N K"]:
        """Logits of all ids but the start token, which is never drawn."""
        out: Tensor = self._bpt.to_logits(rows)
        return out

    def export(self, folder: Path) -> None:
        """Matrices, which `PointMesh` adds to the published weights where its parameter ``lora`` names the folder."""
        tie = {"backbone": self.name, "fingerprint": self.fingerprint}
        lora.write(folder, low_rank_of(self._bpt), self.tuning.alpha, "FEATURE_EXTRACTION", tie)

    def merged(self, name: str, folder: Path) -> Backbone:
        """The published weights with the matrices of a folder."""
        params = {**presets.resolve(self.name).params, "lora": str(folder)}
        return PointMesh.load(name, params, "fp32", str(self._bpt.to_logits.weight.device))


def finetuned(name: str, tuning: Tuning, device: str = "cpu") -> FinetunedMesh | FinetunedBPT:
    """The decoder of a backbone, ready to learn.

    Args:
        name: of a preset, a folder or a stand-in.
        tuning: how it learns.
        device: that it will learn on.

    Raises:
        UsageError: it is no decoder of meshes whose layers can learn, or learns on the CPU alone.
        WeightsError: its weights cannot be had.
    """
    presets.fetch(name)
    spec = presets.resolve(name)
    if spec.adapter == "point_mesh" and spec.params["architecture"] == "bpt":
        return FinetunedBPT(name, tuning)
    if spec.adapter != "mesh":
        raise UsageError(
            f"{name} is a backbone of {spec.adapter}; the decoders that learn together with heads are BPT and those "
            f"that `stride train backbone` makes of meshes"
        )
    if device != "cpu":
        raise UsageError(f"{name} learns on the CPU; leave --device {device} out")
    return FinetunedMesh(sources.locate(name, sources.parse(name, spec.params["source"])), tuning)
