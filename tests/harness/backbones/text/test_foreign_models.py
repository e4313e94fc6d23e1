"""Models of other families and folders: eager attention, chains only, adapters, settings of generate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from stridebench.harness.backbones.slots.net import Released
from stridebench.harness.backbones.slots.transformers_net import TransformersNet
from stridebench.harness.backbones.text import hf_causal
from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.methods.prompt_lookup import PromptLookup
from stridebench.methods.sjd import SJD
from stridebench.methods.speculative import Speculative
from tests.support.caches import feed, feed_windows
from tests.support.cli import stride
from tests.support.decodes import decoded
from tests.support.tiny_text import SIZES

SMALL = {"vocab_size": 61, "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None}
OLD = {**SMALL, "n_embd": 48, "n_head": 6, "n_layer": 2, "n_positions": 64}
WIDE = {**SMALL, "hidden_size": 48}
CONTEXT = {"max_position_embeddings": 64}
LOCAL = {"attention_types": [[["global", "local"], 1]], "window_size": 8}
FAMILIES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "gptj": ("gptj", {**OLD, "rotary_dim": 4}, True),
    "xglm": ("xglm", {**SMALL, **CONTEXT, "d_model": 48, "attention_heads": 6, "num_layers": 2, "ffn_dim": 64}, True),
    "falcon": ("falcon", {**WIDE, "alibi": True, "num_attention_heads": 6, "num_hidden_layers": 2}, False),
    "bloom": ("bloom", {**WIDE, "n_head": 6, "n_layer": 2}, False),
    "gpt_neo": ("gpt_neo", {**WIDE, **CONTEXT, **LOCAL, "num_heads": 6, "num_layers": 2}, False),
}

TIED = {**SIZES, "tie_word_embeddings": True}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 3}
HYBRID = {**WIDE, **HEADS, "num_hidden_layers": 2, "intermediate_size": 64}
DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
RECURRENT: dict[str, dict[str, Any]] = {
    "mamba": {**WIDE, "num_hidden_layers": 2, "state_size": 8},
    "lfm2": {**HYBRID, "layer_types": ["conv", "full_attention"]},
    "qwen3_next": {**HYBRID, **DELTA},
}


def write_folder(folder: Path, model_type: str = "llama", config: dict[str, Any] | None = None, words: int = 61) -> Any:
    """A folder of random weights with a tokenizer of ``words`` ids; returns the model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **(config or SIZES))).eval()
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({f"w{word}": word for word in range(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return model


PROMPT = [5, 6, 7] * 4


def loaded(folder: Path, dtype: str = "fp32", device: str = "cpu", **params: Any) -> HFCausal:
    return HFCausal.load("mine", {"source": {"folder": str(folder)}, **params}, dtype, device)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_without_an_sdpa_kernel_or_masks_decodes_what_it_can(family: str, tmp_path: Path) -> None:
    model_type, config, trees = FAMILIES[family]
    reference, backbone = write_folder(tmp_path, model_type, config), loaded(tmp_path)
    assert any("eager" in note for note in backbone.notes) is not type(reference)._supports_sdpa
    assert (Requirement.TREE_MASK in backbone.capabilities.meets) is trees
    assert any("chains only" in note for note in backbone.notes) is not trees
    tokens = torch.arange(30) * 7 % 61
    with torch.inference_mode():
        expected = reference(tokens[None]).logits[0]
    parts = feed_windows(backbone.cache(), tokens.tolist(), [0, 5, 6, 20])
    torch.testing.assert_close(parts, expected, rtol=0, atol=1e-4)
    assert decoded(SJD(window=5), backbone, PROMPT, 16).tokens == generated(reference)


def generated(reference: Any) -> tuple[int, ...]:
    out = reference.generate(torch.tensor([PROMPT]), max_new_tokens=16, do_sample=False, pad_token_id=0)
    return tuple(out[0, len(PROMPT) :].tolist())


@pytest.mark.parametrize("model_type", RECURRENT)
def test_a_model_with_a_running_state_decodes_chains_as_generate_does(model_type: str, tmp_path: Path) -> None:
    """At T = 0, with drafts that are kept whole, in part and not at all; drafts of the model itself are all kept."""
    reference, backbone = write_folder(tmp_path, model_type, RECURRENT[model_type]), loaded(tmp_path)
    assert any("recurrent layers: it decodes chains only" in note for note in backbone.notes)
    expected = generated(reference)
    assert decoded(PromptLookup(length=4, max_ngram=1), backbone, PROMPT, 16).tokens == expected
    assert decoded(SJD(window=5), backbone, PROMPT, 16).tokens == expected
    kept = decoded(Speculative("self", gamma=3), backbone, PROMPT, 16)
    assert kept.tokens == expected and len(kept.steps) == 4


@pytest.mark.parametrize("model_type", RECURRENT)
def test_a_state_is_taken_back_from_any_number_of_entries(model_type: str, tmp_path: Path) -> None:
    """Windows of which few entries are kept, again and again, so that entries are read again in a pass of their own."""
    reference, backbone = write_folder(tmp_path, model_type, RECURRENT[model_type]), loaded(tmp_path)
    tokens, cache = torch.arange(30) * 7 % 61, backbone.cache()
    with torch.inference_mode():
        expected = reference(tokens[None]).logits[0]
    length, kept = 0, 3
    while length + 5 <= 30:
        rows = feed(cache, tokens[length : length + 5].tolist(), length)
        torch.testing.assert_close(rows, expected[length : length + 5], rtol=0, atol=1e-4)
        cache.keep(length, range(kept))
        length, kept = length + kept, 4 - kept
    cache.keep(2)
    torch.testing.assert_close(feed(cache, tokens[2:9].tolist(), 2), expected[2:9], rtol=0, atol=1e-4)


def test_sdpa_that_is_asked_for_and_absent_is_one_error(tmp_path: Path) -> None:
    write_folder(tmp_path, *FAMILIES["gptj"][:2])
    with pytest.raises(UsageError, match="GPTJForCausalLM of transformers has no sdpa attention; set attn to eager"):
        loaded(tmp_path, attn="sdpa")


def test_methods_with_trees_are_skipped_and_the_row_says_why(tmp_path: Path) -> None:
    write_folder(tmp_path / "model", *FAMILIES["falcon"][:2])
    (tmp_path / "p.txt").write_text("w1 w2 w3 w1 w2\n")
    words = ("--backbone", str(tmp_path / "model"), "--prompts", str(tmp_path / "p.txt"), "--max-new-tokens", "6")
    done = stride("run", *words, "--method", "lookahead", "--out", str(tmp_path / "run"))
    text = " ".join((done.out + done.err).split())
    assert "does not meet TREE_MASK" in text
    assert "it decodes chains only" in text


def test_a_tokenizer_with_more_ids_than_the_model_is_one_error(tmp_path: Path) -> None:
    write_folder(tmp_path, words=70)
    with pytest.raises(WeightsError, match="the tokenizer has 70 ids and the model has 61"):
        loaded(tmp_path)


def test_a_special_token_that_the_model_lacks_is_refused_where_a_prompt_has_it(tmp_path: Path) -> None:
    write_folder(tmp_path)
    body = json.loads((tmp_path / "tokenizer.json").read_text())
    token = {"id": 61, "content": "<image>", "special": True, "normalized": False}
    body["added_tokens"] = [{**token, "single_word": False, "lstrip": False, "rstrip": False}]
    (tmp_path / "tokenizer.json").write_text(json.dumps(body))
    backbone = loaded(tmp_path)
    assert backbone.encode("w3 w4") == [3, 4]
    with pytest.raises(UsageError, match="the tokenizer has 62 ids and the model has 61, and a prompt has id 61"):
        backbone.encode("w3 <image>")


def test_weights_that_transformers_keeps_in_fp32_stay_so(tmp_path: Path) -> None:
    """Those of the routers, in a model of bf16."""
    experts = {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16, "moe_layer_start_index": 0}
    write_folder(tmp_path, "ernie4_5_moe", {**HYBRID, **experts})
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    net = loaded(tmp_path, "bf16")._net
    assert isinstance(net, TransformersNet)
    types = [{name: weight.dtype for name, weight in model.named_parameters()} for model in (reference, net.model)]
    assert types[0] == types[1] and set(types[0].values()) == {torch.bfloat16, torch.float32}


@pytest.mark.parametrize(("layer", "out"), [("model.layers.1.self_attn.q_proj", 48), ("lm_head", 61)])
def test_an_adapter_in_the_folder_is_added_to_the_weights(layer: str, out: int, tmp_path: Path) -> None:
    """One of the head leaves the embedding that is tied to it unchanged."""
    reference, generator = write_folder(tmp_path, config=TIED), torch.Generator().manual_seed(0)
    down, up = (torch.randn(shape, generator=generator) for shape in ((4, 48), (out, 4)))
    names = {f"base_model.model.{layer}.lora_{side}.weight": tensor for side, tensor in (("A", down), ("B", up))}
    save_file(names, tmp_path / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "bias": "none", "base_model_name_or_path": "base"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    backbone = loaded(tmp_path)
    assert backbone.notes == ("the adapter in their folder (adapter_config.json) is added to the weights",)
    changed = reference.get_submodule(layer)
    changed.weight = torch.nn.Parameter(changed.weight + 2 * up @ down)
    with torch.inference_mode():
        expected = reference(torch.arange(9)[None]).logits[0]
    torch.testing.assert_close(feed(backbone.cache(), list(range(9)), 0), expected, rtol=0, atol=1e-4)
    (tmp_path / "adapter_config.json").write_text(json.dumps({**settings, "use_dora": True}))
    assert "is not applied to the weights: " in loaded(tmp_path).notes[0]


def test_weights_with_an_adapter_are_moved_to_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    devices = []
    monkeypatch.setattr(hf_causal, "_net", lambda model, *how: devices.append(model.device.type) or Released(2))
    loaded(tmp_path, device="meta")
    assert devices == ["meta"]


def test_settings_that_change_what_generate_emits_are_noted(tmp_path: Path) -> None:
    write_folder(tmp_path)
    assert loaded(tmp_path).notes == ()
    settings = {"repetition_penalty": 1.1, "suppress_tokens": [3], "min_length": 0}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    (note,) = loaded(tmp_path).notes
    assert "repetition_penalty = 1.1" in note and "suppress_tokens = [3]" in note and "min_length" not in note


def test_an_index_that_points_outside_its_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_folder(folder)
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(state, "../elsewhere.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=r"names \.\./elsewhere\.safetensors, which lies outside the folder"):
        loaded(folder)


def test_longrope_ends_where_its_factors_change(tmp_path: Path) -> None:
    """Past that length transformers turns all positions by other angles, those in the cache too."""
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32, **factors}
    reference = write_folder(
        tmp_path, "phi3", {**SIZES, "pad_token_id": 0, "original_max_position_embeddings": 32, "rope_parameters": rope}
    )
    backbone = loaded(tmp_path)
    assert backbone.capabilities.context == 32 and "its context is 32, because" in backbone.notes[0]
    tokens = torch.arange(32) * 7 % 61
    with torch.inference_mode():
        expected = reference(tokens[None]).logits[0]
    parts = feed_windows(backbone.cache(), tokens.tolist(), [0, 5, 20])
    torch.testing.assert_close(parts, expected, rtol=0, atol=1e-4)
