"""Hidden rows of real nets: equal to transformers', kept by a session through trees, in both branches of guidance."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.image.adapter import ImageModel
from stridebench.harness.backbones.slots.guided import GuidedCache
from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.cache import Cache, Rows, Window, extend_all, resolve
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import ContractError
from stridebench.harness.plan import presets
from tests.support.caches import acceptance, session
from tests.support.tiny_text import tiny

TOKENS = (5, 9, 22, 31, 7, 7, 19, 2)
NEAR = 1e-5
TREE = Draft(torch.tensor([4, 8, 15, 16]), parents=torch.tensor([-1, -1, 0, 1]))


def hidden(cache: Cache, tokens: Sequence[int], taps: tuple[int, ...]) -> Tensor:
    rows = cache.extend(Window(torch.tensor(tokens), torch.arange(len(tokens)), 0, None, 0, taps)).hidden
    assert rows is not None
    return rows


def test_both_forwards_give_the_hidden_states_of_transformers() -> None:
    net, fused = tiny(forward="transformers"), tiny(forward="fused")
    taps = (0, 1, 2, 3)
    assert fused.forward_kind == "fused"
    states = net._net.model(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
    expected = torch.stack([state[0] for state in states], 1)[:, None]
    torch.testing.assert_close(hidden(net.cache(), TOKENS, taps), expected, rtol=0, atol=NEAR)
    torch.testing.assert_close(hidden(fused.cache(), TOKENS, taps), expected, rtol=0, atol=NEAR)
    head = net._net.model.lm_head
    logits = fused.cache().extend(Window(torch.tensor(TOKENS), torch.arange(8), 0, None, 8)).logits
    torch.testing.assert_close(head(expected[:, 0, -1]), logits, rtol=0, atol=NEAR)


@pytest.mark.parametrize("forward", ["fused", "transformers"])
def test_a_session_keeps_the_rows_of_the_accepted_path(forward: str) -> None:
    model = tiny(forward=forward)
    target = session(model.cache(), model.capabilities, TOKENS, (0, "middle", -1))
    target.prefill()
    assert target.hidden.shape == (7, 1, 3, 48)
    target.forward(TREE)
    target.grow(Draft(torch.tensor([23, 42]), parents=torch.tensor([3, 4])))
    assert target.newest.shape == (2, 1, 3, 48)
    target.commit(acceptance([1, 3, 4], 6, 1))
    expected = hidden(model.cache(), [*TOKENS, 8, 16, 23], (0, 1, 3))
    torch.testing.assert_close(target.hidden, expected, rtol=0, atol=NEAR)


def test_a_variant_counts_its_own_layers() -> None:
    model = tiny(forward="fused")
    assert (model.capabilities.layers, model.capabilities.width, model.capabilities.branches) == (3, 48, 1)
    assert Requirement.HIDDEN in model.capabilities.meets
    fewer = model.variant({"layers": "2"})
    assert fewer.capabilities.layers == 2
    assert hidden(fewer.cache(), TOKENS, resolve([-1], fewer.capabilities)).shape == (8, 1, 1, 48)


@pytest.mark.parametrize("forward", ["fused", "transformers"])
def test_sequences_read_together_show_the_rows_of_each(forward: str) -> None:
    """Equal taps are read in one pass of the fused forward; windows with different taps are read alone."""
    model = tiny(forward=forward)
    texts = (TOKENS, TOKENS[:3], TOKENS[2:])
    for taps in (((0, 3),) * 3, ((0, 3), (1,), ())):
        windows = [
            Window(torch.tensor(text), torch.arange(len(text)), 0, None, min(1, index), taps[index])
            for index, text in enumerate(texts)
        ]
        batch = extend_all([model.cache() for _ in texts], windows)
        for rows, window in zip(batch, windows, strict=True):
            alone = model.cache().extend(window)
            assert isinstance(rows, Rows) and (rows.hidden is None) == (not window.taps)
            torch.testing.assert_close(rows.logits, alone.logits, rtol=0, atol=NEAR)
            torch.testing.assert_close(rows.hidden, alone.hidden, rtol=0, atol=NEAR)


def test_a_net_without_hidden_rows_raises_a_contract_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tiny(forward="fused").cache()
    monkeypatch.setattr(cache, "_net", type("Mute", (), {"kind": "mute", "layers": 1})())
    with pytest.raises(ContractError, match="Mute gives no hidden rows; ask a backbone that meets HIDDEN"):
        hidden(cache, TOKENS, (0,))


def branch_rows(model: Backbone, prompt: Sequence[int], negative: Sequence[int], behind: Sequence[int]) -> Tensor:
    """One pass for each prompt; before its own prompt the unconditional branch repeats the conditional rows."""
    last = model.capabilities.layers
    conditional = hidden(model.cache(), [*prompt, *behind], (last,))
    shift = len(prompt) - len(negative)
    unconditional = hidden(model.cache(), [*negative, *behind], (last,))[max(0, -shift) :]
    return torch.cat([conditional, torch.cat([conditional[: max(0, shift)], unconditional])], 1)


@pytest.mark.parametrize("negative", [(3,), (1, 0, 2, 3)])
@pytest.mark.parametrize("prefill", [False, True])
def test_guidance_has_a_branch_for_each_prompt(negative: tuple[int, ...], prefill: bool) -> None:
    model, prompt = Tabular("tabular", {"vocabulary": 17}), [0, 2, 1]
    cache = GuidedCache(model.cache(), 3, scale=2.0, unconditional=model.cache(), negative=negative)
    target = session(cache, model.capabilities, prompt, (-1,))
    if prefill:
        target.prefill()
        assert torch.equal(target.hidden, branch_rows(model, prompt, negative, [])[:2])
    target.forward(TREE)
    target.commit(acceptance([1, 3], 4, 5))
    assert torch.equal(target.hidden, branch_rows(model, prompt, negative, [8, 16]))


def test_a_picture_model_has_a_branch_for_each_prompt() -> None:
    model = presets.load("embedded-image-8x8", "fp32")
    assert isinstance(model, ImageModel)
    plain, guided = (model.variant({"guidance": scale}) for scale in ("1", "3"))
    assert (plain.capabilities.branches, guided.capabilities.branches) == (1, 2)
    for model_variant in (plain, guided):
        encoded = model_variant.open(Prompt("p", tokens=tuple(model.encode(""))))
        target = session(encoded.cache(), model_variant.capabilities, encoded.tokens, (-1,))
        assert target.hidden.shape == (0, model_variant.capabilities.branches, 1, model_variant.capabilities.width)
        target.forward()
        assert target.hidden.shape[1:] == (model_variant.capabilities.branches, 1, model_variant.capabilities.width)
