"""Figures of this machine for `stride paper predict` (memory, matrix products, launches), and whether it can time any.

On a CPU three models with random weights are timed too, because a pass there is not the longer of reading and
multiplying: each product first waits for its weights, so that the two add up. The sum is fitted to these times.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
import yaml
from scipy.optimize import nnls
from torch import Tensor

from stridebench.harness.core.clock import CpuClock, Event
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.machine.device import check_device
from stridebench.harness.machine.noise import NoiseMeter
from stridebench.harness.plan import presets
from stridebench.harness.record.files import put
from stridebench.harness.run.passes import timed_pass, times_by_rows

REPEATS = 5
WIDTH = 4096
LEAST_FIGURE = 1e-6
"""Of the fitted powers; the largest is its inverse, as in every profile."""
MATRICES = 4
"""Matrices of a product of many rows."""
CACHES, LEAST = 4, 256 * 1024**2
"""The weights that one row reads hold so many times the last-level caches, and no fewer bytes than the second."""
UNKNOWN_CACHES = 2 * 1000**3
"""Bytes of these weights if the sizes of the caches are not known, as on a GPU."""
ROWS = {"cpu": 256, "cuda": 4096}
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
LAUNCHES = 1000
MODELS = {"random-llama-1m": 1.05e6, "random-llama-5m": 5.4e6, "random-smollm2-135m": 134.5e6}
"""Models whose passes are fitted, and their parameters."""
FITTED = {"fp32": ("fp32", "", 4.0), "bf16": ("bf16", "", 2.0)}
FITTED |= {form: ("bf16", f":weights={form}", size) for form, size in (("int8", 1.0), ("int4", 0.5))}
"""By type of the weights: type of the products, ending of a backbone's name, bytes of a parameter."""
PASS_ROWS = (1, 2, 4, 8, 16, 32, 64)
BEHIND = 64
"""Tokens before the rows of a timed pass."""
CPUS = Path("/sys/devices/system/cpu")


@torch.inference_mode()
def measure(device: str = "cpu") -> dict[str, object]:
    """The body of a profile; each figure is the best of ``REPEATS``, because other work only slows."""
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
    measured = {"measured": {name: _fitted(name, words) for name in FITTED}} if kind == "cpu" else {}
    small = torch.zeros(8, device=device)
    launched = _best(lambda: [small.add_(1) for _ in range(LAUNCHES)], kind) / LAUNCHES
    fastest = max(bandwidths, key=lambda name: bandwidths[name])
    product = f"{ROWS[kind]} rows times {MATRICES} matrices of {WIDTH} x {WIDTH}"
    return {
        "machine": f"{platform.machine()}, {device}",
        "bandwidth_gb_s": _figure(bandwidths[fastest] / 1e9, f"{words}: one row times {shapes[fastest]}"),
        "tflops": {name: _figure(rate / 1e12, f"{words}: {product}") for name, rate in rates.items()},
        "launch_us": _figure(launched * 1e6, f"{words}: {LAUNCHES} additions of 8 numbers"),
        **measured,
    }


@dataclass(frozen=True)
class TimedRows:
    """One timed pass of a model: its rows and milliseconds."""

    parameters: float
    layers: int
    rows: int
    ms: float


@dataclass(frozen=True)
class Sum:
    """The time of a pass: bytes / bandwidth + 2 x parameters x rows / rate + layers x (layer + rows x row).

    Args:
        bandwidth_gb_s: 1e9 bytes of weights a second.
        tflops: 1e12 operations of products a second.
        layer_us: microseconds that a layer takes without its products, whatever its rows.
        row_us: those that a layer takes for each row.
        error: the mean relative error of the fit.
    """

    bandwidth_gb_s: float
    tflops: float
    layer_us: float
    row_us: float
    error: float


