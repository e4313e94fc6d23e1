"""Registries: each name is unique across packages, and errors name the owner."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest

from stridebench.harness import registry
from stridebench.harness.errors import (
    ContractError,
    PluginError,
    PluginWarning,
    UnknownNameError,
    UsageError,
    did_you_mean,
)
from stridebench.harness.registry import BACKBONES, METHODS, TASKS, Registry

GROUP = "stridebench.things"
Plug = Callable[..., None]


class Thing:
    """Something to register."""


class Other:
    """Something else."""


@pytest.fixture()
def things() -> Registry[type]:
    return Registry("thing", GROUP)


@pytest.fixture()
def plug(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plug]:
    """Give the registry entry points, as ``name="module:attribute"``."""
    points: list[EntryPoint] = []

    def entry_points(group: str) -> list[EntryPoint]:
        return [point for point in points if point.group == group]

    def add(group: str = GROUP, **named: str) -> None:
        points.extend(EntryPoint(name, target, group) for name, target in named.items())

    monkeypatch.setattr(registry, "entry_points", entry_points)
    module = ModuleType("plugin_of_the_tests")
    module.Thing, module.Other = Thing, Other  # type: ignore[attr-defined]  # made here
    module.make = lambda: None  # type: ignore[attr-defined]  # made here
    monkeypatch.setitem(sys.modules, "plugin_of_the_tests", module)
    yield add


class TestNames:
    def test_register_get_and_source(self, things: Registry[type]) -> None:
        assert things.register("thing")(Thing) is Thing
        assert things.get("thing") is Thing
        assert things.source("thing") == __name__
        assert things.name_of(Thing) == "thing"
        assert "thing" in things
        assert "other" not in things

    def test_the_same_object_may_be_registered_again(self, things: Registry[type]) -> None:
        things.register("thing")(Thing)
        things.register("thing")(Thing)
        assert list(things) == ["thing"]

    def test_two_objects_of_one_name_are_an_error_that_names_both(self, things: Registry[type]) -> None:
        things.register("thing")(Thing)
        with pytest.raises(ContractError, match=rf"two things are called 'thing': one from {__name__}") as error:
            things.register("thing")(Other)
        assert "Rename one of them" in str(error.value)
        assert things.get("thing") is Thing

    def test_names_come_sorted(self, things: Registry[type]) -> None:
        for name in ("zeta", "alpha", "mid"):
            things.register(name)(type(name, (), {}))
        assert list(things) == ["alpha", "mid", "zeta"]

    def test_an_unknown_name_proposes_the_closest(self, things: Registry[type]) -> None:
        things.register("prompt_lookup")(Thing)
        with pytest.raises(UnknownNameError, match=r"no thing 'promt_lookup'; did you mean 'prompt_lookup'\?"):
            things.get("promt_lookup")
        with pytest.raises(UsageError, match=r"no thing 'xyz'\. Known: prompt_lookup\."):
            things.source("xyz")

    def test_an_empty_registry_knows_no_name(self, things: Registry[type]) -> None:
        with pytest.raises(UnknownNameError, match="Known: none"):
            things.get("thing")

    def test_an_unregistered_object_has_no_name(self, things: Registry[type]) -> None:
        with pytest.raises(ContractError, match="not registered as a thing"):
            things.name_of(Thing)

    @pytest.mark.parametrize(
        ("name", "proposal"),
        [("sjdp", "; did you mean 'sjdpp'?"), ("qqqq", ""), ("jacobbi", "; did you mean 'jacobi'?")],
    )
    def test_did_you_mean(self, name: str, proposal: str) -> None:
        assert did_you_mean(name, ["jacobi", "sjd_x", "sjdpp"]) == proposal


class TestDeclaredNames:
    """Names whose modules are imported on first use."""

    @pytest.fixture()
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.syspath_prepend(str(tmp_path))
        return tmp_path

    def test_a_module_is_imported_on_the_first_use_of_its_name(
        self, things: Registry[type], folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("declared_one", "declared_two"):
            (folder / f"{name}.py").write_text(
                f"import builtins\nbuiltins.things.register({name!r})(type('X', (), {{}}))\n"
            )
        monkeypatch.setattr(builtins, "things", things, raising=False)
        things.declare({"declared_one": "declared_one", "declared_two": "declared_two"})
        assert list(things) == ["declared_one", "declared_two"] and "declared_two" in things
        assert not {"declared_one", "declared_two"} & set(sys.modules)
        things.get("declared_one")
        assert "declared_one" in sys.modules and "declared_two" not in sys.modules

    def test_a_module_that_does_not_register_its_name_is_named(self, things: Registry[type], folder: Path) -> None:
        (folder / "declared_empty.py").write_text("")
        things.declare({"declared_empty": "declared_empty"})
        with pytest.raises(ContractError, match="declared_empty registers no thing 'declared_empty'"):
            things.get("declared_empty")

    def test_a_declared_name_cannot_be_registered_again(self, things: Registry[type]) -> None:
        things.declare({"thing": "somewhere.thing"})
        with pytest.raises(ContractError, match=rf"two things .*'thing'.*from somewhere.thing, one from {__name__}"):
            things.register("thing")(Thing)


@pytest.mark.usefixtures("plug")
class TestEntryPoints:
    def test_a_class_of_another_package_is_served(self, things: Registry[type], plug: Plug) -> None:
        plug(foreign="plugin_of_the_tests:Thing")
        assert "foreign" in things
        assert things.get("foreign") is Thing
        assert things.source("foreign") == "plugin_of_the_tests:Thing"

    def test_a_module_may_register_while_it_is_imported(self, things: Registry[type], plug: Plug) -> None:
        things.register("foreign")(Thing)
        plug(foreign="plugin_of_the_tests")
        assert things.get("foreign") is Thing

    def test_a_name_of_this_project_cannot_be_registered_by_a_plugin(self, things: Registry[type], plug: Plug) -> None:
        things.register("thing")(Thing)
        plug(thing="plugin_of_the_tests:Other")
        with pytest.raises(ContractError, match=r"two things .*'thing'.*from plugin_of_the_tests:Other"):
            list(things)

    def test_two_packages_with_one_name_are_an_error(self, things: Registry[type], plug: Plug) -> None:
        plug(thing="plugin_of_the_tests:Thing")
        plug(thing="plugin_of_the_tests:Other")
        with pytest.raises(ContractError, match="two things are called 'thing'"):
            things.get("thing")

    @pytest.mark.parametrize("target", ["plugin_of_the_tests:Missing", "no_such_plugin_module:Thing"])
    def test_an_entry_point_that_cannot_be_imported_is_left_out_until_it_is_named(
        self, things: Registry[type], plug: Plug, target: str
    ) -> None:
        plug(broken=target, foreign="plugin_of_the_tests:Thing")
        with pytest.warns(PluginWarning, match=r"thing 'broken' of .* cannot be imported: \w+Error"):
            assert list(things) == ["foreign"]
        with pytest.raises(PluginError, match=r"thing 'broken' of .* cannot be imported: \w+Error") as error:
            things.get("broken")
        assert target in str(error.value)

    def test_a_method_that_is_no_class_is_left_out(self, plug: Plug) -> None:
        methods: Registry[type] = Registry("method", GROUP)
        plug(function="plugin_of_the_tests:make")
        with pytest.warns(PluginWarning, match="is a function, not a class"):
            assert list(methods) == []

    def test_other_groups_are_ignored(self, things: Registry[type], plug: Plug) -> None:
        plug(group="stridebench.elsewhere", foreign="plugin_of_the_tests:Thing")
        assert list(things) == []

    def test_entry_points_are_read_once(self, things: Registry[type], plug: Plug) -> None:
        plug(one="plugin_of_the_tests:Thing")
        assert list(things) == ["one"]
        plug(two="plugin_of_the_tests:Other")
        assert list(things) == ["one"]


class TestShippedRegistries:
    @pytest.mark.parametrize(
        ("registry", "names"),
        [
            (METHODS, {"autoregressive", "jacobi", "prompt_lookup", "sjd", "sjdpp", "speculative"}),
            (TASKS, {"continuation", "humaneval", "tabular"}),
            (BACKBONES, {"hf_causal", "tabular"}),
        ],
        ids=["methods", "tasks", "backbones"],
    )
    def test_shipped_names_are_registered(self, registry: Registry[type], names: set[str]) -> None:
        assert names <= set(registry)

    def test_entry_point_groups_keep_their_names(self) -> None:
        groups = [registry.group for registry in (METHODS, TASKS, BACKBONES)]
        assert groups == ["stridebench.methods", "stridebench.tasks", "stridebench.backbones"]
