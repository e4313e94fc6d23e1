"""Machines that predictions are made for: their figures, each with its source, and what a pass takes on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import yaml

from stridebench.harness.errors import UsageError
from stridebench.harness.plan.yaml_lines import load as load_yaml

MACHINES = Path(__file__).parent / "data" / "machines"
BYTES = {"fp32": 4.0, "fp64": 8.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0, "int4": 0.5, "nf4": 0.5}
"""Bytes of a parameter; scales of quantised weights are not counted."""
LAYERS = 30
"""Layers of a backbone whose record does not tell them."""
SMALLEST = 1e-6
"""The smallest figure of a profile; the largest is its inverse. Both are beyond any machine."""


@dataclass(frozen=True)
class PassFit:
    """What passes with weights of one type cost, fitted to timed ones.

    Args:
        bandwidth: bytes of weights a second.
        rate: operations a second.
        layer_s: seconds of a layer outside of its products.
    """

    bandwidth: float
    rate: float
    layer_s: float
    row_s: float


@dataclass(frozen=True)
class Machine:
    """Figures of a machine.

    Args:
        bandwidth: bytes a second.
        rates: operations a second of matrix products, by type.
        launch_s: seconds of a launch.
        sources: where each figure comes from, by its name in the file.
        measured: fitted to passes on the machine, by type of the weights; a type without it is a roofline.
    """

    name: str
    bandwidth: float
    rates: Mapping[str, float]
    launch_s: float
    sources: Mapping[str, str]
    measured: Mapping[str, PassFit] = field(default_factory=dict)

    def pass_s(
        self, parameters: float, stored: str, computed: str, rows: Any, kernels: float, layers: float = LAYERS
    ) -> Any:
        """Seconds of a pass.

        Args:
            stored: type of the weights. computed: type of the products.
            kernels: launches of a roofline. layers: of a measured sum.
        """
        rows = np.asarray(rows)
        if known := self.measured.get(stored):
            products = parameters * (BYTES[stored] / known.bandwidth + 2 * rows / known.rate)
            return products + layers * (known.layer_s + known.row_s * rows)
        if computed not in self.rates:
            raise UsageError(
                f"the profile {self.name} lacks a rate of {computed} ({', '.join(self.rates)} only); "
                f"add `tflops: {{{computed}: {{value: ..., source: ...}}}}` to it, or take another run"
            )
        if stored not in BYTES:
            raise UsageError(f"the bytes of a parameter in {stored} are not known ({', '.join(BYTES)} only)")
        read = parameters * BYTES[stored] / self.bandwidth
        return np.maximum(read, 2 * parameters * rows / self.rates[computed]) + kernels * self.launch_s


def machines() -> list[str]:
    """The profiles that ship."""
    return sorted(path.stem for path in MACHINES.glob("*.yaml"))


def machine(name: str) -> Machine:
    """A profile by its name, or a file such as `stride doctor --profile` writes."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else MACHINES / f"{name}.yaml"
    if not path.is_file():
        raise UsageError(f"the machine {name!r} is not known; known are {', '.join(machines())}, or name a .yaml file")
    try:
        body = load_yaml(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:  # dates and numbers that are none, and bytes that are no text
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    body = body if isinstance(body, dict) else {}
    rates = body.get("tflops")
    entries = {"bandwidth_gb_s": body.get("bandwidth_gb_s"), "launch_us": body.get("launch_us")}
    entries |= {f"tflops.{kind}": entry for kind, entry in (rates if isinstance(rates, dict) else {}).items()}
    fitted = _fitted(body.get("measured"))
    entries |= {f"measured.{kind}.{key}": entry for kind, of in fitted.items() for key, entry in of.items()}
    missing = [f"{key}{_hint(entry)}" for key, entry in entries.items() if not _is_figure(entry)]
    missing += [] if isinstance(rates, dict) and rates else ["tflops"]
    if missing:
        raise UsageError(
            f"{path} lacks {', '.join(missing)}: each is {{value: a number from {SMALLEST:g} to {1 / SMALLEST:g}, "
            f"source: text that says where it is from}}. `stride doctor --profile FILE` measures this machine."
        )
    figures = {key: float(entry["value"]) for key, entry in entries.items() if entry}
    by_type = {key.partition(".")[2]: value * 1e12 for key, value in figures.items() if key.startswith("tflops.")}
    sources = {key: str(entry["source"]) for key, entry in entries.items() if entry and "measured." not in key}
    sources |= {f"measured.{kind}": str(of["layer_us"]["source"]) for kind, of in fitted.items()}
    measured = {kind: _sum({key: float(entry["value"]) for key, entry in of.items()}) for kind, of in fitted.items()}
    return Machine(path.stem, figures["bandwidth_gb_s"] * 1e9, by_type, figures["launch_us"] / 1e6, sources, measured)


class StatedFigure(TypedDict):
    """A figure of a profile and where it is from, neither of them checked."""

    value: Any
    source: Any


def _fitted(body: Any) -> dict[str, dict[str, StatedFigure]]:
    """The figures of each type under ``measured``, each as an entry with the source of its type."""
    types = body if isinstance(body, dict) else {} if body is None else {"type": None}
    names = ("bandwidth_gb_s", "tflops", "layer_us", "row_us")
    of_type = {kind: entry if isinstance(entry, dict) else {} for kind, entry in types.items()}
    return {
        str(kind): {name: {"value": entry.get(name), "source": entry.get("source")} for name in names}
        for kind, entry in of_type.items()
    }


def _sum(figures: Mapping[str, float]) -> PassFit:
    bandwidth, rate, layer, row = (figures[key] for key in ("bandwidth_gb_s", "tflops", "layer_us", "row_us"))
    return PassFit(bandwidth * 1e9, rate * 1e12, layer / 1e6, row / 1e6)


def _is_figure(entry: Any) -> bool:
    value, source = (entry.get(key) if isinstance(entry, dict) else None for key in ("value", "source"))
    number = isinstance(value, int | float) and not isinstance(value, bool) and SMALLEST <= value <= 1 / SMALLEST
    return number and isinstance(source, str) and bool(source.strip())


def _hint(entry: Any) -> str:
    """Return the problem of an entry that is there, such as 1e3, which is text in YAML 1.1."""
    value, source = (entry.get(key) if isinstance(entry, dict) else None for key in ("value", "source"))
    if value is None:
        return ""
    try:
        number = float(value) if isinstance(value, str) else None
    except ValueError:
        number = None
    if number is not None:
        return f" (its value {value!r:.40} is text in YAML 1.1; write it as 1000 or 1.0e+3)"
    unnamed = _is_figure({"value": value, "source": "one"}) and not (isinstance(source, str) and source.strip())
    return " (its source is missing)" if unnamed else f" (its value is {value!r:.40})"
