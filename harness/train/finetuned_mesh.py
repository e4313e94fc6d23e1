"""A mesh model that learns on beside the heads that read it: low-rank matrices, or all weights, of its decoder.

Source: Chen et al., XSpecMesh, section 4.3; Hu et al. 2021, LoRA, arXiv:2106.09685. The paper writes W + AB for the
merged weights; here the product is scaled by alpha / rank, as in LoRA and its library.
"""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxtyping import Float, Int
from torch import Tensor, nn

from harness.backbones.mesh.adapter import MeshBackbone, read
from harness.backbones.mesh.model import MeshModel
from harness.errors import UsageError
from harness.train.loop import save_bf16

LINEARS = r"layers\.\d+\.(qkv|out|cross_q|cross_kv|cross_out|mlp\.gate_up|mlp\.down)"
"""The linear layers of the decoder; those of the encoder have another beginning."""


@dataclass(frozen=True)
class Tuning:
    """Of the matrices, and what their product is scaled by: alpha / rank. Rank 0: all weights of the decoder learn."""

    rank: int = 16
    alpha: int = 32


class FinetunedMesh(nn.Module):
    """A model from a recipe's folder; the encoder stays as it is, so that what heads attend to does.

    Raises:
        WeightsError: the folder holds no mesh model. UsageError: peft is asked for and not here.
    """

    def __init__(self, folder: Path, tuning: Tuning) -> None:
        super().__init__()
        base = read(folder.name, folder)
        self.sizes = base.sizes
        self.tuning = tuning
        self.model: nn.Module = _low_rank(base, tuning) if tuning.rank else base
        base.encoder.requires_grad_(False)

    @property
    def _mesh(self) -> MeshModel:
        found = self.model.get_base_model() if self.tuning.rank else self.model  # type: ignore[operator]  # of peft's model
        assert isinstance(found, MeshModel)
        return found

    def table(self) -> Float[Tensor, "V E"]:
        """What rows are multiplied with."""
        out: Tensor = self._mesh.codes()
        return out

    def forward(
        self, tokens: Int[Tensor, " N"], points: Float[Tensor, "n 6"], table: Float[Tensor, "V E"]
    ) -> Float[Tensor, "N E"]:
        """Normed rows of a sequence, as the heads read them."""
        return self._mesh.states(tokens[None], points[None], table)[0]

    def merged(self) -> MeshModel:
        """A copy with the products of its matrices added to its weights."""
        twin = copy.deepcopy(self.model)
        found = twin.merge_and_unload() if self.tuning.rank else twin  # type: ignore[operator]  # of peft's model
        assert isinstance(found, MeshModel)
        return found

    def export(self, folder: Path) -> None:
        """The merged model as a backbone's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        save_bf16(self.merged(), folder)
        (folder / "config.json").write_text(json.dumps(asdict(self.sizes), indent=1) + "\n", encoding="utf-8")


def load_backbone(name: str, folder: Path) -> MeshBackbone:
    """A recipe's folder, as decodes load it."""
    return MeshBackbone.load(name, {"source": {"folder": str(folder)}}, "fp32", "cpu")


def _low_rank(base: MeshModel, tuning: Tuning) -> nn.Module:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise UsageError("low-rank training needs peft: pip install 'stridebench[train]'") from error
    made: nn.Module = get_peft_model(base, LoraConfig(r=tuning.rank, lora_alpha=tuning.alpha, target_modules=LINEARS))
    return made
