"""The `image` extra can be imported with a CPU build of torch, and its networks run on random weights."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap

import pytest

from stridebench.harness.errors import UsageError
from stridebench.harness.machine import extras
from stridebench.harness.machine.extras import install_command
from tests.support.extras import needs_image_extra


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run in a new interpreter, because an import happens once in each."""
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)


@pytest.mark.slow
@needs_image_extra
def test_pytorch_fid_and_open_clip_import_after_ensure():
    done = python(
        """
        from stridebench.harness.machine import extras
        extras.ensure()
        extras.ensure()
        import open_clip, torchvision
        from pytorch_fid import fid_score, inception
        assert callable(fid_score.calculate_frechet_distance), fid_score
        assert "ViT-S-32-alt" in open_clip.list_models()
        print(torchvision.transforms.functional.__name__)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "torchvision.transforms.functional"


@pytest.mark.slow
@needs_image_extra
def test_transforms_work_and_a_missing_operator_says_so():
    done = python(
        """
        from stridebench.harness.machine import extras
        extras.ensure()
        import torch, torchvision
        from torchvision.transforms.functional import resize
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
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@needs_image_extra
def test_frechet_distance_of_two_gaussians():
    """Unit covariances whose means are three apart: the squared distance is nine."""
    done = python(
        """
        from stridebench.harness.machine import extras
        extras.ensure()
        import numpy
        from pytorch_fid.fid_score import calculate_frechet_distance as distance
        eye, zero, apart = numpy.eye(2), numpy.zeros(2), numpy.array([3.0, 0.0])
        print(round(float(distance(zero, eye, apart, eye)), 6))
        """
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 9.0


def test_without_torchvision_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=re.escape(install_command("image"))):
        extras.ensure()
