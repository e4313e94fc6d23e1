"""The up- and down-samplers of MuLo-SD: the untrained ones by hand, bad grids, and the nets."""

import pytest
import torch

from stridebench.harness.errors import ContractError, UsageError, WeightsError
from stridebench.harness.train.recipe import save_bf16
from stridebench.methods.drafters.scales import Pair, Samplers, SamplerShape, nearest_code

LINE = torch.tensor([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [4.0, 1.0]])
"""Codes on a line, so that every mean can be computed by hand."""


def saved(pair, folder):
    save_bf16(pair, folder)
    pair.write_config(folder)
    return folder


@pytest.fixture()
def random_pair():
    """A pair with random weights for LINE."""
    torch.manual_seed(0)
    pair = Pair(SamplerShape(2, 4, 2, 8, 1))
    with torch.no_grad():
        for weight in pair.parameters():
            weight.copy_(torch.randn_like(weight).bfloat16())
    pair.codebook.copy_(LINE)
    return pair.eval()


class TestUntrained:
    def test_repeat_gives_each_id_a_block(self):
        grid = Samplers.untrained("repeat", LINE).up(torch.tensor([[3, 0], [1, 2]]))
        assert grid.tolist() == [[3, 3, 0, 0], [3, 3, 0, 0], [1, 1, 2, 2], [1, 1, 2, 2]]

    def test_bilinear_rounds_vectors_between_two_codes_to_the_nearest(self):
        """Between 0 and 4 lie 0, 1, 3, 4: code 1 stands for 1, and 3 is as far from code 2 as from code 3."""
        assert Samplers.untrained("bilinear", LINE).up(torch.tensor([[0, 3]])).tolist() == [[0, 1, 2, 3]] * 2

    def test_down_takes_the_code_nearest_to_the_mean_of_a_block(self):
        """Means 1 and 3.25."""
        grid = torch.tensor([[0, 0, 3, 3], [0, 3, 3, 1]])
        for kind in ("repeat", "bilinear"):
            assert Samplers.untrained(kind, LINE).down(grid).tolist() == [[1, 3]]

    @pytest.mark.parametrize("factor", [2, 3])
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


@pytest.mark.parametrize(
    ("change", "grid", "message"),
    [
        ("up", torch.zeros(4, dtype=torch.long), r"at least one cell; found \[4\]"),
        ("down", torch.zeros(0, 2, dtype=torch.long), r"at least one cell; found \[0, 2\]"),
        ("down", torch.zeros(3, 4, dtype=torch.long), "cannot shrink 2 times"),
        ("down", torch.zeros(4, 3, dtype=torch.long), "cannot shrink 2 times"),
        ("up", torch.tensor([[0, 4]]), "ids from 0 to 4 in a grid over 4 codes"),
        ("down", torch.tensor([[0, -1], [0, 0]]), "ids from -1"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused(change, grid, message):
    with pytest.raises(ContractError, match=message):
        getattr(Samplers.untrained("repeat", LINE), change)(grid)


class TestNets:
    def test_nearest_is_by_distance_also_where_codes_differ_in_length(self):
        """The product alone would choose the longest code for each."""
        x = torch.tensor([0.4, 0.6, 2.9, 3.1, 9.0])
        grid = torch.stack([x, torch.ones(5)])[None, :, None]
        assert nearest_code(LINE, grid).tolist() == [[[0, 1, 2, 3, 3]]]

    def test_a_new_pair_is_the_control(self):
        torch.manual_seed(0)
        new = Samplers.of(Pair(SamplerShape(2, 4, 2, 8, 2)), LINE)
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
        Pair(SamplerShape(2, 4, 2, 16, 1)).write_config(tmp_path)
        with pytest.raises(WeightsError, match="size mismatch"):
            Samplers.load(tmp_path, LINE)
