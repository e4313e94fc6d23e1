"""Neighbours of codes, their aggregated probability, and dilation, on cases countable by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stridebench.harness.errors import ContractError, UsageError
from stridebench.methods.verifiers import codebook
from stridebench.methods.verifiers.codebook import cluster_mass, dilate, nearest

LINE = torch.tensor([[0.0], [1.0], [3.0], [7.0]])


class TestNearest:
    def test_self_first_then_by_distance(self):
        assert nearest(LINE, 3).tolist() == [[0, 1, 2, 3], [1, 0, 2, 3], [2, 1, 0, 3], [3, 2, 1, 0]]
        assert nearest(LINE, 1).tolist() == [[0, 1], [1, 0], [2, 1], [3, 2]]
        assert nearest(LINE, 0).tolist() == [[0], [1], [2], [3]]

    def test_equal_distances_are_ordered_by_id_also_at_the_cut(self):
        ring = torch.tensor([[0.0, 1.0], [0.0, -1.0], [0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
        assert nearest(ring, 4)[2].tolist() == [2, 0, 1, 3, 4]
        assert nearest(ring, 2)[2].tolist() == [2, 0, 1]

    def test_a_code_comes_before_its_copies(self):
        assert nearest(torch.tensor([[1.0], [1.0], [1.0]]), 2).tolist() == [[0, 1, 2], [1, 0, 2], [2, 0, 1]]

    @given(st.integers(0, 2**31), st.integers(1, 20), st.integers(0, 25), st.integers(1, 60))
    def test_every_chunk_size_gives_the_order_of_a_full_sort(self, seed, codes, k, chunk):
        """Coordinates 0 to 2 make many ties."""
        generator = torch.Generator().manual_seed(seed)
        book = torch.randint(3, (codes, 2), generator=generator).double()
        distances = [
            [(int((a - b).square().sum()) if i != j else -1, j) for j, b in enumerate(book)] for i, a in enumerate(book)
        ]
        expected = [[j for _, j in sorted(row)][: k + 1] for row in distances]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(codebook, "CHUNK", chunk)
            assert nearest(book, k).tolist() == expected

    def test_bad_input_is_refused(self):
        with pytest.raises(UsageError, match="k is -1"):
            nearest(LINE, -1)
        with pytest.raises(ContractError, match="not finite"):
            nearest(torch.tensor([[0.0], [float("nan")]]), 1)
        with pytest.raises(ContractError, match=r"\[0, 4\]"):
            nearest(torch.empty(0, 4), 1)


class TestClusterMass:
    near = nearest(LINE, 3)
    p = torch.tensor([[0.5, 0.25, 0.125, 0.125]])

    @pytest.mark.parametrize(
        ("delta", "mass"),
        [(0.0, 0.125), (0.2, 0.125), (0.25, 0.375), (0.74, 0.375), (0.75, 0.875), (0.875, 1.0)],
    )
    def test_neighbours_count_while_their_sum_stays_within_delta(self, delta, mass):
        """Code 2 has 0.125; its neighbours 1, 0, 3 have 0.25, 0.75 and 0.875 together; 3 alone would fit under 0.2."""
        assert cluster_mass(self.p, torch.tensor([2]), self.near, delta, 3).tolist() == [mass]

    @pytest.mark.parametrize(("k", "mass"), [(0, 0.125), (1, 0.375), (2, 0.875), (3, 1.0), (1000, 1.0)])
    def test_at_most_k_neighbours_and_all_where_there_are_fewer(self, k, mass):
        assert cluster_mass(self.p, torch.tensor([2]), self.near, 1.0, k).tolist() == [mass]

    def test_each_row_has_its_own_distribution_and_code(self):
        p = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.0, 0.0, 0.25, 0.75]])
        assert cluster_mass(p, torch.tensor([0, 3]), self.near, 0.25, 3).tolist() == [0.75, 1.0]
        assert cluster_mass(p[:0], torch.tensor([], dtype=torch.long), self.near, 0.25, 3).shape == (0,)

    def test_bad_input_is_refused(self):
        x = torch.tensor([2])
        with pytest.raises(UsageError, match=r"delta is -0\.1"):
            cluster_mass(self.p, x, self.near, -0.1, 3)
        with pytest.raises(ContractError, match="distributions cover 3 codes"):
            cluster_mass(self.p[:, :3], x, self.near, 0.1, 3)
        with pytest.raises(ContractError, match="with 1 neighbours each"):
            cluster_mass(self.p, x, nearest(LINE, 1), 0.1, 2)


class TestDilate:
    @pytest.mark.parametrize(
        ("radius", "rows"), [(0, ["....", "...#", "...."]), (1, ["..##", "..##", "..##"]), (9, ["####"] * 3)]
    )
    def test_a_square_around_the_cell_cut_at_the_edges(self, radius, rows):
        mask = torch.zeros(3, 4, dtype=torch.bool)
        mask[1, 3] = True
        assert ["".join(".#"[int(cell)] for cell in row) for row in dilate(mask, radius)] == rows

    def test_a_negative_radius_is_refused(self):
        with pytest.raises(UsageError, match="radius is -1"):
            dilate(torch.zeros(2, 2, dtype=torch.bool), -1)
