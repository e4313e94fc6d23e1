"""A method as a plan holds it: its name, parameters, claim and requirements. Its module may not be imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, cached_property
from typing import Any

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.method import Claim, Method, parameters, setting_label
from stridebench.harness.discover import catalogue
from stridebench.harness.plan import contract
from stridebench.harness.registry import METHODS


@dataclass(frozen=True)
class PlannedMethod:
    """A method with all its parameters. Two are equal if their names and parameters are.

    Args:
        params: name and value of each parameter.
        claim, source, requirements, components, drafter_names, drafter_shrink, one_branch: as `Method` has them.
    """

    name: str
    params: tuple[tuple[str, Any], ...]
    label: str = field(compare=False)
    claim: Claim = field(compare=False)
    source: str = field(compare=False)
    requirements: frozenset[Requirement] = field(compare=False)
    components: tuple[tuple[str, str], ...] = field(compare=False)
    drafter_names: tuple[str, ...] = field(compare=False)
    drafter_shrink: int = field(compare=False)
    one_branch: bool = field(compare=False)

    @classmethod
    def of(cls, method: Method[Any]) -> PlannedMethod:
        """Return the description of a method that was made."""
        name, params = METHODS.name_of(type(method)), parameters(method)
        planned = cls(
            name,
            tuple(params.items()),
            setting_label(name, params, defaults(type(method))),
            method.claim,
            method.source,
            frozenset(method.requirements),
            tuple((kind, part) for kind, part in method.components),
            tuple(method.drafters()),
            method.drafter_shrink,
            method.one_branch,
        )
        planned.__dict__["method"] = method
        return planned

    @classmethod
    def default(cls, name: str) -> PlannedMethod:
        """Return a method at its defaults."""
        return catalogued(name, {}) or cls.of(contract.default_of(contract.settings_of(name)))

    @cached_property
    def method(self) -> Method[Any]:
        """The method itself."""
        made: Method[Any] = METHODS.get(self.name)(**dict(self.params))
        return made

    def drafters(self) -> tuple[str, ...]:
        """Return the names of the models that it opens as drafters."""
        return self.drafter_names


def defaults(kind: type[Any]) -> dict[str, object]:
    """Return the parameters of a method that have a default."""
    return {f.name: f.default for f in fields(kind) if f.default is not MISSING}


def catalogued(name: str, params: Mapping[str, Any]) -> PlannedMethod | None:
    """Return a setting of the catalogue, or None if it is not there or the method's module is imported anyway."""
    if not METHODS.pending(name):
        return None
    complete = _defaults(name) | contract.values(params)
    return next((one for one in _settings(name) if _same(dict(one.params), complete)), None)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one == other and all(isinstance(one[key], bool) == isinstance(other[key], bool) for key in one)


@cache
def _settings(name: str) -> tuple[PlannedMethod, ...]:
    settings = catalogue()["methods"].get(name, {}).get("settings", ())
    return tuple(_read(name, _defaults(name), {**settings[0], **changes}) for changes in settings)


def _defaults(name: str) -> dict[str, object]:
    return contract.values(catalogue()["methods"].get(name, {}).get("defaults", {}))


def _read(name: str, usual: Mapping[str, Any], facts: Mapping[str, Any]) -> PlannedMethod:
    params = dict(usual) | contract.values(facts["params"])
    return PlannedMethod(
        name,
        tuple(params.items()),
        setting_label(name, params, usual),
        Claim[facts["claim"]],
        facts["source"],
        frozenset(Requirement[need] for need in facts["requirements"]),
        tuple((kind, part) for kind, part in facts["components"]),
        tuple(facts["drafters"]),
        facts["drafter_shrink"],
        facts["one_branch"],
    )
