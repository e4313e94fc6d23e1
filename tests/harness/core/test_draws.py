"""Seeded draws: repeatable, keyed, and of the distribution that was passed.

Chi-square tests have a fixed seed; with a correct sampler one reseeding in a million fails each of them.
"""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stridebench.harness.core.draft import Path
from stridebench.harness.core.draws import (
    BLOCK,
    FEW,
    LIVE_CLOCKS,
    LONG,
    Draws,
    SeededDraws,
    chain_path,
    inverse_cdf,
    tree_path,
)
from stridebench.harness.errors import ContractError
from stridebench.harness.proof.enumerate import EnumeratingDraws
from tests.support.enumerated import enumerated

FALSE_ALARM = 1e-6
TINY = torch.finfo(torch.float64).tiny


def seeded(seed: int = 0) -> SeededDraws:
    return SeededDraws(seed, "task", "prompt", 0)


def fits(counts: Counter[Any], probs: dict[Any, float], draws: int) -> None:
    """The counts fit the distribution; values of probability 0 never occur."""
    possible = [value for value, weight in probs.items() if weight > 0]
    assert set(counts) <= set(possible)
    observed = [counts[value] for value in possible]
    assert sum(observed) == draws
    expected = np.array([probs[value] for value in possible])
    chi_square = stats.chisquare(observed, draws * expected / expected.sum())
    assert chi_square.pvalue > FALSE_ALARM


def path_distribution(accept: torch.Tensor, parents: torch.Tensor | None) -> dict[tuple[int, ...], float]:
    probs: dict[tuple[int, ...], float] = {}
    for weight, nodes in enumerated(lambda draws: accepted_nodes(draws.path(accept, parents))):
        probs[nodes] = probs.get(nodes, 0.0) + weight
    return probs


def accepted_nodes(path: Path) -> tuple[int, ...]:
    return tuple(node for node in path.nodes.tolist() if node >= 0)


