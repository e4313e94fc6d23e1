"""The up- and down-samplers of MuLo-SD: the untrained ones by hand, bad grids, and the nets."""

import dataclasses
import json
import sys
import types

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from harness.discover import load_recipes, shipped
from harness.errors import ContractError, UsageError, WeightsError
from harness.registry import RECIPES
from harness.synthetic import emoji
from harness.train.loop import save_bf16, train
from methods.drafters.scales.net import Pair, Shape, nearest_code
from methods.drafters.scales.samplers import Samplers
from methods.training.scales import losses
from methods.training.scales import recipes as recipe
from methods.training.scales.figures import figures

load_recipes()
LINE = torch.tensor([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [4.0, 1.0]])
"""Codes on a line, so that every mean can be computed by hand."""
VQ = shipped("emoji-vq")
PAIR = shipped("mulo-2x")
TINY = dataclasses.replace(RECIPES.get("mulo-2x"), batch=4, width=16, blocks=1, steps=6)
needs_vq = pytest.mark.skipif(not (VQ / "model.safetensors").exists(), reason="emoji-vq is not shipped here")
needs_pair = pytest.mark.skipif(not (PAIR / "model.safetensors").exists(), reason="mulo-2x is not shipped here")


def built(**terms):
    torch.manual_seed(0)
    return dataclasses.replace(TINY, **terms).build({"emoji-vq": VQ})


def saved(pair, folder):
    save_bf16(pair, folder)
    pair.write_config(folder)
    return folder


@pytest.fixture()
def random_pair():
    """A pair with random weights for LINE."""
    torch.manual_seed(0)
    pair = Pair(Shape(2, 4, 2, 8, 1))
    with torch.no_grad():
        for weight in pair.parameters():
            weight.copy_(torch.randn_like(weight).bfloat16())
    pair.codebook.copy_(LINE)
    return pair.eval()


class TestUntrained:
    def test_repeat_gives_each_id_a_block(self):
        grid = Samplers.untrained("repeat", LINE).up(torch.tensor([[3, 0], [1, 2]]))
        assert grid.tolist() == [[3, 3, 0, 0], [3, 3, 0, 0], [1, 1, 2, 2], [1, 1, 2, 2]]

    def test_repeat_keeps_ids_whose_codes_are_equal(self):
        assert Samplers.untrained("repeat", torch.ones(3, 2)).up(torch.tensor([[2]])).tolist() == [[2, 2], [2, 2]]

    def test_bilinear_rounds_vectors_between_two_codes_to_the_nearest(self):
        """Between 0 and 4 lie 0, 1, 3, 4: code 1 stands for 1, and 3 is as far from code 2 as from code 3."""
        assert Samplers.untrained("bilinear", LINE).up(torch.tensor([[0, 3]])).tolist() == [[0, 1, 2, 3]] * 2

    def test_down_takes_the_code_nearest_to_the_mean_of_a_block(self):
        """Means 1 and 3.25."""
        grid = torch.tensor([[0, 0, 3, 3], [0, 3, 3, 1]])
        for kind in ("repeat", "bilinear"):
            assert Samplers.untrained(kind, LINE).down(grid).tolist() == [[1, 3]]

    @pytest.mark.parametrize("factor", [2, 3, 4])
    def test_down_undoes_repeat_on_bands_of_any_shape(self, factor):
        samplers = Samplers.untrained("repeat", LINE, factor)
        ids = torch.randint(4, (2, 5), generator=torch.Generator().manual_seed(0))
        assert samplers.up(ids).shape == (2 * factor, 5 * factor)
        assert torch.equal(samplers.down(samplers.up(ids)), ids)

    def test_other_kinds_and_factors_are_refused(self):
        with pytest.raises(UsageError, match="'bicubic'; choose repeat or bilinear"):
            Samplers.untrained("bicubic", LINE)
        with pytest.raises(UsageError, match="is 1; it is 2 or more"):
            Samplers.untrained("repeat", LINE, 1)


class TestGrids:
    @pytest.fixture(params=["repeat", "bilinear", "trained"])
    def samplers(self, request, tmp_path, random_pair):
        if request.param == "trained":
            return Samplers.load(saved(random_pair, tmp_path), LINE)
        return Samplers.untrained(request.param, LINE)

    def test_bands_and_single_cells_pass(self, samplers):
        for rows, columns in ((1, 1), (1, 8), (3, 2)):
            large = samplers.up(torch.zeros(rows, columns, dtype=torch.long))
            assert large.shape == (2 * rows, 2 * columns) and samplers.down(large).shape == (rows, columns)

    def test_other_shapes_than_grids_are_refused(self, samplers):
        for change in (samplers.up, samplers.down):
            with pytest.raises(ContractError, match=r"at least one cell; found \[4\]"):
                change(torch.zeros(4, dtype=torch.long))
            with pytest.raises(ContractError, match=r"found \[0, 2\]"):
                change(torch.zeros(0, 2, dtype=torch.long))

    def test_sides_that_the_factor_does_not_divide_are_refused(self, samplers):
        for shape in ((3, 4), (4, 3)):
            with pytest.raises(ContractError, match="cannot shrink 2 times"):
                samplers.down(torch.zeros(shape, dtype=torch.long))

    def test_ids_beyond_the_codebook_are_refused(self, samplers):
        with pytest.raises(ContractError, match="ids from 0 to 4 in a grid over 4 codes"):
            samplers.up(torch.tensor([[0, 4]]))
        with pytest.raises(ContractError, match="ids from -1"):
            samplers.down(torch.tensor([[0, -1], [0, 0]]))


