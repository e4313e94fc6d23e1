"""Rows of a text with and without an adapter: measures by hand, adapters with a known result, and the command."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.core.cache import Window
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.session import Session
from stridebench.harness.core.task import Prompt
from stridebench.harness.record import stats
from stridebench.harness.train import adapter_layers as layers
from stridebench.harness.train.adapter_layers import Sides, measure, measured, sides, summary
from stridebench.harness.train.teacher import Passage
from tests.support.cli import refused, stride

SIZES = {
    "vocab_size": 41,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 48,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
}
LINEAR = {"self_attn.q_proj": (16, 16), "self_attn.v_proj": (16, 8), "mlp.down_proj": (24, 16)}
"""Inputs and outputs of the linear layers that the adapters here change."""
PASSAGE = Passage((3, 14, 15, 9, 26, 5, 35, 8, 9, 7), 4)
READINGS = get_args(layers.Reading)
SHIPPED = ("paper", "layers", "embedded-code", "--adapter", "cross-regression-embedded-code")


def tiny(forward: str = "fused", context: int = 48) -> HFCausal:
    config = {**SIZES, "max_position_embeddings": context}
    source = {"random": {"model_type": "llama", "config": config, "seed": 1}}
    return HFCausal.load("tiny", {"source": source, "forward": forward}, "fp64", "cpu")


def products(scale: float = 0.3) -> dict[str, tuple[Tensor, Tensor]]:
    """Down [r, I] and up [O, r] of each linear layer."""
    generator, matrices = torch.Generator().manual_seed(2), {}
    for layer in range(3):
        for name, (inputs, outputs) in LINEAR.items():
            down = torch.randn(2, inputs, generator=generator, dtype=torch.float64)
            up = scale * torch.randn(outputs, 2, generator=generator, dtype=torch.float64)
            matrices[f"model.layers.{layer}.{name}"] = (down, up)
    return matrices


def write(folder: Path, fingerprint: str, low: dict[str, tuple[Tensor, Tensor]]) -> Path:
    folder.mkdir(exist_ok=True)
    named = {
        f"base_model.model.{name}.lora_{letter}.weight": tensor
        for name, pair in low.items()
        for letter, tensor in zip("AB", pair, strict=True)
    }
    save_file(named, folder / "adapter_model.safetensors")
    how = {"peft_type": "LORA", "r": 2, "lora_alpha": 2}
    (folder / "adapter_config.json").write_text(json.dumps(how))
    (folder / "config.json").write_text(json.dumps({"backbone": "tiny", "fingerprint": fingerprint}))
    return folder


def opened(folder: Path, model: HFCausal, **how: Any) -> Any:
    return model.adapter(write(folder / "adapter", model.fingerprint, products(**how)))


class TestMeasures:
    def test_by_hand(self) -> None:
        """Two entries, two layers and the embedding of width 2."""
        vanilla = torch.tensor([[[3.0, 4.0], [0.0, 5.0], [1.0, 0.0]], [[0.0, 1.0], [2.0, 0.0], [2.0, 0.0]]])
        adapter = torch.tensor([[[3.0, 4.0], [0.0, -5.0], [0.0, 2.0]], [[0.0, 1.0], [4.0, 0.0], [3.0, 0.0]]])
        measures = measured(Sides(vanilla, adapter))
        assert measures["norm_vanilla"].tolist() == [3.0, 3.5, 1.5]
        assert measures["norm_adapter"].tolist() == [3.0, 4.5, 2.5]
        assert measures["cosine"].tolist() == pytest.approx([1.0, 0.0, 0.5])
        assert measures["before_vanilla"].tolist() == pytest.approx([np.nan, 0.4, 0.5], nan_ok=True)
        assert measures["before_adapter"].tolist() == pytest.approx([np.nan, -0.4, 0.0], nan_ok=True)

    def test_intervals_are_over_prompts(self) -> None:
        index = pd.MultiIndex.from_product([list("abcdef"), [0]], names=["prompt", "repetition"])
        values = pd.Series([1.0, 2.0, 3.0, 4.0, 5.0, 9.0], index)
        by_layer = pd.concat({0: values, 1: 2 * values}, names=["layer"])
        frame = pd.DataFrame(dict.fromkeys(layers.MEASURES, by_layer))
        frame.loc[0, "before_vanilla"] = np.nan
        intervals = summary(frame)
        expected = stats.mean(values)
        assert expected is not None and expected.low is not None and intervals["layer"].tolist() == [0, 1]
        row = intervals.iloc[0]
        assert (row["cosine"], row["cosine_low"], row["cosine_high"]) == (4.0, expected.low, expected.high)
        assert row["cosine_n"] == 6 and np.isnan(row["before_vanilla"]) and intervals["before_vanilla"][1] == 8.0

    def test_a_prompts_value_is_the_mean_over_its_own_text(self, tmp_path: Path) -> None:
        model = tiny()
        adapter = opened(tmp_path, model)
        prompts = [Prompt("a", tokens=(1, 2, 3)), Prompt("b", tokens=(5,) * 44)]
        frame = measure(model, adapter, prompts, 6, "beside")
        run, tokens = model.cache(), [5] * 44
        for _ in range(4):  # as many as the context has room for
            run.keep(0)
            tokens.append(int(run.extend(window(tokens)).logits.argmax()))
        expected = measured(sides(model, adapter, Passage(tuple(tokens), 44), "beside"))
        np.testing.assert_allclose(frame.xs(("b", 0), level=("prompt", "repetition")), expected, atol=1e-9)
        assert set(frame.index.get_level_values("prompt")) == {"a", "b"} and len(frame) == 8


def window(tokens: Sequence[int]) -> Window:
    return Window(torch.tensor(tokens), torch.arange(len(tokens)), 0, None, 1)


@pytest.mark.parametrize("forward", ["fused", "transformers"])
@pytest.mark.parametrize("reading", READINGS)
class TestRows:
    def test_rows_are_those_that_predict_the_generated_tokens(self, reading: Any, forward: str, tmp_path: Path) -> None:
        """From the prompt's last entry on, the unembedded row L gives the model's own logits."""
        model = tiny(forward)
        hidden = sides(model, opened(tmp_path, model), PASSAGE, reading)
        assert hidden.vanilla.shape == hidden.adapter.shape == (6, 4, 16)
        ids, count = torch.tensor(PASSAGE.tokens[:-1]), len(PASSAGE.tokens) - 1
        logits = model.cache().extend(Window(ids, torch.arange(count), 0, None, 6)).logits
        torch.testing.assert_close(hidden.vanilla[:, 3] @ model.tied_embeddings().unembed.T, logits, atol=1e-9, rtol=0)

    def test_a_text_that_fills_the_context_is_read_in_chunks(self, reading: Any, forward: str, tmp_path: Path) -> None:
        passage = Passage(tuple(range(24)), 5)
        full, roomy = (
            sides(model, opened(tmp_path, model), passage, reading) for model in (tiny(forward, 24), tiny(forward, 48))
        )
        torch.testing.assert_close(full.adapter, roomy.adapter, atol=1e-9, rtol=0)


@pytest.mark.parametrize("forward", ["fused", "transformers"])
def test_reading_alone_equals_the_model_with_merged_weights(forward: str, tmp_path: Path) -> None:
    model, merged = tiny(forward), tiny("transformers")
    hidden = sides(model, opened(tmp_path, model), PASSAGE, "alone")
    linear = dict(merged._net.model.named_modules())  # type: ignore[attr-defined]  # of transformers
    for name, (down, up) in products().items():
        linear[name].weight += up @ down
    expected = sides(merged, opened(tmp_path, merged, scale=0.0), PASSAGE, "beside").vanilla
    torch.testing.assert_close(hidden.adapter, expected, atol=1e-5, rtol=0)  # transformers' norms are in fp32
    assert (hidden.adapter - hidden.vanilla).abs().max() > 0.1


@pytest.mark.parametrize("forward", ["fused", "transformers"])
def test_reading_beside_equals_row_0_of_a_decodes_stream(forward: str, tmp_path: Path) -> None:
    model = tiny(forward)
    adapter = opened(tmp_path, model)
    rows = sides(model, adapter, PASSAGE, "beside").adapter
    for place in range(PASSAGE.start, len(PASSAGE.tokens)):
        text = PASSAGE.tokens[:place]
        session = Session(model.cache(), model.capabilities, text, stopwatch=Stopwatch(CpuClock()))
        session.adapter = adapter
        session.tap(range(4))
        session.prefill()
        stream = Draft(torch.tensor([text[-1]]), parents=torch.tensor([-2]), gate=torch.tensor([True]), probes=1)
        session.forward(stream)
        torch.testing.assert_close(rows[place - PASSAGE.start], session.newest[1, 0], atol=1e-9, rtol=0)


@pytest.mark.slow
def test_the_command_writes_a_table_and_a_picture_once(tmp_path: Path) -> None:
    out = tmp_path / "made"
    words = (*SHIPPED, "--task", "programs", "--prompts", 2, "--tokens", 6, "--out", out)
    result = stride(*words)
    assert result.code == 0 and result.err == "", result
    assert "norm, adapter" in result.out and "before, adapter" in result.out and "(n=2)" in result.out
    with (out / "layers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["layer"] for row in rows] == [str(layer) for layer in range(len(rows))]
    assert float(rows[0]["cosine"]) == pytest.approx(1) and float(rows[-1]["cosine"]) < 0.99
    picture = (out / "layers.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert "is there already and is not overwritten" in refused(*words)
    assert (out / "layers.png").read_bytes() == picture
    document = stride(*words[:-1], tmp_path / "again", "--json").document
    assert document[0]["before_vanilla"] is None and document[-1]["cosine"] == float(rows[-1]["cosine"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("embedded-cod", "cross-regression-embedded-code", "programs"), "did you mean 'embedded-code'?"),
        (("embedded-code", "nowhere", "programs"), "no adapter 'nowhere' came with the package"),
        (("embedded-code", "cross-regression-embedded-code", "digits"), "is of image and the backbone"),
        (("embedded-code", "cross-regression-embedded-code", "math500"), "is not there"),
        (("whisper-base", "cross-regression-embedded-code", "utterances"), "does not meet HIDDEN"),
        (("random-llama-1m", "cross-regression-embedded-code", "programs"), "has no tokenizer"),
        (("tabular", "cross-regression-embedded-code", "tabular"), "was trained for other weights"),
    ],
)
def test_unmeasurable_combinations_are_refused(
    words: tuple[str, str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    backbone, adapter, task = words
    assert message in refused(
        "paper", "layers", backbone, "--adapter", adapter, "--task", task, "--out", tmp_path / "out"
    )
    assert not (tmp_path / "out" / "layers.csv").exists()


def test_an_output_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "is a file; name a folder" in refused(*SHIPPED, "--task", "programs", "--out", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
