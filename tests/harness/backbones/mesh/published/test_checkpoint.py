"""Files of published mesh models: unpickled without their classes, pinned, and refused where damaged."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from stridebench.harness.backbones.mesh import published
from stridebench.harness.backbones.mesh.bpt import UNUSED, EncoderSizes
from stridebench.harness.backbones.mesh.published import FAMILIES
from stridebench.harness.errors import WeightsError
from tests.support.tiny_mesh import ENCODER, POINT_SIZES, tiny_point_mesh


def test_a_training_state_is_read_without_the_classes_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("deepspeed.runtime.fp16.loss_scaler")
    scaler = type("LossScaler", (), {"__module__": module.__name__})
    module.LossScaler = scaler  # type: ignore[attr-defined]  # a module made here
    parts = module.__name__.split(".")
    for count in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:count]), ModuleType(".".join(parts[:count])))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    state = tiny_point_mesh("bpt")._model.state_dict()
    unused = {f"{UNUSED[1]}weight": torch.ones(2)}
    torch.save({"model": {**state, **unused}, "optimiser": scaler()}, tmp_path / "a.pt")
    monkeypatch.delitem(sys.modules, module.__name__)
    sizes = FAMILIES["bpt"].sizes(**POINT_SIZES["bpt"], encoder=EncoderSizes(**ENCODER))
    with torch.device("meta"):
        network = FAMILIES["bpt"].model(sizes)
    published.fill("x", network, tmp_path / "a.pt", UNUSED)
    torch.testing.assert_close(network.state_dict(), state)


def test_files_of_other_tensors_damaged_ones_and_ones_that_run_code_are_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 3)
    state = model.state_dict()
    path = tmp_path / "a.pt"
    for wrong in ({"weight": state["weight"]}, {**state, "more": torch.ones(1)}, {**state, "bias": torch.ones(4)}):
        torch.save(wrong, path)
        with pytest.raises(WeightsError, match="another model"):
            published.fill("x", model, path, ("unused.",))
    path.write_bytes(b"no weights")
    with pytest.raises(WeightsError, match="cannot be read"):
        published.fill("x", model, path, ())
    torch.save({"model": _Runs()}, path)
    with pytest.raises(WeightsError, match="cannot be read"):
        published.fill("x", model, path, ())
    assert "ran" not in os.environ


class _Runs:
    def __reduce__(self) -> Any:
        return exec, ("import os; os.environ['ran'] = '1'",)


def test_another_file_than_the_pinned_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    path = tmp_path / "files" / "a--b" / "c.pt"
    path.parent.mkdir(parents=True)
    path.write_bytes(pickle.dumps(1))
    parts = {"model": {"hub": "a/b", "file": "c.pt"}}
    assert published.locate("x", parts, None) == path
    with pytest.raises(WeightsError, match="pinned"):
        published.locate("x", parts, "0" * 64)
