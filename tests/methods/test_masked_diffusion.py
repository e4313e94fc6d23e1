"""Masked diffusion: distributions by hand, the cost of few steps, passes, blocks, injected bugs, a whole run."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.masked_toy import MaskedTabular
from stridebench.harness.backbones.toy import mix
from stridebench.harness.core.canvas import Canvas, Read
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, advance
from stridebench.harness.core.method import Claim, label
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.errors import ContractError, UsageError
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.resolve import resolve
from stridebench.harness.plan.yaml_lines import Lines
from stridebench.harness.proof.cases import MASKED_CASES, Case
from stridebench.harness.proof.distance import distance, method_law, total_variation
from stridebench.harness.proof.enumerate import Law
from stridebench.harness.record.store import Store
from stridebench.harness.run.executors import serial
from stridebench.harness.run.loading import Options
from stridebench.methods.drafters.blocks import filled_by_rule
from stridebench.methods.masked_diffusion import (
    DREAM,
    LLADA,
    MaskedDiffusion,
    Order,
    confidence,
    most_confident,
    unmasked_fraction,
)
from tests.support import toys

T1, T0, HALF, TOP_P, BLOCKS = MASKED_CASES
Ids = tuple[int, ...]


def rows_of(model: MaskedTabular, canvas: Ids) -> Tensor:
    """Logits at every position of a canvas read whole, without caches, windows or masks."""
    leaves = [mix(token, place, 0) for place, token in enumerate(canvas)]
    total = sum(leaves)
    rows = [model.row(mix(token, place, (total - leaves[place]) % 2**64)) for place, token in enumerate(canvas)]
    return torch.stack(rows)


def confidence_by_hand(order: Order, logits: Tensor, x: Sequence[int], sampling: Sampling) -> list[float]:
    """The model's confidence in each drawn token, by its definition."""
    if order == "low_confidence":
        return [float(row.softmax(-1)[token]) for row, token in zip(logits, x, strict=True)]
    p = [warp(row[None], Sampling(sampling.temperature or 1, top_p=sampling.top_p))[0] for row in logits]
    if order == "maskgit_plus":
        return [float(row[token]) for row, token in zip(p, x, strict=True)]
    if order == "topk_margin":
        return [float(row.sort().values[-1] - row.sort().values[-2]) for row in p]
    return [sum(float(v * v.log()) for v in row if v > 0) for row in p]


def one_token_a_step(order: Order, case: Case) -> Law:
    """The reference by hand: the probability of each canvas, one position after the other."""
    model = MaskedTabular("masked_tabular", {"vocabulary": case.vocabulary, "seed": case.seed})
    mask, first = case.vocabulary - 1, len(case.prompt)
    canvases: dict[Ids, float] = {(*case.prompt, *[mask] * case.length): 1.0}
    for _ in range(case.length):
        after: dict[Ids, float] = defaultdict(float)
        for canvas, weight in canvases.items():
            masked = [place for place in range(first, len(canvas)) if canvas[place] == mask]
            logits = rows_of(model, canvas)[masked]
            probs = warp(logits, case.sampling)
            for drawn in itertools.product(range(mask), repeat=len(masked)):
                probability = weight * float(probs.gather(1, torch.tensor(drawn)[:, None]).prod())
                even = order in ("random", "origin")
                scores = [0.0] * len(masked) if even else confidence_by_hand(order, logits, drawn, case.sampling)
                best = [n for n, score in enumerate(scores) if even or score == max(scores)]
                for n in best if even else best[:1]:
                    place = masked[n]
                    after[(*canvas[:place], drawn[n], *canvas[place + 1 :])] += probability / (len(best) if even else 1)
        canvases = after
    return {canvas[first:]: weight for canvas, weight in canvases.items() if weight > 0}


@cache
def cost(method: MaskedDiffusion, case: Case = T1) -> float:
    return distance(method, case)


def table(**params: Any) -> MaskedTabular:
    return MaskedTabular("masked_tabular", {"context": 99, **params})


def decoded(method: MaskedDiffusion, length: int, temperature: float = 1.0, seed: int = 0) -> Decode:
    return toys.decoded(method, Sampling(temperature), length, seed=seed, model=table(vocabulary=9))


def filled(method: MaskedDiffusion, run: Run) -> list[list[int]]:
    """Positions filled by each step, from the first one of the output."""
    state, first, steps = method.start(run), run.canvas.start, []
    while run.room:
        places = advance(method, run, state).places
        steps.append([place - first for place in places])
    return steps