class TestKeys:
    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize("make", [seeded, EnumeratingDraws])
    @pytest.mark.parametrize("key", [1.0, "1", None])
    def test_keys_of_a_race_are_whole_numbers(self, make: Callable[[], Draws], key: Any) -> None:
        with pytest.raises(ContractError, match="whole numbers"):
            make().race(torch.full((1, 2), 0.5), [key])

    @pytest.mark.usefixtures("unchecked")
    def test_a_tensor_is_the_key_that_it_holds(self) -> None:
        probs = torch.full((1, 64), 1 / 64)
        assert torch.equal(seeded().race(probs, [torch.tensor(5)]), seeded().race(probs, [5]))

    def test_ids_that_hold_the_separator_do_not_share_their_draws(self) -> None:
        pairs = [("a|b", "c"), ("a", "b|c"), ("a|b|c", ""), ("", "a|b|c"), ("a", "b"), ('[0, "a"', "b")]
        roots = [SeededDraws(0, task, prompt, 0).uniforms(2, "draft").tolist() for task, prompt in pairs]
        assert len(set(map(tuple, roots))) == len(pairs)
        assert SeededDraws(0, "a", "b|0", 1).uniforms(2, "draft").tolist() not in roots

    def test_the_numbers_are_the_same_on_every_machine_and_in_every_release(self) -> None:
        numbers = SeededDraws(0, "humaneval", "HumanEval/0", 0).uniforms(3, "accept").tolist()
        assert numbers == GOLDEN

    @pytest.mark.parametrize(
        "other",
        [(1, "task", "prompt", 0), (0, "tasks", "prompt", 0), (0, "task", "p", 0), (0, "task", "prompt", 1)],
        ids=["seed", "task", "prompt", "repetition"],
    )
    def test_each_field_of_the_key_changes_every_stream(self, other: tuple[int, str, str, int]) -> None:
        draws, other_draws = seeded(), SeededDraws(*other)
        probs = torch.full((16, 64), 1 / 64)
        for stream in ("init", "draft", "accept", "resid"):
            assert not torch.equal(draws.uniforms(8, stream), other_draws.uniforms(8, stream))
        assert not torch.equal(draws.race(probs, range(16)), other_draws.race(probs, range(16)))

    def test_streams_differ_and_do_not_disturb_one_another(self) -> None:
        plain = seeded()
        expected = plain.uniforms(6, "resid")
        busy = seeded()
        busy.integers(100, 7, "init")
        busy.path(torch.full((5,), 0.5))
        busy.race(torch.full((1, 4), 0.25), [3])
        assert torch.equal(busy.uniforms(6, "resid"), expected)
        assert not torch.equal(seeded().uniforms(6, "init"), expected)

    def test_pieces_that_pass_a_block_are_the_same_numbers(self) -> None:
        at_once = seeded().uniforms(3 * BLOCK + 7, "draft")
        pieces = seeded()
        parts = [pieces.uniforms(n, "draft") for n in (BLOCK - 1, 2, BLOCK, 0, BLOCK + 6)]
        assert torch.equal(torch.cat(parts), at_once)

    def test_a_copy_within_a_block_goes_on_as_its_original(self) -> None:
        draws = seeded()
        draws.uniforms(5, "draft")
        twin = copy.deepcopy(draws)
        expected = draws.uniforms(2 * BLOCK, "draft")
        assert torch.equal(twin.uniforms(3, "draft"), expected[:3])
        assert torch.equal(twin.uniforms(2 * BLOCK - 3, "draft"), expected[3:])

    def test_the_dtype_of_the_probabilities_does_not_change_the_draws(self) -> None:
        probs = torch.tensor([[0.125, 0.5, 0.25, 0.125]]).expand(200, -1)
        draws = [seeded().categorical(probs.to(t), "draft") for t in (torch.float32, torch.float64, torch.bfloat16)]
        assert torch.equal(draws[0], draws[1])
        assert torch.equal(draws[0], draws[2])

    def test_a_clock_made_again_is_the_same_clock(self) -> None:
        probs = torch.full((1, 30), 1 / 30)
        draws = seeded()
        before = draws.race(probs, [0])
        draws.race(probs.expand(LIVE_CLOCKS, -1), range(1, LIVE_CLOCKS + 1))
        assert len(draws._clocks) == LIVE_CLOCKS
        assert 0 not in draws._clocks
        assert torch.equal(draws.race(probs, [0]), before)


GOLDEN = [0.18851852492007182, 0.5099339441565417, 0.8128803842206742]


