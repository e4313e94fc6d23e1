"""The slot cache, both forwards and the variants of hf_causal, on random weights and on a real model."""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from stridebench.harness.backbones.checkpoints import transformers_models
from stridebench.harness.backbones.slots.fused_llama import FusedLlama
from stridebench.harness.backbones.text import hf_causal
from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.backbones.text.wrapped import NoisyBackbone
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.errors import ContractError, UsageError, WeightsError
from stridebench.harness.kernels import int8
from stridebench.harness.plan import presets
from tests.support.caches import feed, feed_windows
from tests.support.tiny_text import SIZES, tiny

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def fresh(model: Backbone, tokens: Sequence[int]) -> Tensor:
    return feed(model.cache(), tokens, 0)


TOKENS = [int(t) for t in torch.randint(0, 61, (40,), generator=torch.Generator().manual_seed(3))]
FORWARDS = ("fused", "transformers")
NEAR = 1e-5
"""Also in fp64, because transformers computes norms in fp32."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama."""
    config = AutoConfig.for_model("llama", **SIZES, tie_word_embeddings=False)
    path = tmp_path_factory.mktemp("llama")
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module", params=FORWARDS)
def model(request: pytest.FixtureRequest) -> HFCausal:
    backbone = tiny(forward=request.param)
    assert backbone.forward_kind == request.param
    return backbone


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "head_dim": 16}),
        ("llama", {"rope_parameters": LLAMA3}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
        ("llama", {"num_key_value_heads": 6}),
        ("mistral", {"sliding_window": 12}),
        ("qwen2", {}),
    ],
)
def test_the_fused_forward_equals_transformers(model_type: str, config: dict[str, Any]) -> None:
    fused, plain = (tiny(model_type, forward, "fp64", config) for forward in FORWARDS)
    assert fused.forward_kind == "fused"
    assert fused.fingerprint == plain.fingerprint
    outs = [feed_windows(backbone.cache(), TOKENS[:30], [0, 17]) for backbone in (fused, plain)]
    torch.testing.assert_close(*outs, rtol=0, atol=NEAR)


def test_biases_of_queries_keys_and_values_are_added(tmp_path: Path) -> None:
    """Those of random weights are zero."""
    config = AutoConfig.for_model("qwen2", **SIZES)
    reference = AutoModelForCausalLM.from_config(config).eval()
    biases = [tensor for name, tensor in reference.named_parameters() if name.endswith("bias")]
    for bias in biases:
        torch.nn.init.normal_(bias, std=0.5, generator=torch.Generator().manual_seed(1))
    reference.save_pretrained(tmp_path)
    fused = HFCausal.load("tiny", {"source": {"folder": str(tmp_path)}}, "fp32", "cpu")
    assert len(biases) == 9 and fused.forward_kind == "fused"
    with torch.inference_mode():
        expected = reference(torch.tensor([TOKENS])).logits[0]
    torch.testing.assert_close(fresh(fused, TOKENS), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("llama", {"mlp_bias": True}),
        ("llama", {"attention_bias": True}),
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
        ("qwen3", {}),
        ("gpt2", {}),
    ],
)
def test_other_architectures_run_through_transformers(model_type: str, config: dict[str, Any]) -> None:
    backbone = tiny(model_type, config=config)
    assert backbone.forward_kind == "transformers"


def test_weights_are_reproducible_and_leave_the_global_generator_unchanged() -> None:
    state = torch.get_rng_state()
    one, two = tiny(), tiny()
    assert torch.equal(torch.get_rng_state(), state)
    assert one.fingerprint == two.fingerprint
    assert torch.equal(fresh(one, TOKENS[:4]), fresh(two, TOKENS[:4]))
    assert tiny(seed=2).fingerprint != one.fingerprint


@pytest.mark.parametrize(
    ("model_type", "config", "says"),
    [
        ("t5", {}, "encoder-decoder"),
        ("rwkv", {"hidden_size": 32, "num_hidden_layers": 2}, "cannot be taken back to before a rejected draft"),
        ("vit", {}, "no causal language model"),
        ("no_such_type", {}, "cannot configure no_such_type"),
    ],
)
def test_the_error_of_an_unserved_architecture_names_the_reason(
    model_type: str, config: dict[str, Any], says: str
) -> None:
    source = {"random": {"model_type": model_type, "config": config, "seed": 0}}
    with pytest.raises(WeightsError, match=says):
        HFCausal.load("x", {"source": source}, "fp32", "cpu")


def test_a_model_that_ignores_its_mask_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr(modeling_llama, "create_causal_mask", lambda **arguments: None)
    with pytest.raises(WeightsError, match="does not follow the attention mask"):
        tiny(forward="transformers")


