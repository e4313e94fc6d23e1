"""Memory and energy of a decode: a fake powercap folder, a fake /proc, a fake NVML."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stridebench.harness.machine.consumption import Consumption, ConsumptionMeter
from stridebench.harness.machine.noise import GpuMeter


def domain(powercap: Path, folder: str, name: str, energy: int | None, largest: int = 1000) -> Path:
    path = powercap / folder
    path.mkdir(parents=True)
    (path / "name").write_text(f"{name}\n")
    (path / "max_energy_range_uj").write_text(f"{largest}\n")
    if energy is not None:
        (path / "energy_uj").write_text(f"{energy}\n")
    return path / "energy_uj"


def process(folder: Path, held_kb: int, peak_kb: int) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "clear_refs").touch()
    (folder / "status").write_text(f"Name:\tpython\nVmHWM:\t{peak_kb:8d} kB\nVmRSS:\t{held_kb:8d} kB\n")
    return folder


def test_packages_and_their_memory_add_up_and_the_board_and_cores_do_not(tmp_path: Path) -> None:
    counters = {
        "intel-rapl:0": domain(tmp_path, "intel-rapl:0", "package-0", 100),
        "intel-rapl:0:0": domain(tmp_path, "intel-rapl:0:0", "core", 10),
        "intel-rapl:0:1": domain(tmp_path, "intel-rapl:0:1", "dram", 40),
        "intel-rapl:1": domain(tmp_path, "intel-rapl:1", "psys", 500),
        "intel-rapl:2": domain(tmp_path, "intel-rapl:2", "package-1", 7),
    }
    meter = ConsumptionMeter("cpu", powercap=tmp_path)
    for added, counter in zip((30, 1000, 5, 400, 2), counters.values(), strict=True):
        counter.write_text(str(int(counter.read_text()) + added))
    assert meter.read().cpu_uj == 30 + 5 + 2


def test_a_counter_that_started_again_has_made_one_turn(tmp_path: Path) -> None:
    counter = domain(tmp_path, "intel-rapl:0", "package-0", 990, largest=1000)
    meter = ConsumptionMeter("cpu", powercap=tmp_path)
    counter.write_text("15")
    assert meter.read().cpu_uj == 25


@pytest.mark.parametrize("there", (False, True))
def test_energy_is_unknown_without_counters_and_where_one_may_not_be_read(tmp_path: Path, there: bool) -> None:
    if there:
        domain(tmp_path, "intel-rapl:0", "package-0", 100)
        domain(tmp_path, "intel-rapl:1", "package-1", None)
    meter = ConsumptionMeter("cpu", powercap=tmp_path)
    assert meter.read().cpu_uj is None


def test_peak_memory_is_the_high_water_mark_after_it_was_set_back(tmp_path: Path) -> None:
    fake = process(tmp_path / "self", held_kb=500_000, peak_kb=500_100)
    meter = ConsumptionMeter("cpu", powercap=tmp_path, process=fake)
    assert (fake / "clear_refs").read_text() == "5"
    process(fake, held_kb=510_000, peak_kb=900_000)
    assert meter.read() == Consumption(held_bytes=500_000 * 1024, peak_bytes=900_000 * 1024)


def test_peak_memory_is_unknown_where_the_mark_stays(tmp_path: Path) -> None:
    """A system that takes the write and does nothing would show the peak of something earlier."""
    fake = process(tmp_path / "self", held_kb=500_000, peak_kb=900_000)
    meter = ConsumptionMeter("cpu", powercap=tmp_path, process=fake)
    assert meter.read() == Consumption()
    assert ConsumptionMeter("cpu", powercap=tmp_path, process=tmp_path / "none").read() == Consumption()


def test_a_process_sees_the_peak_of_what_was_allocated_in_between() -> None:
    """In a process of its own: what other tests' threads free in between would count too."""
    program = (
        "import json, numpy as np; from stridebench.harness.machine.consumption import ConsumptionMeter as Meter;"
        "meter = Meter('cpu'); np.ones(32_000_000); between = meter.read(); after = Meter('cpu').read();"
        "print(json.dumps([between.held_bytes, between.peak_bytes, after.peak_bytes]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    held, peak, later = json.loads(done.stdout)
    if held is None or later is None:
        pytest.skip("this system sets no high-water mark back")
    assert 0.8 * 256e6 < peak - held < 1.2 * 256e6
    assert later < peak


def test_the_gpus_energy_is_nvmls_in_microjoules(tmp_path: Path) -> None:
    millijoules = iter((5_000, 5_070))
    nvml: Any = SimpleNamespace(nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(millijoules))
    meter = ConsumptionMeter("cpu", GpuMeter(nvml, None), powercap=tmp_path)
    assert meter.read().gpu_uj == 70_000
    silent: Any = SimpleNamespace()
    assert ConsumptionMeter("cpu", GpuMeter(silent, None), powercap=tmp_path).read().gpu_uj is None


def test_decodes_of_a_batch_share_its_energy_and_each_has_its_memory() -> None:
    assert Consumption(1, 9, 300, None).shared(3) == Consumption(1, 9, 100, None)
