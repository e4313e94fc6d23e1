"""The catalogue that lists and dry runs read instead of importing torch: `python -m tests.catalogue --write`.

Without ``--write`` it says whether `harness/catalogue.json` equals what the registries say.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from stridebench.harness.cli.list import suite_row
from stridebench.harness.core.method import Method, parameters
from stridebench.harness.plan import contract, presets, resolve
from stridebench.harness.plan.contract import engine_row, method_row, task_row
from stridebench.harness.plan.planned_method import PlannedMethod, defaults
from stridebench.harness.registry import (
    BACKBONES,
    ENGINES,
    GENERAL_RECIPES,
    KERNELS,
    LAYOUTS,
    METHODS,
    RECIPES,
    RUNNERS,
    TASKS,
    Registry,
)
from stridebench.harness.run.executors import EXECUTORS

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "harness" / "catalogue.json"
PACKAGES = ("harness", "methods", "tasks")
OURS = tuple(f"stridebench.{name}." for name in PACKAGES)


def built() -> dict[str, Any]:
    """Return the catalogue as the registries of this process say it, in the form that JSON gives back."""
    for module in registering():
        import_module(module)
    document = {
        "modules": {
            **{registry.kind: _modules(registry) for registry in (BACKBONES, ENGINES, KERNELS, LAYOUTS, RUNNERS)},
            "recipe": registering("(?:GENERAL_)?RECIPES"),
        },
        "recipes": {
            name: {"kind": recipe.kind, "serves": recipe.serves}
            for name, recipe in ((name, RECIPES.get(name)) for name in RECIPES)
            if recipe.kind != "scorer"  # no cell needs one
        },
        "general_recipes": {
            name: {"kind": recipe.kind, "tunes": recipe.tunes, "requires": recipe.requires}
            for name, recipe in ((name, GENERAL_RECIPES.get(name)) for name in GENERAL_RECIPES)
        },
        "executors": list(EXECUTORS),
        "methods": {name: method_entry(name) for name in _ours(METHODS)},
        "tasks": {name: {"row": task_row(name, TASKS.get(name))} for name in _ours(TASKS)},
        "engines": {name: {"row": engine_row(name)} for name in _ours(ENGINES)},
        "suites": {name: {"row": suite_row(name, path)} for name, path in resolve.commands().items()},
        "adapters": {name: adapter_entry(name) for name in _ours(BACKBONES)},
    }
    return cast(dict[str, Any], json.loads(json.dumps(document)))


def written(document: Mapping[str, Any]) -> str:
    """Return a catalogue as JSON, a line for each entry and for each setting of a method."""
    return re.sub(r"\n {5,}|\n {4}(?=[\]}])", " ", json.dumps(document, indent=1)) + "\n"


def registering(registries: str = "[A-Z_]+") -> list[str]:
    """Return the modules of our packages whose text registers something."""
    call = re.compile(rf"^ *@?(?:{registries})\.register\(", re.MULTILINE)
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    dotted = {".".join(("stridebench", *path.relative_to(ROOT).with_suffix("").parts)): path for path in paths}
    texts = {name: path.read_text(encoding="utf-8") for name, path in dotted.items()}
    return [
        name for name, text in texts.items() if "from stridebench.harness.registry import" in text and call.search(text)
    ]


def _ours(registry: Registry[Any]) -> list[str]:
    return [name for name in registry if registry.source(name).startswith(OURS)]


def _modules(registry: Registry[Any]) -> dict[str, str]:
    return {name: registry.source(name) for name in _ours(registry)}


def method_entry(name: str) -> dict[str, Any]:
    """Return a method's row of `stride list`, its defaults, and its settings in our suites, each less what is usual."""
    variants = contract.settings_of(name)
    settings = dict.fromkeys([contract.default_of(variants), *variants, *_of_suites().get(name, ())])
    usual = defaults(type(variants[0]))
    facts = [setting_facts(method, usual) for method in settings]
    changes = [{key: value for key, value in one.items() if key == "params" or value != facts[0][key]} for one in facts]
    return {"row": method_row(name, variants), "defaults": usual, "settings": [facts[0], *changes[1:]]}


def setting_facts(method: Method[Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return what planning reads of a method; of its parameters, those that are not at their defaults."""
    planned = PlannedMethod.of(method)
    return {
        "params": {key: value for key, value in parameters(method).items() if key not in usual or value != usual[key]},
        "claim": planned.claim.name,
        "source": planned.source,
        "requirements": sorted(need.name for need in planned.requirements),
        "components": planned.components,
        "drafters": planned.drafters(),
        "drafter_shrink": planned.drafter_shrink,
        "one_branch": planned.one_branch,
    }


@cache
def _of_suites() -> dict[str, list[Method[Any]]]:
    """Return the settings of each method in our suites and in their tiny forms."""
    found: dict[str, list[Method[Any]]] = {}
    for name in resolve.commands():
        for tiny in (False, True):
            for use in resolve.of_command(name, resolve.Overrides(tiny=tiny)).uses:
                found.setdefault(use.planned.name, []).append(use.method)
    return found


class Recorded(Mapping[str, Any]):
    """Parameters of a preset that note which of them are read; of a source, its kind alone may be."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self._params, self.read = params, dict[str, Any]()

    def __getitem__(self, key: str) -> Any:
        value = self._params.get(key)
        if key == "source" and isinstance(value, Mapping):
            self.read[key] = next(iter(value), None)
            return dict.fromkeys(value)
        self.read[key] = value
        return self._params[key]

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError("an adapter reads its parameters by name")

    def __len__(self) -> int:
        return len(self._params)


def adapter_entry(name: str) -> dict[str, Any]:
    """Return an adapter's type, its parameters, and its answers by the parameters that they depend on."""
    kind = BACKBONES.get(name)
    tried = [{}, *(spec.params for spec in presets.by_name().values() if spec.adapter == name), *TRIED.get(name, ())]
    cases: list[dict[str, Any]] = []
    for params in tried:
        recorded = Recorded(params)
        case = {
            "meets": sorted(need.name for need in kind.meets(recorded)),
            "reads_text": kind.reads_text(recorded),
            "modality": kind.modality(recorded),
        }
        if {"when": recorded.read, **case} not in cases:
            cases.append({"when": recorded.read, **case})
    return {"default_dtype": kind.default_dtype, "parameters": getattr(kind, "parameters", ()), "cases": cases}


TRIED: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "hf_causal": [{"source": {kind: None}} for kind in ("hub", "gguf", "folder", "random")]
}
"""Parameters of backbones that no preset has."""


def main() -> None:
    """Write the catalogue, or compare it."""
    text = written(built())
    if "--write" in sys.argv[1:]:
        FILE.write_text(text, encoding="utf-8")
    elif text != FILE.read_text(encoding="utf-8"):
        sys.exit("harness/catalogue.json is not what the registries say: python -m tests.catalogue --write")


if __name__ == "__main__":
    main()
