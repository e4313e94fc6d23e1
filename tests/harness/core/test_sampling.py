"""From logits to distributions, against a second implementation in numpy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stridebench.harness.core.sampling import LIKELY, SMALL, Sampling, nucleus_floor, warp
from stridebench.harness.errors import UsageError

ORDERS = ("temperature_first", "filter_first")
VECTOR = NDArray[np.float64]


def softmax(z: VECTOR) -> VECTOR:
    weights = np.exp(z - z.max())
    probs: VECTOR = weights / weights.sum()
    return probs


def nucleus(p: VECTOR, top_p: float) -> tuple[NDArray[np.bool_], float]:
    """The smallest set of mass top_p, ties with its last included; and how near a cut is to top_p."""
    ordered = np.sort(p)[::-1]
    mass = 0.0
    gap = 1.0
    floor = ordered[-1]
    for probability in ordered:
        mass += probability
        gap = min(gap, abs(mass - top_p))
        if mass >= top_p:
            floor = probability
            break
    return p >= floor, gap


def expected_probs(logits: list[float], sampling: Sampling) -> tuple[VECTOR, float]:
    z = np.array(logits)
    gap = 1.0
    if sampling.order == "temperature_first":
        z = z / sampling.temperature
    if 0 < sampling.top_k < len(z):
        z = np.where(z >= sorted(z)[-sampling.top_k], z, -np.inf)
    if sampling.top_p < 1:
        keep, gap = nucleus(softmax(z), sampling.top_p)
        z = np.where(keep, z, -np.inf)
    if sampling.min_p:
        p = softmax(z)
        gap = min(gap, float(np.abs(p - sampling.min_p * p.max()).min()))
        z = np.where(p >= sampling.min_p * p.max(), z, -np.inf)
    if sampling.order == "filter_first":
        z = z / sampling.temperature
    return softmax(z), gap


# Eighths between -4 and 4: ties are frequent, and equal logits are equal in every type.
LOGITS = st.lists(st.integers(-32, 32).map(lambda n: n / 8), min_size=1, max_size=40)
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.5, 0.7, 1.0, 1.5]),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([0.1, 0.37, 0.61, 0.8, 0.95, 1.0]),
    order=st.sampled_from(ORDERS),
    min_p=st.sampled_from([0.0, 0.05, 0.3, 0.9]),
)


@given(logits=LOGITS, sampling=SAMPLINGS)
def test_warp_equals_a_second_implementation_in_both_orders(logits: list[float], sampling: Sampling) -> None:
    probs = warp(torch.tensor([logits], dtype=torch.float64), sampling)[0].numpy()
    expected, gap = expected_probs(logits, sampling)
    assume(gap > 1e-9)  # where a sum equals top_p to rounding, either side of the cut is right
    np.testing.assert_array_equal(probs > 0, expected > 0)
    np.testing.assert_allclose(probs, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_logits_give_probabilities_in_fp32_that_sum_to_one(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 500, generator=generator).to(dtype)
    probs = warp(logits, Sampling(0.8, top_k=50, top_p=0.9))
    assert probs.dtype == torch.float32
    torch.testing.assert_close(probs.sum(-1), torch.ones(3), rtol=0, atol=1e-6)


def wide_distributions() -> torch.Tensor:
    """Flat, almost flat, heavy-tailed and peaked distributions over 5,000 tokens, with large and small nuclei."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(4, 5_000, generator=generator)
    scales = torch.tensor([[0.0], [0.01], [4.0], [30.0]])
    return (noise * scales).softmax(-1)


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
def test_the_nucleus_of_the_best_k_equals_that_of_the_full_row(top_p: float) -> None:
    """With ties at the cut of k, which are all kept."""
    logits = wide_distributions().log().mul(4).round().div(4).clamp_min(-20)
    best = logits.masked_fill(logits < logits.topk(30).values[:, -1:], -torch.inf)
    p = best.softmax(-1)
    expected = best.masked_fill(p < nucleus_floor(p, top_p), -torch.inf).softmax(-1)
    probs = warp(logits, Sampling(1.0, top_k=30, top_p=top_p))
    assert bool(((logits >= logits.topk(30).values[:, -1:]).sum(1) > 30).any())
    torch.testing.assert_close(probs, expected, rtol=0, atol=0)


