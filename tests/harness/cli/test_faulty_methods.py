"""Methods with a mistake, through `stride verify`, `run`, `audit` and `gate`: none of them passes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness.core.method import Method
from stridebench.harness.registry import METHODS
from tests.support import faulty_methods as faulty
from tests.support.cli import Outcome, stride
from tests.support.one_by_one import OneByOne, register

pytestmark = pytest.mark.usefixtures("unchecked")
SMALL = ("--backbone", "tabular", "--task", "{name: tabular, prompts_count: 10}", "--max-new-tokens", 24)
LARGE = ("--backbone", "random-llama-1m", "--task", "{name: tabular, prompts_count: 6}", "--max-new-tokens", 8)
NAME = "plug"


@dataclass(frozen=True)
class Seen:
    """What each command says of a faulty method.

    Args:
        kind: its class.
        verify: the verdict of the fixed cases.
        run: the verdict of its cell; None: no sample succeeded.
        audit: of its cell; None: there is nothing to audit.
        gate: against the honest plugin of the same name.
        why: what the gate says, in part.
        random: the verdict of 60 random cases, where the fixed ones are not enough.
    """

    kind: type[Method[Any]]
    verify: str
    run: str | None
    audit: str | None
    gate: str
    why: str
    random: str = ""
    temperature: int = 1
    words: tuple[object, ...] = SMALL


TABLE = [
    Seen(faulty.DraftsWithTheTarget, "exact", "exact", "not refuted", "fail", "a significant drop"),
    Seen(faulty.ReusesNoise, "unverified", None, None, "error", "10 samples failed"),
    Seen(faulty.BiasedLate, "exact", "broken", "refuted", "fail", "the verdict was exact and is broken", "broken"),
    Seen(faulty.WrongLate, "exact", "broken", None, "fail", "was exact and is broken", "broken", temperature=0),
    Seen(faulty.RaisesOnToys, "unverified", "broken", "refuted", "fail", "was exact and is broken", words=LARGE),
    Seen(faulty.CopiesLate, "broken", "broken", "refuted", "fail", "was exact and is broken"),
]


def decoded(folder: Path, kind: type[Method[Any]], seen: Seen) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        register(patch, METHODS, NAME, kind)
        words = ("--method", NAME, *seen.words, "-t", seen.temperature, "--set", "warmup=0", "--set", "timing=false")
        return stride("run", *words, "--out", folder, "--json")


@pytest.fixture(scope="module")
def baselines(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Path]:
    """Baselines of the honest plugin, by the words of the run; made when they are asked for."""
    return {"folder": tmp_path_factory.mktemp("honest")}


def baseline_of(seen: Seen, baselines: dict[Any, Path]) -> Path:
    key = (seen.temperature, seen.words)
    if key not in baselines:
        folder = baselines["folder"] / str(len(baselines))
        assert decoded(folder, OneByOne, seen).code == 0
        assert stride("gate", "make", folder, "--out", folder / "baseline.json").code == 0
        baselines[key] = folder / "baseline.json"
    return baselines[key]


def quick(seen: Seen) -> Any:
    slow = seen.kind in (faulty.BiasedLate, faulty.ReusesNoise)
    marks = () if seen.kind is faulty.DraftsWithTheTarget else pytest.mark.slow if slow else pytest.mark.audit
    return pytest.param(seen, id=seen.kind.__name__, marks=marks)


@pytest.mark.parametrize("seen", [quick(seen) for seen in TABLE])
def test_a_faulty_method_does_not_pass(
    seen: Seen, baselines: dict[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baseline, run = baseline_of(seen, baselines), tmp_path / "run"
    decoded(run, seen.kind, seen)
    register(monkeypatch, METHODS, NAME, seen.kind)
    rows = stride("report", run, "--json").document
    assert [row["verdict"] for row in rows if row["label"] == NAME] == [seen.run]
    audited = stride("audit", run, "--json")
    if seen.temperature:
        assert [row["verdict"] for row in audited.document["cells"] if row["label"] == NAME] == [seen.audit]
    else:
        assert audited.code == 2 and "nothing was drawn" in audited.err
    gated = stride("gate", "check", run, "--baseline", baseline, "--json")
    assert gated.document["verdict"] == seen.gate and gated.code != 0
    assert any(seen.why in row["why"] for row in gated.document["rows"] if row["verdict"] == seen.gate)


@pytest.mark.audit
@pytest.mark.parametrize("seen", TABLE, ids=lambda seen: seen.kind.__name__)
def test_verify_says_of_a_faulty_method_what_it_saw(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, METHODS, NAME, seen.kind)
    (row,) = (row for row in stride("verify", NAME, "--quick", "--json").document if "verdict" in row)
    assert row["verdict"] == seen.verify
    if seen.random:
        (row,) = stride("verify", NAME, "--random", 60, "--json").document
        assert row["verdict"] == seen.random
