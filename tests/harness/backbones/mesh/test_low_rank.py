"""A mesh backbone stored as low-rank matrices beside its base model: the added product, and refused folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.backbones.mesh.adapter import MeshBackbone, read
from stridebench.harness.backbones.mesh.model import MeshModel, MeshSizes
from stridebench.harness.backbones.slots import lora
from stridebench.harness.backbones.slots.lora import LowRank
from stridebench.harness.errors import WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.train.backbones.shapes_mesh import ShapesMesh

SIZES = MeshSizes(width=32, layers=2, heads=2, hidden=48, latents=8, encoder_layers=1, context=24, window=0)
LAYER = "layers.1.qkv"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MeshModel(SIZES)
    (tmp_path / "base").mkdir()
    ShapesMesh(sizes=SIZES).export(model, tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def tuned(base: Path, tmp_path: Path) -> Path:
    """Rank 2, a scale of 3."""
    return written(tmp_path / "tuned", base, LAYER)


def written(folder: Path, base: Path, layer: str) -> Path:
    draws = torch.Generator().manual_seed(1)
    pair = LowRank(torch.randn(2, 32, generator=draws), torch.randn(96, 2, generator=draws))
    tie = {"backbone": str(base), "fingerprint": sources.digest(base)}
    lora.write(folder, {layer: pair}, 6, "FEATURE_EXTRACTION", tie)
    return folder


def test_the_scaled_product_is_added_and_rounded_to_bf16(base: Path, tuned: Path) -> None:
    before, after = (read("m", folder).state_dict() for folder in (base, tuned))
    pair = LowRank(*(lora.int8.read(tuned / lora.TENSORS)[f"{lora.PREFIX}{LAYER}.lora_{k}.weight"] for k in "AB"))
    expected = (before[f"{LAYER}.weight"] + 3 * pair.up.float() @ pair.down.float()).bfloat16().float()
    assert torch.equal(after[f"{LAYER}.weight"], expected)
    assert all(torch.equal(before[key], after[key]) for key in before if key != f"{LAYER}.weight")


def test_tuned_weights_have_their_own_fingerprint(base: Path, tuned: Path) -> None:
    one, other = (
        MeshBackbone.load("m", {"source": {"folder": str(folder)}}, "fp32", "cpu").fingerprint
        for folder in (base, tuned)
    )
    assert one == sources.digest(base) != other


def test_a_base_of_other_weights_is_refused(base: Path, tuned: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config))  # other bytes, so another fingerprint
    with pytest.raises(WeightsError, match=r"tuned was trained for other weights of .*base \("):
        read("m", tuned)


def test_row_e_ships_as_matrices_of_rank_16_beside_shapes_mesh() -> None:
    folder = sources.SHIPPED / "xspecmesh-cross-lora" / "backbone"
    settings = json.loads((folder / lora.SETTINGS).read_text())
    assert (settings["base_model_name_or_path"], settings["r"], settings["lora_alpha"]) == ("shapes-mesh", 16, 32)
    base, tuned = (presets.load(name, "fp32") for name in ("embedded-mesh", "embedded-mesh-cross-lora"))
    heads = json.loads((folder.parent / "config.json").read_text())
    assert heads["fingerprint"] == tuned.fingerprint != base.fingerprint
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_300_000
