"""Feature drafters in folders: those that recipes trained, and those that their authors published."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from stridebench.harness.core import int8
from stridebench.harness.core.capabilities import Tap
from stridebench.harness.errors import WeightsError
from stridebench.methods.drafters import checkpoint
from stridebench.methods.drafters.eagle import published
from stridebench.methods.drafters.eagle.published import N
from stridebench.methods.drafters.eagle.published_shape import layers_of
from stridebench.methods.drafters.eagle.shape import Shape

EAGLE3_TAPS: tuple[Tap, ...] = (2, "middle", -4)
"""Layers of the target that EAGLE-3 reads if a drafter's configuration names none."""


def taps_of(features: str) -> tuple[Tap, ...]:
    """Return the target's layers that an EAGLE-3 drafter reads: those that a published folder names, or EAGLE-3's.

    A folder that cannot be read has EAGLE-3's; `read` says what is wrong with it.
    """
    try:
        config = json.loads((Path(features).expanduser() / "config.json").read_text(encoding="utf-8"))
        return layers_of(config) or EAGLE3_TAPS
    except (OSError, ValueError, TypeError, AttributeError):
        return EAGLE3_TAPS


def read(folder: Path, make: Callable[[Shape], N]) -> N:
    """The net in a folder, in fp32.

    Raises:
        WeightsError: ``config.json`` or ``model.safetensors`` is missing, damaged or of another net.
    """
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if "hidden_size" in config or "transformer_layer_config" in config:
            return published.read(folder, config, make)
        fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in config.items()}
        net = make(Shape(**fields))
        net.load_state_dict(int8.read(folder / "model.safetensors"))
        checkpoint.check_finite(folder, net)
    except (OSError, SafetensorError, RuntimeError, TypeError, ValueError) as error:
        raise WeightsError(
            f"{folder} holds no feature drafter ({error}). Make one: `stride train drafter` lists the recipes"
        ) from error
    return net
