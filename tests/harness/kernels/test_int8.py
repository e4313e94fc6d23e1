"""Weight files in 8 bits: what is rounded and by how much, what is left alone, and damaged files."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from stridebench.harness.errors import WeightsError
from stridebench.harness.kernels import int8


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("shape", "factors"), [((40, 64), (40, 1)), ((300, 32), (1, 32)), ((2, 20, 128), (2, 20, 1))])
def test_a_matrix_is_rounded_to_half_a_factor(tmp_path: Path, shape: tuple[int, ...], factors: tuple[int, ...]) -> None:
    """Rows share a factor; where they are short, columns do."""
    weight = drawn(*shape)
    weight[0] = 0  # stays zero
    int8.write(tmp_path / "w.safetensors", {"w": weight})
    stored, again = load_file(tmp_path / "w.safetensors"), int8.read(tmp_path / "w.safetensors")
    assert stored["w"].dtype == torch.int8 and stored["w.int8_scale"].shape == factors
    assert set(again) == {"w"} and again["w"].dtype == torch.float32
    assert bool(((again["w"] - weight).abs() <= 0.5001 * stored["w.int8_scale"]).all())
    assert not again["w"][0].any()
    largest = again["w"].abs().amax(-1 if factors[-1] == 1 else -2)
    torch.testing.assert_close(largest, weight.abs().amax(-1 if factors[-1] == 1 else -2))


def test_vectors_ids_and_small_matrices_are_stored_as_they_are(tmp_path: Path) -> None:
    """And those of a file that was never rounded are read as they are."""
    tensors = {"norm": drawn(5000).bfloat16(), "ids": torch.arange(4096).view(2, 2048), "small": drawn(8, 8)}
    int8.write(tmp_path / "w.safetensors", tensors)
    assert set(load_file(tmp_path / "w.safetensors")) == set(tensors)
    tensors["w"] = drawn(64, 64).bfloat16()
    save_file(tensors, tmp_path / "w.safetensors")
    again = int8.read(tmp_path / "w.safetensors")
    assert set(again) == set(tensors)
    assert all(torch.equal(again[key], tensor) and again[key].dtype == tensor.dtype for key, tensor in tensors.items())


CODES, FACTORS = torch.ones(4, 6, dtype=torch.int8), torch.ones(4, 1)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"w": CODES}, r"w is stored in 8 bits and w\.int8_scale is missing"),
        ({"w.int8_scale": FACTORS}, r"it holds w\.int8_scale and not w"),
        ({"w": CODES.float(), "w.int8_scale": FACTORS}, r"w has factors for 8 bits and is stored in torch\.float32"),
        ({"w": CODES, "w.int8_scale": torch.ones(5, 1)}, r"of shape \(5, 1\), and w of shape \(4, 6\) needs one"),
        ({"w": CODES, "w.int8_scale": FACTORS.half()}, r"w\.int8_scale is torch\.float16 of shape"),
        ({"w": CODES[0], "w.int8_scale": FACTORS}, r"of shape \(4, 1\), and w of shape \(6,\) needs one"),
        ({"w": CODES, "w.int8_scale": FACTORS * torch.nan}, "a factor that is negative or not finite"),
        ({"w": CODES, "w.int8_scale": -FACTORS}, "a factor that is negative or not finite"),
        ({"w": CODES * -128, "w.int8_scale": FACTORS}, "or a code below -127"),
    ],
)
def test_the_message_names_a_damaged_file_and_its_fault(
    tmp_path: Path, stored: dict[str, torch.Tensor], message: str
) -> None:
    path = tmp_path / "w.safetensors"
    save_file(stored, path)
    with pytest.raises(WeightsError, match=f"{path} is damaged: .*{message}.* Install the package again"):
        int8.read(path)