def fit(timed: Sequence[TimedRows], size: float) -> Sum:
    """The sum that is nearest to some passes, by least squares of relative errors, with no figure below zero."""
    columns = [
        [one.parameters * size, 2 * one.parameters * one.rows, one.layers, one.layers * one.rows] for one in timed
    ]
    seconds = np.array([one.ms / 1e3 for one in timed])
    table = np.array(columns) / seconds[:, None]
    scale = table.max(axis=0)
    scaled = nnls(table / scale, np.ones(len(timed)))[0]
    errors = np.abs(table / scale @ scaled - 1)
    byte, operation, layer, row = np.maximum(scaled / scale, 1e-30)
    figures = np.clip([1e-9 / byte, 1e-12 / operation, 1e6 * layer, 1e6 * row], LEAST_FIGURE, 1 / LEAST_FIGURE)
    bandwidth, rate, layer_us, row_us = map(float, figures)
    return Sum(bandwidth, rate, layer_us, row_us, float(errors.mean()))


def timed_rows(name: str) -> list[TimedRows]:
    """Passes of every model with weights of one type (a key of ``FITTED``)."""
    dtype, ending, _ = FITTED[name]
    timed = []
    for model, parameters in MODELS.items():
        backbone = presets.load(model + ending, dtype)
        one = timed_pass(backbone, Prompt("profile", tokens=(7,) * BEHIND), CpuClock())
        layers = backbone.capabilities.layers
        timed += [TimedRows(parameters, layers, rows, ms) for rows, ms in times_by_rows(one, PASS_ROWS)]
    return timed


def _fitted(name: str, words: str) -> dict[str, object]:
    timed = timed_rows(name)
    fitted = fit(timed, FITTED[name][2])
    models = f"{', '.join(MODELS)} with weights in {name}, passes of {', '.join(map(str, PASS_ROWS))} rows"
    figures: dict[str, object] = {key: float(f"{value:.4g}") for key, value in asdict(fitted).items()}
    passes = [
        f"{one.parameters:.4g} parameters, {one.layers} layers, {one.rows} rows: {one.ms:.4g} ms" for one in timed
    ]
    return {**figures, "threads": torch.get_num_threads(), "source": f"{words}: {models}", "passes": passes}


def write(path: Path, device: str = "cpu") -> dict[str, object]:
    """Measure, and write the profile whole or not at all."""
    body = measure(device)
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, yaml.safe_dump(body, sort_keys=False, width=160).encode())
    return body


def last_level_caches(cpus: Path = CPUS) -> int | None:
    """Return the bytes of all caches of the third level, each counted once, if the machine tells them."""
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


WAIT_SHARE = 0.02
"""Share of the time that threads may wait for a core."""
SPREAD = 0.05
"""Relative distance of the 90th percentile from the median that pieces may have."""


@dataclass(frozen=True)
class MachineNoise:
    """The disturbances that the pieces of work met.

    Args:
        wait_share: time that threads waited for a core over the wall time.
        spread: 90th percentile of a piece's time over the median, less 1.
    """

    pieces: int
    wait_share: float
    switches_per_second: float
    spread: float

    @property
    def quiet(self) -> bool:
        """Whether seconds measured here mean something."""
        return self.wait_share <= WAIT_SHARE and self.spread <= SPREAD

    @property
    def words(self) -> str:
        """The verdict in one line."""
        verdict = "quiet enough to time" if self.quiet else "too noisy to time: other work has the cores"
        return (
            f"{verdict} (threads waited {self.wait_share:.1%} of the time, {self.switches_per_second:.0f} involuntary "
            f"switches a second, 90th percentile {self.spread:.1%} above the median of {self.pieces} pieces)"
        )


def measure_noise(seconds: float = 2.0) -> MachineNoise:
    """Multiply matrices for so long with the threads that torch has."""
    matrix = torch.ones(256, 256) / 256
    for _ in range(5):
        matrix @ matrix
    meter = NoiseMeter()
    times: list[float] = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or len(times) < 10:
        start = time.perf_counter()
        for _ in range(4):
            matrix @ matrix
        times.append(time.perf_counter() - start)
    wall = time.perf_counter() - begin
    waited = meter.read()
    meter.close()
    median, high = np.quantile(times, [0.5, 0.9])
    return MachineNoise(len(times), waited.wait_ns / 1e9 / wall, waited.switches / wall, float(high / median - 1))
