"""The net of a feature drafter: rotations, its head, and folders that hold no drafter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stridebench.harness.errors import WeightsError
from stridebench.methods.drafters.eagle.net import FeatureDrafterNet, rotate
from stridebench.methods.drafters.eagle.published import FeatureNetShape
from tests.support.feature_toys import folder_for, tiny


def test_rotations_are_those_of_llama() -> None:
    x = torch.randn(1, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    turned = rotate(x, torch.tensor([0, 1, 5]), torch.tensor([1.0, 0.01]))
    torch.testing.assert_close(turned[0, 0, 0], x[0, 0, 0])
    angle = torch.tensor(5.0)
    expected = x[0, 0, 2, 0] * angle.cos() - x[0, 0, 2, 2] * angle.sin()
    torch.testing.assert_close(turned[0, 0, 2, 0], expected)


@pytest.mark.parametrize("text", ["{}", "nonsense", '{"kind": "eagle1", "width": 8}'])
def test_a_folder_without_a_drafter_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(WeightsError, match="holds no feature drafter"):
        FeatureDrafterNet.load(tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    folder_for(tiny(), tmp_path)
    net = FeatureDrafterNet.load(tmp_path)
    FeatureDrafterNet(replace(net.shape, inner=8)).shape.write(tmp_path)
    with pytest.raises(WeightsError, match="holds no feature drafter"):
        FeatureDrafterNet.load(tmp_path)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    folder_for(tiny(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = next(key for key, weight in weights.items() if weight.is_floating_point())
    weights[name].view(-1)[0] = float("inf")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=f"{name} holds NaN or infinite numbers"):
        FeatureDrafterNet.load(tmp_path)


def test_a_net_that_proposes_all_ids_has_no_head_of_its_own() -> None:
    net = FeatureDrafterNet(FeatureNetShape("eagle1", 8, 2, 1, 16))
    assert not any(name.startswith("unembed") for name, _ in net.named_parameters())
