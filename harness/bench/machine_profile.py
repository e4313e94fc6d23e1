"""Figures of this machine for `stride predict`: what its memory, its matrix products and its launches do in torch."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
import yaml

from harness.record.files import put

REPEATS = 5
WIDTH = 4096
MATRICES = 4
"""Together they hold more than any cache: 256 MB in fp32."""
ROWS = 256
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LAUNCHES = 1000


@torch.inference_mode()
def measure(device: str = "cpu") -> dict[str, object]:
    """The body of a profile; each figure is the best of ``REPEATS``, because other work only slows."""
    width = WIDTH
    bandwidths: dict[str, float] = {}
    rates: dict[str, float] = {}
    for name, dtype in TYPES.items():
        weights = [torch.randn(width, width, device=device).to(dtype) for _ in range(MATRICES)]
        one, many = (torch.randn(rows, width, device=device).to(dtype) for rows in (1, ROWS))
        read = _best(lambda: [one @ weight.T for weight in weights], device)  # noqa: B023  # called at once
        multiplied = _best(lambda: [many @ weight.T for weight in weights], device)  # noqa: B023  # at once
        size = MATRICES * width * width
        bandwidths[name] = size * weights[0].element_size() / read
        rates[name] = 2 * size * ROWS / multiplied
    small = torch.zeros(8, device=device)
    launched = _best(lambda: [small.add_(1) for _ in range(LAUNCHES)], device) / LAUNCHES
    fastest = max(bandwidths, key=lambda name: bandwidths[name])
    words = f"measured on {datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    shape = f"{MATRICES} matrices of {width} x {width}"
    return {
        "machine": f"{platform.machine()}, {device}",
        "bandwidth_gb_s": _figure(bandwidths[fastest] / 1e9, f"{words}: one row times {shape} in {fastest}"),
        "tflops": {name: _figure(rate / 1e12, f"{words}: {ROWS} rows times {shape}") for name, rate in rates.items()},
        "launch_us": _figure(launched * 1e6, f"{words}: {LAUNCHES} additions of 8 numbers"),
    }


def write(path: Path, device: str = "cpu") -> dict[str, object]:
    """Measure, and write the profile whole or not at all."""
    body = measure(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, yaml.safe_dump(body, sort_keys=False, width=160).encode())
    return body


def _figure(value: float, source: str) -> dict[str, object]:
    return {"value": float(f"{value:.4g}"), "source": source}


def _best(act: Callable[[], object], device: str) -> float:
    act()
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        act()
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - begin)
    return min(seconds)
