"""What a model of transformers is given in a pass, what is asked of it first, and attention over several sequences."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PhiConfig,
    PreTrainedConfig,
    StableLmConfig,
)

from stridebench.harness.backbones.slots.cache import PackedLayer
from stridebench.harness.backbones.slots.net import (
    FIRST,
    SlotInputs,
    Slots,
    check_kept,
    check_window,
    near_mask,
    sliding_layers,
)
from stridebench.harness.backbones.slots.transformers_net import (
    NAME,
    TransformersNet,
    attend,
    honours_masks,
    packed_arguments,
    pick_layers,
    prepare,
    reads_chains,
)
from stridebench.harness.core.cache import Window
from stridebench.harness.errors import ContractError, UsageError
from tests.support.tiny_text import tiny

CPU, HIDDEN = torch.device("cpu"), float("-inf")


class Asked:
    """A model that keeps the arguments of its pass; logits are token ids, and the hidden rows of layer j are j."""

    dtype = torch.float64

    def __init__(self, kinds: list[str] | None = None, window: int | None = 4, cuts: bool = True) -> None:
        self.config = MistralConfig(layer_types=kinds, sliding_window=window, num_hidden_layers=3)
        self.forward = (lambda input_ids, logits_to_keep=0: None) if cuts else (lambda input_ids: None)

    def __call__(self, input_ids: Tensor, output_hidden_states: bool = False, **arguments: Any) -> Any:
        self.arguments = arguments
        logits = input_ids.double()[..., None][:, -arguments.get("logits_to_keep", 0) :]
        hidden = [torch.full((*input_ids.shape, 2), float(j)) for j in range(4)] if output_hidden_states else None
        return SimpleNamespace(logits=logits, hidden_states=hidden)


SLIDING, FULL = "sliding_attention", "full_attention"


def inputs(count: int, slots: Slots, mask: Tensor | None = None) -> SlotInputs:
    return SlotInputs(
        torch.arange(20, 20 + count), torch.arange(slots.length, slots.length + count), mask, slots.layers
    )


@pytest.mark.parametrize("cuts", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 2, 3])
def test_a_pass_asks_for_the_rows_that_it_returns_and_at_least_for_one(cuts: bool, rows: int) -> None:
    model = Asked(window=None, cuts=cuts)
    net = TransformersNet(model)
    slots = Slots(net.layers, 8)
    assert net(inputs(3, slots), rows)[:, 0].tolist() == [20, 21, 22][3 - rows :]
    assert model.arguments.get("logits_to_keep") == (max(rows, 1) if cuts else None)
    tapped = net.tapped(inputs(3, slots), rows, (3, 1))
    assert tapped.logits[:, 0].tolist() == [20, 21, 22][3 - rows :]
    assert tapped.hidden is not None and tapped.hidden.shape == (3, 1, 2, 2)
    assert tapped.hidden[1, 0, :, 1].tolist() == [3, 1]
    assert model.arguments["use_cache"] is True and model.arguments["attention_mask"] is None
    assert model.arguments["past_key_values"].layers == slots.layers
    assert model.arguments["position_ids"].tolist() == [[0, 1, 2]]


def test_a_model_that_makes_masks_itself_gets_none_and_no_positions() -> None:
    model = Asked(window=None)
    net = TransformersNet(model, chains=True)
    net(inputs(3, Slots(net.layers, 8)), 1)
    assert {*model.arguments} == {"past_key_values", "use_cache", "logits_to_keep"} and model.arguments["use_cache"]


@pytest.mark.parametrize(
    ("kinds", "window", "layers"),
    [([FULL] * 3, 4, 3), (None, None, 3), ([SLIDING] * 3, 4, 4), (None, 4, 4), ([SLIDING, FULL, FULL], 4, 4)],
)
@pytest.mark.parametrize("before", [0, 2, 5])
@pytest.mark.parametrize("tree", [False, True])
def test_masks_of_sliding_and_of_full_layers(
    kinds: list[str] | None, window: int | None, layers: int, before: int, tree: bool
) -> None:
    """Two rows behind ``before`` entries, a window of four; one mask each if the kinds of layers differ."""
    model = Asked(kinds, window)
    net, slots = TransformersNet(model), Slots(layers, 16)
    assert net.layers == layers
    if before:
        net(inputs(before, slots), 0)
        slots.length = before
    full = torch.zeros(2, before + 2).double()
    full[0, before + 1] = HIDDEN
    full[1, before] = HIDDEN if tree else 0.0
    net(inputs(2, slots, full if tree else None), 1)
    mask = model.arguments["attention_mask"]
    short = before + 2 <= 4
    if not tree and (layers == 3 or short):
        assert mask is None
        return
    near = full.clone()
    if layers == 4 and not short:
        near[0, : before - 3] = near[1, : before - 2] = HIDDEN
    if layers == 3 or kinds is None or FULL not in kinds:
        assert torch.equal(mask, near[None, None])
    else:
        assert torch.equal(mask["full_attention"], full[None, None])
        assert torch.equal(mask["sliding_attention"], near[None, None])


def test_a_layer_slides_as_its_kind_or_as_the_configuration_says() -> None:
    def slides(kind: type[PreTrainedConfig], **names: Any) -> list[bool]:
        return sliding_layers(kind(num_hidden_layers=2, **names))

    assert slides(MistralConfig, layer_types=[SLIDING, FULL], sliding_window=None) == [True, False]
    assert slides(MistralConfig, sliding_window=4) == [True, True]
    assert slides(MistralConfig, layer_types=None, sliding_window=None) == [False, False]
    for kind in (LlamaConfig, GemmaConfig, GPT2Config, PhiConfig, StableLmConfig):  # their models read no window
        assert slides(kind, sliding_window=4) == slides(kind) == [False, False], kind


def test_a_near_mask_measures_positions_and_is_repeated_for_the_heads_that_share() -> None:
    slots, like = Slots(1, 16), torch.empty(0)
    assert near_mask(3, torch.tensor([0, 1, 1]), None, slots.layers[0], 2, like) is None  # three entries fit
    slots.length = 3
    mask = near_mask(3, torch.tensor([2, 4]), None, slots.layers[0], 2, like)
    rows = [[0.0, 0.0, 0.0, 0.0, HIDDEN], [HIDDEN, HIDDEN, HIDDEN, 0.0, 0.0]]
    assert mask is not None and mask.tolist() == [*rows, *rows]


def test_slots_begin_with_512_entries_and_double_up_to_the_context() -> None:
    for first, context, sizes in (
        (None, 1300, {1: 512, 512: 512, 513: 1024, 1025: 1300}),
        (None, 40, {1: 40}),
        (3, 100, {1: 3, 4: 6, 13: 24, 25: 48, 97: 100}),
    ):
        slots = Slots(1, context, first)
        (layer,) = slots.layers
        assert (layer.get_seq_length(), layer.get_mask_sizes(2), slots.context) == (0, (2, 0), context)
        for end, size in sizes.items():
            new = torch.arange(slots.length, end).double().view(1, 1, -1, 1)
            keys, values = layer.update(new, -new)
            assert keys.flatten().tolist() == (-values).flatten().tolist() == list(range(end))
            assert layer.keys.shape[2] == layer.values.shape[2] == size
            slots.length = end
    assert FIRST == 512
    layer.gather(2, torch.tensor([9, 5]))
    assert layer.keys[0, 0, :5, 0].tolist() == [0, 1, 9, 5, 4] == (-layer.values[0, 0, :5, 0]).tolist()
    assert layer.get_mask_sizes(torch.arange(3)) == (100, 0) and layer.get_max_length() == -1


def test_windows_and_kept_entries_lie_within_what_is_held() -> None:
    def window(base: int) -> Window:
        return Window(torch.zeros(3, dtype=torch.long), torch.arange(3), base, None, 3)

    for base, length, context, fits in ((0, 0, 3, True), (5, 5, 8, True), (0, 0, 2, False), (6, 5, 9, False)):
        if fits:
            check_window(window(base), length, context)
        else:
            with pytest.raises(ContractError):
                check_window(window(base), length, context)
    for length, entries, fits in ((4, (), True), (2, (1, 0), True), (2, (0, 1, 1), False), (2, (2,), False)):
        if fits:
            check_kept(length, entries, 4)
        else:
            with pytest.raises(ContractError, match="not among the 4 held"):
                check_kept(length, entries, 4)


class Averaging:
    """A net of a layer that averages visible tokens, weighed by their distance; it can get each thing wrong."""

    kind, layers = "averaging", 1

    def __init__(self, wrong: str = "", error: float = 0.0) -> None:
        self._wrong, self._error = wrong, error

    def __call__(self, inputs: SlotInputs, rows: int) -> Tensor:
        tokens, positions = (row.double().view(1, 1, -1, 1) for row in (inputs.tokens, inputs.positions))
        slot = inputs.slots[0]
        start = slot.get_seq_length()
        seen, places = (row.flatten() for row in slot.update(2**tokens, positions))
        if self._wrong == "positions":
            places = torch.arange(len(places)).double()
        distance = places[start:, None] - places
        visible = torch.ones_like(distance).tril(start)
        if inputs.mask is not None and self._wrong != "mask":
            visible = (inputs.mask == 0).double()
        if self._wrong == "cache" and start:
            visible[:] = 0
        weights = visible * (0.5**distance if self._wrong != "equal" else 1)
        logits = weights @ seen + self._error * (inputs.mask is not None or (start == 2))
        return logits[len(logits) - rows :, None]

    def pick(self, layers: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("wrong", "error", "honours"),
    [
        ("", 0.0, True),
        ("mask", 0.0, False),
        ("", 0.9, True),  # the entry that the mask hides adds 2, and half of that may be rounding
        ("", 1.1, False),
        ("positions", 0.0, False),
        ("equal", 0.0015, True),  # positions change nothing, so slots may count: a thousandth may be rounding
        ("equal", 0.003, False),
    ],
)
def test_masks_are_honoured_if_a_hidden_entry_changes_nothing(wrong: str, error: float, honours: bool) -> None:
    assert honours_masks(Averaging(wrong, error), CPU, torch.float64) is honours


@pytest.mark.parametrize(
    ("wrong", "error", "reads"),
    [("", 0.0, True), ("cache", 0.0, False), ("", 4.0, True), ("", 6.5, False), ("", -6.5, False)],
)
def test_chains_are_read_if_windows_have_the_logits_of_the_whole_chain(wrong: str, error: float, reads: bool) -> None:
    """The logits of six tokens go from 1 to about 43; a tenth of that may be rounding."""
    assert reads_chains(Averaging(wrong, error), CPU) is reads


def test_several_sequences_attend_each_to_its_own_entries() -> None:
    """Grouped heads, a chain behind others, a prompt, rows with a mask, and a prompt of two tokens."""
    generator = torch.Generator().manual_seed(0)

    def random(heads: int, count: int) -> Tensor:
        return torch.randn(1, heads, count, 8, generator=generator, dtype=torch.float64)

    counts, lengths = [1, 3, 2, 2], [4, 0, 3, 0]
    slots = [Slots(1, 16) for _ in counts]
    for one, length in zip(slots, lengths, strict=True):
        if length:
            one.layers[0].update(random(2, length), random(2, length))
            one.length = length
    mask = torch.zeros(2, 5).double()
    mask[0, 4] = mask[1, 3] = HIDDEN
    masks = [None, None, mask, None]
    layer = PackedLayer(counts, [one.layers[0] for one in slots], masks)
    query, keys, values = random(4, 8), random(2, 8), random(2, 8)
    arguments = packed_arguments(torch.arange(8), [layer])
    assert arguments["position_ids"].tolist() == [[0, 1, 2, 3, 4, 5, 6, 7]] and arguments["use_cache"] is True
    assert tuple(arguments["attention_mask"].shape) == (1, 1, 1, 1) and not arguments["attention_mask"].any()
    packed, same = arguments["past_key_values"].layers[0].update(keys, values)
    assert same is values
    for scale in (None, 0.25):
        out, weights = attend(torch.nn.Identity(), query, packed, values, None, scaling=scale)
        assert weights is None and tuple(out.shape) == (1, 8, 4, 8) and out.is_contiguous()
        for rows, one, own in zip(torch.split(torch.arange(8), counts), slots, masks, strict=True):
            ends = one.length + len(rows)
            sees = torch.ones(len(rows), ends).tril(one.length).bool() if own is None else own == 0
            entries = (row[:, :, :ends].repeat_interleave(2, 1) for row in (one.layers[0].keys, one.layers[0].values))
            each = functional.scaled_dot_product_attention(query[:, :, rows], *entries, sees, scale=scale)
            torch.testing.assert_close(out[:, rows], each.transpose(1, 2), rtol=0, atol=1e-12)


def test_one_sequence_attends_as_in_transformers() -> None:
    query = torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(1))
    module = torch.nn.Identity()
    module.is_causal = True
    out, _ = attend(module, query, query + 1, query - 1, None)
    expected = functional.scaled_dot_product_attention(query, query + 1, query - 1, is_causal=True)
    torch.testing.assert_close(out, expected.transpose(1, 2))


def test_the_layers_of_a_decoder_are_prepared_and_its_configuration_is_not() -> None:
    model: Any = tiny(forward="transformers")._net.model  # type: ignore[attr-defined]
    before = model.config._attn_implementation
    prepare(model.model)
    names = [layer.self_attn.config._attn_implementation for layer in model.model.layers]
    assert names == [NAME] * 3 and model.config._attn_implementation == before != NAME


def test_picked_layers_share_tensors_and_count_from_zero() -> None:
    model: Any = tiny("qwen2", "transformers")._net.model  # type: ignore[attr-defined]
    picked = pick_layers(model, [0, 2])
    assert [layer.self_attn.layer_idx for layer in picked.model.layers] == [0, 1]
    assert picked.model.layers[1].mlp.up_proj.weight is model.model.layers[2].mlp.up_proj.weight
    assert picked.config.num_hidden_layers == len(picked.config.layer_types) == 2
    assert model.config.num_hidden_layers == len(model.config.layer_types) == len(model.model.layers) == 3
    assert [layer.self_attn.layer_idx for layer in model.model.layers] == [0, 1, 2]
    model.extra = torch.nn.ModuleList([torch.nn.Identity() for _ in range(3)])
    with pytest.raises(UsageError, match="has 2 lists of 3 layers: none can be skipped"):
        pick_layers(model, [0])
