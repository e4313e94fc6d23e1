"""The `image` extra can be imported with a CPU build of torch, and its networks run on random weights."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from stridebench.harness.errors import UsageError
from stridebench.harness.machine import extras
from stridebench.harness.machine.extras import install_command
from tests.support.extras import needs_image_extra

PREPARED = """
from stridebench.harness.machine import extras
extras.ensure()
extras.ensure()
import numpy, open_clip, torch, torchvision
from pytorch_fid import fid_score, inception
from torchvision.transforms.functional import resize
assert "ViT-S-32-alt" in open_clip.list_models()
assert resize(torch.ones(3, 8, 8), [4, 4]).shape == (3, 4, 4)
boxes, scores = torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.ones(1)
if torchvision.extension._has_ops():
    assert torch.ops.torchvision.nms(boxes, scores, 0.5).tolist() == [0]
else:
    try:
        torch.ops.torchvision.nms(boxes, scores, 0.5)
    except NotImplementedError:
        pass
    else:
        raise SystemExit("an operator without a kernel returned a value")
eye, zero, mean = numpy.eye(2), numpy.zeros(2), numpy.array([3.0, 0.0])
distance = fid_score.calculate_frechet_distance(zero, eye, mean, eye)
assert abs(distance - 9) < 1e-6, distance  # unit covariances whose means are three apart
"""


@pytest.mark.slow
@needs_image_extra
def test_the_packages_of_the_extra_work_after_ensure():
    """In a new interpreter, because an import happens once in each."""
    done = subprocess.run([sys.executable, "-c", PREPARED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_torchvision_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=re.escape(install_command("image"))):
        extras.ensure()