class TestNets:
    def test_nearest_is_by_distance_also_where_codes_differ_in_length(self):
        """The product alone would choose the longest code for each."""
        x = torch.tensor([0.4, 0.6, 2.9, 3.1, 9.0])
        grid = torch.stack([x, torch.ones(5)])[None, :, None]
        assert nearest_code(LINE, grid).tolist() == [[[0, 1, 2, 3, 3]]]

    def test_a_new_pair_is_the_control(self):
        torch.manual_seed(0)
        new = Samplers.of(Pair(Shape(2, 4, 2, 8, 2)), LINE)
        control = Samplers.untrained("bilinear", LINE)
        ids = torch.randint(4, (4, 6), generator=torch.Generator().manual_seed(1))
        assert torch.equal(new.up(ids), control.up(ids)) and torch.equal(new.down(ids), control.down(ids))

    def test_loaded_samplers_are_the_saved_ones(self, tmp_path, random_pair):
        saved(random_pair, tmp_path)
        ids = torch.randint(4, (4, 6), generator=torch.Generator().manual_seed(1))
        one, other = Samplers.of(random_pair, LINE), Samplers.load(tmp_path, LINE)
        assert torch.equal(one.up(ids), other.up(ids)) and torch.equal(one.down(ids), other.down(ids))
        control = Samplers.untrained("bilinear", LINE)
        assert not torch.equal(other.up(ids), control.up(ids)) and not torch.equal(other.down(ids), control.down(ids))

    def test_another_codebook_is_refused(self, tmp_path, random_pair):
        saved(random_pair, tmp_path)
        with pytest.raises(WeightsError, match="4 codes of width 2, and this one has 5 codes of width 2"):
            Samplers.load(tmp_path, torch.zeros(5, 2))
        with pytest.raises(WeightsError, match="another codebook of 4 codes"):
            Samplers.load(tmp_path, LINE.flip(0))
        Samplers.load(tmp_path, LINE + 0.01)  # as near as bf16 leaves a codebook

    def test_missing_and_damaged_weights_are_named(self, tmp_path, random_pair):
        with pytest.raises(WeightsError, match=r"config\.json.*stride train samplers mulo-2x"):
            Samplers.load(tmp_path, LINE)
        saved(random_pair, tmp_path)
        (tmp_path / "model.safetensors").write_bytes(b"no")
        with pytest.raises(WeightsError, match="holds no samplers"):
            Samplers.load(tmp_path, LINE)
        saved(random_pair, tmp_path)
        Pair(Shape(2, 4, 2, 16, 1)).write_config(tmp_path)
        with pytest.raises(WeightsError, match="size mismatch"):
            Samplers.load(tmp_path, LINE)


@needs_vq
class TestTraining:
    def test_bands_of_both_scales_cover_the_same_region(self):
        model, scenes = built(), emoji.scenes(0, "train", 2)
        encoded = recipe.encoded(model.frozen.tokenizer, scenes)
        large, small = encoded["up"].band(slice(2, 5)), encoded["down"].band(slice(2, 5))
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
        right = losses.Resampled(codes, real.ids, painted, real.pixels)
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
        assert set(load_file(tmp_path / "model.safetensors")) == set(Pair(Shape(2, 1024, 16, 16, 1)).state_dict())


@needs_vq
class TestOptionalTerms:
    def test_lpips_without_its_package_is_refused(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "lpips", None)
        with pytest.raises(UsageError, match="needs the package lpips"):
            built(lpips=1.0)

    def test_lpips_counts_by_its_weight_and_on_whole_pictures_only(self, monkeypatch):
        class Half(nn.Module):
            def __init__(self, net, verbose):
                super().__init__()

            def forward(self, resampled, real):
                return resampled.new_full((len(resampled), 1, 1, 1), 0.5)

        monkeypatch.setitem(sys.modules, "lpips", types.SimpleNamespace(LPIPS=Half))
        model, plain = built(lpips=3.0), built()
        real = recipe.encoded(plain.frozen.tokenizer, emoji.scenes(0, "train", 2))
        for rows, term in ((slice(0, 8), 1.5), (slice(0, 4), 0.0)):
            resampled = recipe.resample(plain, "up", real["down"].band(rows), real["up"].band(rows))
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

        judge, pixels = losses.new_critic(), torch.randn(1, 3, 8, 8)
        painted = torch.randn(1, 3, 8, 8, requires_grad=True)
        resampled = losses.Resampled(torch.zeros(1, 1, 2, 2), torch.zeros(1, 2, 2, dtype=torch.long), painted, pixels)
        losses.adversarial(judge, resampled, 0.25).backward()
        gradients = [weight.grad.clone() for weight in judge.parameters()]
        expected = torch.autograd.grad(-0.25 * judge(painted).mean(), painted)[0]
        torch.testing.assert_close(painted.grad, expected)
        judge.zero_grad()
        losses.adversarial(judge, resampled, 100.0).backward()
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
    """On 60 held-out scenes beside those of the card."""
    vq, pair = RECIPES.get("emoji-vq").load(VQ), Pair.load(PAIR)
    assert torch.equal(pair.codebook, vq.codebook.bfloat16().float())
    measured = figures(pair, vq, emoji.scenes(2, "held-out", 60))
    for region in ("", "_smooth", "_textured", "_object"):
        control = max(measured[f"up_repeat_psnr{region}"], measured[f"up_bilinear_psnr{region}"])
        assert measured[f"up_trained_psnr{region}"] > control + 1, region
        assert measured[f"down_trained_psnr{region}"] > measured[f"down_average_psnr{region}"] + 1, region
    assert measured["down_trained_same"] > measured["down_average_same"] + 0.1
