"""Which method runs on which backbone, told without loading any weights."""

from __future__ import annotations

import json
from typing import Any

from harness import presets
from harness.backbones import _weights
from harness.errors import StrideError
from harness.method import Method
from harness.presets import Spec

LACKS = "the backbone does not offer"


def misfit(method: Method[Any], backbone: Spec) -> str | None:
    """Why a method cannot run on a backbone: a need, or its drafter's modality or vocabulary; None: it can.

    A vocabulary that neither preset, configuration nor weights tell is taken to fit: loading will say.
    """
    lacking = sorted(need.name for need in method.needs - backbone.meets())
    if lacking:
        return f"{LACKS} {', '.join(lacking)}"
    named = getattr(method, "drafter", None)
    if not named or backbone.adapter == "tabular":
        return None
    whole = str(named).startswith(("hub:", "gguf:"))
    name = str(named) if whole else str(named).partition(":")[0]
    if name in ("self", backbone.name):
        return None
    try:
        drafter = presets.resolve(name)
    except StrideError as error:
        return f"drafter: {error}"
    if drafter.modality() != backbone.modality():
        return f"the drafter {name} makes {drafter.modality()}, and the backbone {backbone.modality()}"
    theirs, ours = vocabulary(drafter), vocabulary(backbone)
    if theirs is not None and ours is not None and theirs != ours:
        return f"the drafter {name} has {theirs} token ids, and the backbone {ours}"
    return None


def vocabulary(spec: Spec) -> int | None:
    """Token ids of a backbone as its preset says or, where they are here, its weights; None: not known yet."""
    if "vocabulary" in spec.params:
        return int(spec.params["vocabulary"])
    given = spec.params.get("source")
    if given is None:
        return None
    source = _weights.parse(spec.name, given)
    if source.kind == "random":
        return _size(source.fields["config"])
    if not _weights.ready(source):
        return None
    return _size(json.loads((_weights.locate(spec.name, source) / "config.json").read_text(encoding="utf-8")))


def _size(config: dict[str, Any]) -> int | None:
    found = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
    return None if found is None else int(found)
