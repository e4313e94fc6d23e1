"""Masked diffusion: distributions by hand, the cost of few steps, passes, blocks, injected bugs, a whole run."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.masked_toy import MaskedTabular
from stridebench.harness.backbones.toy import HashCache, mix
from stridebench.harness.core.cache import Rows, Window
from stridebench.harness.core.canvas import Canvas, Read
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, advance, decode
from stridebench.harness.core.method import Claim, Mutant, label
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.errors import ContractError, UsageError
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.resolve import resolve
from stridebench.harness.plan.yaml_lines import Lines
from stridebench.harness.proof.cases import MASKED_CASES, Case, cases_of
from stridebench.harness.proof.distance import distance, method_law, total_variation
from stridebench.harness.proof.enumerate import Law
from stridebench.harness.proof.mutants import injected
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


def decoded(method: MaskedDiffusion, length: int, temperature: float = 1.0, seed: int = 0) -> Decode:
    model = MaskedTabular("masked_tabular", {"vocabulary": 9, "context": 99})
    draws = SeededDraws(seed, "t", "p", 0)
    return decode(method, open_run(model, lambda name: model, (0, 1), Sampling(temperature), length, draws))


def filled(method: MaskedDiffusion, length: int) -> list[list[int]]:
    """Positions filled by each step, from 0."""
    model = MaskedTabular("masked_tabular", {"vocabulary": 9, "context": 99})
    run = open_run(model, lambda name: model, (0, 1), Sampling(1.0), length, SeededDraws(0, "t", "p", 0))
    state, steps = method.start(run), []
    while run.room:
        places = advance(method, run, state).places
        steps.append([place - 2 for place in places])
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

    @pytest.mark.parametrize("order", LLADA)
    def test_as_many_steps_as_positions_are_one_token_a_step(self, order: Order) -> None:
        assert cost(MaskedDiffusion(order, steps=4)) < 1e-12

    @pytest.mark.parametrize("order", (*LLADA, *DREAM))
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
            (
                "low_confidence",
                ("threshold:1.1", "threshold:0.7", "threshold:0.5", "threshold:0"),
                (0.091333, 0.222521),
            ),
            ("low_confidence", ("factor:0", "factor:0.8", "factor:1.2", "factor:9"), (0.450228, 0.103209)),
            ("low_confidence", ("static:1", "static:2", "static:3", "static:4"), (0.499422, 0.135196)),
            ("entropy", ("entropy:0", "entropy:0.8", "entropy:1.5", "entropy:9"), (0.692667, 0.24576)),
        ],
    )
    def test_the_cost_of_rules_from_one_token_a_pass_to_all_at_once(
        self, order: Order, rules: tuple[str, ...], costs: tuple[float, ...]
    ) -> None:
        """Total variation to one token a pass, pinned; the last rule fills everything in one pass."""
        measured = [cost(MaskedDiffusion(order, rule=rule)) for rule in rules]
        assert measured[0] < 1e-12 and measured[-1] == pytest.approx(cost(MaskedDiffusion(order, steps=1)), abs=1e-12)
        assert measured[1:3] == pytest.approx(costs, abs=1e-6)

    @pytest.mark.parametrize("case", MASKED_CASES, ids=str)
    @pytest.mark.parametrize("rule", ["threshold:1", "factor:0", "static:1", "joint:1", "entropy:0"])
    def test_a_rule_at_its_limit_is_its_one_token_reference(self, rule: str, case: Case) -> None:
        """Gamma = 0 fills two positions if a cut leaves one of them no entropy, which only the last case has."""
        order: Order = "entropy" if rule == "entropy:0" else "low_confidence"
        method = MaskedDiffusion(order, rule=rule, edit=1.0 if rule == "joint:1" else 0.0)
        shorter = replace(case, length=3) if rule == "joint:1" else case  # whose step has all outcomes of a block
        assert (cost(method, shorter) < 1e-12) != (rule == "entropy:0" and case == TOP_P)

    def test_only_one_token_a_pass_claims_to_be_the_reference(self) -> None:
        exact = [label(method) for method in MaskedDiffusion.variants() if method.claim is Claim.SAME_LAW]
        assert [name.partition("rule=")[2] for name in exact] == [
            "static:1",
            "factor:0",
            "threshold:1.1",
            "joint:1.1 edit=1",
            "static:1 cache=blocks",
        ]
        for other in (MaskedDiffusion(), MaskedDiffusion(rule="static:1", block=2), MaskedDiffusion(rule="joint:1.1")):
            assert other.claim is Claim.APPROXIMATE

    def test_the_choice_at_an_alg_temp_of_zero_is_its_limit(self) -> None:
        cold, none = MaskedDiffusion("entropy", 2, alg_temp=1e-4), MaskedDiffusion("entropy", 2)
        assert total_variation(method_law(cold, T1), method_law(none, T1)) < 1e-12
        assert total_variation(method_law(MaskedDiffusion("entropy", 2, alg_temp=1.0), T1), method_law(none, T1)) > 1e-3

    @pytest.mark.parametrize(
        ("where", "old", "new", "method"),
        [
            (
                "stridebench.harness.core.canvas:Canvas.read",
                "order <= order[cached:, None]",
                "(order <= order[cached:, None]) & (places < self.end - 1)",
                "random",
            ),
            ("stridebench.harness.core.canvas:Canvas.read", "self._drop(frozenset(positions))", "None", "random"),
            (
                "stridebench.methods.masked_diffusion:MaskedDiffusion._read",
                "placed[i] for i in seen",
                "mask for i in seen",
                "random",
            ),
            (
                "stridebench.methods.masked_diffusion:MaskedDiffusion._block",
                "min(begin + size, whole.stop)",
                "min(begin + 2 * size, whole.stop)",
                "blocks",
            ),
            ("stridebench.methods.masked_diffusion:MaskedDiffusion._count", "length // self.steps", "1", "random"),
            (
                "stridebench.methods.masked_diffusion:confidence",
                "softmax(-1).gather(1, x[:, None])[:, 0]",
                "amax(-1)",
                "llada",
            ),
            ("stridebench.methods.masked_diffusion:most_confident", "descending=True", "descending=False", "entropy"),
            ("stridebench.methods.masked_diffusion:unmasked_fraction", "else 1 - s / t", "else s / t", "origin"),
        ],
    )
    def test_injected_bugs_change_it(self, where: str, old: str, new: str, method: str) -> None:
        settings = {
            "blocks": MaskedDiffusion("random", 2, 2),
            "llada": MaskedDiffusion(steps=2),
            "random": MaskedDiffusion("random", 2),
            "entropy": MaskedDiffusion("entropy", 2),
            "origin": MaskedDiffusion("origin", 3),
        }[method]
        clean = method_law(settings, T1)
        with injected(Mutant(where, old, new, "a bug")):
            try:
                assert total_variation(method_law(settings, T1), clean) > 1e-3
            except ContractError as error:
                assert "do not fit" in str(error), "stale entries pile up until the context is full"

    def test_variants_have_labels_of_their_own_and_a_cost(self) -> None:
        assert len({label(method) for method in MaskedDiffusion.variants()}) == len(MaskedDiffusion.variants())
        approximate = [method for method in MaskedDiffusion.variants() if method.claim is Claim.APPROXIMATE]
        assert all(cost(method) > 1e-3 for method in approximate)
        assert cases_of(MaskedDiffusion()) == MASKED_CASES and all(case.masked for case in MASKED_CASES)


WORDS = list(itertools.product(range(2), repeat=4))


class TestSteps:
    @pytest.mark.parametrize("order", LLADA)
    @pytest.mark.parametrize("steps", [1, 2, 4, 8, 16])
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
        steps = filled(MaskedDiffusion("random", 4, 4), 8)
        assert sorted(steps[0] + steps[1]) == [0, 1, 2, 3] and sorted(steps[2] + steps[3]) == [4, 5, 6, 7]
        assert filled(MaskedDiffusion(block=1), 5) == [[0], [1], [2], [3], [4]]

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
    @pytest.mark.parametrize("seed", range(6))
    def test_a_block_is_filled_and_edited_until_nothing_changes(self, edit: float, seed: int) -> None:
        """Greedy, by hand: masks as threshold, filled tokens become the argmax if it has more than ``edit``."""
        model = MaskedTabular("masked_tabular", {"vocabulary": 4, "context": 99, "seed": seed})
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
        assert (result.tokens, [(step.nfe, step.emitted) for step in result.steps]) == (
            tuple(canvas[2:]),
            [(passes, 4)],
        )
        assert (edited == 0) == (edit == 1)

    def test_edits_end_with_their_passes_and_stay_in_their_block(self) -> None:
        model = MaskedTabular("masked_tabular", {"vocabulary": 4, "context": 99, "seed": 1})
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
        model = MaskedTabular("masked_tabular", {"vocabulary": 5, "context": 99, "seed": seed})
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


class JointTable(MaskedTabular):
    """The conditionals of one random distribution of four tokens of three ids behind a prompt of two."""

    def __init__(self, seed: int, peak: float) -> None:
        super().__init__("masked_tabular", {"vocabulary": 4})
        logits = torch.randn(81, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        logits[seed % 81] += peak
        self.table = logits.softmax(0).view(3, 3, 3, 3)

    def cache(self) -> Any:
        return JointTableCache(self)


class JointTableCache(HashCache):
    """Reads whole canvases, which are all that its tests have."""

    def extend(self, window: Window) -> Rows:
        left, table = window.tokens[2:].tolist(), self.model.table  # type: ignore[attr-defined]
        chosen = torch.ones_like(table)
        for axis, token in enumerate(left):
            if token < 3:
                keep = torch.zeros(3, dtype=table.dtype).index_fill_(0, torch.tensor(token), 1.0)
                chosen = chosen * keep.view([3 if other == axis else 1 for other in range(4)])
        given = table * chosen / (table * chosen).sum()
        p = torch.stack([given.sum([other for other in range(4) if other != axis]) for axis in range(4)])
        self.entries = [*window.tokens.tolist()]
        return Rows(torch.cat([p.log(), torch.full((4, 1), float("-inf"))], 1)[-window.rows :])


class TestGreedyInParallel:
    """Wu et al. 2025, theorem 1: n tokens of confidence above 1 - 1/(n + 1) are those of greedy decoding one by one."""

    def test_tokens_that_all_pass_the_bound_are_those_of_one_by_one(self) -> None:
        at_once = different = 0
        for seed in range(40):
            model = JointTable(seed, peak=4.0 + seed % 5)
            reference = decoded_by(model, MaskedDiffusion(), 4).tokens
            sure = decoded_by(model, MaskedDiffusion(rule="factor:1"), 4)
            if len(sure.steps) == 1:
                at_once += 1
                assert sure.tokens == reference
            different += decoded_by(model, MaskedDiffusion(rule="factor:4"), 4).tokens != reference
        assert (at_once, different) == (20, 3), "the bound is met often, and a wider one is not enough"


def decoded_by(model: MaskedTabular, method: MaskedDiffusion, length: int) -> Decode:
    draws = SeededDraws(0, "t", "p", 0)
    return decode(method, open_run(model, lambda name: model, (0, 1), Sampling(0.0), length, draws))


class Ending(MaskedTabular):
    """Id 0 ends the text and id 1 a turn, as LLaDA's."""

    def __init__(self, name: str, params: Mapping[str, Any]) -> None:
        super().__init__(name, params)
        self.capabilities = replace(self.capabilities, eos=frozenset({0, 1}), turn_ends=frozenset({1}))


