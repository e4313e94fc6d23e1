"""The gate from end to end: only a worse drafter makes it fail."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from tests.support.cli import refused, stride

pytestmark = pytest.mark.slow
SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
OTHERS = {"bos_token_id": None, "eos_token_id": None, "initializer_range": 0.15}
GOOD, WORSE = 0.1, 0.16
"""Noise on the drafter's weights, as a share of their deviation: acceptance at T = 1 is about 0.75 and 0.67."""
SLIGHT = 0.107
"""Noise that costs about one percent of the acceptance."""


def checkpoint(folder: Path, noise: float) -> None:
    """A small Llama of fixed weights, plus fixed noise times ``noise``."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS, **OTHERS))
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.data += noise * weight.std() * torch.randn(weight.shape)
    logging.disable_progress_bar()
    model.save_pretrained(folder)


Decode = Callable[..., Path]
Drafter = Callable[[str], object]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("gate")
    for name, noise in (("target", 0.0), ("good", GOOD), ("slight", SLIGHT), ("worse", WORSE)):
        checkpoint(base / name, noise)
    (base / "presets").mkdir()
    (base / "presets" / "gate-target.yaml").write_text(f"adapter: hf_causal\nsource: {{folder: {base / 'target'}}}\n")
    return base


@pytest.fixture(scope="module")
def drafter(base: Path) -> Drafter:
    """Put a drafter of some noise in the place of the one that the preset names."""
    preset = base / "presets" / "gate-drafter.yaml"
    return lambda noise: preset.write_text(f"adapter: hf_causal\nsource: {{folder: {base / noise}}}\n")


@pytest.fixture(scope="module")
def decode(base: Path, drafter: Drafter):
    """Runs of one suite; its drafter is a preset that changes on the disk between them."""

    def run(name: str, noise: str) -> Path:
        drafter(noise)
        words = ("--method", "{name: speculative, drafter: gate-drafter, gamma: 4}", "--method", "prompt_lookup")
        words += ("--backbone", "gate-target", "--task", "{name: tabular, prompts_count: 32, vocabulary: 64}")
        words += ("-t", "1", "--max-new-tokens", "24")
        result = stride("run", *words, "--set", "prove=false", "--set", "warmup=0", "--out", base / name, "--json")
        assert result.code == 0 and result.document["done"] == 4, result
        return base / name

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRIDE_PRESETS", str(base / "presets"))
        yield run


@pytest.fixture(scope="module")
def sound(decode: Decode) -> Path:
    return decode("before", "good")


@pytest.fixture(scope="module")
def baseline(sound: Path) -> Path:
    """A baseline made from the sound run."""
    result = stride("gate", "make", sound, "--out", sound / "baseline.json", "--json")
    assert result.code == 0
    assert [cell.split(".")[0].split("-")[0] for cell in result.document["cells"]] == ["speculative", "prompt_lookup"]
    return sound / "baseline.json"


@pytest.fixture(scope="module")
def degraded(decode: Decode) -> Path:
    return decode("after", "worse")


def test_an_identical_run_passes_if_a_drop_would_have_been_seen(sound, baseline):
    result = stride("gate", "check", sound, "--baseline", baseline, "--json")
    rows = [row for row in result.document["rows"] if row["metric"] != "e-value"]
    assert all(row["why"].startswith("identical") for row in rows)
    drafts = [(row["verdict"], row["why"]) for row in rows if row["label"].startswith("speculative")]
    assert drafts and set(drafts) == {("pass", "identical")}
    # 32 prompts are too few for the rare drafts of prompt_lookup
    assert (result.code, result.document["verdict"]) == (4, "inconclusive")
    assert {row["verdict"] for row in result.document["rows"] if row["metric"] == "e-value"} == {"pass"}


def test_a_degraded_drafter_fails_and_its_cell_is_named(baseline, degraded):
    result = stride("gate", "check", degraded, "--baseline", baseline, "--json")
    assert (result.code, result.document["verdict"]) == (1, "fail")
    failed_rows = [row for row in result.document["rows"] if row["verdict"] == "fail"]
    assert failed_rows and all(row["label"] == "speculative drafter=gate-drafter gamma=4" for row in failed_rows)
    acceptance = next(row for row in result.document["rows"] if row["metric"] == "acceptance")
    assert -0.16 < acceptance["change"] < -0.05  # a drafter about a tenth worse, not a broken one
    others = [row for row in result.document["rows"] if row["label"] == "prompt_lookup"]
    assert others and all(row["verdict"] != "fail" for row in others)
    tolerant = stride("gate", "check", degraded, "--baseline", baseline, "--margin", 0.5, "--json")
    drafts = [row["verdict"] for row in tolerant.document["rows"] if row["label"].startswith("speculative")]
    assert tolerant.code == 4 and drafts and set(drafts) == {"pass"}


def test_a_replay_sees_a_loss_of_about_one_percent(sound, drafter, tmp_path):
    baseline = tmp_path / "baseline.json"
    drafter("good")
    assert stride("gate", "make", sound, "--replay", "--out", baseline).code == 0
    same = stride("gate", "replay", "--baseline", baseline, "--json")
    assert (same.code, [row["why"] for row in same.document["rows"]]) == (0, ["identical"])
    assert "prompt_lookup: it has neither a drafter nor trained components" in same.document["notes"][0]
    drafter("slight")
    replayed = stride("gate", "replay", "--baseline", baseline, "--json")
    (row,) = replayed.document["rows"]
    assert (replayed.code, row["verdict"]) == (1, "fail") and -0.025 < row["change"] < -0.005
    assert row["visible"] < 0.01
    both = stride("gate", "replay", sound, "--baseline", baseline, "--json")
    assert both.code == 1 and [row["metric"] for row in both.document["rows"] if row["verdict"] == "fail"] == ["replay"]


def test_a_replay_needs_texts_and_a_gate_without_it_a_run(baseline):
    assert "gate make RUN --replay" in refused("gate", "replay", "--baseline", baseline)
    assert "Missing argument 'RUN'" in stride("gate", "check", "--baseline", baseline).err


def test_a_failed_gate_is_written_to_the_files(baseline, degraded, tmp_path):
    words = ("--baseline", baseline, "--markdown", tmp_path / "gate.md", "--junit", tmp_path / "gate.xml")
    result = stride("gate", "check", degraded, *words)
    assert result.code == 1 and result.out.startswith("fail: ") and "T1.tabular" in result.out.splitlines()[0]
    assert "| ---" not in result.out and "more figures are those of the baseline" in result.out
    page = (tmp_path / "gate.md").read_text()
    assert page.startswith("# Gate: fail: ")
    assert "| speculative drafter=gate-drafter gamma=4 | gate-target.fp32.T1.tabular |" in page
    summary = stride("gate", "check", degraded, *words, "--summary").out
    assert summary.startswith("fail: ") and summary.count("\n") == 1
    suite = ET.parse(tmp_path / "gate.xml").getroot()
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure")) > 0


@pytest.mark.parametrize("text", ["[" * 200_000, None, '{"cells": ', "[]"], ids=["deep", "absent", "cut", "a list"])
def test_a_file_that_is_no_baseline_is_one_message(degraded, tmp_path, text):
    path = tmp_path / "baseline.json"
    if text is not None:
        path.write_text(text)
    assert "stride gate make" in refused("gate", "check", degraded, "--baseline", path)