@pytest.mark.usefixtures("unchecked")
class TestOutputDistribution:
    @pytest.mark.parametrize(
        ("order", "case"),
        [*((order, HALF) for order in (*LLADA, *DREAM)), *(("entropy", case) for case in (T1, T0, TOP_P))],
        ids=str,
    )
    def test_one_token_a_step_is_the_reference_by_hand(self, order: Order, case: Case) -> None:
        assert total_variation(method_law(MaskedDiffusion(order), case), one_token_a_step(order, case)) < 1e-12

    def test_as_many_steps_as_positions_are_one_token_a_step(self) -> None:
        assert cost(MaskedDiffusion(steps=4)) < 1e-12

    @pytest.mark.parametrize("order", ["low_confidence", "entropy"])
    def test_one_step_is_the_product_of_the_distributions_under_a_full_mask(self, order: Order) -> None:
        model = T1.backbone()
        assert isinstance(model, MaskedTabular)
        probs = warp(rows_of(model, (*T1.prompt, 2, 2, 2, 2)), T1.sampling)[3:].tolist()
        product = {x: math.prod(probs[n][t] for n, t in enumerate(x)) for x in WORDS}
        assert total_variation(method_law(MaskedDiffusion(order, steps=1), T1), product) < 1e-12

    @pytest.mark.parametrize(
        ("order", "costs"),
        [
            ("low_confidence", (0.378667, 0.499422)),
            ("random", (0.318335, 0.200316)),
            ("origin", (0.318335, 0.151134)),
            ("maskgit_plus", (0.378667, 0.466779)),
            ("topk_margin", (0.435803, 0.526471)),
            ("entropy", (0.435803, 0.526471)),
        ],
    )
    def test_the_cost_of_one_and_two_steps(self, order: Order, costs: tuple[float, ...]) -> None:
        """Total variation to one token a step, pinned."""
        measured = [cost(MaskedDiffusion(order, steps=steps)) for steps in (1, 2)]
        assert measured == pytest.approx(costs, abs=1e-6)

    @pytest.mark.parametrize(
        ("order", "rules", "costs"),
        [
            ("low_confidence", ("threshold:0.7", "threshold:0.5", "threshold:0"), (0.091333, 0.222521)),
            ("low_confidence", ("factor:0.8", "factor:1.2", "factor:9"), (0.450228, 0.103209)),
            ("low_confidence", ("static:2", "static:3", "static:4"), (0.499422, 0.135196)),
            ("entropy", ("entropy:0.8", "entropy:1.5", "entropy:9"), (0.692667, 0.24576)),
        ],
    )
    def test_the_cost_of_rules_up_to_all_at_once(
        self, order: Order, rules: tuple[str, ...], costs: tuple[float, ...]
    ) -> None:
        """Total variation to one token a pass, pinned; the last rule fills everything in one pass."""
        measured = [cost(MaskedDiffusion(order, rule=rule)) for rule in rules]
        assert measured[-1] == pytest.approx(cost(MaskedDiffusion(order, steps=1)), abs=1e-12)
        assert measured[:2] == pytest.approx(costs, abs=1e-6)

    @pytest.mark.parametrize("case", [HALF, TOP_P, BLOCKS], ids=str)
    def test_without_entropy_before_it_a_position_is_filled_alone(self, case: Case) -> None:
        """Gamma = 0 fills two positions if a cut leaves one of them no entropy."""
        assert (cost(MaskedDiffusion("entropy", rule="entropy:0"), case) < 1e-12) == (case != TOP_P)

    def test_only_one_token_a_pass_claims_to_be_the_reference(self) -> None:
        exact = [label(method) for method in MaskedDiffusion.variants() if method.claim is Claim.SAME_LAW]
        assert [name.partition("rule=")[2] for name in exact] == [
            "static:1",
            "factor:0",
            "threshold:1.1",
            "joint:1.1 edit=1",
            "static:1 cache=blocks",
        ]
        for other in (MaskedDiffusion(rule="static:1", block=2), MaskedDiffusion(rule="joint:1.1")):
            assert other.claim is Claim.APPROXIMATE

    def test_the_choice_at_an_alg_temp_of_zero_is_its_limit(self) -> None:
        cold, none = MaskedDiffusion("entropy", 2, alg_temp=1e-4), MaskedDiffusion("entropy", 2)
        assert total_variation(method_law(cold, T1), method_law(none, T1)) < 1e-12
        assert total_variation(method_law(MaskedDiffusion("entropy", 2, alg_temp=1.0), T1), method_law(none, T1)) > 1e-3