class TestInverseCdf:
    @given(
        weights=st.lists(st.sampled_from([0.0, 0.0, 1e-30, 0.1, 1.0, 3.0]), min_size=1, max_size=12),
        u=st.sampled_from([0.0, 2.0**-53, 0.5, 1 - 2.0**-53]) | st.floats(0, 1, exclude_max=True),
        dtype=st.sampled_from([torch.float32, torch.float64]),
    )
    def test_never_a_token_of_probability_zero(self, weights: list[float], u: float, dtype: torch.dtype) -> None:
        probs = torch.tensor([weights], dtype=dtype)
        if float(probs.sum()) > 0:
            token = inverse_cdf(probs, torch.tensor([u], dtype=torch.float64))
            assert float(probs[0, token]) > 0

    def test_the_largest_uniform_stops_before_a_wide_tail_of_zeros(self) -> None:
        probs = torch.rand(8, 49_152, generator=torch.Generator().manual_seed(0))
        probs[:, 30_000:] = 0
        tokens = inverse_cdf(probs, torch.full((8,), 1 - 2.0**-53, dtype=torch.float64))
        assert tokens.tolist() == [29_999] * 8

    @pytest.mark.parametrize("alone", [False, True])
    @pytest.mark.parametrize("zeros", [0, LONG, FEW])
    def test_cuts_are_where_the_running_sum_passes_u(self, zeros: int, alone: bool) -> None:
        """Short rows, a long one and large tables are summed in their own ways; without mass the last id is drawn."""
        probs = torch.tensor([[0.0] * zeros + [0.25, 0.0, 0.5, 0.25]], dtype=torch.float64).expand(5, -1)
        u = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75], dtype=torch.float64)
        for table, tokens in ((probs, [0, 0, 2, 2, 3]), (torch.zeros_like(probs), [3] * 5)):
            parts = [(table[row : row + 1], u[row : row + 1]) for row in range(5)] if alone else [(table, u)]
            drawn = torch.cat([inverse_cdf(*part) for part in parts])
            assert drawn.tolist() == [zeros + token for token in tokens]

    @pytest.mark.parametrize("rows", [1, 2, 3])
    @pytest.mark.parametrize("size", [2048, 2049, 5122])
    def test_rows_of_a_few_long_distributions_have_tokens_of_their_own(self, rows: int, size: int) -> None:
        """Each row allows one token, which no other row does."""
        probs = torch.zeros(rows, size)
        allowed = [17 + 1000 * row for row in range(rows)]
        probs[torch.arange(rows), allowed] = 1
        assert inverse_cdf(probs, torch.full((rows,), 0.9, dtype=torch.float64)).tolist() == allowed

    @pytest.mark.parametrize("size", [5, LONG + 3])
    def test_a_row_of_one_possible_token_takes_a_number_and_gives_the_token(self, size: int) -> None:
        draws, plain = seeded(), seeded()
        token = draws.categorical(torch.zeros(1, size).index_fill_(1, torch.tensor([3]), 0.25), "resid")
        plain.uniforms(1, "resid")
        assert token.tolist() == [3]
        assert torch.equal(draws.uniforms(4, "resid"), plain.uniforms(4, "resid"))

    def test_weights_of_any_total_are_normalised(self) -> None:
        u = torch.rand(100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        probs = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64).expand(100, -1)
        assert torch.equal(inverse_cdf(probs, u), inverse_cdf(probs * TINY * 2**20, u))


