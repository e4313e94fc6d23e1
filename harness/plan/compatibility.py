"""Which method runs on which backbone, decided without loading any weights."""

from __future__ import annotations

import json
from typing import Any

from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.method import Method
from stridebench.harness.discover import plain
from stridebench.harness.errors import StrideError
from stridebench.harness.plan import presets
from stridebench.harness.plan.planned_method import PlannedMethod
from stridebench.harness.plan.presets import Spec

LACKS = "the backbone does not offer"


def incompatibility(method: Method[Any] | PlannedMethod, backbone: Spec) -> str | None:
    """Why a method cannot run on a backbone: a requirement, one of its drafters, or guidance; None: it can."""
    lacking = sorted(need.name for need in method.requirements - backbone.meets())
    if lacking:
        return f"{LACKS} {', '.join(lacking)}"
    if Requirement.BIDIRECTIONAL in backbone.meets() - method.requirements:
        return "the backbone is a masked model, whose rows give no law of a next token"
    if method.one_branch and backbone.guided():
        return "the backbone is guided, and the method's heads have one branch: take it at guidance 1"
    if backbone.adapter == "tabular":
        return None
    reasons = (_drafter_mismatch(name, method.drafter_shrink, backbone) for name in method.drafters())
    return next((reason for reason in reasons if reason is not None), None)


def _drafter_mismatch(name: str, shrink: int, backbone: Spec) -> str | None:
    """Why a drafter does not fit a backbone: its modality, vocabulary or scale; None: it does.

    An unknown vocabulary or scale counts as fitting; loading checks it.
    """
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
    if drafter_ids is not None and backbone_ids is not None and drafter_ids != backbone_ids:
        return f"the drafter {name} has {drafter_ids} token ids, and the backbone {backbone_ids}"
    small, large = cells(drafter), cells(backbone)
    if shrink > 1 and small and large and tuple(shrink * side for side in small) != large:
        return f"the drafter {name} has {small[0]}x{small[1]} cells, and not 1/{shrink} of {large[0]}x{large[1]}"
    return None


def vocabulary(spec: Spec) -> int | None:
    """Number of token ids of a backbone, from its preset or from weights that are here; None: not known yet."""
    return int(spec.params["vocabulary"]) if "vocabulary" in spec.params else _size(_config(spec))


def cells(spec: Spec) -> tuple[int, int] | None:
    """Rows and columns of a picture, from the configuration of one of our own models; None: not known."""
    picture = _config(spec).get("picture")
    return (int(picture["rows"]), int(picture["columns"])) if picture else None


def picture_tokens(spec: Spec) -> int | None:
    """Tokens of a whole picture, the forced ends of its rows included; None: no picture, or not known yet."""
    picture = _config(spec).get("picture")
    if not picture:
        return None
    return int(picture["rows"]) * (int(picture["columns"]) + bool(picture.get("closed")))


def _config(spec: Spec) -> dict[str, Any]:
    """The configuration of the weights, where they are here and it can be read; else empty."""
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


def _size(config: dict[str, Any]) -> int | None:
    inner = config.get("text_config")
    size = config.get("vocab_size", inner.get("vocab_size") if isinstance(inner, dict) else None)
    return size if isinstance(size, int) else None