WORDS = list(itertools.product(range(2), repeat=4))


class TestSteps:
    @pytest.mark.parametrize(("order", "steps"), [("low_confidence", 4), ("random", 1), ("random", 16)])
    def test_passes_and_tokens_a_pass(self, order: Order, steps: int) -> None:
        result = decoded(MaskedDiffusion(order, steps), 16)
        assert [step.nfe for step in result.steps] == [1] * steps
        assert [step.emitted for step in result.steps] == [16 // steps] * steps
        assert len(result.tokens) == 16 and max(result.tokens) < 8 and len(set(result.tokens)) > 2

    @pytest.mark.parametrize("order", DREAM[1:])
    def test_a_step_of_dreams_schedule_may_fill_nothing_and_is_charged(self, order: Order) -> None:
        """m (1 - s/t) of m = 4, 4, 3, 2 is 0.999, 1.33, 1.497 and all."""
        result = decoded(MaskedDiffusion(order, 4), 4)
        assert [(step.nfe, step.emitted) for step in result.steps] == [(2, 1), (1, 1), (1, 2)]

    def test_origin_fills_the_remaining_positions_in_the_last_pass(self) -> None:
        for seed in range(6):
            result = decoded(MaskedDiffusion("origin", 3), 8, seed=seed)
            assert len(result.tokens) == 8 and sum(step.nfe for step in result.steps) <= 3

    def test_blocks_are_filled_from_left_to_right(self) -> None:
        opened = partial(toys.opened, Sampling(1.0), model=table(vocabulary=9))
        steps = filled(MaskedDiffusion("random", 4, 4), opened(8))
        assert sorted(steps[0] + steps[1]) == [0, 1, 2, 3] and sorted(steps[2] + steps[3]) == [4, 5, 6, 7]
        assert filled(MaskedDiffusion(block=1), opened(5)) == [[0], [1], [2], [3], [4]]

    def test_greedy_tokens_do_not_depend_on_the_seed(self) -> None:
        method = MaskedDiffusion(steps=4)
        assert decoded(method, 16, 0.0, 1).tokens == decoded(method, 16, 0.0, 2).tokens
        assert decoded(method, 16, 1.0, 1).tokens != decoded(method, 16, 1.0, 2).tokens

    def test_dreams_schedule_by_hand(self) -> None:
        assert [unmasked_fraction(step, 4) for step in range(4)] == pytest.approx(
            [0.24975, 0.332889, 0.499001, 1.0], abs=1e-6
        )


class TestEdits:
    @pytest.mark.parametrize("edit", [0.0, 0.4, 1.0])
    @pytest.mark.parametrize("seed", range(3))
    def test_a_block_is_filled_and_edited_until_nothing_changes(self, edit: float, seed: int) -> None:
        """Greedy, by hand: masks as threshold, filled tokens become the argmax if it has more than ``edit``."""
        model = table(vocabulary=4, seed=seed)
        canvas, passes, spare, edited = [0, 1, 3, 3, 3, 3], 0, 16, 0
        while 3 in canvas or spare:
            masked = [place for place in range(2, 6) if canvas[place] == 3]
            spare, passes = spare - (not masked), passes + 1
            p, best = rows_of(model, tuple(canvas)).softmax(-1).max(-1)
            sure = [place for place in masked if p[place] >= 0.5] or sorted(masked, key=lambda place: -p[place])[:1]
            edits = [i for i in range(2, 6) if i not in masked and best[i] != canvas[i] and p[i] > edit]
            edited += len(edits)
            for place in sure + edits:
                canvas[place] = int(best[place])
            if not sure + edits:
                break
        method = MaskedDiffusion(rule="joint", edit=edit)
        result = decoded_by(model, method, 4)
        assert result.tokens == tuple(canvas[2:])
        assert [(step.nfe, step.emitted) for step in result.steps] == [(passes, 4)]
        assert (edited == 0) == (edit == 1)

    def test_edits_end_with_their_passes_and_stay_in_their_block(self) -> None:
        model = table(vocabulary=4, seed=1)
        for edits in (0, 1, 3):
            steps = decoded_by(model, MaskedDiffusion(rule="joint:0", block=2, edits=edits), 6).steps
            assert [step.emitted for step in steps] == [2, 2, 2]
            assert all(1 <= step.nfe <= 1 + edits for step in steps)
        assert max(step.nfe for step in steps) == 4, "two tokens that change each other do so until the passes end"


class TestCaches:
    @pytest.mark.usefixtures("unchecked")
    @pytest.mark.parametrize(
        ("rule", "case"),
        [
            *((rule, BLOCKS) for rule in ("threshold:0.6", "factor:1.5", "static:2", "joint:0.6")),
            ("static:2", replace(BLOCKS, block=3, prompt=(0,))),
            ("static:2", T1),
        ],
        ids=str,
    )
    def test_entries_of_full_blocks_change_nothing_on_a_model_of_blocks(self, rule: str, case: Case) -> None:
        """A model without blocks has one, which is never full, so that nothing is reused."""
        laws = [method_law(MaskedDiffusion(rule=rule, cache=cache), case) for cache in ("none", "blocks")]
        assert total_variation(*laws) < 1e-12 and len(laws[0]) > 1

    @pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
    @pytest.mark.parametrize("seed", range(3))
    def test_a_later_pass_of_a_block_attends_to_the_entries_of_the_first(self, cache: str, seed: int) -> None:
        """Greedy, two tokens a pass, by hand: the entry at each place hashes those that it attended to."""
        model = table(vocabulary=5, seed=seed)
        canvas, entries, passes = [0, 1, *[4] * 8], dict[int, int](), []
        for begin in (2, 2, 6, 6):
            fresh = cache == "none" or begin + 3 not in entries or canvas[begin : begin + 4].count(4) == 4
            seen = range(0 if fresh else begin - 1, begin + 4 if cache == "dual" and not fresh else 10)
            leaves = {place: mix(canvas[place], place, 0) if place in seen else entries[place] for place in range(10)}
            total = sum(leaves.values())
            rest = {place: (total - leaves[place]) % 2**64 for place in seen}
            entries |= {place: mix(canvas[place], place, rest[place]) for place in seen}
            passes.append(len(seen))
            masked = [place for place in range(begin, begin + 4) if canvas[place] == 4]
            p, best = torch.stack([model.row(entries[place]) for place in masked]).softmax(-1).max(-1)
            for index in p.sort(descending=True, stable=True).indices[:2].tolist():
                canvas[masked[index]] = int(best[index])
        result = decoded_by(model, MaskedDiffusion(steps=4, block=4, cache=cache), 8)  # type: ignore[arg-type]
        assert (result.tokens, [step.rows for step in result.steps]) == (tuple(canvas[2:]), passes)
        assert passes == {"none": [10] * 4, "prefix": [10, 9, 10, 5], "dual": [10, 5, 10, 5]}[cache]


def decoded_by(model: MaskedTabular, method: MaskedDiffusion, length: int) -> Decode:
    return toys.decoded(method, Sampling(0.0), length, model=model)


class Ending(MaskedTabular):
    """Id 0 ends the text and id 1 a turn, as LLaDA's."""

    def __init__(self, name: str, params: Mapping[str, Any]) -> None:
        super().__init__(name, params)
        self.capabilities = replace(self.capabilities, eos=frozenset({0, 1}), turn_ends=frozenset({1}))


ENDING = Ending("masked_tabular", {"vocabulary": 4, "context": 99})


def greedy(method: MaskedDiffusion) -> tuple[Ids, int]:
    """Four tokens, and the passes that they took."""
    result = decoded_by(ENDING, method, 4)
    return result.tokens, sum(step.nfe for step in result.steps)


class TestSwitchesOfLLaDA:
    """generate.py of ML-GSAI/LLaDA at b7e6c35, one token a step, by hand."""

    def by_hand(self, without: Sequence[int] = (), last: Sequence[int] = (), scale: float = 0.0) -> Ids:
        canvas = [0, 1, 3, 3, 3, 3]
        while 3 in canvas[2:]:
            logits = rows_of(ENDING, tuple(canvas))
            if scale:
                blank = rows_of(ENDING, (3, 3, *canvas[2:]))
                logits = blank + (scale + 1) * (logits - blank)
                logits[:, 3] = float("-inf")
            logits[:, list(without)] = float("-inf")
            x = logits.argmax(-1)
            logits[:, list(last)] = float("-inf")
            masked = [place for place in range(2, 6) if canvas[place] == 3]
            best = max(masked, key=lambda place: float(logits[place].softmax(-1)[x[place]]))
            canvas[best] = int(x[best])
        return tuple(canvas[2:])

    def test_the_end_of_text_has_no_probability(self) -> None:
        tokens, passes = greedy(MaskedDiffusion(logits_eos_inf=True))
        assert (tokens, passes) == (self.by_hand(without=[0]), 4) and 0 not in tokens
        assert 0 in self.by_hand() or 1 in self.by_hand()

    def test_ends_have_no_confidence(self) -> None:
        assert greedy(MaskedDiffusion(confidence_eos_eot_inf=True)) == (self.by_hand(last=[0, 1]), 4)

    def test_guidance_reads_the_prompt_as_masks_in_a_second_pass(self) -> None:
        assert greedy(MaskedDiffusion(cfg_scale=2.0)) == (self.by_hand(scale=2.0), 8)


class TestConfidence:
    LOGITS = torch.tensor([[0.0, 2.0, 1.0], [1.0, 1.0, 0.0]]).double()
    X = torch.tensor([2, 0])

    @pytest.mark.parametrize(
        ("order", "temperature", "expected"),
        [
            ("low_confidence", 0.5, [0.244728, 0.422319]),
            ("maskgit_plus", 0.0, [0.244728, 0.422319]),
            ("maskgit_plus", 0.5, [0.117310, 0.468310]),
            ("topk_margin", 0.0, [0.420512, 0.0]),
            ("entropy", 1.0, [-0.832396, -1.017357]),
        ],
    )
    def test_by_hand(self, order: Order, temperature: float, expected: list[float]) -> None:
        confidences = confidence(order, self.LOGITS, self.X, Sampling(temperature))
        assert confidences.tolist() == pytest.approx(expected, abs=1e-5)

    @pytest.mark.parametrize(
        ("rule", "bound", "confidences", "count"),
        [
            ("threshold", 0.8, (0.9, 0.8, 0.7), 2),
            ("threshold", 0.95, (0.9, 0.8, 0.7), 1),
            ("factor", 1.0, (0.9, 0.8, 0.7), 2),  # 2 x 0.1, 3 x 0.2, 4 x 0.3
            ("factor", 1.3, (0.9, 0.8, 0.7), 3),
            ("factor", 0.7, (0.9, 0.85, 0.85), 3),  # 2 x 0.1, 3 x 0.15, 4 x 0.15
            ("factor", 0.1, (0.9, 0.8, 0.7), 1),
            ("entropy", 0.5, (-0.2, -0.3, -0.4), 3),  # 0, 0.2 and 0.5 before them
            ("entropy", 0.45, (-0.2, -0.3, -0.4), 2),
            ("entropy", 0.0, (-0.2, -0.3, -0.4), 1),
            ("static", 2.0, (0.9, 0.2, 0.1), 2),
            ("static", 9.0, (0.9, 0.2, 0.1), 3),
            ("joint", 0.8, (0.9, 0.8, 0.7), 2),
        ],
    )
    def test_positions_that_a_rule_fills_by_hand(
        self, rule: str, bound: float, confidences: tuple[float, ...], count: int
    ) -> None:
        assert filled_by_rule(rule, bound, torch.tensor(confidences, dtype=torch.float64)) == count

    def test_the_entropies_before_a_position_do_not_round(self) -> None:
        """1e-9 + 0.5 - 0.5 is 0 in fp32, and would fill the second position too."""
        assert filled_by_rule("entropy", 0.0, torch.tensor([-1e-9, -0.5])) == 1
        assert filled_by_rule("entropy", 0.0, torch.tensor([-0.0, -0.5])) == 2

    def test_ties_go_to_the_first_position(self) -> None:
        draws = SeededDraws(0, "t", "p", 0)
        assert most_confident(torch.tensor([0.1, 0.4, 0.4, 0.2]), 3, 0.0, draws).tolist() == [1, 2, 3]


class TestCanvas:
    def test_a_block_is_a_part_of_a_models_block_and_guidance_reads_whole_ones(self) -> None:
        run = toys.opened(Sampling(1.0), 7, (0, 1, 0), model=table(vocabulary=3, block=4))
        method = MaskedDiffusion(rule="static:9", block=3, cfg_scale=1.0)
        assert filled(method, run) == [[0], [1, 2, 3], [4], [5, 6]]
        sizes = [len(read.positions) for read in run.canvas.history if isinstance(read, Read)]
        assert sizes == [4, 4, 8, 8, 8, 8, 10, 10]

    def test_a_recomputed_entry_attends_to_the_stored_entries(self) -> None:
        model = MaskedTabular("masked_tabular", {"vocabulary": 4})
        target = Canvas(model.cache(), model.capabilities, (0, 1), length=2, stopwatch=Stopwatch(CpuClock()))
        rows = target.read(torch.tensor([0, 1, 3, 3]), range(4), "all")
        assert rows.equal(rows_of(model, (0, 1, 3, 3)))
        leaves = [mix(token, place, 0) for place, token in enumerate((0, 1, 3, 3))]
        stale = [mix(t, place, (sum(leaves) - leaves[place]) % 2**64) for place, t in enumerate((0, 1, 3, 3))]
        again = target.read(torch.tensor([2]), [2], "all")
        assert again[0].equal(model.row(mix(2, 2, (stale[0] + stale[1] + stale[3]) % 2**64)))
        assert target.read(torch.tensor([0, 1, 2, 3]), range(4), "all", rows=1).shape == (1, 4)
        assert (target.passes, target.rows) == (3, 9)

    @pytest.mark.parametrize("positions", [[1, 2], [0, 1, 2, 4]])
    def test_positions_outside_the_canvas_are_refused(self, positions: list[int]) -> None:
        model = MaskedTabular("masked_tabular", {})
        target = Canvas(model.cache(), model.capabilities, (0, 1), length=2, stopwatch=Stopwatch(CpuClock()))
        with pytest.raises(ContractError, match="the first begins at 0, nothing being read before; all end at 3"):
            target.read(torch.zeros(len(positions), dtype=torch.long), positions, "all")


class TestBadInput:
    @pytest.mark.parametrize(
        ("steps", "block", "message"),
        [
            (5, 0, r"5 steps do not divide the canvas of 8 positions in 1 block"),
            (16, 0, r"16 steps do not divide the canvas of 8 positions"),
            (2, 2, r"2 steps do not divide the canvas of 8 positions in 4 block"),
            (4, 3, r"blocks of 3 do not divide the canvas of 8 positions"),
        ],
    )
    def test_steps_and_blocks_that_do_not_divide_it(self, steps: int, block: int, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            decoded(MaskedDiffusion(steps=steps, block=block), 8)

    def test_a_toy_with_fewer_than_three_ids_is_refused(self) -> None:
        with pytest.raises(
            UsageError,
            match="a vocabulary of 2; it has vocabulary, seed, context, sharpness, grid, block, eos, noise, of 3 ids",
        ):
            MaskedTabular("masked_tabular", {"vocabulary": 2})


def test_a_run_pairs_with_one_token_a_step_and_skips_causal_methods(tmp_path: Path) -> None:
    settings = {
        "methods": [{"name": "masked_diffusion", "order": "random", "steps": 4}, "sjd"],
        "backbones": ["masked-tabular", "tabular"],
        "tasks": [{"name": "tabular", "limit": 2, "vocabulary": 2}],
    }
    plan = expand(resolve({**settings, "max_new_tokens": 8, "temperature": [1.0], "prove": False}, Lines("test", None)))
    why = {(cell.label.split()[0], cell.backbone): cell.skip for cell in plan.cells if cell.role == "method"}
    reason = "the backbone is a masked model, whose rows give no distribution of a next token"
    assert why["sjd", "masked-tabular"] == reason
    assert "BIDIRECTIONAL" in (why["masked_diffusion", "tabular"] or "") and why["sjd", "tabular"] is None
    store = Store.create(tmp_path / "run", {**plan.manifest(), "provenance": {}})
    serial(plan, store, Options())
    cells = [store.cell(name) for name in store.cells()]
    four_steps = next(cell for cell in cells if cell.meta.label.startswith("masked_diffusion order"))
    one_token = next(cell for cell in cells if cell.meta.cell == four_steps.meta.baseline)
    assert one_token.meta.method == "masked_diffusion" and one_token.meta.params["steps"] == 0
    for cell, passes in ((four_steps, 4), (one_token, 8)):
        counted = cell.steps[~cell.steps["warmup"].astype(bool)]
        assert set(cell.samples["status"]) == {"ok"} and counted.groupby("prompt")["nfe"].sum().tolist() == [passes] * 2
