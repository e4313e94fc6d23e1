"""What a stored run would gain on another machine: its counts, and a roofline of each pass.

A pass takes max(bytes / bandwidth, operations / rate) + launches. Counts (passes, rows, tokens) are the run's; they do
not depend on the machine. Everything else is an assumption of ``ASSUMPTIONS``, which `stride predict` prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import yaml

from harness.errors import UsageError
from reports.summary import FinishedCell, _speed, reader

if TYPE_CHECKING:
    from harness.record.store import Store

MACHINES = Path(__file__).parent / "data" / "machines"
BYTES = {"fp32": 4.0, "fp64": 8.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0, "int4": 0.5}
"""Bytes of a parameter; scales of quantised weights are not counted."""
KERNELS = 300
"""Launches of a pass of the target, where nothing else is said."""
LARGEST = 4096
"""Batches up to which a crossover is sought."""
_UNITS = {"k": 1e3, "M": 1e6, "B": 1e9}
ASSUMPTIONS = (
    "A pass reads every parameter of its model once, in the type of the cell.",
    "It makes 2 operations a parameter and row. The KV cache is not counted.",
    "A pass of the target launches {kernels} kernels; one of a drafter its share of them by size.",
    "A drafter's size beside its target is the time of its pass beside that of a baseline's pass in the run.",
    "A drafter reads one row a pass.",
    "The host takes as long a step as in the run, for each decode of a batch.",
    "Passes that a method makes before its first step are not counted. Counts do not change with the batch.",
)


@dataclass(frozen=True)
class Machine:
    """Figures of a machine.

    Args:
        bandwidth: bytes a second.
        rates: operations a second of matrix products, by type.
        launch_s: seconds of a launch.
        sources: where each figure comes from, by its name in the file.
    """

    name: str
    bandwidth: float
    rates: Mapping[str, float]
    launch_s: float
    sources: Mapping[str, str]

    def pass_s(self, parameters: float, stored: str, computed: str, rows: Any, kernels: float) -> Any:
        """Seconds of a pass.

        Args:
            stored: type of the weights. computed: type of the products.

        Raises:
            UsageError: the profile has no rate of that type.
        """
        if computed not in self.rates:
            raise UsageError(
                f"the profile {self.name} has no rate of {computed} ({', '.join(self.rates)} only); "
                f"add `tflops: {{{computed}: {{value: ..., source: ...}}}}` to it, or take another run"
            )
        read = parameters * BYTES[stored] / self.bandwidth
        return np.maximum(read, 2 * parameters * np.asarray(rows) / self.rates[computed]) + kernels * self.launch_s


def machines() -> list[str]:
    """The profiles that ship."""
    return sorted(path.stem for path in MACHINES.glob("*.yaml"))


def machine(name: str) -> Machine:
    """A profile by its name, or a file such as `stride doctor --profile` writes.

    Raises:
        UsageError: there is none, or it lacks figures or their sources; all of them are named.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else MACHINES / f"{name}.yaml"
    if not path.is_file():
        raise UsageError(f"there is no machine {name!r}; there are {', '.join(machines())}, or name a .yaml file")
    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no YAML: {error}") from error
    body = body if isinstance(body, dict) else {}
    rates = body.get("tflops")
    entries = {"bandwidth_gb_s": body.get("bandwidth_gb_s"), "launch_us": body.get("launch_us")}
    entries |= {f"tflops.{kind}": entry for kind, entry in (rates if isinstance(rates, dict) else {}).items()}
    missing = [key for key, entry in entries.items() if not _is_figure(entry)]
    missing += [] if isinstance(rates, dict) and rates else ["tflops"]
    if missing:
        raise UsageError(
            f"{path} lacks {', '.join(missing)}: each is {{value: a number above 0, source: where it is from}}. "
            f"`stride doctor --profile FILE` measures this machine."
        )
    figures = {key: float(entry["value"]) for key, entry in entries.items() if entry}
    by_type = {key.partition(".")[2]: value * 1e12 for key, value in figures.items() if key.startswith("tflops.")}
    sources = {key: str(entry["source"]) for key, entry in entries.items() if entry}
    return Machine(path.stem, figures["bandwidth_gb_s"] * 1e9, by_type, figures["launch_us"] / 1e6, sources)


def _is_figure(entry: Any) -> bool:
    value = entry.get("value") if isinstance(entry, dict) else None
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    return number and bool(str(entry.get("source") or "").strip())


@dataclass(frozen=True)
class Counts:
    """What a cell did, a row a step.

    Args:
        parameters: of the target.
        draft_share: size of the drafter beside the target.
        tokens: output tokens of all steps.
    """

    stored: str
    computed: str
    parameters: float
    passes: Any
    rows: Any
    drafts: Any
    host_s: Any
    draft_share: float
    tokens: int

    def seconds_per_token(self, on: Machine, batch: int, kernels: float) -> float:
        """Of one of the decodes of a batch."""
        rows = self.rows / np.maximum(self.passes, 1) * batch
        target = self.passes * on.pass_s(self.parameters, self.stored, self.computed, rows, kernels)
        small = self.parameters * self.draft_share
        draft = on.pass_s(small, self.stored, self.computed, batch, kernels * self.draft_share)
        return float((target + self.drafts * draft + self.host_s * batch).sum()) / self.tokens


