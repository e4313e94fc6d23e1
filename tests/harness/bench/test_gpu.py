"""The script of all timings of a GPU, whole and short, on CPU tensors with the recorder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stridebench.harness.bench import gpu, machine_profile
from stridebench.harness.errors import UsageError
from tests.support.cli import refused, stride

SUITE = """
methods: [{name: sjd, window: 4}, {name: zipar, window: 4}]
backbones: [embedded-code]
tasks: [{name: continuation, limit: 1}]
max_new_tokens: 6
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> gpu.Settings:
    monkeypatch.setattr(machine_profile, "measure", lambda device: {"bandwidth_gb_s": {"value": 10.0}})
    (tmp_path / "small.yaml").write_text(SUITE)
    quick = gpu.Settings.quick("cpu", "random-llama-1m", 300.0)
    return replace(quick, suites=(str(tmp_path / "small.yaml"),), dtype="fp32")


@pytest.mark.slow
def test_every_section_has_rows_and_what_has_none_says_why(settings: gpu.Settings, tmp_path: Path) -> None:
    sections: list[str] = []
    document = gpu.run(settings, tmp_path / "gpu.json", sections.append)
    body = json.loads((tmp_path / "gpu.json").read_text())
    assert sections == list(gpu.SECTIONS)
    assert {row["section"] for row in body["rows"]} == set(gpu.SECTIONS) - {"profile"}
    equal = [row["ours"] for row in body["rows"] if row["section"] == "captured and plain passes"]
    assert equal == [1.0, 1.0, 1.0]
    assert {row["weights"] for row in body["rows"] if row["section"] != "methods"} == {gpu.OWN_RANDOM}
    assert "no time here is one of a GPU" in body["passes"] and body["gpu"] == "none: CPU tensors"
    assert all(entry["reason"] for entry in body["left_out"])
    methods = [row for row in body["rows"] if row["section"] == "methods"]
    assert methods and all(row["ms_a_step"] > 0 and row["tau"] >= 1 for row in methods)
    assert len(list(gpu.table(document))) == len(body["rows"])


@pytest.mark.audit
def test_every_method_of_both_suites_passes_on_the_recorder(tmp_path: Path) -> None:
    """On tiny models; what has no row lacks a component that no recipe trains, or drafts with the real model's ids.

    Busy machines need over nine minutes.
    """
    out = tmp_path / "methods.json"
    words = ("--quick", "--tiny", "--device", "cpu", "--backbone", "random-llama-1m", "--minutes", 60, "--out", out)
    assert stride("bench", "gpu", *words).code == 0
    body = json.loads(out.read_text())
    cells = {
        cell.id for plan in gpu.plans(gpu.Settings("cpu", tiny=True)) for cell in plan.cells if cell.role == "method"
    }
    left_out = {entry["name"]: entry["reason"] for entry in body["left_out"] if entry["section"] == "methods"}
    timed = [row for row in body["rows"] if row["section"] == "methods"]
    assert len(timed) + len(left_out) == len(cells) >= 60
    reasons = ("no recipe of `stride train drafter` is for it", "has 49152 token ids, and the backbone 258")
    assert all(reason.endswith(reasons) for reason in left_out.values()), left_out
    assert {row["weights"] for row in timed} == {gpu.TRAINED, gpu.STAND_IN}


def test_a_time_that_is_over_leaves_rows_out_and_names_them(settings: gpu.Settings, tmp_path: Path) -> None:
    over = replace(settings, seconds=0.0)
    document = gpu.Document(tmp_path / "gpu.json", {}, 0.0)
    gpu.methods(over, document)
    assert not document.rows
    assert {entry["reason"] for entry in document.left_out} >= {"the time was over"}


def test_a_file_that_is_there_is_kept(settings: gpu.Settings, tmp_path: Path) -> None:
    (tmp_path / "gpu.json").write_text("earlier")
    with pytest.raises(UsageError, match="exists; name another file with --out"):
        gpu.run(settings, tmp_path / "gpu.json", lambda section: None)
    assert (tmp_path / "gpu.json").read_text() == "earlier"


def test_weights_that_cannot_be_had_are_random_ones_of_the_same_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load(name: str, dtype: str, device: str) -> str:
        loaded.append(name)
        if gpu.RANDOM not in name:
            raise UsageError("no network")
        return name

    monkeypatch.setattr(gpu.presets, "load", load)
    gpu._model.cache_clear()
    assert gpu._model("smollm2-135m:weights=int4", "bf16", "cpu") == ("random-smollm2-135m:weights=int4", gpu.SHAPED)
    with pytest.raises(UsageError, match="no network"):
        gpu._model("embedded-image", "bf16", "cpu")
    gpu._model.cache_clear()
    assert loaded == ["smollm2-135m:weights=int4", "random-smollm2-135m:weights=int4", "embedded-image"]


def test_options_of_the_gpu_belong_to_it_alone() -> None:
    assert "--quick belongs to `stride bench gpu`" in refused("bench", "startup", "--quick")
