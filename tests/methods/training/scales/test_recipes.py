"""Training of MuLo-SD's samplers: losses, a short run, optional terms, and the shipped pair."""

import dataclasses
import json
import sys
import types

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from stridebench.harness.discover import shipped
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic import emoji
from stridebench.harness.train.loop import train
from stridebench.methods.drafters.scales import Pair, Samplers, SamplerShape, nearest_code
from stridebench.methods.training.scales import samplers_recipe
from stridebench.methods.training.scales import samplers_recipe as recipe
from stridebench.methods.training.scales.samplers_recipe import figures, resample

VQ = shipped("emoji-vq")
PAIR = shipped("mulo-2x")
TINY = dataclasses.replace(RECIPES.get("mulo-2x"), batch=4, width=16, blocks=1, steps=6)
needs_vq = pytest.mark.skipif(not (VQ / "model.safetensors").exists(), reason="emoji-vq is not shipped here")
needs_pair = pytest.mark.skipif(not (PAIR / "model.safetensors").exists(), reason="mulo-2x is not shipped here")


def built(**terms):
    torch.manual_seed(0)
    return dataclasses.replace(TINY, **terms).build({"emoji-vq": VQ})


@needs_vq
class TestTraining:
    def test_bands_of_both_scales_cover_the_same_region(self):
        model, scenes = built(), emoji.scenes(0, "train", 2)
        encoded = recipe.encoded(model.frozen.tokenizer, scenes)
        large, small = encoded["up"].band(slice(2, 5), 2), encoded["down"].band(slice(2, 5), 1)
        assert large.ids.shape == (2, 6, 16) and small.ids.shape == (2, 3, 8)
        assert torch.equal(large.ids, encoded["up"].ids[:, 4:10]) and torch.equal(
            small.ids, encoded["down"].ids[:, 2:5]
        )
        assert torch.equal(large.pixels, encoded["up"].pixels[:, :, 16:40])
        assert torch.equal(small.pixels, encoded["down"].pixels[:, :, 8:20])

    def test_right_codes_have_the_tokenizers_error_only(self):
        """And a code moved by 0.1 in one of its directions adds 0.01, and as much commitment."""
        model = built()
        real = recipe.encoded(model.frozen.tokenizer, emoji.scenes(0, "train", 2))["up"]
        codes = model.pair.codebook[real.ids].permute(0, 3, 1, 2)
        painted = model.frozen.tokenizer.paint(codes.permute(0, 2, 3, 1))
        right = samplers_recipe.Resampled(codes, real.ids, painted, real.pixels)
        error = float(TINY.terms(model, "up", right, 0))
        assert error == pytest.approx(float((painted - real.pixels).square().mean()))
        moved = right._replace(vectors=codes + 0.1 * torch.eye(16)[0].view(1, 16, 1, 1))
        unchanged = nearest_code(model.pair.codebook, moved.vectors) == real.ids
        assert unchanged.any()
        free = dataclasses.replace(TINY, commit=0.0).terms(model, "up", moved, 0)
        assert float(free) == pytest.approx(error + 0.01, rel=1e-4)
        assert float(TINY.terms(model, "up", moved, 0)) > float(free)

    def test_gradients_pass_through_the_rounding_of_both_nets(self):
        model = built()
        dataclasses.replace(TINY, commit=0.0).loss(model, 0, np.random.default_rng(0)).backward()
        assert all(net.body[-1].weight.grad.abs().sum() > 0 for net in (model.pair.up, model.pair.down))
        assert all(weight.grad is None for weight in model.frozen.tokenizer.parameters())

    def test_a_short_training_learns_and_its_card_has_the_control(self, tmp_path, monkeypatch):
        monkeypatch.setattr(recipe, "CHECKED", 6)
        done = train("mulo-2x", dataclasses.replace(TINY, steps=12), tmp_path, {"emoji-vq": VQ})
        new = built()
        book, before = new.pair.codebook.clone(), TINY.loss(new, 0, np.random.default_rng(0))
        new.pair = Pair.load(tmp_path)
        assert done.finished and TINY.loss(new, 0, np.random.default_rng(0)) < before
        assert Samplers.load(tmp_path, book).up(torch.zeros(8, 8, dtype=torch.long)).shape == (16, 16)
        card = json.loads((tmp_path / "card.json").read_text())
        measured = card["figures"]
        for key in ("up_trained", "up_repeat", "up_bilinear", "down_trained", "down_average"):
            assert (
                0 <= measured[f"{key}_same"] < 1
                and measured[f"{key}_psnr"] < measured[f"{key.split('_')[0]}_real_psnr"]
            )
        assert measured["up_real_same"] == measured["down_real_same_object"] == 1
        assert set(load_file(tmp_path / "model.safetensors")) == set(
            Pair(SamplerShape(2, 1024, 16, 16, 1)).state_dict()
        )


