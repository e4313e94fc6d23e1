"""Training of mesh decoders: batches, the loss in chunks, training on slices."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from stridebench.harness.backbones.mesh import bpt_tokens
from stridebench.harness.backbones.mesh.network import MeshModel
from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic import furniture
from stridebench.harness.train.backbones.shapes_mesh import SKIP, ShapesMesh, batched, cross_entropy, sampled
from tests.support.tiny_mesh import MODELS, SIZES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the recipe exports."""
    path = tmp_path_factory.mktemp("mesh")
    ShapesMesh(sizes=SIZES).export(MODELS[0], path)
    return path


def test_the_loss_in_chunks_equals_torchs() -> None:
    """450 rows: two full chunks and a partial one; gradients are rounded to bf16, 0.4 % each."""
    torch.manual_seed(0)
    states, table = torch.randn(450, 32, requires_grad=True), (0.3 * torch.randn(700, 32)).requires_grad_()
    labels = torch.randint(0, 700, (450,))
    loss = cross_entropy(states, table, labels)
    expected = torch.nn.functional.cross_entropy(states @ table.T, labels, reduction="sum")
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=0)
    for gradient, expected_gradient in zip(
        torch.autograd.grad(2 * loss, (states, table)), torch.autograd.grad(2 * expected, (states, table)), strict=True
    ):
        assert (gradient - expected_gradient).norm() < 0.01 * expected_gradient.norm()


@pytest.mark.parametrize("window", (0, 32))
def test_batches_hold_sequences_or_slices_of_them(window: int) -> None:
    random = np.random.default_rng(0)
    drawn = [furniture.shape(random, "train", 0) for _ in range(3)]
    rows = [[bpt_tokens.SOS, *bpt_tokens.encode(one.mesh)] for one in drawn]
    starts = set()
    for _ in range(40 if window else 1):
        batch = batched(drawn, random, window)
        assert batch.tokens.shape[1] % 32 == 0 and batch.points.shape == (3, 1024, 6)
        for row, tokens, labels in zip(rows, batch.tokens.tolist(), batch.labels.tolist(), strict=True):
            count = sum(label != SKIP for label in labels)
            assert labels[count:] == [SKIP] * (len(labels) - count)
            assert count == (window or len(row) - 1)
            start = next(i for i in range(len(row)) if row[i : i + count] == tokens[:count])
            assert labels[:count] == row[start + 1 : start + 1 + count]
            starts.add((start, len(row) - 1 - count))
    if window:
        assert any(start == 0 for start, last in starts) and any(start == last for start, last in starts)


def test_a_training_on_slices_starts_from_the_full_model(folder: Path) -> None:
    recipe = ShapesMesh(sizes=dataclasses.replace(SIZES, window=5), requires=("shapes-mesh",))
    model = recipe.build({"shapes-mesh": folder})
    assert isinstance(model, MeshModel) and model.sizes.window == 5
    weights = {name: value.bfloat16() for name, value in MODELS[0].state_dict().items() if value.is_floating_point()}
    assert all(torch.equal(model.state_dict()[name].bfloat16(), value) for name, value in weights.items())


def test_a_step_has_a_gradient_for_every_weight_and_figures_are_computed() -> None:
    recipe = ShapesMesh(sizes=dataclasses.replace(SIZES, context=40), together=1, passes=1)
    model = recipe.build({})
    loss = recipe.loss(model, 0, np.random.default_rng(0))
    loss.backward()  # type: ignore[no-untyped-call]  # torch annotates it in part
    assert 8 < float(loss.detach()) < 11  # ln 5122 = 8.5
    still = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert not still
    assert isinstance(model, MeshModel)
    figures = sampled(model, [furniture.shape(np.random.default_rng(0), "test")], np.random.default_rng(0))
    assert figures["samples"] == 1 and figures["valid"] == 0  # 40 tokens of noise are no mesh


def test_furniture_is_trained_on_after_plain_boxes_and_shares_the_rows_of_coordinates() -> None:
    sizes = dataclasses.replace(SIZES, shared_coordinates=True)
    recipe = dataclasses.replace(RECIPES.get("shapes-mesh"), sizes=sizes, steps=10, together=2, plain=0.1)
    assert isinstance(recipe, ShapesMesh)
    plain, later = (recipe._draw(np.random.default_rng(4), step).labels for step in (0, 1))
    assert all(len(bpt_tokens.decode(row).faces) % 12 == 0 for row in plain.tolist())
    assert not torch.equal(later, plain)
    model = recipe.build({})
    recipe.loss(model, 1, np.random.default_rng(0)).backward()  # type: ignore[no-untyped-call]  # as above
    still = [name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.any()]
    assert not still
