"""Presets: shipped ones, those of the user, drafters by name, and errors that name the fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from stridebench.harness.backbones.text import chat
from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.backbones.text.wrapped import NoisyBackbone
from stridebench.harness.core.models import Models
from stridebench.harness.errors import UnknownNameError, UsageError, WeightsError
from stridebench.harness.plan import presets
from tests.support.tiny_text import tiny


def test_shipped_presets_are_sound() -> None:
    specs = presets.by_name()
    expected = {"smollm2-135m", "smollm2-135m-hub", "random-llama-1m", "random-llama-5m", "tabular"}
    assert expected <= set(specs)
    for spec in specs.values():
        assert spec.licence and spec.note and spec.meets()
    assert presets.resolve("random-llama-1m").ready()


@pytest.mark.parametrize(("name", "millions"), [("random-llama-1m", 1.1), ("random-llama-5m", 5.4)])
def test_random_presets_have_the_size_of_their_note(name: str, millions: float) -> None:
    params = {**presets.resolve(name).params, "forward": "transformers"}
    model = HFCausal.load(name, params, "fp32", "cpu")
    size = model._net.model.num_parameters()  # type: ignore[attr-defined]
    assert round(size / 1e6, 1) == millions
    assert f"{millions} million" in presets.resolve(name).note


def test_every_malformed_preset_is_reported_with_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text("adapter: hf_causal\nsource:\n  wheel: {package: x}\n")
    (tmp_path / "b.yaml").write_text("note: x\nadapter: hf_casual\nlicence: 3\n")
    (tmp_path / "c.yaml").write_text("adapter: hf_causal\nsource: [unclosed\n")
    (tmp_path / "d.yaml").write_text("- a list\n")
    (tmp_path / "e.yaml").write_bytes(b"adapter: \xff\n")
    (tmp_path / "f.yaml").write_text("one:\n  adapter: tabular\n  size: 3\ntwo: {note: x}\nthree: 5\none: {}\n")
    monkeypatch.setenv("STRIDE_PRESETS", f"{tmp_path}:{tmp_path / 'nowhere'}")
    with pytest.raises(UsageError) as caught:
        presets.by_name()
    lines = str(caught.value).splitlines()
    assert len(lines) == 11
    for start, says in (
        ("a.yaml:2:", "lacks version"),
        ("b.yaml:2:", "did you mean 'hf_causal'"),
        ("b.yaml:3:", "`licence` is a text"),
        ("c.yaml:3:", "not YAML"),
        ("d.yaml:1:", "found list"),
        ("e.yaml:1:", "cannot be read"),
        ("f.yaml:6:", "'one' stands here for the second time"),
        ("f.yaml:4:", "two: `adapter` is missing"),
        ("f.yaml:5:", "three: a preset is a mapping with `adapter`; found int"),
        ("nowhere:", "not there"),
    ):
        assert any(start in line and says in line for line in lines), (start, lines)


def test_a_file_of_the_user_holds_presets_by_name_which_replace_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tabular.yaml").write_text("adapter: tabular\nvocabulary: 5\n")
    (tmp_path / "mine.yaml").write_text("a: {adapter: tabular, vocabulary: 6}\nb: {adapter: tabular, vocabulary: 4}\n")
    monkeypatch.setenv("STRIDE_PRESETS", str(tmp_path))
    names = ("tabular", "a", "b")
    assert [presets.load(name, "fp64").capabilities.vocabulary for name in names] == [5, 6, 4]
    assert "mine" not in presets.by_name()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("smolm2-135m", "did you mean 'smollm2-135m'"),
        ("embedded-image:colour=1", "image has no parameter 'colour'; it has pixels, guidance, weights"),
        ("image:dtype=fp32", r"dtype is not a parameter of the adapter.* \{name: image, dtype: fp32\}"),
        ("embedded-image:source=1", "image has no parameter 'source'"),
    ],
)
def test_the_error_of_an_unknown_name_or_parameter_says_what_there_is(name: str, says: str) -> None:
    with pytest.raises((UnknownNameError, UsageError), match=says):
        presets.resolve(name)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="no dtype 'fp31'"):
        presets.load("tabular", "fp31")


def test_drafters_are_found_by_name_variant_and_noise() -> None:
    target = presets.load("random-llama-1m", "fp32")
    assert presets.drafter(target, "self") is target
    assert presets.drafter(target, "random-llama-1m") is target
    small = presets.drafter(target, "self:layers=3")
    assert small.name == "random-llama-1m/layers=3"
    other = presets.drafter(target, "random-llama-5m:noise=0.5,layers=4,seed=2")
    assert isinstance(other, NoisyBackbone)
    assert other.capabilities.vocabulary == target.capabilities.vocabulary
    coarse = presets.drafter(target, "self:weights=int4,layers=3")
    assert coarse.name == "random-llama-1m:weights=int4/layers=3"


@pytest.mark.parametrize(
    ("drafter", "passes", "drafts"),
    [
        ("self", 1, 0),
        ("self:noise=0.000001", 1, 0),
        ("self:weights=full", 1, 0),
        ("self:weights=int8,noise=0.1", 0, 1),
        ("self:layers=3", 0, 1),
    ],
)
def test_passes_of_bit_identical_weights_count_as_the_targets(drafter: str, passes: int, drafts: int) -> None:
    target = presets.load("random-llama-1m", "fp32")
    models = Models(target, lambda name: presets.drafter(target, name), (1, 2, 3))
    session = models.drafter(drafter, 1)
    session.prefill()
    session.forward()
    assert (models.meter.passes, models.meter.drafts) == (passes, drafts)


def test_a_name_changes_parameters_of_its_adapter() -> None:
    spec = presets.resolve("embedded-image:weights=int8,guidance=3")
    plain = presets.resolve("embedded-image")
    assert spec.params == {**plain.params, "weights": "int8", "guidance": 3}
    assert (spec.name, spec.adapter) == ("embedded-image:weights=int8,guidance=3", plain.adapter)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("self:seed=3", "noise=, which is missing"),
        ("self:noise=loud", "'loud' is not a number"),
        ("self:noise=-1", "not negative"),
        ("self:depth=3", "has no variant with depth"),
        ("self:weights=int3", "weights is 'int3'; choose one of full, int8, int4, nf4"),
        ("random-lama-1m", "did you mean 'random-llama-1m'"),
    ],
)
def test_the_error_of_an_absent_drafter_names_the_reason(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        presets.drafter(presets.load("random-llama-5m", "fp32"), text)


def test_a_drafter_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(UsageError, match="vocabulary of 512 tokens and the target 'tiny' of 61"):
        presets.drafter(tiny(), "random-llama-1m")


def test_a_tabular_target_makes_its_own_drafters() -> None:
    target = presets.load("tabular", "fp64")
    assert presets.drafter(target, "anything:noise=0.1").capabilities.vocabulary == target.capabilities.vocabulary


Shape = dict[str, Any]


def shape(kind: str, width: int, inner: int, layers: int, heads: int, kv_heads: int, vocabulary: int) -> Shape:
    return {
        "model_type": kind,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    }


SHAPES = {
    "llama2-7b": shape("llama", 4096, 11008, 32, 32, 32, 32000),
    "llama2-13b": shape("llama", 5120, 13824, 40, 40, 40, 32000),
    "llama2-70b": shape("llama", 8192, 28672, 80, 64, 8, 32000),
    "llama3-8b": shape("llama", 4096, 14336, 32, 32, 8, 128256),
    "qwen2.5-7b": shape("qwen2", 3584, 18944, 28, 28, 4, 152064),
    "deepseek-r1-distill-1.5b": shape("qwen2", 1536, 8960, 28, 12, 2, 151936),
    "deepseek-r1-distill-7b": shape("qwen2", 3584, 18944, 28, 28, 4, 152064),
    "deepseek-r1-distill-8b": shape("llama", 4096, 14336, 32, 32, 8, 128256),
    "deepseek-r1-distill-14b": shape("qwen2", 5120, 13824, 48, 40, 8, 152064),
    "deepseek-r1-distill-32b": shape("qwen2", 5120, 27648, 64, 40, 8, 152064),
    "vicuna-7b": shape("llama", 4096, 11008, 32, 32, 32, 32000),
    "vicuna-33b": shape("llama", 6656, 17920, 60, 52, 52, 32000),
    "abel-7b": shape("llama", 4096, 11008, 32, 32, 32, 32000),
}


def parameters(fields: Shape) -> int:
    """Number of parameters, from models of one and two layers built without memory."""
    counts = []
    for layers in (1, 2):
        config = AutoConfig.for_model(**{**fields, "num_hidden_layers": layers})
        with torch.device("meta"):
            counts.append(sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters()))
    return counts[0] + (fields["num_hidden_layers"] - 1) * (counts[1] - counts[0])


@pytest.mark.parametrize("name", SHAPES)
def test_a_preset_names_hub_pin_template_and_the_size_of_its_architecture(name: str) -> None:
    spec = presets.by_name()[name]
    hub = spec.params["source"]["hub"]
    assert spec.params["template"] in chat.TEMPLATES and spec.params["chat"] is False
    assert len(hub.get("revision", "")) == (0 if name == "abel-7b" else 40)
    count = parameters(SHAPES[name])
    assert spec.size == f"{count / 1e9:.2f} B, {2 * count / 1e9:.1f} GB"
    assert spec.params.get("vocabulary", 32000) == SHAPES[name]["vocab_size"]
    assert spec.licence and spec.note and spec.modality() == "text" and spec.reads_text()


def test_the_error_of_absent_weights_names_the_fetch_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(WeightsError, match="not on this machine: run `stride fetch vicuna-7b`"):
        presets.load("vicuna-7b", "fp32", fetch=False)
    with pytest.raises(WeightsError, match=r"meta-llama/Llama-2-7b-chat-hf at revision f5db02\w+ .* your token"):
        presets.fetch("llama2-7b")
