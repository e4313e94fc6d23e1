"""A canvas in any order: what an entry attends to, what is replaced, what is counted, and what the loop outputs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stridebench.harness.backbones.slots.guided import GridGrammar, GuidedCache
from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.backbones.toy import Tabular, mix
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.capabilities import Capabilities, Grid, Requirement
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.draft import Fill
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run, open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.session import Session
from stridebench.harness.errors import ContractError
from stridebench.harness.proof.enumerate import freeze
from stridebench.harness.record.columns import check

MODEL = Tabular("tabular", {"vocabulary": 4, "context": 40})
PROMPT = (0, 2, 1)
P, LENGTH = len(PROMPT), 8
SCALE = 2.5


def canvas(
    cache: Cache | None = None, prompt: Sequence[int] = PROMPT, capabilities: Capabilities = MODEL.capabilities
) -> Canvas:
    cache = MODEL.cache() if cache is None else cache
    return Canvas(cache, capabilities, prompt, length=LENGTH, stopwatch=Stopwatch(CpuClock()))


def read(target: Canvas, *pairs: tuple[int, int]) -> Tensor:
    """Pairs of position and token."""
    return target.read(torch.tensor([token for _, token in pairs], dtype=torch.long), [place for place, _ in pairs])


def fill(*pairs: tuple[int, int]) -> Fill:
    return Fill(torch.tensor([place for place, _ in pairs]), torch.tensor([token for _, token in pairs]))


@dataclass
class ByHand:
    """The rule in words, without windows, masks or caches: an entry is mixed from those at smaller positions."""

    prompt: Sequence[int]
    shift: int = 0
    entries: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.read(list(enumerate(self.prompt[:-1], -self.shift)))

    def read(self, pairs: Sequence[tuple[int, int]]) -> list[Tensor]:
        for place, _ in pairs:
            self.entries.pop(place, None)
        for place, token in sorted(pairs):
            attended = sum(entry for other, entry in self.entries.items() if other < place) % 2**64
            self.entries[place] = mix(token, place + self.shift, attended)
        return [MODEL.row(self.entries[place]) for place, _ in sorted(pairs)]


PASSES = st.lists(
    st.dictionaries(st.integers(P, P + LENGTH - 1), st.integers(0, 3), min_size=1, max_size=4), max_size=7
)


class TestAttention:
    @settings(max_examples=30)
    @given(passes=PASSES, first=st.dictionaries(st.integers(P, P + 5), st.integers(0, 3), max_size=3))
    def test_any_history_gives_the_rows_of_the_rule_done_by_hand(
        self, passes: list[dict[int, int]], first: dict[int, int]
    ) -> None:
        target, reference = canvas(), ByHand(PROMPT)
        for pairs in [{P - 1: PROMPT[-1], **first}, *passes]:
            given_pairs = sorted(pairs.items())
            twin = copy.deepcopy(target)
            rows = read(target, *given_pairs)
            assert torch.equal(rows, torch.stack(reference.read(given_pairs)))
            assert torch.equal(read(twin, *given_pairs), rows), "a copy shares entries"
            assert target.cache_state == sorted((place, e) for place, e in reference.entries.items() if place >= P - 1)

    @settings(max_examples=20)
    @given(passes=PASSES, negative=st.lists(st.integers(0, 3), min_size=1, max_size=5))
    def test_guidance_does_the_same_in_both_branches(self, passes: list[dict[int, int]], negative: list[int]) -> None:
        cache = GuidedCache(MODEL.cache(), P, scale=SCALE, unconditional=MODEL.cache(), negative=negative)
        target, reference, negative_reference = canvas(cache), ByHand(PROMPT), ByHand(negative, len(negative) - P)
        read(target, (P - 1, PROMPT[-1]))
        reference.read([(P - 1, PROMPT[-1])])
        negative_reference.read([(P - 1, negative[-1])])
        for pairs in passes:
            rows = read(target, *sorted(pairs.items()))
            conditional, free = (
                torch.stack(side.read(sorted(pairs.items()))) for side in (reference, negative_reference)
            )
            torch.testing.assert_close(rows, free + SCALE * (conditional - free), rtol=0, atol=1e-12)

    def test_in_raster_order_a_canvas_is_a_session_without_a_mask(self) -> None:
        windows: list[Window] = []

        class Watching(Cache):
            inner = MODEL.cache()

            def extend(self, window: Window) -> Rows:
                windows.append(window)
                return self.inner.extend(window)

            def keep(self, length: int, entries: Sequence[int] = ()) -> None:
                pytest.fail("nothing was replaced")

        target = canvas(Watching())
        target.prefill()
        target.prefill()
        rows = torch.cat([read(target, (P - 1, 1)), read(target, (P, 3), (P + 1, 0))])
        session = Session(MODEL.cache(), MODEL.capabilities, [*PROMPT, 3, 0], stopwatch=Stopwatch(CpuClock()))
        assert torch.equal(rows[-1], session.forward()[0])
        assert [(len(w.tokens), w.rows, w.sees is None) for w in windows] == [(2, 0, True), (1, 1, True), (2, 2, True)]
        assert (target.passes, target.rows) == (2, 3), "the prefill is not a pass"
        read(target, (P + 4, 1))
        assert windows[-1].sees is None, "a skipped position needs no mask for those in order"


def test_a_replaced_entry_leaves_no_trace_in_a_real_net_under_guidance_and_a_grammar() -> None:
    """Read ahead at position P + 3, then replaced: the rows are those of plain decoding, forced ends included."""
    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    rest = {"num_attention_heads": 4, "max_position_embeddings": 48, "initializer_range": 0.3, "bos_token_id": None}
    source = {"random": {"model_type": "llama", "config": {**sizes, **rest}, "seed": 4}}
    net = HFCausal.load("tiny", {"source": source}, "fp32", "cpu")
    grammar = GridGrammar(Grid(2, 3, eol=39), torch.arange(40) < 30)

    def cache() -> Cache:
        caches = net.cache(), net.cache()
        return GuidedCache(caches[0], P, scale=3.0, unconditional=caches[1], negative=[38, 31], grammar=grammar)

    tokens = [*PROMPT, 5, 9, 22, 39, 7, 19]
    plain = [Session(cache(), net.capabilities, tokens[: P + n], stopwatch=Stopwatch(CpuClock())) for n in range(7)]
    expected = [one.forward()[0] for one in plain]
    target = canvas(cache(), capabilities=net.capabilities)
    first = read(target, (P - 1, 1), (P + 3, 17))
    rows = [first[0], *read(target, (P, 5), (P + 1, 9)), *read(target, (P + 2, 22)), *read(target, (P + 3, 39))]
    rows += [*read(target, (P + 4, 7), (P + 5, 19))]
    for row, expected_row in zip(rows, expected, strict=True):
        torch.testing.assert_close(row, expected_row, rtol=0, atol=1e-4)
    assert [int(row.isfinite().sum()) for row in rows] == [30, 30, 30, 1, 30, 30, 30]
    assert len(first) == 2 and not torch.allclose(first[1], rows[4], atol=1e-2, equal_nan=True)


class TestBadInput:
    @pytest.mark.parametrize(
        ("before", "pairs", "message"),
        [
            ((), (), "at least one"),
            ((), ((P, 1),), "the first pass begins with the prompt's last token, at 2"),
            ((), ((P - 2, 1), (P - 1, 1)), "the first pass begins"),
            (((P - 1, 1),), ((P - 1, 1),), "no later one reads it"),
            (((P - 1, 1),), ((P + 1, 1), (P, 1)), "ascending"),
            (((P - 1, 1),), ((P, 1), (P, 2)), "ascending"),
            (((P - 1, 1),), ((P + LENGTH, 1),), f"from {P} to {P + LENGTH - 1}"),
        ],
    )
    def test_positions_out_of_order_or_range_are_refused(self, before: Any, pairs: Any, message: str) -> None:
        target = canvas()
        if before:
            read(target, *before)
        with pytest.raises(ContractError, match=message):
            read(target, *pairs)

    def test_a_pass_needs_as_many_tokens_as_positions(self) -> None:
        with pytest.raises(ContractError, match="a pass over 2 tokens at positions"):
            canvas().read(torch.tensor([1, 2]), [P - 1])

    @pytest.mark.parametrize(
        ("places", "message"),
        [
            ([P - 1], f"fills position {P - 1}; give those from {P} to {P + LENGTH - 1}"),
            ([P + LENGTH], f"fills position {P + LENGTH};"),
            ([P + 1, P], f"fills position {P};"),  # which is filled already
            ([P + 2, P + 2], f"fills position {P + 2};"),
            ([], "fills no position"),
        ],
    )
    def test_a_position_of_the_output_is_filled_once(self, places: list[int], message: str) -> None:
        target = canvas()
        target.fill(fill((P, 1)))
        with pytest.raises(ContractError, match=message):
            target.fill(Fill(torch.tensor(places, dtype=torch.long), torch.ones(len(places), dtype=torch.long)))

    @pytest.mark.parametrize("prompt", [(), (0,) * 33])
    def test_an_empty_or_long_prompt_is_refused(self, prompt: tuple[int, ...]) -> None:
        with pytest.raises(ContractError, match="both fit into the context of 40"):
            canvas(prompt=prompt)


@dataclass(frozen=True)
class Painter(Method[list[tuple[tuple[int, int], ...]]]):
    """Fills the scripted positions in each step, after ``passes`` passes."""

    script: tuple[tuple[tuple[int, int], ...], ...]
    passes: int = 1

    claim = Claim.APPROXIMATE
    requirements = frozenset({Requirement.ANY_ORDER})
    source = "this test"

    def start(self, run: Run) -> list[tuple[tuple[int, int], ...]]:
        return list(self.script)

    def step(self, run: Run, state: list[tuple[tuple[int, int], ...]]) -> Fill:
        first = not run.canvas.passes
        for number in range(self.passes):
            read(run.canvas, (P - 1, PROMPT[-1]) if first and not number else (P, 1))
        return fill(*state.pop(0))


def painted(*script: tuple[tuple[int, int], ...], budget: int = 5, passes: int = 1, **params: Any) -> Decode:
    model = Tabular("tabular", {"vocabulary": 4, "context": 40, **params})
    run = open_run(model, lambda name: model, PROMPT, Sampling(1.0), budget, SeededDraws(0, "t", "p", 0))
    return decode(Painter(script, passes), run)


SCRIPT = (((P + 4, 3),), ((P + 1, 2), (P, 1)), ((P + 3, 0), (P + 2, 3)))


class TestInTheLoop:
    def test_the_output_is_in_raster_order_and_every_step_counts_what_it_filled(self) -> None:
        result = painted(*SCRIPT, grid=(2, 2, 3))
        assert result.tokens == (1, 2, 3, 0, 3)
        facts = [(s.nfe, s.rows, s.emitted, s.forced, s.overshoot, s.drafted, s.accepted) for s in result.steps]
        assert facts == [(1, 1, 1, 0, 0, 0, 0), (1, 1, 2, 0, 0, 0, 0), (1, 1, 2, 1, 0, 0, 0)]
        assert all(step.target_ns > 0 and step.tested == step.forced_drafted == 0 for step in result.steps)
        check(result.steps, 5)

    def test_two_passes_a_step_are_counted_as_two(self) -> None:
        assert [step.nfe for step in painted(*SCRIPT, passes=2).steps] == [2, 2, 2]

    def test_an_end_of_text_token_does_not_end_a_canvas(self) -> None:
        assert painted(*SCRIPT, eos=(3,)).tokens == (1, 2, 3, 0, 3)

    def test_the_context_limits_a_larger_budget(self) -> None:
        assert painted(*SCRIPT, budget=99, context=P + 5).tokens == (1, 2, 3, 0, 3)

    @pytest.mark.parametrize(
        ("script", "passes", "message"),
        [
            (((P, 1),), 0, "made no target pass; .* or run.canvas.read"),
            (((P, 9),), 1, r"emitted \(9,\), outside the vocabulary of 4"),
        ],
    )
    def test_a_step_that_breaks_the_contract_is_refused(self, script: Any, passes: int, message: str) -> None:
        with pytest.raises(ContractError, match=message):
            painted(script, passes=passes)


class TestEnumeration:
    def test_equal_contents_merge_whatever_their_order_in_the_cache(self) -> None:
        """In both, P + 1 attended to P; their caches hold the two entries in opposite order."""
        one, other, third = canvas(), canvas(), canvas()
        for target in (one, other, third):
            read(target, (P - 1, 1))
        read(one, (P, 2))
        read(one, (P + 1, 3))
        read(other, (P, 2))
        read(other, (P + 1, 3))
        read(other, (P, 2))
        read(third, (P + 1, 3))
        read(third, (P, 2))
        assert freeze(one) == freeze(other) != freeze(third), "in the third P + 1 was read before P"
        one.fill(fill((P, 2)))
        assert freeze(one) != freeze(other)


class TestRewrite:
    def test_positions_from_the_first_change_on_are_read_again(self) -> None:
        """Entries before it stay; a pass over the returned positions gives the rows of a fresh canvas."""
        target, fresh = canvas(), canvas()
        assert target.rewrite([]) == [P - 1]
        read(target, (P - 1, PROMPT[-1]), (P, 1), (P + 1, 2), (P + 2, 3), (P + 4, 0))
        assert target.rewrite([1, 2, 3]) == [P, P + 1, P + 2], "nothing was filled yet"
        read(target, (P, 1), (P + 1, 2), (P + 2, 3))
        places = target.rewrite([1, 0, 3, 2])
        assert places == [P + 1, P + 2, P + 3] and target.output == (1, 0, 3, 2)
        rows = read(target, *((place, target.tokens[place]) for place in places))
        expected = read(fresh, (P - 1, PROMPT[-1]), (P, 1), (P + 1, 0), (P + 2, 3), (P + 3, 2))
        assert torch.equal(rows, expected[2:]) and target.cache_state == fresh.cache_state

    def test_the_last_position_is_read_again_for_the_distribution_after_it(self) -> None:
        target = canvas()
        target.rewrite([1, 2])
        read(target, (P - 1, PROMPT[-1]), (P, 1), (P + 1, 2), (P + 2, 3))
        assert target.rewrite([1, 2]) == [P + 1] and target.output == (1, 2)
        assert target.rewrite([1]) == [P] and target.output == (1,)
