"""A mesh model whose decoder learns further, together with the heads that read its hidden rows.

Source: Chen et al., XSpecMesh, section 4.3. The paper writes W + AB for the tuned weights; see
`stridebench.harness.train.finetuning` for the scale of the product.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.backbones.mesh.adapter import MeshBackbone, read
from stridebench.harness.backbones.mesh.model import MeshModel
from stridebench.harness.backbones.slots import lora
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.train.finetuning import Tuning, low_rank_of, with_low_rank
from stridebench.harness.train.loop import save_bf16

LINEARS = r"layers\.\d+\.(qkv|out|cross_q|cross_kv|cross_out|mlp\.gate_up|mlp\.down)"
"""The linear layers of the decoder. Names of the encoder's layers start differently."""


class FinetunedMesh(nn.Module):
    """The model of a recipe's folder. Its encoder stays frozen, so that heads attend to the same latents.

    So do the rows of coordinates that an encoder shares with the decoder.

    Raises:
        WeightsError: the folder holds no mesh model.
        UsageError: peft is needed and not installed.
    """

    def __init__(self, folder: Path, tuning: Tuning) -> None:
        super().__init__()
        self.folder = folder
        base = read(folder.name, folder)
        self.sizes = base.sizes
        self.tuning = tuning
        self.model: nn.Module = with_low_rank(base, tuning, LINEARS) if tuning.rank else base
        base.encoder.requires_grad_(False)
        if base.sizes.shared_coordinates:
            base.codes.blocks.requires_grad_(False)
            base.codes.steps.requires_grad_(False)

    @property
    def _mesh(self) -> MeshModel:
        mesh = self.model.get_base_model() if self.tuning.rank else self.model  # type: ignore[operator]  # of peft
        assert isinstance(mesh, MeshModel)
        return mesh

    def table(self) -> Float[Tensor, "V E"]:
        """The matrix that turns rows into logits."""
        table: Tensor = self._mesh.codes()
        return table

    def forward(
        self, tokens: Int[Tensor, " N"], points: Float[Tensor, "n 6"], table: Float[Tensor, "V E"]
    ) -> Float[Tensor, "N E"]:
        """Hidden rows of a sequence after the last norm, as the heads read them."""
        return self._mesh.states(tokens[None], points[None], table)[0]

    def logits(self, rows: Float[Tensor, "N E"], table: Float[Tensor, "V E"]) -> Float[Tensor, "N V"]:
        """Logits of hidden rows."""
        return functional.linear(rows, table)

    def merged(self, name: str, folder: Path) -> Backbone:
        """What `export` wrote, loaded as a run loads it."""
        return load_backbone(name, folder)

    def export(self, folder: Path) -> None:
        """A backbone's folder: its matrices and the name of the base model, or all weights where all learned."""
        if self.tuning.rank:
            tie = {"backbone": _name(self.folder), "fingerprint": sources.digest(self.folder)}
            lora.write(folder, low_rank_of(self._mesh), self.tuning.alpha, "FEATURE_EXTRACTION", tie)
            return
        folder.mkdir(parents=True, exist_ok=True)
        save_bf16(self.model, folder)
        (folder / "config.json").write_text(json.dumps(asdict(self.sizes), indent=1) + "\n", encoding="utf-8")


def load_backbone(name: str, folder: Path) -> MeshBackbone:
    """A recipe's folder, loaded as a run loads it."""
    return MeshBackbone.load(name, {"source": {"folder": str(folder)}}, "fp32", "cpu")


def _name(folder: Path) -> str:
    """An adapter's name of its base model: the folder's name for shipped weights, else the path."""
    place = folder.resolve()
    shipped = sources.SHIPPED.resolve()
    return str(place.relative_to(shipped)) if place.is_relative_to(shipped) else str(place)
