"""BPT and DeepMesh: the published layouts, and models of random weights and the same architecture."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.checkpoints import components
from stridebench.harness.backbones.mesh import published
from stridebench.harness.backbones.mesh.bpt import UNUSED, EncoderSizes
from stridebench.harness.backbones.mesh.published import FAMILIES, PointMesh
from stridebench.harness.core.cache import Cache
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import SAMPLES
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.registry import TASKS
from stridebench.harness.train.teacher import Teacher
from tests.support.caches import feed
from tests.support.layouts import layout
from tests.support.tiny_mesh import ENCODER, POINT_SIZES, seeded_by_names, tiny_point_mesh

TOKENS = np.random.default_rng(3).integers(0, 4700, 60).tolist()
POINTS = np.random.default_rng(4).normal(size=(40, 6)).astype(np.float32)
NEAR = 1e-4


@pytest.fixture(scope="module", params=sorted(POINT_SIZES))
def model(request: pytest.FixtureRequest) -> PointMesh:
    return tiny_point_mesh(request.param)


def start(model: PointMesh, points: Any = POINTS) -> tuple[Cache, list[int]]:
    encoded = model.open(Prompt("p", condition=points))
    return encoded.cache(), list(encoded.tokens)


def fresh(model: PointMesh, tokens: Sequence[int]) -> Tensor:
    cache, _ = start(model)
    return torch.cat([feed(cache, [token], at) for at, token in enumerate(tokens)])


@pytest.mark.parametrize(("kind", "parameters"), [("bpt", 711_445_122), ("deepmesh", 908_149_121)])
def test_the_model_has_the_tensors_of_the_published_checkpoint_and_no_other(kind: str, parameters: int) -> None:
    """At four bytes each, DeepMesh's file has 84,214 bytes more, for names."""
    with torch.device("meta"):
        network = FAMILIES[kind].model(FAMILIES[kind].sizes())
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    whole = layout(kind)
    assert sum(int(np.prod(shape)) for shape in whole.values()) == parameters
    assert {name: shape for name, shape in whole.items() if not name.startswith(UNUSED)} == shapes
    assert all(any(name.startswith(part) for name in whole) for part in UNUSED)


@pytest.mark.parametrize("kind", sorted(POINT_SIZES))
def test_logits_are_those_of_the_published_code(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference was computed by the authors' classes at the layouts' commits; names seed the weights."""

    def named(*_: Any) -> torch.nn.Module:
        sizes = {key: tuple(value) if isinstance(value, list) else value for key, value in POINT_SIZES[kind].items()}
        network: torch.nn.Module = FAMILIES[kind].model(FAMILIES[kind].sizes(**sizes, encoder=EncoderSizes(**ENCODER)))
        return seeded_by_names(network)

    monkeypatch.setattr(published, "_random", named)
    cache, prompt = start(tiny_point_mesh(kind))
    expected = torch.tensor(json.loads((Path(__file__).parent / "published_reference.json").read_text())[kind])
    logits = feed(cache, [*prompt, *TOKENS[:30]], 0)[:, ::640][:, : expected.shape[1]]
    assert expected.std() > 0.5
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("points", [None, POINTS[:, :3], POINTS[:39], POINTS[None], np.full_like(POINTS, np.nan)])
def test_points_of_another_shape_are_refused(model: PointMesh, points: Any) -> None:
    with pytest.raises(UsageError, match="point"):
        model.open(Prompt("p", condition=points))
    with pytest.raises(UsageError, match="point cloud"):
        model.cache()


def test_bf16_runs(model: PointMesh) -> None:
    low = tiny_point_mesh("bpt" if model.capabilities.vocabulary > 5000 else "deepmesh", "bf16")
    logits, expected = fresh(low, TOKENS[:6]), fresh(model, TOKENS[:6])
    keep = ~expected.isinf()
    assert logits.dtype == torch.bfloat16 and (logits.float() - expected)[keep].abs().max() < 0.3


@pytest.mark.parametrize("name", ["bpt", "deepmesh-0.5b"])
def test_the_error_of_missing_weights_names_file_source_and_place(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    monkeypatch.setattr(components, "_hub", lambda part, local: None)
    fields = presets.resolve(name).params["parts"]["model"]
    with pytest.raises(WeightsError) as caught:
        presets.load(name, "fp32")
    for part in (fields["file"], fields["hub"], str(tmp_path / "files")):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "params",
    [
        {"architecture": "bpt"},
        {"architecture": "gpt", "random": {}},
        {"architecture": "bpt", "random": {}, "layers": 3},
        {"architecture": "bpt", "random": {"sizes": {"width": 3}}},
        {"architecture": "bpt", "parts": {"other": {"path": "a"}}},
        {"architecture": "bpt", "parts": {"model": {"file": "c.pt", "size": 3}}},
    ],
)
def test_wrong_parameters_are_refused(params: Mapping[str, Any]) -> None:
    with pytest.raises(UsageError):
        PointMesh.load("x", params, "fp32", "cpu")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_meshes_of_the_stand_in_of_bpt_are_valid(temperature: float) -> None:
    """So that a tiny run of XSpecMesh's suite has figures. Weights without `fans` are as they were."""
    teacher = Teacher.load("tiny:bpt", "fp32")
    prompts = list(TASKS.get("point_clouds")(folder=str(SAMPLES / "point_clouds")).prompts())[:2]
    draws = SeededDraws(0, "meshes", "x", 0, "cpu")
    for passage in teacher.continued(prompts, 40, Sampling(temperature), draws):
        tokens = passage.tokens[passage.start :]
        assert tokens[-1] in teacher.capabilities.eos and len(tokens) < 20
        assert len(teacher.backbone.decode(tokens).faces) >= 3


# Files of published mesh models: unpickled without their classes, pinned, and refused where damaged.


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


@pytest.mark.parametrize("wrong", [{"bias": None}, {"more": torch.ones(1)}, {"bias": torch.ones(4)}])
def test_a_file_of_other_tensors_is_refused(wrong: Mapping[str, Any], tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 3)
    state = {**model.state_dict(), **wrong}
    torch.save({key: tensor for key, tensor in state.items() if tensor is not None}, tmp_path / "a.pt")
    with pytest.raises(WeightsError, match="another model"):
        published.fill("x", model, tmp_path / "a.pt", ("unused.",))


def test_another_file_than_the_pinned_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    path = tmp_path / "files" / "a--b" / "c.pt"
    path.parent.mkdir(parents=True)
    path.write_bytes(pickle.dumps(1))
    parts = {"model": {"hub": "a/b", "file": "c.pt"}}
    assert published.locate("x", parts, None) == path
    with pytest.raises(WeightsError, match="pinned"):
        published.locate("x", parts, "0" * 64)