NOT_OURS = "x: weights: int8 needs our forward, and the entry asks for another"


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"attn": "flash"}, "attn is 'flash'; choose one of sdpa, eager"),
        ({"forward": "transformers", "weights": "int8"}, NOT_OURS),
        ({"device_map": "all"}, "device_map is 'all'; choose one of auto, balanced"),
        ({"device_map": {"": 0}}, "device_map is .*choose one of"),
        ({"device_map": "auto", "weights": "int8"}, "leave forward and weights out"),
        ({"device_map": "auto", "forward": "fused"}, "leave forward and weights out"),
    ],
)
def test_parameters_are_checked(params: dict[str, Any], says: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=says):
        HFCausal.load("x", {"source": {"folder": str(folder)}, **params}, "fp32", "cpu")


def test_a_backbone_without_tokenizer_reads_no_text(model: HFCausal) -> None:
    assert model.decode([1, 2]) == ""
    with pytest.raises(UsageError, match="no tokenizer"):
        model.encode("x")


TEXT = "def fibonacci(n):\n    "


@pytest.mark.slow
@pytest.mark.model
def test_greedy_tokens_equal_those_of_generate(smollm2: Backbone) -> None:
    assert isinstance(smollm2, HFCausal) and smollm2.forward_kind == "fused"
    capabilities = smollm2.capabilities
    assert (capabilities.vocabulary, capabilities.context, capabilities.eos) == (49152, 8192, {2})
    assert smollm2.decode(smollm2.encode(TEXT)) == TEXT and smollm2.decode([2]) == ""
    spec = presets.resolve("smollm2-135m")
    plain = HFCausal.load(spec.name, {**spec.params, "forward": "transformers"}, "fp32", "cpu")
    ids = smollm2.encode(TEXT)
    reference = plain._net.model  # type: ignore[attr-defined]
    generated = reference.generate(
        torch.tensor([ids]), max_new_tokens=16, min_new_tokens=16, do_sample=False, pad_token_id=2
    )
    expected = generated[0, len(ids) :].tolist()
    for model in (smollm2, plain):
        cache, tokens = model.cache(), list(ids)
        feed(cache, tokens[:-1], 0, rows=0)
        for _ in range(16):
            logits = feed(cache, tokens[-1:], len(tokens) - 1)[0].clone()
            logits[2] = float("-inf")  # as min_new_tokens does
            tokens.append(int(logits.argmax()))
        assert tokens[len(ids) :] == expected


@pytest.mark.parametrize(("key", "field"), [("pard_token", "pard"), ("mask_token_id", "block_mask")])
def test_a_mask_is_one_id_or_an_error(key: str, field: str) -> None:
    meets = frozenset({Requirement.BOTH_MASKS})
    llama = transformers_models.make_random("x", {"model_type": "llama", "config": SIZES, "seed": 1}, "sdpa")
    assert getattr(transformers_models.capabilities(llama, meets), field) is None
    setattr(llama.config, key, 7)
    assert getattr(transformers_models.capabilities(llama, meets), field) == 7
    setattr(llama.config, key, [7, 8])
    with pytest.raises(WeightsError, match=rf"{key} .* config\.json is \[7, 8\]; give the one id that it fills"):
        transformers_models.capabilities(llama, meets)
    if field == "block_mask":  # a model that fills no blocks has none
        assert transformers_models.capabilities(llama, frozenset()).block_mask is None


def test_a_model_that_fills_blocks_says_so_and_names_its_mask() -> None:
    """Without ``masks: both`` a method that needs them is skipped; with it, a model without a mask is not loaded."""
    source = {"model_type": "llama", "config": SIZES, "seed": 1}
    assert Requirement.BOTH_MASKS not in HFCausal.meets({"source": {"random": source}})
    params = {"source": {"random": {**source, "config": {**SIZES, "mask_token_id": 5}}}, "masks": "both"}
    filling = HFCausal.load("x", params, "fp32", "cpu").capabilities
    assert Requirement.BOTH_MASKS in filling.meets and filling.block_mask == 5
    with pytest.raises(WeightsError, match=r"x: masks is both, and its config\.json has no mask_token_id"):
        HFCausal.load("x", {"source": {"random": source}, "masks": "both"}, "fp32", "cpu")


@pytest.mark.parametrize("tie", [False, True])
def test_tied_weights_are_lent_once_and_untied_ones_twice(tie: bool) -> None:
    source = {"model_type": "llama", "config": {**SIZES, "tie_word_embeddings": tie}, "seed": 1}
    llama = transformers_models.make_random("x", source, "sdpa").double()
    expected = llama.lm_head.weight.data.clone()
    lent = FusedLlama(llama).tied_embeddings()
    assert (lent.embed is lent.unembed) is tie
    torch.testing.assert_close(lent.unembed, expected, rtol=0, atol=1e-12)
    linears = [module for module in llama.model.layers.modules() if isinstance(module, torch.nn.Linear)]
    assert linears and not any(linear.weight.numel() for linear in linears)  # no layer is held twice


