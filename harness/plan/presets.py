"""Names of backbones: presets, adapters, hub ids, files and folders; and drafters of a loaded target.

Presets lie in YAML files of harness/backbones/presets and of the folders of $STRIDE_PRESETS. A file holds presets by
name, or a single one, which has the name of the file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from stridebench.harness.backbones import tiny
from stridebench.harness.backbones.checkpoints import components, sources
from stridebench.harness.backbones.checkpoints.files import Progress
from stridebench.harness.discover import declare_all, plain
from stridebench.harness.errors import (
    StrideError,
    UnknownNameError,
    UsageError,
    WeightsError,
    check_parameters,
    said_by,
)
from stridebench.harness.machine.device import give_back
from stridebench.harness.plan.preset_files import Spec, adapter_facts, read_all
from stridebench.harness.plan.yaml_lines import parse
from stridebench.harness.registry import BACKBONES

if TYPE_CHECKING:
    from stridebench.harness.core.backbone import Backbone

SHIPPED = Path(__file__).parents[1] / "backbones" / "presets"
BESIDE = {"dtype", "resources"}
"""Keys of a backbone's entry in a suite that are not parameters of its adapter."""


def folders() -> list[Path]:
    """Folders of presets, ours first; of two presets of one name the later one counts."""
    extra = os.environ.get("STRIDE_PRESETS", "").split(os.pathsep)
    return [SHIPPED, *(Path(folder).expanduser() for folder in extra if folder)]


def by_name() -> dict[str, Spec]:
    """All presets by name."""
    declare_all()
    there = [folder for folder in folders() if folder.is_dir()]
    errors = [
        f"{folder}: $STRIDE_PRESETS names this folder and it is not there"
        for folder in folders()
        if folder not in there
    ]
    paths = [path for folder in there for path in sorted(folder.glob("*.yaml"))]
    read = read_all(tuple((path, path.stat().st_mtime_ns) for path in paths))
    if errors or read.errors:
        raise UsageError("\n".join([*read.errors, *errors]))
    return dict(read.specs)


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
    if entry := adapter_facts(adapter):
        return list(entry["parameters"])
    return list(getattr(BACKBONES.get(adapter), "parameters", ()))


def default_dtype(adapter: str) -> str:
    """Return the type that an adapter takes unless the user names another."""
    return str(adapter_facts(adapter).get("default_dtype") or BACKBONES.get(adapter).default_dtype)


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
    """Return the tiny model of random weights that stands for a published one, or raise UsageError if there is none."""
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
    give_back()  # what decodes before left
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
    give_back()
    return backbone


def drafter(target: Backbone, text: str, fetch: bool = True) -> Backbone:
    """The drafter that a method names: ``NAME`` or ``self``, then maybe ``:key=value,...``.

    ``noise=SCALE`` and ``seed=N`` add noise to its logits; ``weights=FORMAT`` loads it in that format; ``vocab=tli``
    drafts with the tokens that it shares with a target of another vocabulary, and ``vocab=slem`` with those of a text
    that it writes; other keys make a variant of it (``layers=26``).

    Raises:
        UsageError: the text is malformed, or the drafter's vocabulary is not the target's.
    """
    if text == "self":
        return target
    if target.toy_drafters:
        return target.variant({"drafter": text})
    name, params = _split(text)
    noise, seed, vocab = (params.pop(key, None) for key in ("noise", "seed", "vocab"))
    from stridebench.harness.backbones.text.wrapped import VOCABS, NoisyBackbone, TranslatedBackbone

    if vocab not in (None, *VOCABS):
        raise UsageError(f"drafter {text!r}: vocab is {vocab!r}; known: {', '.join(VOCABS)}")
    if seed is not None and noise is None:
        raise UsageError(f"drafter {text!r}: seed= belongs to noise=, which is missing")
    if "weights" in params:
        name = f"{plain(target.name) if name == 'self' else name}:weights={params.pop('weights')}"
    own = name in ("self", target.name)
    model = (target if own else load(name, target.dtype, target.device, fetch)).variant(params)
    if vocab:
        model = TranslatedBackbone(model, target, vocab)
    if model.capabilities.vocabulary != target.capabilities.vocabulary:
        raise UsageError(
            f"the drafter {text!r} has a vocabulary of {model.capabilities.vocabulary} tokens and the target "
            f"{target.name!r} of {target.capabilities.vocabulary}: take a drafter of the same family, or "
            f"`{text}{',' if params or text.count(':') else ':'}vocab=tli` to draft with the tokens of both"
        )
    if noise is None:
        return model
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
