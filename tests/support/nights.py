"""Lines of a history: synthetic nights of one cell."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np


def line(night: int, value: float | None, **changes: Any) -> dict[str, Any]:
    """A line as `stride run --append` writes it, of the night so many days after 1 January 2026."""
    created = (datetime(2026, 1, 1, 2, tzinfo=UTC) + timedelta(days=night)).isoformat()
    git = {"commit": f"{night:040x}"[::-1], "dirty": False}
    where = {"run": f"runs/{night}", "created": created, "git": git, "machine": "f00d"}
    setting = {"backbone": "toy-135m", "dtype": "bf16", "temperature": 1.0, "task": "toy", "status": "done"}
    return {**where, "cell": "c0", "label": "eagle2", "role": "method", **setting, "acceptance": value, **changes}


def noisy(nights: int, seed: int, step: float = 0.0, at: int = 40, deviation: float = 0.008) -> list[float]:
    """An acceptance of 0.6 with noise, which changes by a share at a night."""
    values = 0.6 * (1 + deviation * np.random.default_rng(seed).normal(size=nights))
    values[at:] *= 1 + step
    return [float(value) for value in values]


def write(path: Path, lines: Sequence[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in lines), encoding="utf-8")
    return path
