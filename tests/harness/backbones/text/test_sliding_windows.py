"""Models whose layers see a window of the last positions: all methods decode texts longer than the window."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.checkpoints import transformers_models
from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.core.cache import Window, extend_all
from stridebench.harness.registry import METHODS
from tests.support.caches import check_tree, feed, feed_windows
from tests.support.decodes import decoded
from tests.support.tiny_text import SIZES

WINDOW = 8
MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "mistral": ("mistral", {}, {}),
    "llama, whose model reads no window": ("llama", {}, {}),
    "mistral, transformers": ("mistral", {}, {"forward": "transformers"}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, {}),
    "gemma2": ("gemma2", {"head_dim": 8, "tie_word_embeddings": False}, {"attn": "eager"}),
    "gemma3": ("gemma3_text", {"head_dim": 8, "tie_word_embeddings": False, **MIXED}, {}),
    "gpt-oss": ("gpt_oss", {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2}, {"attn": "eager"}),
    "starcoder2": ("starcoder2", {}, {}),
    "cohere2": ("cohere2", {"head_dim": 8}, {}),
    "exaone4": ("exaone4", {"sliding_window_pattern": 2}, {}),
    "olmo3": ("olmo3", {}, {}),
}
METHODS_TRIED: dict[str, dict[str, Any]] = {
    "prompt_lookup": {"length": 4, "max_ngram": 1},
    "lookahead": {"ngram": 3, "window": 3, "guesses": 3},
    "specinfer": {"drafter": "self:layers=2", "widths": (2, 1, 1)},
}
TOKENS = [int(t) for t in torch.randint(0, 61, (4 * WINDOW,), generator=torch.Generator().manual_seed(3))]


def opened(family: str) -> tuple[HFCausal, Any]:
    """The backbone, and the same model of transformers."""
    kind, config, params = FAMILIES[family]
    source = {"model_type": kind, "config": {**SIZES, "sliding_window": WINDOW, **config}, "seed": 1}
    backbone = HFCausal.load("tiny", {"source": {"random": source}, **params}, "fp32", "cpu")
    return backbone, transformers_models.make_random("tiny", source, params.get("attn", "sdpa")).eval()


def fresh(model: HFCausal, tokens: Sequence[int]) -> Tensor:
    return feed(model.cache(), tokens, 0)


def greedy(model: HFCausal, name: str, prompt: Sequence[int], budget: int) -> tuple[int, ...]:
    method = METHODS.get(name)(**METHODS_TRIED[name])
    return decoded(method, model, prompt, budget, drafter=model.variant({"layers": "2"})).tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_chains_and_trees_past_the_window_are_those_of_transformers(family: str) -> None:
    model, reference = opened(family)
    assert model.capabilities.context == 64
    with torch.inference_mode():
        expected = reference(torch.tensor([TOKENS])).logits[0]
    torch.testing.assert_close(fresh(model, TOKENS), expected, rtol=0, atol=1e-4)
    parts = feed_windows(model.cache(), TOKENS, [0, 5, 6, 7, 20, 30])
    torch.testing.assert_close(parts, expected, rtol=0, atol=1e-4)
    tree = (TOKENS[:11], [3, 9, 14, 5, 5, 31], [-1, -1, 0, 0, 1, 2])
    check_tree(model.cache(), partial(fresh, model), tree, (0, 2, 5), [1, 2], 1e-4)


@pytest.mark.parametrize("family", ["mistral", "qwen2", "gemma3", "gpt-oss"])
def test_greedy_tokens_of_chains_windows_and_trees_are_those_of_generate(family: str) -> None:
    """Prompt and output fill four windows and more; drafts are refused on both sides of each window's end."""
    model, reference = opened(family)
    prompt = [5, 6, 7] * 4
    out = reference.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False, pad_token_id=0)
    expected = tuple(out[0, len(prompt) :].tolist())
    assert len(set(expected)) > 4
    for name in METHODS_TRIED:
        assert greedy(model, name, prompt, 24) == expected, name


@pytest.mark.parametrize("family", ["mistral", "qwen2", "gemma3"])
def test_a_window_is_measured_in_positions_and_not_in_slots(family: str) -> None:
    """Two levels of a tree of 12 nodes each, all children of one: the sixth child sees what a chain would."""
    model, _ = opened(family)
    cache = model.cache()
    feed(cache, TOKENS[:10], 0, rows=0)
    for level in range(2):
        width = 12 * level
        sees = torch.cat([torch.zeros(12, width, dtype=torch.bool), torch.eye(12, dtype=torch.bool)], 1)
        sees[:, :width] = torch.eye(12, dtype=torch.bool)[:, :width]
        places = torch.full((12,), 10 + level)
        rows = cache.extend(Window(torch.arange(12) + level, places, 10, sees, 12)).logits
    torch.testing.assert_close(rows[5], fresh(model, [*TOKENS[:10], 5, 6])[-1], rtol=0, atol=1e-4)
    cache.keep(10, (5, 17))
    torch.testing.assert_close(
        feed(cache, TOKENS[:9], 12), fresh(model, [*TOKENS[:10], 5, 6, *TOKENS[:9]])[12:], rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
def test_captured_passes_emit_the_tokens_of_plain_ones(family: str) -> None:
    plain, captured = opened(family)[0], opened(family)[0]
    captured.use_graphs()
    for name in ("prompt_lookup", "specinfer"):
        assert greedy(captured, name, TOKENS[:12], 12) == greedy(plain, name, TOKENS[:12], 12), name


@pytest.mark.parametrize("family", ["mistral", "qwen2"])
def test_sequences_of_a_batch_have_the_logits_that_each_has_alone(family: str) -> None:
    model, _ = opened(family)
    lengths = (3, 14, 25)
    caches = [model.cache() for _ in lengths]
    for cache, length in zip(caches, lengths, strict=True):
        feed(cache, TOKENS[:length], 0, rows=0)
    windows = [Window(torch.tensor([1, 2, 3]), torch.arange(n, n + 3), n, None, 3) for n in lengths]
    for rows, length in zip(extend_all(caches, windows), lengths, strict=True):
        assert not isinstance(rows, Exception)
        expected = fresh(model, [*TOKENS[:length], 1, 2, 3])[-3:]
        torch.testing.assert_close(rows.logits, expected, rtol=0, atol=1e-4)


def test_a_variant_of_fewer_layers_keeps_the_kinds_of_its_layers() -> None:
    model, reference = opened("gemma3")
    small, other = model.variant({"layers": "2"}), copy.deepcopy(reference)
    del other.model.layers[1]
    other.model.layers[1].self_attn.layer_idx = 1
    other.config.num_hidden_layers, other.config.layer_types = 2, ["sliding_attention"] * 2
    with torch.inference_mode():
        expected = other(torch.tensor([TOKENS])).logits[0]
    torch.testing.assert_close(fresh(small, TOKENS), expected, rtol=0, atol=1e-4)
