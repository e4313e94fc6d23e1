"""Captured passes give the tokens of plain ones, and the recorder refuses what a CUDA graph would get wrong."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.slots.graphs import ROWS, FixedSlots, Graphs, RecordedCapture
from stridebench.harness.backbones.slots.net import SlotInputs
from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.core.cache import Window
from stridebench.harness.core.loop import Decode
from stridebench.harness.errors import ContractError, GraphWarning
from stridebench.harness.registry import METHODS
from tests.support.decodes import decoded
from tests.support.tiny_text import SIZES, tiny

PROMPT = [3, 1, 4, 1, 5]
METHODS_TRIED: dict[str, dict[str, Any]] = {
    "autoregressive": {},
    "prompt_lookup": {"length": 3},
    "sjd": {"window": 5},
    "lookahead": {"ngram": 3, "window": 3, "guesses": 3},
    "specinfer": {"drafter": "self:layers=2", "widths": (2, 1)},
}


def tried(model: Any, name: str, temperature: float) -> Decode:
    drafter = model.variant({"layers": "2"})
    return decoded(
        METHODS.get(name)(**METHODS_TRIED[name]), model, PROMPT, 10, temperature=temperature, drafter=drafter
    )


@pytest.mark.parametrize(
    ("name", "forward"),
    [
        ("specinfer", "fused"),
        *(pytest.param(name, "fused", marks=pytest.mark.audit) for name in METHODS_TRIED if name != "specinfer"),
        *(pytest.param(name, "transformers", marks=pytest.mark.audit) for name in METHODS_TRIED),
    ],
)
def test_captured_passes_emit_the_tokens_of_plain_ones(name: str, forward: str) -> None:
    plain, captured = tiny(forward=forward), tiny(forward=forward)
    captured.use_graphs()
    for temperature in (0.0, 1.0):
        replayed, expected = (tried(model, name, temperature) for model in (captured, plain))
        assert replayed.tokens == expected.tokens
        assert [(step.rows, step.accepted) for step in replayed.steps] == [(s.rows, s.accepted) for s in expected.steps]


def test_logits_and_hidden_rows_are_those_of_plain_passes() -> None:
    plain, captured = tiny(), tiny()
    captured.use_graphs()
    sees = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)
    tokens = torch.tensor([7, 8, 9])
    windows = [
        Window(torch.tensor(PROMPT), torch.arange(5), 0, None, 0),
        Window(tokens, torch.arange(5, 8), 5, None, 2, taps=(0, 2, 3)),
        Window(tokens, torch.tensor([8, 8, 9]), 7, sees, 3, taps=(1,)),
    ]
    caches = captured.cache(), plain.cache()
    for window in windows:
        replayed, expected = (cache.extend(window) for cache in caches)
        torch.testing.assert_close(replayed.logits, expected.logits, rtol=0, atol=1e-12)
        if expected.hidden is not None:
            torch.testing.assert_close(replayed.hidden, expected.hidden, rtol=0, atol=1e-12)
    fixed = caches[0]._fixed
    assert fixed is not None
    assert [(shape.rows, shape.entries, shape.masked) for shape in fixed._passes] == [(4, 128, False), (4, 128, True)]


def test_the_next_sequence_replays_what_the_last_one_captured() -> None:
    model = tiny()
    model.use_graphs()
    first = tried(model, "autoregressive", 1.0)
    graphs: Any = model._graphs
    ((fixed,),) = graphs._free.values()
    again = tried(model, "autoregressive", 1.0)
    assert again.tokens == first.tokens
    assert graphs._free == {id(model._net): [fixed]}
    beside = model.cache(), model.cache()  # two at once have slots of their own
    assert beside[0]._fixed is not beside[1]._fixed


def test_a_window_above_the_largest_bucket_takes_the_plain_path_and_says_so_once() -> None:
    plain, captured = (tiny(config={"max_position_embeddings": 256}) for _ in range(2))
    captured.use_graphs()
    count = ROWS[-1] + 1
    window = Window(torch.arange(count) % 50, torch.arange(5, 5 + count), 5, None, count)
    caches = [model.cache() for model in (captured, plain)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            for cache in caches:
                cache.keep(0)
                cache.extend(Window(torch.tensor(PROMPT), torch.arange(5), 0, None, 0))
            ours, theirs = (cache.extend(window).logits for cache in caches)
            torch.testing.assert_close(ours, theirs)
            count += 1  # another window of the same kind is no news
            window = Window(torch.arange(count) % 50, torch.arange(5, 5 + count), 5, None, count)
    assert [str(one.message) for one in said if one.category is GraphWarning] == [
        "a window of 65 rows exceeds the largest captured one of 64; such passes are not captured, which is slower"
    ]


BUFFER, OTHER = torch.arange(8.0), torch.arange(8.0)


@pytest.mark.parametrize(
    "compute",
    [
        lambda call: BUFFER[call : call + 2] + 0,
        lambda call: BUFFER[:call] + 0,
        lambda call: BUFFER.clone() if call == 1 else OTHER.clone(),
        lambda call: BUFFER + 1 if call == 1 else (BUFFER + 1) * 2,
    ],
    ids=["number", "shape", "address", "more"],
)
def test_the_recorder_refuses_what_a_graph_would_get_wrong(compute: Callable[[int], Tensor]) -> None:
    calls = itertools.count(1)
    capture = RecordedCapture(lambda: (compute(next(calls)),))
    with pytest.raises(ContractError, match="captured pass"):
        capture.replay()


def test_the_recorder_refuses_a_pass_for_which_the_host_waits() -> None:
    with pytest.raises(ContractError, match="the host waits for"):
        RecordedCapture(lambda: (BUFFER * float(BUFFER[0]),))


def test_a_replay_writes_where_the_capture_wrote() -> None:
    buffer = torch.arange(4.0)
    capture = RecordedCapture(lambda: (buffer * 2,))
    (first,) = capture.replay()
    buffer += 1
    (second,) = capture.replay()
    assert second is first and second.tolist() == [2.0, 4.0, 6.0, 8.0]


def test_a_replay_keeps_the_types_that_operations_are_given_and_sees_other_ones() -> None:
    types = iter((torch.float64, torch.float64, torch.float32))
    capture = RecordedCapture(lambda: (torch.full((2,), 3.0, dtype=next(types)),))
    (filled,) = capture.replay()
    assert filled.dtype == torch.float64 and filled.tolist() == [3.0, 3.0]
    with pytest.raises(ContractError, match="operation 0 of a captured pass is"):
        capture.replay()


class Asked:
    """A net that writes tokens into its slots and keeps the mask of its passes; logits are token ids."""

    kind, layers = "asked", 2

    def __init__(self) -> None:
        self.passes: list[SimpleNamespace] = []

    def __call__(self, inputs: SlotInputs, rows: int) -> Tensor:
        keys = inputs.tokens.double().view(1, 1, -1, 1)
        for layer in inputs.slots:
            entries, values = layer.update(keys, -keys)
        self.passes.append(SimpleNamespace(rows=rows, mask=inputs.mask, entries=entries, values=values))
        return inputs.tokens.double()[len(keys[0, 0]) - rows :, None]

    def pick(self, layers: Any) -> Any:
        raise NotImplementedError


def slots(context: int, length: int) -> FixedSlots:
    """Slots in which so many entries were read, as a plain pass leaves them."""
    fixed = FixedSlots(Asked(), context, torch.zeros(0, dtype=torch.float64))
    for layer in fixed.slots.layers if length else ():
        layer.update(*(torch.arange(length).double().view(1, 1, -1, 1) for _ in range(2)))
    fixed.slots.length = length
    return fixed


@pytest.mark.parametrize(
    ("context", "length", "count", "shape"),
    [
        (2000, 5, 1, (1, 256)),
        (2000, 5, 3, (4, 256)),
        (2000, 5, 64, (64, 256)),
        (2000, 252, 4, (4, 256)),
        (2000, 253, 3, (4, 512)),
        (2000, 513, 1, (1, 1024)),
        (2000, 1500, 1, (1, 2048)),
        (1000, 600, 2, (2, 1024)),
        (900, 600, 2, (2, 964)),
        (20, 5, 2, (2, 84)),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_windows_have_the_shape_of_the_next_larger_capture(
    context: int, length: int, count: int, shape: tuple[int, int], masked: bool
) -> None:
    sees = torch.ones(count, count + 1, dtype=torch.bool) if masked else None
    window = Window(torch.zeros(count, dtype=torch.long), torch.arange(count), length - 1, sees, 1, taps=(1,))
    assert slots(context, length).shape(window) == (*shape, masked, (1,))


def test_prompts_gated_windows_and_those_with_features_have_no_shape() -> None:
    def window(count: int, rows: int, gate: Tensor | None = None) -> Window:
        return Window(torch.zeros(count, dtype=torch.long), torch.arange(count), 0, None, rows, gate=gate)

    fixed = slots(200, 5)
    assert fixed.shape(window(3, 0)) is slots(200, 0).shape(window(3, 1)) is None
    assert fixed.shape(window(3, 1, torch.ones(3, dtype=torch.bool))) is None
    reading = replace(window(3, 3), features=torch.zeros(3, 4))
    assert fixed.shape(reading) is None, "a captured pass would leave the earlier logits out"


@pytest.mark.parametrize("base", [None, 0, 1, 4])
def test_a_captured_pass_hides_free_entries_and_those_that_the_window_does_not_see(base: int | None) -> None:
    """Three rows in a bucket of four behind five entries; twice, so that nothing of the first pass is left."""
    fixed = slots(40, 5)
    for first in (5, 7):
        fixed.slots.length = first
        tokens = torch.tensor([21, 22, 23])
        sees = (
            None if base is None else torch.rand(3, first + 3 - base, generator=torch.Generator().manual_seed(2)) > 0.5
        )
        allowed = torch.zeros(3, 104, dtype=torch.bool)
        if base is None:
            allowed[:] = torch.arange(104) <= first + torch.arange(3)[:, None]
        else:
            assert sees is not None
            sees[torch.arange(3), first - base + torch.arange(3)] = True
            allowed[:, : max(base, 1)] = True
            allowed[:, base : first + 3] |= sees
            if not base:
                allowed[:, 0] = sees[:, 0]
        window = Window(tokens, torch.arange(first, first + 3), base or 0, sees, 2)
        shape = fixed.shape(window)
        assert shape is not None and not isinstance(shape, str)
        rows = fixed.run(shape, window)
        net = fixed._net
        assert isinstance(net, Asked)
        last = net.passes[-1]
        assert last.rows == 4 and rows.logits[:, 0].tolist() == [22, 23] and rows.hidden is None
        assert last.mask[:3].tolist() == torch.zeros(3, 104).masked_fill(~allowed, float("-inf")).tolist()
        assert (last.mask[3] == 0).any()  # a row of padding is never empty
        assert last.entries.shape[2] == last.mask.shape[1] == 104
        assert last.entries[0, 0, first : first + 3, 0].tolist() == [21, 22, 23]
        assert last.values[0, 0, first : first + 3, 0].tolist() == [-21, -22, -23]
        assert last.entries[0, 0, :5, 0].tolist() == [0, 1, 2, 3, 4]


def test_slots_come_back_when_their_sequence_is_over_and_are_lent_empty() -> None:
    graphs, net, owner = Graphs(40, torch.zeros(0)), Asked(), torch.zeros(1)
    first = graphs.lend(net, owner)
    first.slots.length = 7
    assert graphs.lend(net, torch.ones(1)) is not first
    del owner
    assert graphs.lend(Asked(), net) is not first
    again = graphs.lend(net, graphs)
    assert (again.slots.length, again.slots.context) == (0, 40)


@pytest.mark.gpu
def test_a_cuda_graph_emits_the_tokens_of_plain_passes() -> None:
    source = {"random": {"model_type": "llama", "config": SIZES, "seed": 1}}
    plain, captured = (HFCausal.load("tiny", {"source": source}, "fp32", "cuda") for _ in range(2))
    captured.use_graphs()
    for name in ("autoregressive", "sjd", "specinfer"):
        assert tried(captured, name, 1.0).tokens == tried(plain, name, 1.0).tokens
