"""Published feature drafters: their keys, one pass against transformers' layers, and what does not fit."""

from __future__ import annotations

import json
import re
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.llama import modeling_llama

from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.cache import Window, resolve
from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.core.loop import decode
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import WeightsError, WeightsWarning
from stridebench.methods.autoregressive import Autoregressive
from stridebench.methods.drafters import checkpoint
from stridebench.methods.drafters.eagle import published
from stridebench.methods.drafters.eagle.net import FeatureCache, FeatureDrafterNet, rotate_cells
from stridebench.methods.eagle2 import Eagle2
from stridebench.methods.eagle3 import Eagle3
from stridebench.methods.mtp import MultiTokenPrediction
from stridebench.methods.p_eagle import ParallelEagle
from tests.support.feature_toys import SIZES, run_on, tiny
from tests.support.published_drafters import Published

SPECULATORS = {"speculators_model_type": "eagle3"}
KINDS: dict[str, tuple[dict[str, Any], bool]] = {
    "EAGLE-1 of LLaMA": ({"family": "llama"}, False),
    "EAGLE-1 of Qwen2, biases and an embedding": ({"family": "llama", "attention_bias": True, "own": True}, False),
    "LANTERN of Chameleon": ({"family": "chameleon"}, False),
    "MTP of speculators": ({"family": "qwen3", "name": "mtp_layers.0", "head_dim": 8}, True),
    "MTP of vLLM": ({"family": "qwen3", "name": "mtp", "head_dim": 8}, False),
    "MTP of MiMo": (
        {"family": "llama", "name": "mtp_layers.0", "model_type": "mimo", "attention_bias": True}, False,
    ),
    "MTP of DeepSeek and GLM": ({"family": "llama", "name": "model.layers.61", "attention_bias": True}, False),
    "EAGLE-3": ({"family": "llama", "kept": 9, "name": "midlayer"}, False),
    "EAGLE-3, all ids": ({"family": "llama", "kept": 61, "name": "midlayer"}, False),
    "EAGLE-3 of a wider target": (
        {"family": "llama", "kept": 9, "name": "midlayer", "target_hidden_size": 48, "own": True}, False,
    ),
    "SpecForge, llama3 rotations and fc_norm": (
        {"family": "llama", "kept": 9, "name": "midlayer", "fc_norm": True, "head_dim": 16, "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16}}, False,
    ),
    "speculators": ({"family": "llama", "kept": 9, **SPECULATORS, "norm_before_residual": True, "own": True}, True),
    "speculators of Qwen3": ({"family": "qwen3", "kept": 9, **SPECULATORS, "norm_output": True, "head_dim": 8}, False),
    "speculators, one norm of all taps": ({"family": "llama", "kept": 9, **SPECULATORS, "norm_before_fc": True}, True),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_one_pass_is_that_of_the_reference(name: str, tmp_path: Path) -> None:
    """A prompt in two windows, then its own output read on, as EAGLE-3 drafts."""
    (how, nested) = KINDS[name]
    reference = Published(**how)
    net = FeatureDrafterNet.load(reference.save(tmp_path, nested)).packed()
    torch.manual_seed(0)
    embed, target = reference.embed.weight, reference.config.get("target_hidden_size", 32)
    tied = TiedEmbeddings(torch.randn(61, 32) if reference.own else embed, torch.randn(61, 32))
    cache = FeatureCache(net, tied, Capabilities(61, 64, width=target), 4)
    tokens, rows = torch.tensor([5, 9, 22, 31, 7]), torch.randn(5, 3 if reference.kept else 1, target)
    outs, logits = [], []
    for part in (slice(0, 3), slice(3, 5)):
        places = torch.arange(5)[part]
        read = cache.extend(Window(tokens[part], places, part.start, None, len(places), (), rows[part, None]))
        assert read.hidden is not None
        outs.append(read.hidden[:, 0, 0])
        logits.append(read.logits)
    expected = reference(embed[tokens], rows.flatten(1))
    torch.testing.assert_close(torch.cat(outs), expected, rtol=1e-4, atol=5e-5)
    own = torch.cat(logits)
    if reference.kept:
        assert net.ids.tolist() == (reference.d2t + torch.arange(reference.kept)).tolist()
        torch.testing.assert_close(own[:, net.ids], reference.logits(expected), rtol=1e-4, atol=1e-4)
    else:
        torch.testing.assert_close(own, expected @ tied.unembed.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("negative", [2, 6])
@pytest.mark.parametrize("cuts", [(8,), (2, 4, 8)])
def test_the_branch_without_the_condition_reads_the_rows_of_the_targets(
    negative: int, cuts: tuple[int, ...], tmp_path: Path
) -> None:
    """LANTERN for Anole has the row of the first of `[0, 8197]` (U = 2), for LlamaGen those of all places (U = P)."""
    reference = Published("chameleon")
    net = FeatureDrafterNet.load(reference.save(tmp_path)).packed()
    assert net.shape.unconditional == "rows"
    torch.manual_seed(0)
    prompt, embed, scale = 6, reference.embed.weight, 3.0
    tied = TiedEmbeddings(embed, torch.randn(61, 32))
    tokens, rows = torch.tensor([5, 9, 22, 31, 7, 3, 8, 1]), torch.randn(8, 2, 1, 32)
    cache = FeatureCache(net, tied, Capabilities(61, 64, width=32, branches=2, guidance=scale), prompt, negative)
    logits, start = [], 0
    for end in cuts:
        places = torch.arange(start, end)
        window = Window(tokens[start:end], places, start, None, end - start, (), rows[start:end])
        logits.append(cache.extend(window).logits)
        start = end
    first = prompt - negative  # entry i holds token i + 1 of the text and row i
    with_condition = reference(embed[tokens], rows[:, 0].flatten(1)) @ tied.unembed.T
    without = reference(embed[tokens[first:]], rows[first:, 1].flatten(1)) @ tied.unembed.T
    expected = without + scale * (with_condition[first:] - without)
    torch.testing.assert_close(torch.cat(logits)[first:], expected, rtol=1e-4, atol=5e-4)


P_EAGLE: dict[str, tuple[dict[str, Any], bool]] = {
    "AWS": ({"name": "midlayer", "ptd_token_id": 60, "own": True, "parallel_drafting": True}, False),
    "speculators": (
        {"mask_token_id": 60, "norm_before_residual": True, "speculators_model_type": "peagle", "num_depths": 8}, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", P_EAGLE)
def test_one_pass_of_p_eagle_is_that_of_the_reference(
    name: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """A prompt, then the rest of the context with three masks; and the same again, behind the masks of that pass."""
    how, nested = P_EAGLE[name]
    reference = Published("llama", kept=9, num_hidden_layers=3, **how)
    net = FeatureDrafterNet.load(reference.save(tmp_path, nested)).packed()
    assert (net.shape.mask, net.shape.deeper, net.shape.serves) == (60, 2, ("p_eagle",)) and not recwarn.list
    torch.manual_seed(0)
    embed, tokens, rows = reference.embed.weight, torch.tensor([5, 9, 22, 31, 7, 60, 60, 60]), torch.randn(8, 3, 32)
    tied = TiedEmbeddings(torch.randn(61, 32) if reference.own else embed, torch.randn(61, 32))
    cache, places = FeatureCache(net, tied, Capabilities(61, 64, width=32), 4), torch.arange(8)
    rows[5:] = reference.mask_hidden.view(3, 32)
    features = rows.clone()
    features[5:] = float("nan")  # the target has none for masks
    cache.extend(Window(tokens[:3], places[:3], 0, None, 0, (), features[:3, None]))
    expected = reference(embed[tokens], rows.flatten(1))
    for start in (3, 4):
        cache.keep(start)
        read = cache.extend(Window(tokens[start:], places[start:], start, None, 4, (), features[start:, None]))
        assert read.hidden is not None
        torch.testing.assert_close(read.hidden[-4:, 0, 0], expected[4:], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(read.logits[:, net.ids], reference.logits(expected[4:]), rtol=1e-4, atol=2e-4)


def attend(query: Any, keys: Any, values: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)


def test_eagle3_reads_its_own_rows_as_the_reference_does(tmp_path: Path) -> None:
    reference = Published("llama", kept=9, name="midlayer")
    net = FeatureDrafterNet.load(reference.save(tmp_path))
    vectors, rows = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0))
    out = net(vectors[None], rows[None, :, None], torch.arange(3), attend)[0]
    torch.testing.assert_close(out, reference(vectors, rows, fused=True), rtol=1e-4, atol=1e-5)


def complex_rotation(x: torch.Tensor, places: range, side: int, width: int) -> torch.Tensor:
    """LlamaGen's table by complex numbers: zero in a prompt, then each cell's row and column."""
    rates = 10000.0 ** (-torch.arange(0, width // 2, 2) / (width // 2))
    turns = [
        torch.exp(1j * torch.cat([place // side * rates, place % side * rates]))
        if place >= 0
        else torch.zeros(width // 2)
        for place in places
    ]
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * torch.stack(turns).to(pairs.dtype)).flatten(-2)


def test_rows_and_columns_rotate_as_in_llamagen() -> None:
    x = torch.randn(1, 2, 7, 8, generator=torch.Generator().manual_seed(0))
    expected = complex_rotation(x, range(-3, 4), 2, 8)
    torch.testing.assert_close(rotate_cells(x, torch.arange(-3, 4), 2, 10000.0), expected, rtol=1e-5, atol=1e-6)


def test_one_pass_of_lanterns_drafter_for_llamagen_is_that_of_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three entries of a prompt, then the cells of two rows of a picture."""
    reference, places = Published("llama", input_type="t2i"), range(-3, 18)
    net = FeatureDrafterNet.load(reference.save(tmp_path))
    assert net.shape.side == 16 and net.shape.branches == 2
    vectors, rows = torch.randn(2, len(places), 32, generator=torch.Generator().manual_seed(0))

    def rotated(query: torch.Tensor, keys: torch.Tensor, *table: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return complex_rotation(query, places, 16, 8), complex_rotation(keys, places, 16, 8)

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", rotated)
    out = net(vectors[None], rows[None, :, None], torch.tensor(list(places)), attend)[0]
    torch.testing.assert_close(out, reference(vectors, rows), rtol=1e-4, atol=5e-5)


LAYER = "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj mlp.gate_proj mlp.up_proj mlp.down_proj"


def published_layout(eagle3: bool, width: int, kv: int, inner: int, vocabulary: int, kept: int) -> dict[str, Any]:
    """Keys and shapes of SafeAILab's files, as ``cnets1.py`` and ``cnets.py`` build them."""
    name, taken = ("midlayer", 2 * width) if eagle3 else ("layers.0", width)
    sizes = [(width, taken), (kv, taken), (kv, taken), (width, width), (inner, width), (inner, width), (width, inner)]
    shapes: dict[str, Any] = {f"{name}.{key}.weight": size for key, size in zip(LAYER.split(), sizes, strict=True)}
    shapes[f"{name}.post_attention_layernorm.weight"] = (width,)
    shapes["fc.weight"] = (width, (3 if eagle3 else 2) * width)
    if not eagle3:
        return {**shapes, "fc.bias": (width,), "embed_tokens.weight": (vocabulary, width)}
    shapes |= {f"{name}.{norm}.weight": (width,) for norm in ("hidden_norm", "input_layernorm")}
    return {**shapes, "norm.weight": (width,), "lm_head.weight": (kept, width), "d2t": (kept,), "t2d": (vocabulary,)}


LAYOUTS = {
    "EAGLE-Vicuna-7B-v1.3": (False, 4096, 4096, 11008, 32000, 0, {"num_attention_heads": 32}),
    "EAGLE-LLaMA3-Instruct-8B": (
        False, 4096, 1024, 14336, 128256, 0, {"num_attention_heads": 32, "num_key_value_heads": 8}),
    "EAGLE3-LLaMA3.1-Instruct-8B": (
        True, 4096, 1024, 14336, 128256, 32000, {"num_attention_heads": 32, "num_key_value_heads": 8}),
    "EAGLE3-Vicuna1.3-13B": (True, 5120, 5120, 13824, 32000, 32000, {"num_attention_heads": 40}),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_our_net_has_the_published_layout(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 missing, 0 unknown, every shape, at the published sizes."""
    eagle3, width, kv, inner, vocabulary, kept, heads = LAYOUTS[name]
    shapes = published_layout(eagle3, width, kv, inner, vocabulary, kept)
    config = {"hidden_size": width, "intermediate_size": inner, "vocab_size": vocabulary, "num_hidden_layers": 1}
    config |= {**heads, **({"draft_vocab_size": kept} if kept else {})}
    with torch.device("meta"):
        state = {key: torch.zeros(size, dtype=torch.long if key == "d2t" else None) for key, size in shapes.items()}
        monkeypatch.setattr(checkpoint, "tensors", lambda *folder, **part: state)
        net = published.read(Path(name), config, FeatureDrafterNet)
    assert net.shape.kind == ("eagle3" if eagle3 else "eagle1") and net.shape.kept == kept


P_EAGLE_LAYERS = {"num_hidden_layers": 2, "ptd_token_id": 60}
UNFIT: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"midlayer.self_attn.k_proj.weight": None}, {}, r"lacks midlayer\.self_attn\.k_proj\.weight\. It"),
    ({"norm.weight": None, "fc.weight": None}, {}, r"lacks fc\.weight, norm\.weight"),
    ({"norm.weight": torch.ones(31)}, {}, r"has norm\.weight in the shape \(31,\), not \(32,\)"),
    ({"fc.weight": torch.ones(32, 64)}, {}, r"has fc\.weight in the shape \(32, 64\), not \(32, 96\)"),
    ({f"extra.{n}": torch.ones(1) for n in range(12)}, {}, r"read, extra\.0, (extra\.\d+, ){8}extra\.\d+ and 2 more"),
    ({}, {"num_hidden_layers": 2}, "has 2 layers"),
    ({}, {"num_attention_heads": "many"}, "config.json is of no published feature drafter"),
    ({}, {"norm_output": False}, "norm_output: false"),
    ({}, {"hidden_act": "gelu"}, "has hidden_act: 'gelu', and only drafters with 'silu' are computed here"),
    ({}, {"rope_parameters": {"partial_rotary_factor": 0.5}}, r"has partial_rotary_factor: 0\.5"),
    ({}, {"rope_scaling": {"type": "default", "partial_rotary_factor": 0.5}}, r"has partial_rotary_factor: 0\.5"),
    ({}, {"eagle_config": {"use_aux_hidden_state": False}}, "has use_aux_hidden_state: False"),
    ({"layers.1.mlp.up_proj.weight": None}, P_EAGLE_LAYERS, r"lacks layers\.1\.mlp\.up_proj\.weight\. It"),
    ({"layers.1.hidden_norm.weight": torch.ones(32)}, P_EAGLE_LAYERS, r"read, layers\.1\.hidden_norm\.weight"),
    ({"layers.2.mlp.up_proj.weight": torch.ones(8)}, P_EAGLE_LAYERS, r"read, layers\.2\.mlp\.up_proj\.weight"),
    ({"mask_hidden": torch.ones(1, 1, 95)}, P_EAGLE_LAYERS, r"mask_hidden in the shape \(1, 1, 95\), not \(3, 32\)"),
    ({"mask_hidden": None}, P_EAGLE_LAYERS, "lacks mask_hidden"),
    (
        {"mask_hidden": torch.ones(1, 1, 96)},
        {},
        "has mask_hidden, and its config.json no ptd_token_id or mask_token_id",
    ),
    ({}, {**P_EAGLE_LAYERS, "layer_types": ["full_attention", "sliding_attention"]}, "has layer_types:"),
]


@pytest.mark.parametrize(("changes", "stated", "message"), UNFIT)
def test_tensors_and_settings_that_do_not_fit_are_named(
    changes: dict[str, Any], stated: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made = P_EAGLE_LAYERS if stated.items() >= P_EAGLE_LAYERS.items() else {}
    reference = Published("llama", kept=9, name="midlayer", **made)
    reference.config |= stated
    with pytest.raises(WeightsError, match=message):
        FeatureDrafterNet.load(reference.save(tmp_path, **changes))


def shards(folder: Path, kind: str) -> list[Path]:
    """Write the tensors of a folder anew, in two files with an index."""
    path = folder / "model.safetensors"
    state = load_file(path)
    path.unlink()
    names = sorted(state)
    suffix, stem = ("bin", "pytorch_model") if kind == "bin" else ("safetensors", "model")
    files, places = [], {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = folder / f"{stem}-{number:05}-of-00002.{suffix}"
        own = {name: state[name] for name in part}
        if kind == "bin":
            torch.save(own, file)
        else:
            save_file(own, file)
        files.append(file)
        places |= dict.fromkeys(part, file.name)
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"weight_map": places}))
    return files


@pytest.mark.parametrize("kind", ["bin", "safetensors"])
def test_a_drafter_in_several_files_is_the_same_drafter(kind: str, tmp_path: Path) -> None:
    """A user's upload of ``pytorch_model-00001-of-00002.bin`` and more; one that is not there is named."""
    folder = Published("llama", kept=9, name="midlayer").save(tmp_path)
    whole = FeatureDrafterNet.load(folder).state_dict()
    files = shards(folder, kind)
    again = FeatureDrafterNet.load(folder).state_dict()
    assert whole.keys() == again.keys() and all(torch.equal(whole[key], again[key]) for key in whole)
    files[1].unlink()
    with pytest.raises(WeightsError, match=rf"{files[1].name} cannot be read as weights.*fetch it again"):
        FeatureDrafterNet.load(folder)


GPT_OSS_20B = """architectures:LlamaForCausalLMEagle3 hidden_act:silu initializer_range:0.02 num_local_experts:16
max_position_embeddings:4096 model_type:gpt_oss pad_token_id:0 tie_word_embeddings:false torch_dtype:bfloat16
transformers_version:4.52.3 use_cache:true experts_per_token:4"""
"""Further keys of SpecForge's configs/gpt-oss-20B-eagle3-dense.json."""


@pytest.mark.parametrize(
    ("stated", "layers"),
    [
        ({}, (2, 12, 21)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 11, 21]}}, (2, 12, 22)),
        ({"eagle_aux_hidden_state_layer_ids": [2, 12, 22]}, (2, 12, 22)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [], "use_aux_hidden_state": True}}, (2, 12, 21)),
    ],
)
def test_the_layers_that_a_configuration_names_are_read(
    stated: dict[str, Any], layers: tuple[int, ...], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """gpt-oss-20b has 24 layers; SpecForge counts them from 0, and vLLM counts what the first one reads too."""
    more = dict(pair.split(":") for pair in GPT_OSS_20B.split())
    reference = Published("llama", kept=9, name="midlayer")
    reference.config |= more | stated
    folder = reference.save(tmp_path)
    taps = Eagle3(str(folder)).taps
    assert resolve(taps, Capabilities(61, 64, width=32, layers=24)) == layers
    assert FeatureDrafterNet.load(folder).shape.layers in ((), layers) and not recwarn.list


def test_a_key_that_nobody_reads_is_named(tmp_path: Path) -> None:
    reference = Published("llama", kept=9, name="midlayer")
    reference.config |= {"residual_scale": 0.5, "use_cache": True}
    with pytest.warns(WeightsWarning, match=r"keys that are not read: residual_scale\. If"):
        FeatureDrafterNet.load(reference.save(tmp_path))


@pytest.mark.parametrize("odd", ["self_attn.q_a_proj.weight", "mlp.experts.0.up_proj.weight"])
def test_a_layer_of_deepseek_with_other_parts_is_refused(odd: str, tmp_path: Path) -> None:
    """Latent attention and experts."""
    reference, name = Published("llama", name="model.layers.61"), f"model.layers.61.{odd}"
    with pytest.raises(WeightsError, match=f"does not read, layers.0.{re.escape(odd)}"):
        FeatureDrafterNet.load(reference.save(tmp_path, **{name: torch.ones(2)}))


SLIDING, FULL = "sliding_attention", "full_attention"
UNFIT_MTP: list[tuple[dict[str, Any], str]] = [
    ({"partial_rotary_factor": 0.5}, r"has partial_rotary_factor: 0\.5"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, r"has partial_rotary_factor: 0\.5"),
    ({"hidden_act": "gelu"}, "has hidden_act: 'gelu', and only drafters with 'silu' are computed here"),
    ({"use_sliding_window": True}, "has use_sliding_window: True"),
    ({"num_hidden_layers": 2, "layer_types": [FULL, SLIDING]}, "has layer_types: "),
    ({"num_hidden_layers": 2, "layer_types": [FULL, FULL, SLIDING]}, "has layer_types: "),
    ({"num_hidden_layers": 2, "layer_types": [SLIDING, SLIDING, FULL]}, ""),
    ({"num_hidden_layers": 2, "layer_types": ["linear_attention", FULL], "num_nextn_predict_layers": 1}, ""),
    ({"residual_scale": 0.5}, r"keys that are not read: residual_scale\. If"),
]


@pytest.mark.parametrize(("stated", "message"), UNFIT_MTP)
def test_settings_of_a_model_are_checked_for_its_layer_for_multi_token_prediction(
    stated: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """The layers before it may be of other kinds."""
    reference = Published("llama", name="mtp")
    reference.config |= stated
    refused = pytest.raises((WeightsError, WeightsWarning), match=message) if message else nullcontext()
    with refused, warnings.catch_warnings():
        warnings.simplefilter("error", WeightsWarning)
        FeatureDrafterNet.load(reference.save(tmp_path))


@pytest.mark.parametrize(
    ("name", "later"),
    [("model.layers.61", "model.layers.62.eh_proj.weight"), ("mtp_layers.0", "mtp_layers.1.input_proj.weight")],
)
def test_later_layers_for_multi_token_prediction_are_noted(name: str, later: str, tmp_path: Path) -> None:
    layer = Published("llama", name=name, attention_bias=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", WeightsWarning)
        FeatureDrafterNet.load(layer.save(tmp_path / "one"))
    with pytest.warns(WeightsWarning, match="several MTP layers; the first one drafts at every depth"):
        FeatureDrafterNet.load(layer.save(tmp_path / "two", **{later: torch.ones(2)}))


def test_mtp_drafts_its_chain_a_token_a_pass(tmp_path: Path) -> None:
    model, greedy = tiny("fp32"), Sampling(0.0)
    folder = str(Published("llama", name="mtp", **TARGET, **WIDE).save(tmp_path))
    decoded = decode(MultiTokenPrediction(folder, depth=2), run_on(model, greedy, 24))
    assert decoded.tokens == decode(Autoregressive(), run_on(model, greedy, 24)).tokens
    assert (decoded.steps[0].drafted, decoded.steps[0].draft_nfe) == (2, 2)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_p_eagle_drafts_a_chain_in_one_pass(temperature: float, tmp_path: Path) -> None:
    """At T = 0 tokens are the target's own; near the end of the context fewer masks fit."""
    model, sampling = tiny("fp32"), Sampling(temperature)
    drafter = Published(
        "llama", kept=9, name="midlayer", num_hidden_layers=2, ptd_token_id=60,
        eagle_aux_hidden_state_layer_ids=[1, 2, 5], **TARGET, **WIDE
    )  # fmt: skip
    method = ParallelEagle(str(drafter.save(tmp_path)), depth=5)
    assert method.taps == (1, 2, 5)
    decoded = decode(method, run_on(model, sampling, 130))
    drafts = [(step.drafted, step.draft_nfe) for step in decoded.steps]
    assert drafts[0] == (5, 1) and max(drafts) == (5, 1)
    assert [drafted for drafted, _ in drafts[-3:]] == sorted((drafted for drafted, _ in drafts[-3:]), reverse=True)
    if not temperature:
        assert decoded.tokens == decode(Autoregressive(), run_on(model, sampling, 130)).tokens


TARGET = {"hidden_size": SIZES["hidden_size"], "vocab_size": 61}
WIDE = {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.slow
@pytest.mark.parametrize("eagle3", [False, True])
def test_a_published_folder_drafts_for_a_method(eagle3: bool, tmp_path: Path) -> None:
    """The folder's path is all that a user gives; tokens at T = 0 are the target's own."""
    model = tiny("fp32")
    drafter = Published("llama", kept=9 if eagle3 else 0, name="midlayer" if eagle3 else "layers.0", **TARGET, **WIDE)
    if eagle3:
        drafter.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 4]}
    folder = str(drafter.save(tmp_path))
    method = Eagle3(folder, nodes=6) if eagle3 else Eagle2(folder, nodes=6)
    assert method.taps == ((1, 2, 5) if eagle3 else (-1,))
    greedy = Sampling(0.0)
    decoded = decode(method, run_on(model, greedy, 24))
    assert decoded.tokens == decode(Autoregressive(), run_on(model, greedy, 24)).tokens
    assert sum(step.drafted for step in decoded.steps) > 24


EAGLE3 = {**TARGET, **WIDE, "kept": 9, "name": "midlayer"}


@pytest.mark.parametrize(
    ("method", "how", "message"),
    [
        (Eagle2, {"hidden_size": 32, "vocab_size": 61}, "reads rows of width 32, and those of tiny have 48"),
        (Eagle2, {**TARGET, "vocab_size": 60, "own": True}, "vocabulary of 60 ids, and tiny of 61"),
        (Eagle3, {**EAGLE3, "vocab_size": 90, "kept": 40}, "vocabulary of 79 ids, and tiny of 61"),
        (Eagle3, {**EAGLE3, "ptd_token_id": 61}, "holds a drafter of kind p_eagle, and this method reads eagle3"),
        (ParallelEagle, {**EAGLE3, "ptd_token_id": 61}, "vocabulary of 62 ids, and tiny of 61"),
        (ParallelEagle, EAGLE3, "holds a drafter of kind eagle3, and this method reads p_eagle"),
        (MultiTokenPrediction, {**TARGET, **WIDE}, "holds a drafter of kind eagle1, and this method reads mtp"),
    ],
)
def test_a_drafter_of_another_target_or_method_is_refused(
    method: Any, how: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = str(Published("llama", **how).save(tmp_path))
    with pytest.raises(WeightsError, match=message):
        decode(method(folder), run_on(tiny("fp32"), Sampling(0.0), 8))
