"""Attention over a text and its windows: block by block it equals the dense mask, gradients too."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stridebench.harness.train import windows
from stridebench.harness.train.windows import Windows

SIZES = {
    "vocab_size": 40, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip


def model(kind: str = "llama"):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES), attn_implementation="sdpa").eval()


def test_what_rows_see_by_hand() -> None:
    """Three tokens, one window of two rows whose first reads token 1 again."""
    visible = Windows(3, torch.tensor([1]), 2).visible().int().tolist()
    assert visible == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 0, 0, 1, 0], [1, 0, 0, 1, 1]]


@pytest.mark.parametrize(("kind", "block"), [("llama", 4), ("llama", 512), ("qwen2", 9), ("qwen3", 9)])
def test_blocks_equal_the_dense_mask(kind: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlapping windows in any order of roots."""
    monkeypatch.setattr(windows, "BLOCK", block)
    dense, blocks = model(kind), model(kind)
    assert windows.prepare(blocks)
    text, roots, width = 21, torch.tensor([9, 0, 17, 9, 3]), 4
    spec = Windows(text, roots, width)
    ids = torch.randint(40, (1, text + len(roots) * width), generator=torch.Generator().manual_seed(1))
    places = torch.cat([torch.arange(text), (roots[:, None] + torch.arange(width)).flatten()])[None]
    mask = torch.zeros(spec.visible().shape).masked_fill(~spec.visible(), -torch.inf)[None, None]
    expected = dense(input_ids=ids, attention_mask=mask, position_ids=places, use_cache=False).logits
    none = ids.new_zeros(1, 1, 1, 1)
    with windows.read(spec):
        out = blocks(input_ids=ids, attention_mask=none, position_ids=places, use_cache=False).logits
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    for net, logits in ((dense, expected), (blocks, out)):
        logits.float().logsumexp(-1).sum().backward()
        assert net.model.layers[0].self_attn.k_proj.weight.grad is not None
    grads = [net.model.layers[0].self_attn.k_proj.weight.grad for net in (dense, blocks)]
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-5)


def test_a_block_holds_a_small_share_of_the_pairs() -> None:
    """Windows that tile a text of 1,024 tokens: the dense mask has 2,048 squared entries."""
    spec = Windows(1024, torch.arange(0, 1024, 16), 16)
    sizes = [visible.numel() for _, _, visible in spec.blocks()]
    assert max(sizes) <= 128 * (1024 + 128) and sum(sizes) + 1024**2 / 2 < 2048**2 / 3


def test_outside_a_pass_the_model_reads_as_before() -> None:
    plain, prepared = model(), model()
    windows.prepare(prepared)
    ids = torch.arange(9)[None]
    torch.testing.assert_close(prepared(input_ids=ids).logits, plain(input_ids=ids).logits)


def test_what_has_another_attention_keeps_the_dense_mask() -> None:
    eager = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZES), attn_implementation="eager")
    assert not windows.prepare(eager)
