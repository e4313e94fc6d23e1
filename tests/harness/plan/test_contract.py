"""A plugin that breaks its contract: one message that names it and the attribute, and no command else is disturbed."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.task import Task
from stridebench.harness.errors import PluginError, PluginWarning
from stridebench.harness.plan import contract
from stridebench.harness.plan.cells import Plan, plugin_identity
from stridebench.harness.registry import METHODS, TASKS
from tests.support.cli import refused, stride
from tests.support.one_by_one import OneByOne, register
from tests.support.runs import plan_of


class NoMethod:
    """A class of something else."""


class NoDataclass(Method[None]):
    claim = Claim.SAME_LAW
    start = step = lambda *arguments: None  # type: ignore[assignment]  # never called


@dataclass(frozen=True)
class Unhashable(OneByOne):
    words: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Uncompared(OneByOne):
    secret: int = field(default=0, compare=False)


class Alike(OneByOne):
    """Says that it is equal to an honest method, whose proof and cell it would share."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OneByOne)

    def __hash__(self) -> int:
        return hash(OneByOne())


@dataclass(frozen=True)
class WithoutClaim(Method[None]):
    start = step = lambda *arguments: None  # type: ignore[assignment]  # never called


def raises() -> Any:
    raise KeyError("column")


def exits() -> Any:
    raise SystemExit(0)


def with_attribute(name: str, value: Any) -> type[Any]:
    return dataclass(frozen=True)(type("Wrong", (OneByOne,), {name: value}))


def with_variants(read: Callable[[], Any]) -> type[Any]:
    return with_attribute("variants", classmethod(lambda cls: read()))


WRONG_METHODS = {
    "no class": (7, "is 7, which does not extend stridebench.harness.core.method"),
    "no method": (NoMethod, "which does not extend stridebench.harness.core.method"),
    "no dataclass": (NoDataclass, "is not a dataclass; put @dataclass(frozen=True)"),
    "no claim": (WithoutClaim, "cannot be made: variants raises TypeError"),
    "unhashable": (Unhashable, "has a parameter that cannot be hashed"),
    "uncompared": (Uncompared, "has the parameter secret with compare=False, so that two settings of it would be one"),
    "alike": (Alike, "has its own __eq__, so that two settings could be one; leave it to the dataclass"),
    "variants raises": (with_variants(raises), "cannot be made: variants raises KeyError: 'column'"),
    "variants exits": (with_variants(exits), "cannot be made: variants raises SystemExit"),
    "variants empty": (with_variants(lambda: []), "has variants() []; it must return settings of Wrong"),
    "variants other": (with_variants(lambda: ["sjd"]), "has variants() ['sjd']; it must return settings of Wrong"),
    "claim": (with_attribute("claim", "exact"), "has claim 'exact'; it must be a Claim"),
    "requirements": (with_attribute("requirements", "GRID"), "has requirements 'GRID'; it must be a frozenset"),
    "requirement": (with_attribute("requirements", frozenset({"GRID"})), "it must be a frozenset of Requirement"),
    "taps": (with_attribute("taps", 3), "has taps 3; it must be a tuple of layers"),
    "tap": (with_attribute("taps", ("last",)), "has taps ('last',); it must be a tuple of layers"),
    "drafters": (with_attribute("drafters", lambda self: "self"), "has drafters 'self'; it must be a sequence"),
    "drafter": (with_attribute("drafters", lambda self: [3]), "has drafters [3]; it must be a sequence of names"),
    "drafters raises": (with_attribute("drafters", lambda self: raises()), "drafters raises KeyError"),
    "components": (with_attribute("components", ["adapter"]), "it must be a sequence of pairs of kind and name"),
    "shrink": (with_attribute("drafter_shrink", 0), "has drafter_shrink 0; it must be a whole number from 1"),
    "source": (with_attribute("source", None), "has source None; it must be a text"),
    "mutants": (with_attribute("mutants", [1]), "has mutants [1]; it must be a tuple of Mutant"),
    "reference": (with_attribute("reference", "itself"), "has reference 'itself'; it must be a Method or None"),
}
RUN = ("--backbone", "tabular", "--task", "{name: tabular, limit: 1}")


