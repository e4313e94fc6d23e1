"""Names of backbones: presets, adapters, hub ids, files and folders; and drafters of a loaded target.

Presets lie in YAML files of harness/backbones/presets and of the folders of $STRIDE_PRESETS. A file holds presets by
name, or a single one, which has the name of the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from stridebench.harness import discover
from stridebench.harness.backbones import tiny
from stridebench.harness.backbones.checkpoints import components, sources
from stridebench.harness.backbones.checkpoints.files import Progress
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.discover import catalogue, declare_all, plain
from stridebench.harness.errors import (
    StrideError,
    UnknownNameError,
    UsageError,
    WeightsError,
    check_parameters,
    said_by,
)
from stridebench.harness.machine import memory
from stridebench.harness.plan.yaml_lines import parse
from stridebench.harness.registry import BACKBONES

if TYPE_CHECKING:
    from stridebench.harness.core.backbone import Backbone

SHIPPED = Path(__file__).parents[1] / "backbones" / "presets"
TEXTS = ("size", "licence", "note")
BESIDE = {"dtype", "resources"}
"""Keys of a backbone's entry in a suite that are not parameters of its adapter."""


@dataclass(frozen=True)
class Spec:
    """The adapter and parameters of a backbone's name.

    Args:
        name: as the user wrote it.
        adapter: a name of ``BACKBONES``.
        params: of the adapter.
        size: parameters and bytes, for lists.
        licence: of the weights.
        note: one line for lists.
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
        for case in _adapter(self.adapter).get("cases", ()):
            if all(seen.get(key) == value for key, value in case["when"].items()):
                return dict(case)
        return None

    def guided(self) -> bool:
        """Whether it mixes two branches, decided without loading it."""
        return bool(self.params.get("guidance", 1.0) != 1.0)

    def refuse_settings(self) -> None:
        """Refuse weights that are here and that could not be loaded, as far as their settings tell.

        Raises:
            WeightsError: they are such weights.
        """
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


def folders() -> list[Path]:
    """Folders of presets, ours first; of two presets of one name the later one counts."""
    extra = os.environ.get("STRIDE_PRESETS", "").split(os.pathsep)
    return [SHIPPED, *(Path(folder).expanduser() for folder in extra if folder)]


def by_name() -> dict[str, Spec]:
    """All presets by name.

    Raises:
        UsageError: a file is malformed, or a folder of $STRIDE_PRESETS is not there; all errors at once.
    """
    declare_all()
    there = [folder for folder in folders() if folder.is_dir()]
    errors = [
        f"{folder}: $STRIDE_PRESETS names this folder and it is not there"
        for folder in folders()
        if folder not in there
    ]
    paths = [path for folder in there for path in sorted(folder.glob("*.yaml"))]
    read = _read_all(tuple((path, path.stat().st_mtime_ns) for path in paths))
    if errors or read.errors:
        raise UsageError("\n".join([*read.errors, *errors]))
    return dict(read.specs)


@dataclass(frozen=True)
class _PresetFiles:
    """Presets by name, and the errors of files that hold none."""

    specs: Mapping[str, Spec]
    errors: tuple[str, ...]


@lru_cache(maxsize=8)
def _read_all(stamped: tuple[tuple[Path, int], ...]) -> _PresetFiles:
    """Read files once while they do not change: a plan looks presets up several times a cell."""
    errors: list[str] = []
    specs = [spec for path, _ in stamped for spec in _read(path, errors)]
    return _PresetFiles({spec.name: spec for spec in sorted(specs, key=lambda spec: spec.name)}, tuple(errors))


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


def resolve(name: str) -> Spec:
    """Look up a name: a preset, an adapter, hub:ORG/NAME[@REVISION], gguf:PATH[@integer-minima] or a folder.

    ``NAME:key=value,...`` changes parameters of the adapter, such as ``smollm2-135m:weights=int4``.

    Raises:
        UnknownNameError: none of these. UsageError: a preset file is malformed, or there is no such parameter.
    """
    if (base := plain(name)) != name:
        return _changed(resolve(base), name)
    declare_all()
    kind, _, rest = name.partition(":")
    if name.startswith(tiny.PREFIX):
        return _stand_in(resolve(rest))
    if kind == "hub" and rest:
        model, _, revision = rest.partition("@")
        pin = {"revision": revision} if revision else {}
        return Spec(name, "hf_causal", {"source": {"hub": {"id": model, **pin}}})
    if kind == "gguf" and rest:
        return Spec(name, "hf_causal", {"source": {"gguf": rest}})
    presets = by_name()
    if name in presets:
        return presets[name]
    if name in BACKBONES:
        return Spec(name, name)
    if name.startswith((".", "/", "~")) or (Path(name) / "config.json").is_file():
        return Spec(name, "hf_causal", {"source": {"folder": name}})
    raise UnknownNameError("backbone", name, {*presets, *BACKBONES})


def parameters(spec: Spec) -> list[str]:
    """The parameters that a name or a suite's entry may change: all but the source of the weights."""
    return [key for key in parameters_of(spec.adapter) if key != "source"]


def parameters_of(adapter: str) -> Sequence[str]:
    """Return the parameters of an adapter, the source of its weights included."""
    if entry := _adapter(adapter):
        return list(entry["parameters"])
    return list(getattr(BACKBONES.get(adapter), "parameters", ()))


def default_dtype(adapter: str) -> str:
    """Return the type that an adapter takes unless the user names another."""
    return str(_adapter(adapter).get("default_dtype") or BACKBONES.get(adapter).default_dtype)


def _adapter(name: str) -> Mapping[str, Any]:
    """Return the catalogue's entry of an adapter; empty if it has none or the adapter is imported anyway."""
    entry: Mapping[str, Any] = catalogue()["adapters"].get(name, {}) if BACKBONES.pending(name) else {}
    return entry


