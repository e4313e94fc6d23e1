"""Which type a CPU multiplies, from given descriptions of processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from stridebench.harness.machine import device as arithmetic

AVX2 = "processor\t: 0\nmodel name\t: Some CPU bf16\nflags\t\t: fpu avx2 fma\n"


@pytest.fixture()
def cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(arithmetic, "CPU_INFO", path)
    monkeypatch.setattr(arithmetic, "multiplies_bf16", arithmetic.multiplies_bf16.__wrapped__)
    return path


@pytest.mark.parametrize(
    ("text", "native"),
    [
        (AVX2, "fp32"),
        (AVX2.replace("fma", "fma avx512_bf16"), "bf16"),
        (AVX2.replace("fma", "amx_bf16 amx_tile"), "bf16"),
        ("processor\t: 0\nFeatures\t: fp asimd bf16\n", "bf16"),
        ("processor\t: 0\n", "fp32"),
        (None, "fp32"),  # no file describes the processor
    ],
)
def test_native_is_bf16_where_an_instruction_multiplies_it(cpu: Path, text: str | None, native: str) -> None:
    if text is not None:
        cpu.write_text(text)
    assert arithmetic.native_dtype("cpu") == native
    assert (arithmetic.emulated({"bf16", "fp32"}, "cpu") is None) == (native == "bf16")
    assert arithmetic.emulated({"fp32"}, "cpu") is None


@pytest.mark.parametrize(("capability", "native"), [((7, 5), "fp32"), ((8, 0), "bf16"), ((9, 0), "bf16")])
def test_a_gpu_multiplies_bf16_from_capability_8_on(
    capability: tuple[int, int], native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: capability)
    assert arithmetic.native_dtype("cuda:0") == native
    assert ("this GPU" in str(arithmetic.emulated({"bf16"}, "cuda:0"))) == (native == "fp32")
