"""Training of the VQ tokenizer: updates of codes, weights of objects, figures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stridebench.harness.backbones.image.vq import CODES, VQ, WIDTH
from stridebench.harness.synthetic import emoji
from stridebench.harness.train.backbones import emoji_image as recipe
from stridebench.harness.train.backbones.emoji_image import agreement, psnr
from stridebench.harness.train.loop import train


@pytest.fixture(scope="module")
def net() -> VQ:
    torch.manual_seed(0)
    return VQ().eval()


def pictures(count: int, size: int = 64) -> np.ndarray:
    return np.stack([emoji.render(scene, size) for scene in emoji.scenes(3, "held-out", count)])


def test_a_code_moves_toward_its_vectors_and_an_unused_one_restarts(net):
    model = VQ()
    torch.manual_seed(1)
    vectors = torch.nn.functional.normalize(torch.randn(1200, WIDTH), dim=1)
    weight = torch.ones(1200)
    recipe._follow(model, vectors, weight, 0, 100)
    first = (vectors * model.codebook[model.nearest(vectors)]).sum(-1).mean()
    for _ in range(30):
        recipe._follow(model, vectors, weight, 1, 100)
    assert (vectors * model.codebook[model.nearest(vectors)]).sum(-1).mean() > first
    model.book[:5] = torch.nn.functional.normalize(-vectors.mean(0), dim=0) / CODES
    model.used[:5] = 0
    recipe._follow(model, vectors, weight, 25, 100)
    distances = 1 - model.codebook[:5] @ vectors.T
    assert (distances.min(1).values < 1e-5).all() and (model.used[:5] == 1 / CODES).all()
    model.used[:5] = 0
    recipe._follow(model, vectors, weight, 100, 100)
    assert (model.used[:5] < 1 / CODES).all()


def test_objects_have_larger_weights(net):
    drawn = emoji.scenes(0, "train", 4)
    weight = recipe._weights(drawn, 16).numpy()
    assert {1.0, recipe.OBJECT_WEIGHT} == set(np.unique(weight))
    regions = np.stack([emoji.regions(scene) for scene in drawn])
    assert ((weight > 1) == (regions == emoji.OBJECT)).all()


def test_agreement_counts_the_commonest_token_of_a_place():
    thing = emoji.Thing("square", "red", 0, 0)
    drawn = [emoji.EmojiScene("single_object", (thing,), emoji.Ground("gradient", 0, 1, 0, 0))] * 4
    regions = np.stack([emoji.regions(scene) for scene in drawn])
    ids = torch.zeros(4, 16, 16, dtype=torch.long)
    assert agreement(drawn, ids, regions) == 1
    ids[0] = 5
    assert agreement(drawn, ids, regions) == 0.75
    ids[:, 8:] = torch.arange(4)[:, None, None]
    assert agreement(drawn, ids, regions) == 0.75


def test_psnr_by_hand():
    assert psnr(torch.full((3,), 0.01)) == pytest.approx(20)


@pytest.mark.slow
def test_training_resumes_and_its_card_has_the_measured_figures(tmp_path, monkeypatch):
    short = recipe.EmojiVQ()
    short.steps = 3
    monkeypatch.setattr(recipe, "BATCH", {64: 2, 32: 2})
    monkeypatch.setattr(recipe, "_follow", lambda model, vectors, weight, step, steps: model.used.mul_(0.5))
    monkeypatch.setattr(short, "evaluate", lambda model: {"first": float(model.book[0, 0])})
    result = train("vq", short, tmp_path / "whole", {})
    train("vq", short, tmp_path / "parts", {}, minutes=0)
    again = train("vq", short, tmp_path / "parts", {})
    assert result.finished and again.finished
    one, other = VQ.load(tmp_path / "whole"), VQ.load(tmp_path / "parts")
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
    assert f'"first": {round(float(one.book[0, 0]), 5)}' in (tmp_path / "whole" / "card.json").read_text()
