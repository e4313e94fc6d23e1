"""Which method runs on which backbone, decided without loading any weights."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from stridebench.harness import discover
from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.method import Method
from stridebench.harness.discover import plain
from stridebench.harness.errors import StrideError, WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.plan.planned_method import PlannedMethod
from stridebench.harness.plan.preset_files import Spec

LACKS = "the backbone does not offer"


def incompatibility(method: Method[Any] | PlannedMethod, backbone: Spec) -> str | None:
    """Return why a method cannot run on a backbone (a requirement, a drafter, or guidance), or None if it can."""
    lacking = sorted(need.name for need in method.requirements - backbone.meets())
    if lacking:
        return f"{LACKS} {', '.join(lacking)}"
    for need, kind in ((Requirement.BIDIRECTIONAL, "a masked"), (Requirement.QUERIES, "an order-free")):
        if need in backbone.meets() - method.requirements:
            return f"the backbone is {kind} model, whose rows give no distribution of a next token"
    if method.one_branch and backbone.guided():
        return "the backbone is guided, and the method's heads have one branch: take it at guidance 1"
    if backbone.adapter == "tabular":
        return None
    reasons = (_drafter_mismatch(name, method.drafter_shrink, backbone) for name in method.drafters())
    return next((reason for reason in reasons if reason is not None), None)


def _drafter_mismatch(name: str, shrink: int, backbone: Spec) -> str | None:
    """Return why a drafter does not fit a backbone (modality, vocabulary or scale), or None if it does.

    An unknown vocabulary or scale counts as fitting; loading checks it.
    """
    translated = "vocab=" in name
    name = plain(name)
    if shrink == 1 and name in ("self", plain(backbone.name)):
        return None
    try:
        drafter = presets.resolve(name)
    except StrideError as error:
        return f"drafter: {error}"
    if drafter.modality() != backbone.modality():
        return f"the drafter {name} makes {drafter.modality()}, and the backbone {backbone.modality()}"
    if "real_image" in (drafter.adapter, backbone.adapter) and drafter.adapter != backbone.adapter:
        return f"the drafter {name} has other picture codes than {backbone.name}: name one of its family"
    drafter_ids, backbone_ids = vocabulary(drafter), vocabulary(backbone)
    if drafter_ids is not None and backbone_ids is not None and drafter_ids != backbone_ids and not translated:
        return (
            f"the drafter {name} has {drafter_ids} token ids, and the backbone {backbone_ids}; {name}:vocab=tli drafts "
            f"with the tokens of both"
        )
    small, large = cells(drafter), cells(backbone)
    if shrink > 1 and small and large and tuple(shrink * side for side in small) != large:
        return f"the drafter {name} has {small[0]}x{small[1]} cells, and not 1/{shrink} of {large[0]}x{large[1]}"
    return None


def vocabulary(spec: Spec) -> int | None:
    """Return the number of token ids of a backbone, from its preset or from weights that are here, if known."""
    if "vocabulary" in spec.params:
        return int(spec.params["vocabulary"])
    config = _config(spec)
    inner = config.get("text_config")
    size = config.get("vocab_size", inner.get("vocab_size") if isinstance(inner, dict) else None)
    return size if isinstance(size, int) else None


def cells(spec: Spec) -> tuple[int, int] | None:
    """Return rows and columns of a picture, if the configuration of one of our own models tells them."""
    picture = _config(spec).get("picture")
    return (int(picture["rows"]), int(picture["columns"])) if picture else None


def picture_tokens(spec: Spec) -> int | None:
    """Return the tokens of a whole picture with the forced ends of its rows, or None if they are not known yet."""
    picture = _config(spec).get("picture")
    if not picture:
        return None
    return int(picture["rows"]) * (int(picture["columns"]) + bool(picture.get("closed")))


def _config(spec: Spec) -> dict[str, Any]:
    """Return the configuration of the weights, or nothing if they are not here or it cannot be read."""
    entry = spec.params.get("source")
    if entry is None:
        return {}
    source = sources.parse(spec.name, entry)
    if source.kind == "random":
        return dict(source.fields["config"])
    if not sources.ready(source):
        return {}
    try:
        config = json.loads((sources.locate(spec.name, source) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}  # loading says what is wrong with it
    return config if isinstance(config, dict) else {}


# What becomes of a method on a backbone, decided without loading: it runs, lacks a part or weights, or cannot run.


Word = Literal["runs", "needs a part", "needs weights", "cannot"]
WORDS: tuple[Word, ...] = ("runs", "needs a part", "needs weights", "cannot")
DATA = {"mesh": "'{name: point_clouds, folder: FOLDER}'", "speech": "utterances"}
"""The data that a recipe learns from if a file of prompts will not do, by modality."""
TOYS = ("tabular", "masked_tabular")
"""Adapters whose backbones make a toy of any drafter and component."""


@dataclass(frozen=True)
class Outcome:
    """What becomes of a pair.

    Args:
        word: runs; needs a part: a drafter, heads, an adapter or samplers that a recipe trains; needs weights: of the
            backbone or of a drafter; cannot.
        reason: why it does not run, or None if it does.
        command: makes or fetches the missing part first; "" if nothing does.
    """

    word: Word
    reason: str | None = None
    command: str = ""
    commands: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """In one line."""
        return " ".join(": ".join(part for part in (self.word, self.command or self.reason) if part).split())


class Outcomes:
    """Outcomes of pairs. Whether weights are here is looked up once a backbone."""

    def __init__(self) -> None:
        self._missing: dict[str, list[Outcome]] = {}
        self._pairs: dict[tuple[Method[Any] | PlannedMethod, str], Outcome] = {}

    def of(self, method: Method[Any] | PlannedMethod, backbone: Spec) -> Outcome:
        """The outcome of a method on a backbone. A part that no recipe trains ends it, whatever else is missing."""
        pair = (method, backbone.name)
        if pair not in self._pairs:
            self._pairs[pair] = self._of(method, backbone)
        return self._pairs[pair]

    def _of(self, method: Method[Any] | PlannedMethod, backbone: Spec) -> Outcome:
        if reason := incompatibility(method, backbone):
            return Outcome("cannot", reason)
        if backbone.adapter in TOYS:
            return Outcome("runs")
        parts = [outcome for kind, name in method.components for outcome in _part(kind, name, backbone)]
        drafters = (discover.plain(name) for name in method.drafters())
        specs = [backbone, *(presets.resolve(name) for name in drafters if name != "self")]
        weights = [outcome for spec in specs for outcome in self._weights(spec)]
        impossible = [outcome for outcome in (*parts, *weights) if outcome.word == "cannot"]
        missing = (*impossible, *weights, *parts)
        if not missing or impossible:
            return next(iter(missing), Outcome("runs"))
        return replace(missing[0], commands=tuple(dict.fromkeys(outcome.command for outcome in missing)))

    def _weights(self, spec: Spec) -> list[Outcome]:
        if spec.name not in self._missing:
            base = discover.plain(spec.name)
            tuned = "lora" in spec.params and base != spec.name
            missing = self._weights(presets.resolve(base)) if tuned else []
            self._missing[spec.name] = [*missing, *(_matrices(spec) if tuned else _weights(spec))]
        return self._missing[spec.name]


def _weights(spec: Spec) -> list[Outcome]:
    """Return the missing parts of a backbone, or nothing if that cannot be told before it is loaded."""
    try:
        spec.refuse_settings()
        if spec.ready():
            return []
    except WeightsError as error:  # in the words of a run that cannot load them
        return [Outcome("cannot", f"{type(error).__name__}: {error}")]
    except StrideError as error:
        return [Outcome("cannot", str(error))]
    for name in (folder.partition("/")[0] for folder in spec.shipped()):
        if kind := discover.kind_of(name):
            reason = f"the weights {name} did not come with the package"
            return [Outcome("needs weights", reason, discover.train_command(kind, name))]
    reason, command = f"the weights of {spec.name} are not on this machine", f"stride fetch {discover.plain(spec.name)}"
    return [Outcome("needs weights", reason, command)]


def _matrices(spec: Spec) -> list[Outcome]:
    """Return the missing low-rank matrices of a tuned backbone."""
    lora = str(spec.params["lora"])
    folder = discover.tuned(lora, spec.name)
    if folder.is_dir():
        return []
    reason = f"the low-rank matrices {folder} of {spec.name} are not on this machine"
    return _trained("heads", lora, spec, reason) if discover.tunes(lora) else [Outcome("cannot", reason)]


PUBLISHED = {
    ("eagle1", "anole-7b"): "jadohu/anole_drafter",
    ("eagle1", "llamagen-t2i-xl-256"): "jadohu/llamagen_drafter",
    ("eagle1", "llamagen-t2i-xl"): "jadohu/llamagen2_drafter",
    ("eagle1", "vicuna-7b"): "yuhuili/EAGLE-Vicuna-7B-v1.3",
    ("eagle1", "llama2-7b"): "yuhuili/EAGLE-llama2-chat-7B",
    ("eagle1", "llama2-13b"): "yuhuili/EAGLE-llama2-chat-13B",
    ("eagle1", "llama3-8b"): "yuhuili/EAGLE-LLaMA3-Instruct-8B",
}
"""Drafters that the authors of LANTERN and EAGLE publish on the hub, by component and backbone."""


def _trained(kind: str, name: str, spec: Spec, missing: str) -> list[Outcome]:
    """Return the command that fetches a published component, or those of a recipe for any backbone, or nothing.

    A recipe's first stage comes first if it is missing too.
    """
    backbone, data = spec.name, _data_for(spec)
    if published := PUBLISHED.get((name, discover.plain(backbone))):
        folder = discover.trained(f"{name}-{discover.plain(backbone)}")
        return [Outcome("needs a part", missing, f"hf download {published} --local-dir {folder}")]
    command = discover.general_command(kind, name, backbone, data)
    if command is None:
        return []
    first = discover.first_stage(name)
    earlier = []
    if first is not None and not (discover.trained(f"{first}-{discover.plain(backbone)}") / "config.json").is_file():
        before = discover.general_command(kind, first, backbone, data) or ""
        earlier = [Outcome("needs a part", f"{missing}, and they start from {first}", before)]
    return [*earlier, Outcome("needs a part", missing, command)]


def _served(kind: str, folder: Path) -> tuple[str, ...]:
    """Return the backbones that a component is for (shipped ones: those of its recipe); empty if it does not say."""
    tied = discover.tied_backbone(folder)
    own = discover.served(kind) if folder == discover.shipped(folder.name) else ()
    return (tied,) if tied else own


def _own_folders(spec: Spec) -> set[str]:
    """Return the recipes that tuned the backbone: parts trained with it do not fit its base model."""
    return {folder.partition("/")[0] for folder in spec.shipped()}


def _part(kind: str, name: str, backbone: Spec) -> list[Outcome]:
    """Return the missing parts of a component."""
    folder = discover.find_component(name, backbone.name)
    tied = () if folder is None else _served(kind, folder)
    fits = not tied or discover.plain(backbone.name) in tied
    if folder is not None and (fits or folder.name in _own_folders(backbone)):
        return []
    missing = f"the {kind} {name!r} is for {', '.join(tied)}"
    if folder is None:
        missing = f"no {kind} {name!r} for {backbone.name} is here"
        if Path(name).expanduser().is_dir():
            missing += f", because {name} has no {' or '.join(discover.COMPONENT_FILES)}"
    tuned = name in _own_folders(backbone) and discover.kind_of(name) == kind
    recipe = name if tuned else discover.recipe(kind, name, backbone.name)
    if recipe is not None:
        return [Outcome("needs a part", missing, discover.train_command(kind, recipe))]
    no_recipe = Outcome("cannot", f"{missing}, and no recipe trains one; the folder of a published one will do")
    return _trained(kind, name, backbone, missing) or [no_recipe]


def _data_for(spec: Spec) -> str:
    """The data of a recipe for a backbone, as a command names it."""
    if spec.adapter == "mesh":
        return "shapes"  # the shipped mesh models were trained on them
    if spec.modality() == "text" and not spec.reads_text():
        return "tabular"  # prompts of ids
    return DATA.get(spec.modality(), "FILE")
