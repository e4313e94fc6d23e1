"""Uniform diffusion: its distribution by hand, the bound, when it stops, passes, and what it refuses."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.masked_toy import MaskedTabular
from stridebench.harness.backbones.toy import mix
from stridebench.harness.core.loop import Decode
from stridebench.harness.core.method import Claim
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.errors import ContractError, UsageError
from stridebench.harness.proof.cases import UNIFORM_CASES, Case
from stridebench.harness.proof.distance import distance, method_law, reference_of, total_variation
from stridebench.harness.proof.enumerate import Law
from stridebench.methods.masked_diffusion import MaskedDiffusion
from stridebench.methods.uniform_diffusion import UniformDiffusion, below_bound
from tests.support import toys

T1, T0, WIDE, BLOCKS = UNIFORM_CASES
Ids = tuple[int, ...]
SIZE = 2**64


def rows_by_hand(model: MaskedTabular, prompt: Ids, x: Ids, given: Tensor | None) -> Tensor:
    """Logits of a canvas behind a prompt that was read before, as a block that does not see the canvas."""
    leaves = [mix(token, place, 0) for place, token in enumerate(prompt)]
    entries = [mix(t, place, (sum(leaves) - leaves[place]) % SIZE) for place, t in enumerate(prompt)]
    own = [mix(token, place, 0) for place, token in enumerate(x, len(prompt))]
    seen = sum(entries) + sum(own)
    rows = [
        model.row(mix(t, place, (seen - own[place - len(prompt)]) % SIZE)) for place, t in enumerate(x, len(prompt))
    ]
    return torch.stack(rows) if given is None else torch.stack(rows) + given.roll(1, 1) / 4


def law_by_hand(method: UniformDiffusion, case: Case) -> Law:
    """The probability of each canvas, over all noise and all draws of all passes."""
    model, law = case.backbone(), defaultdict[Ids, float](float)
    assert isinstance(model, MaskedTabular)
    ids = range(case.vocabulary)

    def go_on(x: Ids, given: Tensor | None, last: Ids, n: int, weight: float) -> None:
        temperature = method.cold + (method.hot - method.cold) * n / method.steps
        z = rows_by_hand(model, case.prompt, x, given) / temperature
        p = z.softmax(1)
        entropies = [float(-(row * row.log()).sum()) for row in p]
        best = tuple(z.argmax(1).tolist())
        if n == 1 or (best == last and sum(entropies) / len(x) < method.sure):
            law[best] += weight
            return
        kept, total = set[int](), 0.0
        for place in sorted(range(len(x)), key=lambda i: entropies[i]):
            if not kept or total <= method.bound:
                kept.add(place)
            total += entropies[place]
        drawn = warp(z, case.sampling)
        for y in itertools.product(ids, repeat=len(x)):
            chances = [float(drawn[i, token]) if i in kept else 1 / case.vocabulary for i, token in enumerate(y)]
            if all(chances):
                go_on(y, z, best, n - 1, weight * float(torch.tensor(chances, dtype=torch.float64).prod()))

    starts = list(itertools.product(ids, repeat=case.length))
    for x in starts:
        go_on(x, None, (), method.steps, 1 / len(starts))
    return dict(law)


def decoded(method: Any, length: int, block: int = 4, seed: int = 0, temperature: float = 1.0) -> Decode:
    params = {"vocabulary": 5, "context": 99, "noise": "uniform", "block": block, "sharpness": 3.0}
    model = MaskedTabular("masked_tabular", params)
    return toys.decoded(method, Sampling(temperature), length, prompt=(0, 1, 2, 3), seed=seed, model=model)


@pytest.mark.usefixtures("unchecked")
class TestOutputDistribution:
    @pytest.mark.parametrize("case", [T1, T0, WIDE], ids=str)
    @pytest.mark.parametrize(
        "method",
        [
            UniformDiffusion(steps=2),
            UniformDiffusion(steps=3, bound=0.5, sure=9.0),
            UniformDiffusion(steps=2, bound=9.0, hot=0.4, cold=0.8),
        ],
        ids=str,
    )
    def test_it_is_that_of_the_sampler_by_hand(self, method: UniformDiffusion, case: Case) -> None:
        assert total_variation(method_law(method, case), law_by_hand(method, case)) < 1e-12

    @pytest.mark.parametrize(("steps", "cost"), [(1, 0.392671), (2, 0.515139)])
    def test_the_distance_to_one_token_a_pass(self, steps: int, cost: float) -> None:
        """Pinned: no setting of it is that reference, which never draws a position again."""
        method = UniformDiffusion(steps=steps)
        assert method.claim is Claim.APPROXIMATE and reference_of(method) == MaskedDiffusion()
        assert distance(method, T1) == pytest.approx(cost, abs=1e-4)

    @pytest.mark.parametrize("case", [T1, BLOCKS], ids=str)
    def test_one_token_a_pass_of_masked_diffusion_is_the_reference_on_uniform_noise(self, case: Case) -> None:
        assert distance(MaskedDiffusion(rule="static:1"), case) < 1e-12
        assert (distance(MaskedDiffusion(rule="static:2"), case) > 1e-3) == (case == T1), "blocks of one position"


@pytest.mark.parametrize(
    ("entropies", "bound", "kept"),
    [
        ((0.3, 0.1, 0.2), 0.1, (False, True, True)),  # 0 and 0.1 before them, 0.3 before the last
        ((0.3, 0.1, 0.2), 0.0, (False, True, False)),
        ((0.3, 0.0, 0.2), 0.0, (False, True, True)),
        ((0.3, 0.1, 0.2), 0.35, (True, True, True)),
        ((0.5, 0.5), 0.1, (True, False)),
    ],
)
def test_positions_below_the_bound_by_hand(entropies: Sequence[float], bound: float, kept: Sequence[bool]) -> None:
    assert tuple(below_bound(torch.tensor(entropies, dtype=torch.float64), bound).tolist()) == kept


class TestPasses:
    def test_a_canvas_is_emitted_at_once_after_its_passes_and_that_of_the_text_before_it(self) -> None:
        """The prompt's pass is in the start; the second canvas needs one more for the tokens of the first."""
        result = decoded(UniformDiffusion(steps=3, sure=0.0), 8)
        assert result.start_nfe == 1
        assert [(step.nfe, step.rows, step.emitted) for step in result.steps] == [(3, 12, 4), (4, 16, 4)]

    def test_the_prompts_last_tokens_are_read_in_the_first_canvas(self) -> None:
        """Blocks of three from 0: the prompt of four ends behind the first place of the second block."""
        result = decoded(UniformDiffusion(steps=2, sure=0.0), 5, block=3)
        assert [(step.nfe, step.rows, step.emitted) for step in result.steps] == [(2, 6, 2), (3, 9, 3)]

    def test_a_model_without_blocks_reads_all_in_every_pass(self) -> None:
        result = decoded(UniformDiffusion(steps=2, sure=0.0), 4, block=0)
        assert (result.start_nfe, [(step.nfe, step.rows) for step in result.steps]) == (0, [(2, 16)])

    @pytest.mark.parametrize(("stable", "passes"), [(1, 2), (3, 4)])
    def test_it_stops_when_a_sure_canvas_stays_the_same(self, stable: int, passes: int) -> None:
        """A model so sharp that each pass has the same most probable tokens, whatever the noise."""
        assert sum(step.nfe for step in self.constant(UniformDiffusion(stable=stable)).steps) == passes
        assert sum(step.nfe for step in self.constant(UniformDiffusion(steps=6, sure=0.0)).steps) == 6

    def constant(self, method: UniformDiffusion) -> Decode:
        model = MaskedTabular("masked_tabular", {"vocabulary": 5, "noise": "uniform", "block": 4})
        model.row = lambda entry: torch.tensor([0.0, 99.0, 0.0, 0.0, 0.0], dtype=torch.float64)  # type: ignore[method-assign]
        return toys.decoded(method, Sampling(1.0), 4, prompt=(0, 1, 2, 3), model=model)

    def test_noise_is_its_only_source_of_randomness_at_one_step(self) -> None:
        outputs = {decoded(UniformDiffusion(steps=1), 4, seed=seed).tokens for seed in range(8)}
        assert len(outputs) > 1
        cold = [decoded(UniformDiffusion(steps=1), 4, temperature=t).tokens for t in (0.0, 1.0)]
        assert cold[0] == cold[1]


class TestBadInput:
    def test_masks_of_guidance_need_a_mask(self) -> None:
        with pytest.raises(UsageError, match="cfg_scale reads the prompt as masks, and this backbone has no mask"):
            decoded(MaskedDiffusion(cfg_scale=1.0), 4)

    def test_a_model_of_masks_reads_no_logits(self) -> None:
        model = MaskedTabular("masked_tabular", {"vocabulary": 5})
        with pytest.raises(ContractError, match="reads no logits of an earlier pass"):
            toys.decoded(UniformDiffusion(steps=2), Sampling(1.0), 4, model=model)