class TestDistributions:
    def test_categorical(self) -> None:
        weights = [0.5, 0.0, 0.3, 0.15, 0.05]
        tokens = seeded(1).categorical(torch.tensor([weights]).expand(20_000, -1), "resid")
        fits(Counter(tokens.tolist()), dict(enumerate(weights)), 20_000)

    @pytest.mark.parametrize("high", [2, 7])
    def test_integers(self, high: int) -> None:
        tokens = seeded(2).integers(20_000, high, "init")
        fits(Counter(tokens.tolist()), dict.fromkeys(range(high), 1 / high), 20_000)

    def test_integers_below_one_are_zero(self) -> None:
        assert seeded().integers(50, 1, "init").tolist() == [0] * 50

    def test_path(self) -> None:
        accept = torch.tensor([0.6, 0.8, 0.0, 0.5, 1.0, 0.3, 0.9], dtype=torch.float64)
        draws = seeded(3)
        counts = Counter(accepted_nodes(draws.path(accept)) for _ in range(2_000))
        fits(counts, path_distribution(accept, None), 2_000)
        above, coins = torch.tensor([-1, -1, 0, 0, 2, 1, -1]), seeded().uniforms(7, "accept") < accept
        assert torch.equal(seeded().path(accept, above).nodes, tree_path(coins, accept, above).nodes)

    def test_couple_keeps_as_often_as_possible_and_its_output_has_distribution_p(self) -> None:
        q, p = [0.1, 0.5, 0.4, 0.0], [0.3, 0.2, 0.1, 0.4]
        draws, n = seeded(4), 20_000
        before = SeededDraws(4, "task", "another", 0).categorical(torch.tensor([q]).expand(n, -1), "draft")
        after = draws.couple(before, torch.tensor([q]).expand(n, -1), torch.tensor([p]).expand(n, -1))
        excess = [max(0.0, b - a) for a, b in zip(q, p, strict=True)]
        same = sum(min(a, b) for a, b in zip(q, p, strict=True))
        joint = {
            (x, y): (min(q[x], p[x]) if x == y else 0.0) + max(0.0, q[x] - p[x]) * excess[y] / (1 - same)
            for x in range(4)
            for y in range(4)
        }
        fits(Counter(zip(before.tolist(), after.tolist(), strict=True)), joint, n)
        fits(Counter(after.tolist()), dict(enumerate(p)), n)

    def test_couple_of_equal_distributions_changes_nothing(self) -> None:
        probs = torch.rand(500, 6, generator=torch.Generator().manual_seed(0)).softmax(-1)
        x = seeded(5).categorical(probs, "init")
        assert torch.equal(seeded(6).couple(x, probs, probs.clone()), x)

    def test_race_has_the_distribution(self) -> None:
        weights = [0.45, 0.0, 0.35, 0.2]
        tokens = seeded(7).race(torch.tensor([weights]).expand(4_000, -1), range(4_000))
        fits(Counter(tokens.tolist()), dict(enumerate(weights)), 4_000)

    def test_equal_keys_share_their_noise_and_others_do_not(self) -> None:
        draws = seeded(8)
        probs = torch.full((400, 50), 1 / 50)
        once = draws.race(probs, range(400))
        assert torch.equal(draws.race(probs, range(400)), once)
        assert torch.equal(draws.race(probs, [17] * 400), once[17].expand(400))
        assert len(set(once.tolist())) > 40

    def test_two_distributions_in_one_race_agree_as_often_as_with_shared_gumbel_noise(self) -> None:
        a, b = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]
        draws, n = seeded(9), 4_000
        probs = torch.tensor([a, b])
        results = [tuple(draws.race(probs, [key, key]).tolist()) for key in range(n)]
        equal = {i: 1 / sum(max(a[k] / a[i], b[k] / b[i]) for k in range(3)) for i in range(3)}
        counts = Counter(x if x == y else -1 for x, y in results)
        fits(counts, {**equal, -1: 1 - sum(equal.values())}, n)


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[float], list[bool]]:
    size = draw(st.integers(0, 12))
    parents = [draw(st.integers(-1, k - 1)) for k in range(size)]
    accept = [draw(st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0])) for _ in range(size)]
    coins = [draw(st.booleans()) for _ in range(size)]
    return parents, accept, coins


def walk(parents: Sequence[int], coins: Sequence[bool]) -> tuple[int, ...]:
    """From the root: the first child in order whose coin shows True, until none does."""
    at = -1
    nodes: list[int] = []
    while True:
        children = [k for k, parent in enumerate(parents) if parent == at]
        chosen = [k for k in children if coins[k]]
        if not chosen:
            return tuple(nodes)
        at = chosen[0]
        nodes.append(at)


class TestPaths:
    @given(tree=trees())
    def test_tree_path_is_the_plain_walk(self, tree: tuple[list[int], list[float], list[bool]]) -> None:
        parents, accept, coins = tree
        flips, probs = torch.tensor(coins, dtype=torch.bool), torch.tensor(accept, dtype=torch.float64)
        path = tree_path(flips, probs, torch.tensor(parents, dtype=torch.long))
        nodes = walk(parents, coins)
        assert path.nodes.tolist() == [*nodes, *[-1] * (len(parents) - len(nodes))]
        assert int(path.stop) == (nodes[-1] + 1 if nodes else 0)
        chain, same = chain_path(flips, probs), tree_path(flips, probs, torch.arange(len(probs)) - 1)
        assert torch.equal(chain.nodes, same.nodes) and int(chain.stop) == int(same.stop)
        torch.testing.assert_close(chain.expected, same.expected, rtol=0, atol=1e-12)

    @given(tree=trees())
    def test_expected_is_the_mean_over_all_coins(self, tree: tuple[list[int], list[float], list[bool]]) -> None:
        parents, accept, _ = tree
        accept_probs, above = torch.tensor(accept, dtype=torch.float64), torch.tensor(parents, dtype=torch.long)
        probs = path_distribution(accept_probs, above)
        assert sum(probs.values()) == pytest.approx(1, abs=1e-12)
        mean = sum(weight * len(nodes) for nodes, weight in probs.items())
        path = tree_path(torch.zeros(len(accept_probs), dtype=torch.bool), accept_probs, above)
        assert float(path.expected) == pytest.approx(mean, abs=1e-12)

    def test_a_chain_of_300_nodes_as_a_tree(self) -> None:
        """Pointer doubling reaches the root of 300 nodes."""
        probs = torch.full((300,), 0.99, dtype=torch.float64)
        coins = torch.ones(300, dtype=torch.bool)
        path = tree_path(coins, probs, torch.arange(300) - 1)
        assert int(path.stop) == 300
        assert float(path.expected) == pytest.approx(sum(0.99**k for k in range(1, 301)), rel=1e-12)


