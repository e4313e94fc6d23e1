"""`stride doctor`: this machine, its versions, and missing weights and extras."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict

import click

from stridebench.harness.cli.main import emit, say
from stridebench.harness.discover import load_all
from stridebench.harness.errors import StrideError, UsageError, number_of
from stridebench.harness.machine.device import multiplies_bf16
from stridebench.harness.machine.extras import install_command
from stridebench.harness.machine.surroundings import cache_folder
from stridebench.harness.plan import presets
from stridebench.harness.plan.budget import foreseen
from stridebench.harness.plan.estimate import estimate
from stridebench.harness.plan.expand import expand
from stridebench.harness.plan.overrides import Overrides
from stridebench.harness.plan.resolve import suite_to_run
from stridebench.harness.plan.suite import duration_words
from stridebench.harness.record import provenance
from stridebench.harness.registry import METHODS, TASKS
from stridebench.tasks.metrics import sandbox

EXTRAS = {"image": ("pytorch_fid", "open_clip", "torchmetrics"), "ray": ("ray",), "gpu": ("pynvml",)}


class Check(TypedDict):
    """A thing that a run may need, and what was found."""

    what: str
    ok: bool
    found: object
    level: str


@click.command(name="doctor")
@click.option("--noise", is_flag=True, help="Measure for two seconds whether this machine can time anything.")
@click.option(
    "--profile",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Measure bandwidth, products and launches, and write them for `stride paper predict --machine FILE`.",
)
@click.option("--device", default="cpu", show_default=True, help="Of --profile: a torch device, such as cuda.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document: {answer, machine, versions, ...}.")
def command(noise: bool, profile: Path | None, device: str, as_json: bool) -> None:
    """Say whether `stride run quick` will run, then print machine, versions, disk, weights, extras and sandbox.

    Exit code: 1 if something that `stride run quick` needs is broken.

    \b
    stride doctor
    stride doctor --noise
    stride doctor --profile here.yaml
    stride doctor --profile gpu.yaml --device cuda
    stride doctor --json
    """
    if profile is None and device != "cpu":
        raise UsageError(f"--device {device} is what --profile FILE measures; name a file too")
    checks = _checks()
    if noise:
        from stridebench.harness.run.machine_profile import measure_noise  # computes with torch

        measured = measure_noise()
        checks.append(Check(what="timing", ok=measured.quiet, found=measured.words, level="note"))
    if profile is not None:
        from stridebench.harness.run import machine_profile  # computes with torch

        if profile.suffix not in (".yaml", ".yml"):
            raise UsageError(f"{profile} is a machine profile, which `stride paper predict` reads as .yaml; name it so")
        machine_profile.write(profile, device)
        checks.append(Check(what="profile", ok=True, found=str(profile), level="note"))
    document: dict[str, Any] = {
        "machine": provenance.machine(),
        "versions": provenance.versions(),
        "checks": checks,
    }
    if as_json:
        emit(document | {"answer": answer(checks)})
    else:
        say(answer(checks))
        for part in ("machine", "versions"):
            for key, item in document[part].items():
                say(f"{key:>24}  {item}")
        for check in checks:
            say(f"{'ok' if check['ok'] else check['level']:>24}  {check['what']}: {check['found']}")
    if any(not check["ok"] and check["level"] == "error" for check in checks):
        raise SystemExit(1)


def answer(checks: Sequence[Check]) -> str:
    """Return whether the suite quick will run here, in which types and for how long, or why it will not."""
    faults = [f"{one['what']}: {one['found']}" for one in checks if not one["ok"] and one["level"] == "error"]
    if faults:
        return f"quick will not run: {'; '.join(faults)}"
    plan = foreseen(expand(suite_to_run("quick", Overrides(), None, False)))
    types = ", ".join(dict.fromkeys(cell.dtype for cell in plan.runnable))
    absent = dict.fromkeys(cell.backbone for cell in plan.runnable if not presets.resolve(cell.backbone).ready())
    seconds = estimate(plan).seconds
    time = "" if seconds is None else f", about {duration_words(seconds)} on a CPU that reads 6 GB/s"
    fetched = f"; it fetches {', '.join(absent)} first" if absent else ""
    return f"quick will run: {number_of(len(plan.runnable), 'cell')} in {types}{time}{fetched}"


def _checks() -> list[Check]:
    rows: list[Check] = []

    def add(what: str, ok: bool, value: object, level: str = "note") -> None:
        rows.append(Check(what=what, ok=ok, found=value, level=level))

    try:
        load_all()
        add("registries", True, f"{len(list(METHODS))} methods, {len(list(TASKS))} tasks")
    except StrideError as error:
        add("registries", False, str(error), "error")
        return rows
    cache = cache_folder()
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(existing).free / 1e9
    add("disk at the cache", free > 2, f"{free:.1f} GB free at {cache}", "error")
    try:
        known = presets.by_name().values()
        absent = [spec.name for spec in known if not spec.ready()]
        add("backbones", True, f"ready: {', '.join(spec.name for spec in known if spec.name not in absent)}")
        add("weights", not absent, f"not here: {', '.join(absent)}; stride fetch NAME" if absent else "all are here")
    except StrideError as error:
        add("backbones", False, str(error), "error")
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        add(
            f"extra {extra}",
            not missing,
            "installed" if not missing else install_command(extra),
        )
    add("bf16", multiplies_bf16(), "multiplied by the CPU" if multiplies_bf16() else "emulated by the CPU: take fp32")
    isolation = sandbox.isolation()
    missing = isolation.missing()
    add("sandbox for model output", not missing, "; ".join(missing) or "bubblewrap, without network; memory is limited")
    add(
        "git",
        provenance.git_commit() is not None,
        provenance.git_commit() or f"{Path(__file__).parents[2]} is not a checkout",
    )
    return rows