@pytest.mark.parametrize("top_k", [40, 41])
def test_top_k_of_the_vocabulary_or_more_keeps_all(top_k: int) -> None:
    logits = torch.arange(40.0)[None] / 10
    torch.testing.assert_close(warp(logits, Sampling(1.0, top_k=top_k)), logits.softmax(-1))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"temperature": -0.1}, "temperature -0.1"),
        ({"temperature": float("nan")}, "temperature nan"),
        ({"top_k": -1}, "top_k -1"),
        ({"top_p": 0.0}, "top_p 0"),
        ({"top_p": 1.01}, "top_p 1.01"),
        ({"order": "whatever"}, "'whatever'"),
    ],
)
def test_bad_values_are_usage_errors_that_name_them(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Sampling(**bad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [4, 8_192])
def test_a_token_that_completes_the_mass_exactly_is_the_last_of_the_nucleus(dtype: torch.dtype, count: int) -> None:
    """One token has a half, the others share the rest; every sum is exact in binary."""
    p = torch.full((1, count + 1), 0.5 / count, dtype=dtype)
    p[0, 2] = 0.5
    assert float(nucleus_floor(p, 0.5)) == 0.5
    assert float(nucleus_floor(p, 0.5 + 2**-20)) == 0.5 / count


def test_the_nucleus_may_end_between_numbers_of_equal_upper_bits() -> None:
    """Two numbers of one bucket, the larger of which completes the mass exactly; the bucket above holds a half."""
    p = torch.full((1, SMALL), 2.0**-20)
    p[0, :3] = torch.tensor([0.5, 0.125 + 2**-20, 0.125])
    assert float(nucleus_floor(p, 0.625 + 2**-20)) == 0.125 + 2**-20
    assert float(nucleus_floor(p, 0.625 + 2**-19)) == 0.125


def test_a_wide_row_sorts_its_likely_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    sort = np.sort

    def counted(values: VECTOR) -> VECTOR:
        sizes.append(values.size)
        return sort(values)

    p = wide_distributions()[2:3]
    monkeypatch.setattr(np, "sort", counted)
    nucleus_floor(p, 0.5)
    assert sizes == [int((p >= LIKELY[0]).sum())] and sizes[0] < p.shape[1] / 4


@pytest.mark.parametrize("order", ORDERS)
def test_a_wide_nucleus_equals_a_second_implementation(order: Any) -> None:
    for row in wide_distributions():
        logits = (row.double() + 1e-30).log()
        sampling = Sampling(0.7, top_p=0.9, order=order)
        ours, (expected, gap) = warp(logits[None].float(), sampling)[0], expected_probs(logits.tolist(), sampling)
        if gap > 1e-6:
            assert ours.count_nonzero() == np.count_nonzero(expected)
            np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-4, atol=1e-9)


def plainly_cut(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """`warp` with top-p alone, by a sort of whole rows."""
    first = sampling.order == "temperature_first"
    z = logits.float() / sampling.temperature if first else logits.float()
    p = z.softmax(-1)
    ordered = p.sort(descending=True).values
    last = (ordered.double().cumsum(-1) < sampling.top_p).sum(-1, keepdim=True).clamp_max(p.shape[1] - 1)
    z = z.masked_fill(p < ordered.gather(1, last), -torch.inf)
    return (z if first else z / sampling.temperature).double().softmax(-1)


def wide_logits(kind: str, dtype: torch.dtype) -> torch.Tensor:
    """Three rows of the kind, over more ids than are sorted."""
    noise = torch.randn(3, SMALL + 77, generator=torch.Generator().manual_seed(2))
    rows = {"flat": noise * 0, "low": noise - 50, "sharp": noise * 30, "usual": noise * 4, "mixed": noise}[kind]
    if kind == "mixed":  # a sharp row, a flat one whose likely ids hold too little, and one that forbids most ids
        rows = torch.stack([noise[0] * 30, noise[1] * 0.01, noise[2].masked_fill(noise[2] < 2, -torch.inf)])
    return rows.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["flat", "low", "sharp", "usual", "mixed"])
def test_cuts_without_a_sort_are_those_of_a_sort(kind: str, dtype: torch.dtype) -> None:
    logits = wide_logits(kind, dtype)
    for temperature, top_p, order in itertools.product((0.5, 1.0, 1.7), (0.05, 0.6, 0.95, 0.9999), ORDERS):
        sampling = Sampling(temperature, top_p=top_p, order=order)  # type: ignore[arg-type]
        probs, expected = warp(logits, sampling), plainly_cut(logits, sampling)
        assert torch.equal(probs > 0, expected.float() > 0), sampling
        torch.testing.assert_close(probs, expected.float(), rtol=2e-6, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [7, SMALL + 1])
def test_the_greedy_id_is_the_first_of_the_largest_logit(size: int, dtype: torch.dtype) -> None:
    """Also where all logits are negative, where zeros have both signs, and where ids are forbidden."""
    noise = torch.randn(6, size, generator=torch.Generator().manual_seed(3)).to(dtype)
    noise[1] = -noise[1].abs() - 1
    noise[2] = torch.where(torch.arange(size) % 2 == 0, -0.0, 0.0)
    noise[3, : size - 1] = -torch.inf
    noise[4, [2, 5]] = 9.0
    noise[5, [3, 6]] = -torch.inf
    probs = warp(noise, Sampling(0.0, top_k=2, top_p=0.5))
    for row, ids in zip(noise.tolist(), probs.argmax(-1).tolist(), strict=True):
        assert ids == row.index(max(row))
    assert probs.sum(-1).tolist() == [1.0] * 6 and probs.max() == 1


def test_rows_on_another_device_are_sorted_there() -> None:
    probs = warp(torch.zeros(2, 50, device="meta"), Sampling(1.0, top_p=0.5))
    assert (probs.device.type, tuple(probs.shape)) == ("meta", (2, 50))