def ordered_distribution(probs: Sequence[float], k: int) -> dict[tuple[int, ...], float]:
    """The distribution of k ordered draws without replacement, summed over all permutations."""
    distribution: dict[tuple[int, ...], float] = {}
    for tokens in itertools.permutations(range(len(probs)), k):
        weight, left = 1.0, 1.0
        for token in tokens:
            weight, left = weight * probs[token] / left, left - probs[token]
        distribution[tokens] = weight
    return distribution


class TestDistinct:
    PROBS = (0.5, 0.25, 0.15, 0.1)

    def test_ordered_draws_have_their_distribution(self) -> None:
        draws = 4000
        drawn = seeded().distinct(torch.tensor([self.PROBS]).expand(draws, -1), 2, "draft")
        fits(Counter(tuple(row) for row in drawn.tolist()), ordered_distribution(self.PROBS, 2), draws)

    def test_enumerated_it_is_every_ordered_subset(self) -> None:
        probs = torch.tensor([self.PROBS, (0.0, 0.7, 0.3, 0.0)], dtype=torch.float64)
        distribution: dict[tuple[int, ...], float] = {}
        for weight, rows in enumerated(lambda d: d.distinct(probs, 2, "draft")):
            key = tuple(rows.reshape(-1).tolist())
            distribution[key] = distribution.get(key, 0.0) + weight
        first, second = ordered_distribution(self.PROBS, 2), {(1, 2): 0.7, (2, 1): 0.3}
        expected = {(*a, *b): p * q for a, p in first.items() for b, q in second.items()}
        assert distribution == pytest.approx(expected, abs=1e-12)

    def test_a_row_without_possible_tokens_continues_with_impossible_ones_by_id(self) -> None:
        probs = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
        assert seeded().distinct(probs, 4, "draft")[0].tolist() == [2, 0, 1, 3]
        assert [rows[0].tolist() for _, rows in enumerated(lambda d: d.distinct(probs[:1], 3, "draft"))] == [[2, 0, 1]]
        assert sorted(seeded().distinct(probs, 4, "draft")[1].tolist()) == [0, 1, 2, 3]

    @pytest.mark.parametrize("draws", [seeded(), EnumeratingDraws()])
    def test_more_distinct_tokens_than_the_vocabulary_are_refused(self, draws: SeededDraws | EnumeratingDraws) -> None:
        with pytest.raises(ContractError, match="5 distinct tokens were asked of a vocabulary of 4"):
            draws.distinct(torch.tensor([self.PROBS]), 5, "draft")


@pytest.mark.parametrize("distance", [1, 256, 512, 1024, 2**16, 2**32])
def test_positions_have_clocks_of_their_own_at_any_distance(distance: int) -> None:
    draws = seeded()
    probs = torch.full((64, 200), 1 / 200)
    first, second = list(range(64)), [distance + 64 * key for key in range(64)]
    assert (draws.race(probs, first) != draws.race(probs, second)).sum() > 32
    assert not torch.equal(draws.race(probs, [0] * 64), draws.race(probs, [distance] * 64))