def filled_by(method: MaskedDiffusion, length: int = 4) -> tuple[Ids, list[list[int]], int]:
    """Greedy tokens, the positions filled by each step from 0, and the passes."""
    model = Ending("masked_tabular", {"vocabulary": 4, "context": 99})
    run = open_run(model, lambda name: model, (0, 1), Sampling(0.0), length, SeededDraws(0, "t", "p", 0))
    state, steps = method.start(run), []
    while run.room:
        steps.append([place - 2 for place in advance(method, run, state).places])
    return run.canvas.output, steps, run.canvas.passes


class TestSwitchesOfLLaDA:
    """generate.py of ML-GSAI/LLaDA at b7e6c35, one token a step, by hand."""

    def by_hand(self, without: Sequence[int] = (), last: Sequence[int] = (), scale: float = 0.0) -> Ids:
        model = Ending("masked_tabular", {"vocabulary": 4, "context": 99})
        canvas = [0, 1, 3, 3, 3, 3]
        while 3 in canvas[2:]:
            logits = rows_of(model, tuple(canvas))
            if scale:
                blank = rows_of(model, (3, 3, *canvas[2:]))
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
        tokens, _, passes = filled_by(MaskedDiffusion(logits_eos_inf=True))
        assert (tokens, passes) == (self.by_hand(without=[0]), 4) and 0 not in tokens
        assert 0 in self.by_hand() or 1 in self.by_hand()

    def test_ends_have_no_confidence(self) -> None:
        tokens, _, _ = filled_by(MaskedDiffusion(confidence_eos_eot_inf=True))
        assert tokens == self.by_hand(last=[0, 1])
        with pytest.raises(UsageError, match="is of low_confidence; order is entropy"):
            MaskedDiffusion("entropy", confidence_eos_eot_inf=True)

    @pytest.mark.parametrize("scale", [0.5, 2.0])
    def test_guidance_reads_the_prompt_as_masks_in_a_second_pass(self, scale: float) -> None:
        tokens, _, passes = filled_by(MaskedDiffusion(cfg_scale=scale))
        assert (tokens, passes) == (self.by_hand(scale=scale), 8)


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
        model = MaskedTabular("masked_tabular", {"vocabulary": 3, "context": 99, "block": 4})
        method = MaskedDiffusion(rule="static:9", block=3, cfg_scale=1.0)
        draws = SeededDraws(0, "t", "p", 0)
        run = open_run(model, lambda name: model, (0, 1, 0), Sampling(1.0), 7, draws)
        state, places = method.start(run), []
        while run.room:
            places.append(advance(method, run, state).places)
        assert places == [(3,), (4, 5, 6), (7,), (8, 9)]
        assert [len(read.positions) for read in run.canvas.history if isinstance(read, Read)] == [
            4,
            4,
            8,
            8,
            8,
            8,
            10,
            10,
        ]

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

    def test_a_masked_model_refuses_causal_rows(self) -> None:
        model = MaskedTabular("masked_tabular", {})
        with pytest.raises(ContractError, match="a masked model gives no distribution of a next token"):
            model.cache().extend(Window(torch.tensor([0, 1]), torch.arange(2), 0, None, 1))


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
    def test_steps_and_blocks_that_do_not_divide_the_canvas_are_refused(
        self, steps: int, block: int, message: str
    ) -> None:
        with pytest.raises(UsageError, match=message):
            decoded(MaskedDiffusion(steps=steps, block=block), 8)

    @pytest.mark.parametrize(
        ("params", "message"),
        [
            ({"rule": "treshold:0.9"}, r"write one of threshold:0.9, factor:1, entropy:0.15, static:1, joint:0.5"),
            ({"rule": "static:0"}, r"or another number"),
            ({"rule": "static:1.5"}, r"or another number"),
            ({"edit": 0.5}, r"edit and edits are of rule joint; rule is ''"),
            ({"rule": "joint", "edit": 1.5}, r"edit is 1.5 and edits 16; give 0 to 1, and 0 or more"),
            ({"cache": "suffix"}, r"cache is 'suffix'; choose one of none, prefix, dual, blocks"),
            ({"cache": "dual", "cfg_scale": 1.0}, r"cache dual keeps one branch, and cfg_scale reads two"),
            ({"rule": "threshold:high"}, r"or another number"),
            ({"rule": "factor:-1"}, r"or another number"),
            ({"rule": "threshold:nan"}, r"or another number"),
            ({"rule": "entropy"}, r"rule entropy is of order entropy"),
            ({"rule": "threshold", "steps": 2}, r"without steps"),
        ],
    )
    @pytest.mark.usefixtures("unchecked")
    def test_a_rule_that_is_none_or_of_another_order_is_refused(self, params: dict[str, Any], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            MaskedDiffusion(**params)

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
