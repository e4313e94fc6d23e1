"""Figures of this machine for `stride predict`: what its memory, its matrix products and its launches do in torch."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import torch
import yaml
from torch import Tensor

from harness.core.clock import Event
from harness.errors import UsageError
from harness.platform.device import check_device
from harness.record.files import put

REPEATS = 5
WIDTH = 4096
MATRICES = 4
"""Matrices of a product of many rows."""
CACHES, LEAST = 4, 256 * 1024**2
"""The weights that one row reads hold so many times the last-level caches, and no fewer bytes than the second."""
UNKNOWN_CACHES = 2 * 1000**3
"""Bytes of these weights where the sizes of the caches are not known, as on a GPU."""
ROWS = {"cpu": 256, "cuda": 4096}
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LAUNCHES = 1000
CPUS = Path("/sys/devices/system/cpu")


@torch.inference_mode()
def measure(device: str = "cpu") -> dict[str, object]:
    """The body of a profile; each figure is the best of ``REPEATS``, because other work only slows.

    Raises:
        UsageError: torch does not find the device, or it is neither a CPU nor a CUDA GPU.
    """
    check_device(device)
    kind = device.partition(":")[0]
    if kind not in ROWS:
        raise UsageError(f"--device {device}: a profile is measured on {' or '.join(ROWS)} alone")
    bandwidths: dict[str, float] = {}
    rates: dict[str, float] = {}
    words = f"measured on {datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}, {_computes(device)}"
    shapes = {}
    for name, dtype in TYPES.items():
        size = WIDTH * WIDTH * dtype.itemsize
        count = max(MATRICES, -(-_bytes_read(kind) // size))
        weight = torch.randn(WIDTH, WIDTH, device=device).to(dtype)
        weights = [weight, *(weight.clone() for _ in range(count - 1))]
        one, many = (torch.randn(rows, WIDTH, device=device).to(dtype) for rows in (1, ROWS[kind]))
        bandwidths[name] = count * size / _best(_products(one, weights), kind)
        operations = 2 * MATRICES * WIDTH * WIDTH * ROWS[kind]
        rates[name] = operations / _best(_products(many, weights[:MATRICES]), kind)
        shapes[name] = f"{count} matrices of {WIDTH} x {WIDTH} in {name} ({count * size / 1e9:.2g} GB)"
    small = torch.zeros(8, device=device)
    launched = _best(lambda: [small.add_(1) for _ in range(LAUNCHES)], kind) / LAUNCHES
    fastest = max(bandwidths, key=lambda name: bandwidths[name])
    product = f"{ROWS[kind]} rows times {MATRICES} matrices of {WIDTH} x {WIDTH}"
    return {
        "machine": f"{platform.machine()}, {device}",
        "bandwidth_gb_s": _figure(bandwidths[fastest] / 1e9, f"{words}: one row times {shapes[fastest]}"),
        "tflops": {name: _figure(rate / 1e12, f"{words}: {product}") for name, rate in rates.items()},
        "launch_us": _figure(launched * 1e6, f"{words}: {LAUNCHES} additions of 8 numbers"),
    }


def write(path: Path, device: str = "cpu") -> dict[str, object]:
    """Measure, and write the profile whole or not at all.

    Raises:
        UsageError: torch does not find the device, or it is neither a CPU nor a CUDA GPU.
    """
    body = measure(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, yaml.safe_dump(body, sort_keys=False, width=160).encode())
    return body


def last_level_caches(cpus: Path = CPUS) -> int | None:
    """Bytes of all caches of the third level, each counted once; None: the machine does not tell."""
    sizes = {}
    for cache in cpus.glob("cpu*/cache/index*"):
        try:
            level, size, shared = ((cache / name).read_text().strip() for name in ("level", "size", "shared_cpu_list"))
            if level == "3":
                sizes[shared] = int(size[:-1]) * {"K": 1024, "M": 1024**2}[size[-1:]]
        except (OSError, ValueError, KeyError):
            return None
    return sum(sizes.values()) or None


def _bytes_read(kind: str) -> int:
    caches = last_level_caches() if kind == "cpu" else None
    return UNKNOWN_CACHES if caches is None else max(LEAST, CACHES * caches)


def _computes(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} threads"


def _figure(value: float, source: str) -> dict[str, object]:
    return {"value": float(f"{value:.4g}"), "source": source}


def _products(rows: Tensor, weights: list[Tensor]) -> Callable[[], object]:
    return lambda: [rows @ weight.T for weight in weights]


def _best(act: Callable[[], object], kind: str) -> float:
    act()
    seconds = _event_seconds if kind == "cuda" else _host_seconds
    return min(seconds(act) for _ in range(REPEATS))


def _host_seconds(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def _event_seconds(act: Callable[[], object]) -> float:
    """Seconds on the clock of the current GPU."""
    event: Callable[..., Event] = torch.cuda.Event
    begin, end = event(enable_timing=True), event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    act()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3
