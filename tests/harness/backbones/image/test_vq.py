"""The VQ tokenizer: ids and pixels, updates of codes in training, and the shipped tokenizer."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from stridebench.harness.backbones.image.vq import CODES, VQ, to_signed
from stridebench.harness.discover import shipped
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.synthetic import emoji

FOLDER = shipped("emoji-vq")
needs_weights = pytest.mark.skipif(not (FOLDER / "model.safetensors").exists(), reason="emoji-vq is not shipped here")


@pytest.fixture(scope="module")
def net() -> VQ:
    torch.manual_seed(0)
    return VQ().eval()


@pytest.fixture(scope="module")
def real() -> VQ:
    return VQ.load(FOLDER)


def pictures(count: int, size: int = 64) -> np.ndarray:
    return np.stack([emoji.render(scene, size) for scene in emoji.scenes(3, "held-out", count)])


@pytest.mark.parametrize("size", [64, 32, 8])
def test_one_id_for_sixteen_pixels(net, size):
    x = torch.randint(0, 256, (2, size, size, 3), dtype=torch.uint8)
    ids = net.encode(x)
    assert ids.shape == (2, size // 4, size // 4) and ids.dtype == torch.long
    assert ids.min() >= 0 and ids.max() < CODES
    back = net.decode(ids)
    assert back.shape == x.shape and back.dtype == torch.uint8


def test_encoding_reads_numpy_as_it_reads_tensors(net):
    x = pictures(2)
    assert (net.encode(x) == net.encode(torch.from_numpy(x))).all()


def test_ids_are_the_nearest_codes(net):
    spread = net.spread(to_signed(torch.from_numpy(pictures(1))))
    distances = torch.cdist(spread.flatten(0, 2), net.codebook)
    assert (net.nearest(spread).flatten() == distances.argmin(1)).all()
    torch.testing.assert_close(net.codebook.norm(dim=1), torch.ones(CODES))
    torch.testing.assert_close(spread.norm(dim=-1), torch.ones(1, 16, 16))


def test_only_the_direction_of_a_code_matters(net):
    twin = VQ().eval()
    twin.load_state_dict(net.state_dict())
    twin.book.mul_(7)
    x = pictures(1)
    assert (twin.encode(x) == net.encode(x)).all()
    assert (twin.decode(net.encode(x)) == net.decode(net.encode(x))).all()


def test_a_token_depends_on_its_neighbourhood_only(net):
    """Far pixels of a picture never change a token, so an object's tokens cannot tell what else is there."""
    x = torch.from_numpy(pictures(1))
    changed = x.clone()
    changed[:, :, 40:] = 255 - changed[:, :, 40:]
    before, after = net.spread(to_signed(x)), net.spread(to_signed(changed))
    torch.testing.assert_close(before[:, :, :8], after[:, :, :8])
    assert not torch.allclose(before[:, :, 10:], after[:, :, 10:])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(1, 62, 64, 3, dtype=torch.uint8), r"\[1, 62, 64, 3\]"),
        (torch.zeros(1, 64, 64, 3), "torch.float32"),
        (torch.zeros(64, 64, 3, dtype=torch.uint8), r"\[64, 64, 3\]"),
    ],
)
def test_pictures_of_other_shapes_or_types_are_refused(net, x, message):
    with pytest.raises(UsageError, match=message):
        net.encode(x)


@pytest.mark.parametrize("wrong", [-1, CODES])
def test_ids_outside_the_codebook_are_refused(net, wrong):
    with pytest.raises(UsageError, match=f"outside 0..{CODES - 1}: found"):
        net.decode(torch.full((1, 2, 2), wrong))


def test_missing_damaged_and_foreign_weights_are_refused(tmp_path):
    with pytest.raises(WeightsError, match="stride train backbone emoji-vq"):
        VQ.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no header")
    with pytest.raises(WeightsError, match="is not a VQ tokenizer"):
        VQ.load(tmp_path)
    save_file({"other": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match="is not a VQ tokenizer"):
        VQ.load(tmp_path)


@needs_weights
class TestShipped:
    def test_it_rebuilds_held_out_scenes(self, real):
        for size, least in ((64, 28.0), (32, 26.0)):
            x = pictures(40, size)
            back = real.decode(real.encode(x)).numpy()
            error = np.square((back.astype(float) - x) / 255).mean()
            assert -10 * math.log10(error) > least

    def test_the_codebook_is_used(self, real):
        ids = real.encode(pictures(120))
        assert len(ids.unique()) > 0.8 * CODES
