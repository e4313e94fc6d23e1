"""Provenance: complete and free of secrets; its fingerprint identifies the machine's speed."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from stridebench.harness.errors import ContractError
from stridebench.harness.record import provenance
from stridebench.harness.record.provenance import (
    PACKAGES,
    collect,
    digest,
    fingerprint,
    git_commit,
    redact,
    versions,
)

HERE = {
    "cpu": "X", "arch": "x86_64", "cores": 2, "memory_bytes": 2**34, "platform": "Linux-6.1", "threads": 2,
    "gpus": [{"name": "G", "memory_bytes": 80 * 2**30}],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": "Y"},
        {"cores": 4},
        {"threads": 1},
        {"arch": "arm64"},
        {"gpus": []},
        {"gpus": [{"name": "G", "memory_bytes": 40 * 2**30}]},
    ],
)
def test_hardware_that_affects_speed_changes_the_fingerprint(change: dict[str, object]) -> None:
    assert fingerprint(HERE | change) != fingerprint(HERE)


def test_differences_between_equal_machines_keep_the_fingerprint() -> None:
    later = {"platform": "Linux-6.2", "memory_bytes": 2**34 + 4096}
    gpu = [{"name": "G", "memory_bytes": 80 * 2**30 - 2**20}]
    assert fingerprint(HERE | later | {"gpus": gpu}) == fingerprint(HERE)
    assert len(fingerprint(HERE)) == 12


def tree(path: Path) -> Path:
    """A checkout with one commit."""
    (path / "harness").mkdir(parents=True)
    (path / "harness" / "a.py").write_text("a = 1\n")
    who = ["-c", "user.name=n", "-c", "user.email=e@x.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "m"]):
        subprocess.run(["git", "-C", str(path), *words], check=True, capture_output=True)
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout in which the harness seems to lie."""
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "tree" / "harness" / "record" / "provenance.py"))
    return tree(tmp_path / "tree")


def test_the_commit_of_the_source_tree(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = subprocess.run(["git", "-C", str(here), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert git_commit() == {"commit": head.stdout.strip(), "dirty": False}
    (here / "results").mkdir()
    (here / "results" / "run.json").write_text("{}")
    state = git_commit()
    assert state is not None and not state["dirty"], "files of a run are not a change of the code"
    (here / "harness" / "b.py").write_text("b = 1\n")
    state = git_commit()
    assert state is not None and state["dirty"], "a new module is a change of the code"


def test_an_installed_wheel_has_no_commit(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = here / "venv" / "site-packages" / "harness" / "record" / "provenance.py"
    monkeypatch.setattr(provenance, "__file__", str(inside))
    assert git_commit() is None


def test_no_git_and_no_commit_yet_are_no_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        assert git_commit() is None
    subprocess.run(["git", "-C", str(here), "update-ref", "-d", "HEAD"], check=True)
    assert git_commit() is None


@pytest.mark.parametrize(
    ("argv", "redacted"),
    [
        (["run", "--max-tokens", "64", "--monkey", "5"], ["run", "--max-tokens", "64", "--monkey", "5"]),
        (["max_tokens=64"], ["max_tokens=64"]),
        (["--token", "s3", "quick"], ["--token", "***", "quick"]),
        (["--hf-token", "s3", "quick"], ["--hf-token", "***", "quick"]),
        (["--token=s3", "HF_TOKEN=s3", "api_key=s 3"], ["--token=***", "HF_TOKEN=***", "api_key=***"]),
        (["PASSWORD: s3", "x?a=1&key=s3&b=2"], ["PASSWORD:***", "x?a=1&key=***"]),
        (["https://me:s3@host/x", "me@host"], ["https://***@host/x", "me@host"]),
        (["hf_" + "a" * 30], ["***"]),
    ],
)
def test_secrets_are_removed(argv: list[str], redacted: list[str]) -> None:
    assert redact(argv) == redacted


def test_collect_is_json_and_keeps_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "OMP_NUM_THREADS": "3",
        "TORCH_LOGS": "x",
        "HF_TOKEN": "s3cret",
        "TORCH_X": "key=s3cret",
    }.items():
        monkeypatch.setenv(name, value)
    document = json.loads(json.dumps(collect(["stride", "--token", "s3cret"])))
    assert set(document) == {"argv", "machine", "fingerprint", "versions", "git", "environment"}
    assert document["environment"]["OMP_NUM_THREADS"] == "3" and document["environment"]["TORCH_LOGS"] == "x"
    assert "s3cret" not in json.dumps(document)
    assert document["fingerprint"] == fingerprint(document["machine"])
    assert document["machine"]["cpu"] and document["machine"]["memory_bytes"] > 2**28
    assert document["machine"]["threads"] == torch.get_num_threads()
    assert set(document["versions"]) == {"python", *PACKAGES} and document["versions"]["numpy"]


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "PACKAGES", ("no-such-package",))
    assert versions() == {"python": sys.version.split()[0], "no-such-package": None}


def test_a_digest_is_sha256_of_json_and_differs_between_unlike_values() -> None:
    assert digest({"b": [1, (2.5,)], "a": None}) == hashlib.sha256(b'{"a":null,"b":[1,[2.5]]}').hexdigest()
    unlike = [1, 1.0, "1", True, None, [1], {"1": 1}, 0.1, 0.1 + 2**-56, 0.30000000000000004, 0.3, -0.0, 0.0]
    assert len({digest(value) for value in unlike}) == len(unlike)


@pytest.mark.parametrize("value", [object(), {1, 2}, {1: 0, "a": 1}, b"x"])
def test_a_value_that_is_not_json_has_no_digest(value: object) -> None:
    with pytest.raises(ContractError, match="no digest"):
        digest(value)