def test_a_sequence_that_is_over_frees_its_slots_without_the_collector(model: HFCausal) -> None:
    """In a circle of references, hundreds of key-value caches of a real model waited for it: 7 MB a decode."""
    gc.collect()
    gc.disable()
    try:
        cache = model.cache()
        feed(cache, TOKENS[:6], 0)
        keys = [weakref.ref(layer.keys) for layer in cache._slots.layers]
        del cache
        assert keys and not any(key() is not None for key in keys)
    finally:
        gc.enable()


@pytest.mark.parametrize("weights", ["int8", "int4", "nf4"])
def test_a_quantised_model_is_one_model_in_bf16_and_fp32(weights: str) -> None:
    """The check of greedy equality rests on it."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "head_dim": 16}

    def law(dtype: str, name: str) -> Tensor:
        cache = tiny(dtype=dtype, config=sizes, weights=name).cache()
        return feed(cache, [3, 1, 4, 1, 5], 0).float().softmax(-1)

    exact = law("fp32", weights)
    assert (law("bf16", weights) - exact).abs().max() < 0.03
    assert (law("fp32", "full") - exact).abs().max() > 1e-4


def test_a_folder_whose_matrices_are_stored_in_8_bits_is_read(folder: Path, tmp_path: Path) -> None:
    packed = Path(shutil.copytree(folder, tmp_path / "packed"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    int8.write(packed / "model.safetensors", model.state_dict())
    model.load_state_dict(int8.read(packed / "model.safetensors"))
    params = {"source": {"folder": str(packed)}, "forward": "transformers"}
    read = HFCausal.load("packed", params, "fp32", "cpu")
    assert torch.equal(feed(read.cache(), [3, 1, 4], 0), model(torch.tensor([[3, 1, 4]])).logits[0])


def test_layers_on_several_devices_compute_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk stands for a second device: accelerate moves the layer's weights for each pass."""
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path / "cache"))
    plain = HFCausal.load("m", {"source": {"folder": str(folder)}}, "fp32", "cpu")
    parts = ("embed_tokens", "layers.0", "layers.1", "layers.2", "norm", "rotary_emb")
    places = {f"model.{part}": "disk" if part == "layers.1" else "cpu" for part in parts} | {"lm_head": "disk"}
    whole = hf_causal._spread
    monkeypatch.setattr(hf_causal, "_spread", lambda name, params: {**whole(name, params), "device_map": places})
    params = {"source": {"folder": str(folder)}, "device_map": "auto"}
    spread = HFCausal.load("m:device_map=auto", params, "fp32", "cpu")
    assert spread.forward_kind == "transformers" and spread._net.model.hf_device_map == places
    rows = [feed_windows(model.cache(), [3, 1, 4, 1, 5], (0, 3)) for model in (plain, spread)]
    torch.testing.assert_close(rows[0], rows[1], rtol=1e-5, atol=1e-5)
    assert not spread.meets(params) & {Requirement.GATE}


def test_auto_is_the_whole_machine(folder: Path) -> None:
    params = {"source": {"folder": str(folder)}, "device_map": "auto"}
    loaded = HFCausal.load("m", params, "bf16", "cpu")
    assert feed(loaded.cache(), [3, 1], 0).shape[0] == 2


def test_a_released_model_gives_its_weights_back_and_serves_no_cache(folder: Path) -> None:
    model = HFCausal.load("m", {"source": {"folder": str(folder)}}, "bf16", "cpu")
    config = AutoConfig.from_pretrained(folder)
    whole = AutoModelForCausalLM.from_config(config)
    assert model.weights_bytes == 4 * sum(weight.numel() for weight in whole.parameters())
    net = weakref.ref(model._net)
    model.release()
    gc.collect()
    assert net() is None
    with pytest.raises(ContractError, match="were given back"):
        feed(model.cache(), [1, 2], 0)


def test_noise_depends_on_seed_position_and_token_only() -> None:
    model = tiny()
    noisy, again = NoisyBackbone(model, 0.5, 0), NoisyBackbone(model, 0.5, 0)
    plain, noisy_logits = fresh(model, TOKENS[:12]), fresh(noisy, TOKENS[:12])
    cache = again.cache()
    assert feed(cache, TOKENS[:4], 0, rows=0).shape == (0, 61)
    feed(cache, [1, 2, 3], 4)
    cache.keep(4)
    torch.testing.assert_close(feed(cache, TOKENS[4:12], 4), noisy_logits[4:], rtol=0, atol=1e-6)
    noise = noisy_logits - plain
    assert 0.45 < float(noise.std()) < 0.55
    assert len({round(float(row[0]), 9) for row in noise}) == 12
    assert not torch.allclose(fresh(NoisyBackbone(model, 0.5, 1), TOKENS[:12]), noisy_logits)
    assert torch.equal(fresh(NoisyBackbone(model, 0.0, 1), TOKENS[:12]), plain)