@needs_vq
class TestOptionalTerms:
    def test_lpips_without_its_package_is_refused(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "torchmetrics.functional.image.lpips", None)
        with pytest.raises(UsageError, match="needs torchmetrics"):
            built(lpips=1.0)

    def test_lpips_counts_by_its_weight_and_on_whole_pictures_only(self, monkeypatch):
        class Half(nn.Module):
            def __init__(self, net):
                super().__init__()

            def forward(self, resampled, real):
                return resampled.new_full((len(resampled), 1, 1, 1), 0.5)

        monkeypatch.setitem(sys.modules, "torchmetrics.functional.image.lpips", types.SimpleNamespace(_LPIPS=Half))
        model, plain = built(lpips=3.0), built()
        real = recipe.encoded(plain.frozen.tokenizer, emoji.scenes(0, "train", 2))
        for rows, term in ((slice(0, 8), 1.5), (slice(0, 4), 0.0)):
            resampled = resample(plain, "up", real["down"].band(rows, 1), real["up"].band(rows, 2))
            with_it = dataclasses.replace(TINY, lpips=3.0).terms(model, "up", resampled, 0)
            assert (with_it - TINY.terms(plain, "up", resampled, 0)).item() == pytest.approx(term, abs=1e-6)

    def test_the_discriminator_starts_late_and_each_player_moves_its_own_weights(self):
        terms = {"gan": 0.25, "gan_from": 0.5}
        model, gan = built(**terms), dataclasses.replace(TINY, **terms)
        random = np.random.default_rng(0)
        gan.loss(model, 2, random).backward()
        assert all(weight.grad is None for weight in model.critics.parameters())
        gan.loss(model, 3, random).backward()
        assert all(layer.weight.grad.abs().sum() > 0 for layer in model.critics["up"][::2])

        judge, pixels = samplers_recipe.new_critic(), torch.randn(1, 3, 8, 8)
        painted = torch.randn(1, 3, 8, 8, requires_grad=True)
        resampled = samplers_recipe.Resampled(
            torch.zeros(1, 1, 2, 2), torch.zeros(1, 2, 2, dtype=torch.long), painted, pixels
        )
        samplers_recipe.adversarial(judge, resampled, 0.25).backward()
        gradients = [weight.grad.clone() for weight in judge.parameters()]
        expected = torch.autograd.grad(-0.25 * judge(painted).mean(), painted)[0]
        torch.testing.assert_close(painted.grad, expected)
        judge.zero_grad()
        samplers_recipe.adversarial(judge, resampled, 100.0).backward()
        assert all(
            torch.equal(weight.grad, gradient) for weight, gradient in zip(judge.parameters(), gradients, strict=True)
        )

    def test_the_discriminators_learn_faster_and_are_not_shipped(self, tmp_path):
        model, gan = built(gan=0.25), dataclasses.replace(TINY, gan=0.25)
        groups = gan.groups(model)
        assert [group.get("scale", 1.0) for group in groups] == [1.0, 1.0, 5 / 3]
        assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
        gan.export(model, tmp_path)
        assert not any("critic" in name for name in load_file(tmp_path / "model.safetensors"))


@needs_vq
@needs_pair
def test_the_shipped_pair_is_nearer_to_the_picture_than_the_control():
    """On 60 held-out scenes beside those of the card. On textures a block's mean is near the tokenizer's ceiling."""
    vq, pair = RECIPES.get("emoji-vq").load(VQ), Pair.load(PAIR)
    assert torch.equal(pair.codebook, vq.codebook.bfloat16().float())
    measured = figures(pair, vq, emoji.scenes(2, "held-out", 60))
    for region in ("", "_smooth", "_textured", "_object"):
        control = max(measured[f"up_repeat_psnr{region}"], measured[f"up_bilinear_psnr{region}"])
        assert measured[f"up_trained_psnr{region}"] > control + 1, region
        mean, ceiling = measured[f"down_average_psnr{region}"], measured[f"down_real_psnr{region}"]
        assert measured[f"down_trained_psnr{region}"] > (mean + ceiling) / 2, region
    assert measured["down_trained_same"] > measured["down_average_same"] + 0.1