def parameters_of(size: str | None) -> float | None:
    """Parameters that the text of a preset begins with, such as "135 M; 93 MB"; None: it states none."""
    found = re.match(r"([\d.]+) ([kMB])\b", size or "")
    return float(found[1]) * _UNITS[found[2]] if found else None


def counts_of(cell: FinishedCell, one_row_s: float | None, parameters: float) -> Counts | None:
    """The counts of a finished cell; None: it has no counted step.

    Args:
        one_row_s: mean seconds of the baseline's passes in the run.
    """
    steps = cell.cell.steps[~cell.cell.steps["warmup"]]
    tokens = int((steps["emitted"] - steps["overshoot"]).sum())
    if not tokens:
        return None
    dtype, backbone = str(cell.cell.meta["dtype"]), str(cell.cell.meta["backbone"])
    weights = re.search(r"weights=(int\d)", backbone)
    drafts = float(steps["draft_nfe"].sum())
    draft_s = float(steps["draft_ns"].sum()) / 1e9 / drafts if drafts else 0.0
    share = draft_s / one_row_s if one_row_s else 0.0
    host = (steps["host_ns"] + steps["verify_ns"]).to_numpy() / 1e9
    passes, rows, made = (steps[name].to_numpy(dtype=float) for name in ("nfe", "rows", "draft_nfe"))
    return Counts(weights[1] if weights else dtype, dtype, parameters, passes, rows, made, host, share, tokens)


def predict(
    store: Store, on: Machine, batch: int = 1, kernels: float = KERNELS, measured: bool = False
) -> pd.DataFrame:
    """One row a finished cell of a method: its predicted speed-up and where that ends.

    Args:
        measured: the run's own speed-up too.

    Returns:
        Columns cell, label, backbone, dtype, task, temperature, predicted, crossover (the first batch without a gain;
        missing: none up to 4,096), measured, and reason where a cell cannot be predicted.
    """
    read = reader(store)
    sizes = store.manifest.get("sizes") or {}
    rows = []
    for name in store.cells():
        cell = read(name)
        base = cell.cell.meta.get("baseline")
        if cell.cell.meta.get("status") != "done" or cell.role != "method":
            continue
        facts = {key: cell.cell.meta.get(key) for key in ("label", "backbone", "dtype", "task")}
        row = {"cell": name, **facts, "temperature": cell.temperature}
        row |= {"predicted": None, "crossover": None, "measured": None, "reason": None}
        known = parameters_of(sizes.get(str(cell.cell.meta["backbone"]).partition(":")[0]))
        if known is None or base not in store.cells():
            row["reason"] = "its backbone states no size" if known is None else "its baseline is not finished"
        else:
            row |= _of(cell, read(str(base)), known, on, batch, kernels)
            row["measured"] = _speed(cell.totals, read(str(base))).get("speedup") if measured else None
        rows.append(row)
    return pd.DataFrame(rows)


def _of(
    cell: FinishedCell, base: FinishedCell, parameters: float, on: Machine, batch: int, kernels: float
) -> dict[str, Any]:
    steps = base.cell.steps[~base.cell.steps["warmup"]]
    passes = float(steps["nfe"].sum())
    one_row_s = float(steps["target_ns"].sum()) / 1e9 / passes if passes else None
    sides = [counts_of(side, one_row_s, parameters) for side in (base, cell)]
    plain, ours = sides
    if plain is None or ours is None:
        return {"reason": "no step was counted"}

    def gain(batch: int) -> float:
        return plain.seconds_per_token(on, batch, kernels) / ours.seconds_per_token(on, batch, kernels)

    return {"predicted": gain(batch), "crossover": crossover(gain)}


def crossover(gain: Callable[[int], float]) -> int | None:
    """The first batch at which nothing is gained, between the powers of two that enclose it; None: none up to 4,096."""
    low, high = 0, 1
    while gain(high) > 1:
        low, high = high, high * 2
        if high > LARGEST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if gain(middle) > 1 else (low, middle)
    return high


@dataclass(frozen=True)
class Scatter:
    """Predicted against measured: the median and the largest of |predicted / measured - 1|, and whose that is."""

    cells: int
    median: float
    worst: float
    worst_cell: str


def scatter(frame: pd.DataFrame) -> Scatter | None:
    """How far predictions are from measurements; None: no cell has both."""
    both = frame.dropna(subset=["predicted", "measured"]) if len(frame) else frame
    if not len(both):
        return None
    errors = (both["predicted"].astype(float) / both["measured"].astype(float) - 1).abs()
    worst = int(errors.to_numpy().argmax())
    return Scatter(len(both), float(errors.median()), float(errors.max()), str(both["cell"].iloc[worst]))