@pytest.fixture(params=list(WRONG_METHODS))
def wrong(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The message of a wrong method, which is registered as ``wrong``."""
    kind, problem = WRONG_METHODS[request.param]
    register(monkeypatch, METHODS, "wrong", kind)  # type: ignore[arg-type]  # what a plugin may register
    yield problem


def test_a_wrong_method_that_is_named_is_one_message(wrong: str, tmp_path: Any) -> None:
    text = refused("verify", "wrong", "--quick")
    assert "the method 'wrong' of this test" in text and wrong in text
    if not wrong.startswith("has variants()") and "variants raises" not in wrong:  # a run reads no variants
        text = refused("run", "--method", "wrong", *RUN, "--out", tmp_path / "run")
        assert "the method 'wrong' of this test" in text and wrong in text


def test_a_wrong_method_is_left_out_of_lists_with_a_warning(wrong: str) -> None:
    with pytest.warns(PluginWarning) as caught:
        names = [name for name, _ in contract.usable_methods()]
    assert len(caught) == 1 and wrong in str(caught[0].message)
    assert set(names) == set(METHODS) - {"wrong"}


def test_other_commands_go_on_beside_a_wrong_method(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    register(monkeypatch, METHODS, "wrong", with_attribute("taps", 3))
    for words in (("list", "methods"), ("list", "matrix"), ("paper", "cost")):
        outcome = stride(*words, "--json")
        assert outcome.code == 0 and outcome.document
        assert "'wrong' of this test has taps 3" in outcome.err and "Traceback" not in outcome.err
    words = ("--method", "sjd", *RUN, "--max-new-tokens", 4, "--set", "prove=false", "--json")
    with warnings.catch_warnings():
        warnings.simplefilter("error", PluginWarning)
        assert stride("run", *words, "--out", tmp_path / "run").code == 0


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (NoMethod, "which does not extend stridebench.harness.core.task"),
        ("prompts.jsonl", "which does not extend stridebench.harness.core.task"),
        (type("Plain", (Task,), {"prompts": lambda self: ()}), "is not a dataclass"),
        (
            dataclass(frozen=True)(type("Wrong", (Task,), {"prompts": raises, "metrics": "right"})),
            "has metrics 'right'",
        ),
        (dataclass(frozen=True)(type("Wrong", (Task,), {"prompts": raises, "modality": 3})), "has modality 3"),
    ],
)
def test_a_wrong_task_is_one_message_and_is_left_out_of_lists(
    monkeypatch: pytest.MonkeyPatch, kind: Any, problem: str
) -> None:
    register(monkeypatch, TASKS, "wrong", kind)
    text = refused("run", "--method", "sjd", "--backbone", "tabular", "--task", "wrong")
    assert "the task 'wrong' of this test" in text and problem in text
    with pytest.warns(PluginWarning) as caught:
        names = [name for name, _ in contract.usable_tasks()]
    assert len(caught) == 1 and problem in str(caught[0].message)
    assert set(names) == set(TASKS) - {"wrong"}


def test_what_ships_keeps_the_contract() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PluginWarning)
        assert [name for name, _ in contract.usable_methods()] == list(METHODS)
        assert [name for name, _ in contract.usable_tasks()] == list(TASKS)


def test_an_unhashable_parameter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch, METHODS, "wrong", Unhashable)
    with pytest.raises(PluginError, match="unhashable type: 'list'"):
        contract.settings_of("wrong")


SOURCE = """
from dataclasses import dataclass
from tests.support.one_by_one import OneByOne

@dataclass(frozen=True)
class Packaged(OneByOne):
    pass
"""


@pytest.fixture()
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installed package whose method is called ``packaged``."""
    folder = tmp_path / "stride_packaged"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text(SOURCE)
    (folder / "inner" / "more.py").write_text("ONE = 1")
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__("stride_packaged")
    monkeypatch.setitem(sys.modules, "stride_packaged", module)
    register(monkeypatch, METHODS, "packaged", module.Packaged)
    monkeypatch.setattr(METHODS, "_plugins", {"packaged"})
    yield folder
    del sys.modules["stride_packaged"]


def plan() -> Plan:
    return plan_of(methods=["packaged", "speculative"])


def test_every_python_file_counts_and_no_other(package: Path) -> None:
    first, cells = plugin_identity("packaged"), [cell.id for cell in plan().cells]
    assert first is not None and len(first["sha256"]) == 64
    (package / "notes.txt").write_text("other")
    assert plugin_identity("packaged") == first
    (package / "inner" / "more.py").write_text("ONE = 2")
    assert plugin_identity("packaged") != first
    assert [cell.id for cell in plan().cells] == cells, "the id of a cell stays, so that a gate finds it"


def test_the_key_of_a_run_and_the_cell_hold_it(package: Path) -> None:
    """A method of ours has none."""
    manifest = plan().manifest()
    identity = plugin_identity("packaged")
    assert manifest["key"]["plugins"] == {"packaged": identity}
    stored = {cell["method"]: cell.get("plugin") for cell in manifest["cells"].values()}
    assert stored == {"autoregressive": None, "speculative": None, "packaged": identity}
