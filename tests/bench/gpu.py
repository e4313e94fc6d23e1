"""All timings that we quote of a GPU, under names that begin with "gpu". Passes of fixed shapes are CUDA graphs.

Without a GPU the same code runs on CPU tensors, with a recorder in the graphs' place that checks shapes and addresses.
Its times are of that check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from stridebench.harness.core.loop import Decode
from stridebench.harness.core.method import Method
from stridebench.harness.machine.device import native_dtype
from stridebench.harness.plan.cells import Cell, Plan
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.overrides import Overrides
from stridebench.harness.plan.resolve import load as load_suite
from stridebench.harness.run import machine_profile
from tests.bench.decoding import beside_generate, decoder, overhead, quantized, windows
from tests.bench.timing import (
    GREEDY,
    LOOKUP,
    NUCLEUS,
    Bench,
    Row,
    Settings,
    build,
    compare,
    decoded,
    load,
    prompt_ids,
    rates_in_turn,
)


def profile(name: str, settings: Settings) -> Iterator[Row]:
    """Yield the bandwidth, rates and launches of the device, as `stride doctor --profile` measures them."""
    body: dict[str, Any] = machine_profile.measure(settings.device)
    figures = {"bandwidth": (body["bandwidth_gb_s"], "GB/s"), "launch": (body["launch_us"], "us")}
    figures |= {f"products in {dtype}": (entry, "TFLOP/s") for dtype, entry in body["tflops"].items()}
    for title, (entry, unit) in figures.items():
        yield Row(f"{name}: {title}", entry["value"], unit=unit, note=entry["source"])


def equality(name: str, settings: Settings) -> Iterator[Row]:
    """Compare tokens of captured passes with those of plain ones, in fp32 at T = 0."""
    backbones = [load(settings.backbone, "fp32", each) for each in (settings, replace(settings, graphs=False))]
    ids = prompt_ids(backbones[0], 1)[0]
    for method, params in (("autoregressive", {}), ("prompt_lookup", LOOKUP), ("sjd", {"window": 8})):
        captured, plain = (decoder(method, params, side, settings, True)(ids) for side in backbones)
        same = sum(a == b for a, b in zip(captured, plain, strict=False)) / len(plain)
        verdict = "pass" if same == 1 else "fail"
        yield Row(f"{name}: {method}", same, 1.0, same, unit="share", goal=">= 1", verdict=verdict)


def captured(name: str, settings: Settings) -> Iterator[Row]:
    """Time captured passes beside plain ones; the note has the bytes of weights a second."""
    dtype = native_dtype(settings.device)
    backbones = [load(settings.backbone, dtype, each) for each in (settings, replace(settings, graphs=False))]
    sides = [decoder("autoregressive", {}, each, settings, True) for each in backbones]
    pairs, note = rates_in_turn(sides, prompt_ids(backbones[0], settings.pairs), settings)
    row = compare(name, pairs, "tokens/s", None, note)
    read = backbones[0].weights_bytes * (row.ours or 0.0) / 1e9
    yield replace(row, note=f"{read:.3g} GB/s of weights, prefill included; {note}")


def methods(name: str, settings: Settings) -> Iterator[Row]:
    """Time every method of the suites beside autoregressive decoding, by the cells' prompts and sampling."""
    cells = [(plan, cell) for plan in plans(settings) for cell in plan.cells if cell.role == "method"]
    cells.sort(key=lambda entry: entry[1].group)
    for _, entries in groupby(cells, key=lambda entry: entry[1].group):  # one backbone at a time
        for plan, cell in entries:
            title = f"{name}: {cell.id}"
            reason = cell.skip or ("the time was over" if settings.over else "")
            try:
                yield Row(title, verdict="skipped", note=reason) if reason else _method(title, settings, plan, cell)
            except Exception as error:  # of a method that does not run here: the next one may
                yield Row(title, verdict="skipped", note=f"{type(error).__name__}: {error}")


def plans(settings: Settings) -> list[Plan]:
    """Return the plan of each suite."""
    return [expand(load_suite(suite, Overrides(tiny=settings.tiny))) for suite in settings.suites]


def _method(title: str, settings: Settings, plan: Plan, cell: Cell) -> Row:
    backbone = load(cell.backbone, cell.dtype, settings)
    decodes: list[Decode] = []

    def output(method: Method[Any], prompt: Any) -> Sequence[int]:
        budget = min(cell.max_new_tokens, settings.tokens)
        done = decoded(method, backbone, prompt, budget, cell.sampling, forced=not cell.stop_at_eos)
        decodes.extend([done] if method is cell.method else [])
        return done.tokens

    sides = (lambda one: output(cell.method, one), lambda one: output(build("autoregressive"), one))
    pairs, note = rates_in_turn(sides, plan.prompts[cell.task][: settings.pairs], settings)
    steps = [step for done in decodes for step in done.steps]
    wall = sum(step.wall_ns for step in steps)
    host = 1 - sum(step.target_ns + step.draft_ns for step in steps) / wall
    tau = sum(step.emitted - step.overshoot for step in steps) / len(steps)
    figures = f"{wall / len(steps) / 1e6:.2f} ms a step, host {host:.0%}, {tau:.2f} tokens a step"
    return compare(title, pairs, "tokens/s", None, f"{cell.task.name}; {figures}; {note}")


def native(make: Callable[[str], Bench]) -> Bench:
    """Return a benchmark in the type that the device multiplies."""
    return lambda name, settings: make(native_dtype(settings.device))(name, settings)


BENCHMARKS: dict[str, Bench] = {
    "gpu profile": profile,
    "gpu equality": equality,
    "gpu captured": captured,
    "gpu generate, eager": native(lambda dtype: beside_generate("autoregressive", dtype, None, forced=True)),
    "gpu generate, compiled": native(
        lambda dtype: beside_generate("autoregressive", dtype, None, forced=True, cache_implementation="static")
    ),
    "gpu windows": native(windows),
    "gpu overhead T=0": native(lambda dtype: overhead("autoregressive", dtype, GREEDY, 0.02, "share")),
    "gpu overhead T=1": native(lambda dtype: overhead("prompt_lookup", dtype, NUCLEUS, 0.04, "share")),
    "gpu quantized int8": quantized("int8"),
    "gpu quantized int4": quantized("int4"),
    "gpu methods": methods,
}
"""In this order, so that a short time leaves out methods first."""
