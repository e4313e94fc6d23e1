"""Reads files of presets: backbones by name, with an adapter and its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from stridebench.harness import discover
from stridebench.harness.backbones import tiny
from stridebench.harness.backbones.checkpoints import components, sources
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.discover import catalogue
from stridebench.harness.errors import UnknownNameError, UsageError
from stridebench.harness.plan.yaml_lines import parse
from stridebench.harness.registry import BACKBONES

TEXTS = ("size", "licence", "note")


@dataclass(frozen=True)
class Spec:
    """The adapter and parameters of a backbone's name.

    Args:
        published: of a stand-in, the parameters of the preset that it stands for; its files are written when needed.
    """

    name: str
    adapter: str
    params: Mapping[str, Any] = field(default_factory=dict)
    size: str = ""
    licence: str = ""
    note: str = ""
    published: Mapping[str, Any] | None = None

    def meets(self) -> frozenset[Requirement]:
        """The requirements that the backbone would meet, decided without loading it."""
        if case := self._catalogued():
            return frozenset(Requirement[need] for need in case["meets"])
        requirements: frozenset[Requirement] = BACKBONES.get(self.adapter).meets(self.params)
        return requirements

    def reads_text(self) -> bool:
        """Whether it has a tokenizer, as far as that is known without loading it."""
        case = self._catalogued()
        return bool(case["reads_text"] if case else BACKBONES.get(self.adapter).reads_text(self.params))

    def modality(self) -> str:
        """Its modality: text, image, mesh or speech."""
        case = self._catalogued()
        return str(case["modality"] if case else BACKBONES.get(self.adapter).modality(self.params))

    def _catalogued(self) -> Mapping[str, Any] | None:
        """Return the catalogue's answers for an adapter that is not imported, by the parameters that they depend on."""
        seen = dict(self.params)
        if isinstance(seen.get("source"), Mapping):
            seen["source"] = next(iter(seen["source"]), None)
        for case in adapter_facts(self.adapter).get("cases", ()):
            if all(seen.get(key) == value for key, value in case["when"].items()):
                return dict(case)
        return None

    def guided(self) -> bool:
        """Whether it mixes two branches, decided without loading it."""
        return bool(self.params.get("guidance", 1.0) != 1.0)

    def refuse_settings(self) -> None:
        """Refuse weights that are here and that could not be loaded, as far as their settings tell."""
        if self.name.startswith(tiny.PREFIX):  # those are made when they are loaded
            return
        if not BACKBONES.pending(self.adapter) or sources.brought(self.name, self.params):
            BACKBONES.get(self.adapter).refuse_settings(self.name, self.params)

    def ready(self) -> bool:
        """Whether it can be loaded without a fetch."""
        if "lora" in self.params and not discover.tuned(str(self.params["lora"]), self.name).is_dir():
            return False
        if self.published is not None:
            return True
        if "parts" in self.params:
            return components.ready(self.parts())
        if not all(sources.is_shipped(name) for name in self.shipped()):
            return False
        return "source" not in self.params or sources.ready(sources.parse(self.name, self.params["source"]))

    def shipped(self) -> list[str]:
        """Folders of the package's weights that it needs."""
        named = [value.get("shipped") for value in self.params.values() if isinstance(value, Mapping)]
        return [str(name) for name in (*named, self.params.get("body")) if name]

    def parts(self) -> dict[str, components.Component]:
        """The folders and files that a model is published in, checked; see `components`."""
        return components.check(self.name, self.params["parts"], self.params["parts"])


@dataclass(frozen=True)
class PresetFiles:
    """Presets by name, and the errors of files that hold none."""

    specs: Mapping[str, Spec]
    errors: tuple[str, ...]


@lru_cache(maxsize=8)
def read_all(stamped: tuple[tuple[Path, int], ...]) -> PresetFiles:
    """Read files once while they do not change: a plan looks presets up several times a cell."""
    errors: list[str] = []
    specs = [spec for path, _ in stamped for spec in _read(path, errors)]
    return PresetFiles({spec.name: spec for spec in sorted(specs, key=lambda spec: spec.name)}, tuple(errors))


def _read(path: Path, errors: list[str]) -> Iterator[Spec]:
    """Yield the presets of a file; faults are appended to ``errors``."""
    try:
        document = parse(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", 0) + 1
        errors.append(f"{path}:{line}: not YAML: {getattr(error, 'problem', error)}")
        return
    except (OSError, UnicodeDecodeError) as error:
        errors.append(f"{path}:1: cannot be read: {error}")
        return
    if not isinstance(document.data, dict):
        errors.append(f"{path}:1: a file of presets is a mapping; found {type(document.data).__name__}")
        return
    errors.extend(f"{path}:{again.line}: {again.key!r} stands here for the second time" for again in document.repeated)
    if "adapter" in document.data:
        entries = [(path.stem, document.data, 1, document.node)]
    else:
        nodes = {key.value: (key.start_mark.line + 1, node) for key, node in getattr(document.node, "value", ())}
        entries = [(str(name), body, *nodes.get(str(name), (1, None))) for name, body in document.data.items()]
    for name, body, first, node in entries:
        if not isinstance(body, dict):
            errors.append(f"{path}:{first}: {name}: a preset is a mapping with `adapter`; found {type(body).__name__}")
            continue
        faults = _faults(name, body)
        lines = {key.value: key.start_mark.line + 1 for key, _ in getattr(node, "value", ())}
        errors.extend(f"{path}:{lines.get(key, first)}: {name}: {fault}" for key, fault in faults)
        if not faults:
            params = {key: value for key, value in body.items() if key not in ("adapter", *TEXTS)}
            yield Spec(name, body["adapter"], params, **{key: body.get(key, "") for key in TEXTS})


def _faults(name: str, body: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the key at fault and its fault."""
    faults = [
        (key, f"`{key}` is a text; found {body[key]!r}") for key in TEXTS if not isinstance(body.get(key, ""), str)
    ]
    adapter = body.get("adapter")
    if adapter is None:
        faults.append(("", f"`adapter` is missing; choose one of {', '.join(BACKBONES)}"))
    elif adapter not in BACKBONES:
        faults.append(("adapter", str(UnknownNameError("adapter", str(adapter), BACKBONES))))
    if "source" in body:
        try:
            sources.parse(name, body["source"])
        except UsageError as error:
            faults.append(("source", str(error)))
    return faults


def adapter_facts(name: str) -> Mapping[str, Any]:
    """Return the catalogue's entry of an adapter; empty if it has none or the adapter is imported anyway."""
    entry: Mapping[str, Any] = catalogue()["adapters"].get(name, {}) if BACKBONES.pending(name) else {}
    return entry