def _changed(spec: Spec, name: str) -> Spec:
    """A spec with the parameters of ``NAME:key=value,...``, whose values are YAML."""
    changes: dict[str, Any] = {}
    for key, value in _split(name)[1].items():
        try:
            changes[key] = parse(value).data
        except yaml.YAMLError as error:
            raise UsageError(f"{name}: {key} is not YAML: {getattr(error, 'problem', error)}") from error
    for key in BESIDE & set(changes):
        example = f"{{name: {plain(name)}, {key}: {changes[key]}}}"
        raise UsageError(f"{name}: {key} is not a parameter of the adapter; write it next to the name: {example}")
    check_parameters(f"{name}: {spec.adapter}", changes, parameters(spec))
    return replace(spec, name=name, params={**spec.params, **changes})


def _stand_in(spec: Spec) -> Spec:
    """The tiny model of random weights that stands for a published one.

    Raises:
        UsageError: there is none.
    """
    params = tiny.params(spec.name, spec.adapter, spec.params)
    if params is None:
        raise UsageError(f"{tiny.PREFIX}{spec.name}: {spec.name} has no tiny stand-in; name it without {tiny.PREFIX}")
    note = f"random weights in the layout of {spec.name}"
    return Spec(tiny.PREFIX + spec.name, spec.adapter, params, "random weights", "", note, published=spec.params)


def has_stand_in(name: str) -> bool:
    """Whether `tiny:NAME` is a backbone."""
    spec = by_name().get(plain(name))
    return spec is not None and tiny.params(spec.name, spec.adapter, spec.params) is not None


def fetch(name: str, progress: Progress = lambda line: None) -> Path | None:
    """Download and convert the weights of a backbone, or write those of a stand-in.

    Returns:
        Their folder, or None if it needs no weights.

    Raises:
        WeightsError: they cannot be had, or are not those that were pinned.
    """
    spec = resolve(name)
    if spec.published is not None:
        tiny.write(plain(name).removeprefix(tiny.PREFIX), spec.adapter, spec.published)
        return None
    if "parts" in spec.params:
        components.fetch(name, spec.parts(), progress)
    if "source" not in spec.params:
        return None
    return sources.fetch(name, sources.parse(name, spec.params["source"]), progress)


_fetch = fetch
"""Under a name that `load`'s parameter does not hide."""


def load(name: str, dtype: str, device: str = "cpu", fetch: bool = True) -> Backbone:
    """Load a backbone by name.

    Args:
        dtype: one of ``DTYPES``.
        fetch: whether to download weights that are not here.

    Raises:
        UsageError: an unknown name, dtype or parameter.
        WeightsError: no weights, or not the pinned ones; or the adapter of another package raises anything else.
    """
    from stridebench.harness.core.backbone import DTYPES

    if dtype not in DTYPES:
        raise UsageError(f"there is no dtype {dtype!r}; choose one of {', '.join(DTYPES)}")
    spec = resolve(name)
    if fetch or spec.published is not None:
        _fetch(name)
    adapter = BACKBONES.get(spec.adapter)
    memory.give_back()  # what decodes before left
    try:
        backbone: Backbone = adapter.load(name, spec.params, dtype, device)
    except (StrideError, OSError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if not BACKBONES.from_plugin(spec.adapter):
            raise
        raise WeightsError(
            f"the backbone {name!r} of {BACKBONES.source(spec.adapter)} could not be loaded: {said_by(error)}"
        ) from error
    memory.give_back()
    return backbone


def drafter(target: Backbone, text: str, fetch: bool = True) -> Backbone:
    """The drafter that a method names: ``NAME`` or ``self``, then maybe ``:key=value,...``.

    ``noise=SCALE`` and ``seed=N`` add noise to its logits; ``weights=FORMAT`` loads it in that format; other keys make
    a variant of it (``layers=26``).

    Raises:
        UsageError: the text is malformed, or the drafter's vocabulary is not the target's.
    """
    if text == "self":
        return target
    if target.toy_drafters:
        return target.variant({"drafter": text})
    name, params = _split(text)
    noise, seed = params.pop("noise", None), params.pop("seed", None)
    if seed is not None and noise is None:
        raise UsageError(f"drafter {text!r}: seed= belongs to noise=, which is missing")
    if "weights" in params:
        name = f"{plain(target.name) if name == 'self' else name}:weights={params.pop('weights')}"
    own = name in ("self", target.name)
    model = (target if own else load(name, target.dtype, target.device, fetch)).variant(params)
    if model.capabilities.vocabulary != target.capabilities.vocabulary:
        raise UsageError(
            f"the drafter {text!r} has a vocabulary of {model.capabilities.vocabulary} tokens and the target "
            f"{target.name!r} of {target.capabilities.vocabulary}: take a drafter of the same family"
        )
    if noise is None:
        return model
    from stridebench.harness.backbones.text.noisy import NoisyBackbone

    return NoisyBackbone(model, _number(text, noise, float), _number(text, seed or "0", int))


def _split(text: str) -> tuple[str, dict[str, str]]:
    """The name, and the pairs behind its last colon if they are pairs."""
    if (name := plain(text)) != text:
        return name, dict(pair.split("=") for pair in text[len(name) + 1 :].split(","))
    if not text or "=" in text:
        raise UsageError(f"drafter {text!r}: write NAME, self, or either with :key=value,key=value")
    return text, {}


def _number(text: str, value: str, kind: Any) -> Any:
    try:
        return kind(value)
    except ValueError as error:
        raise UsageError(f"drafter {text!r}: {value!r} is not a number") from error
