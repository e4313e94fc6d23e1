"""BPT and DeepMesh: the published layouts, and models of random weights and the same architecture."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stridebench.harness.backbones.mesh import published
from stridebench.harness.backbones.mesh.bpt import UNUSED, EncoderSizes
from stridebench.harness.backbones.mesh.deepmesh import Conditioned, DeepMesh, DeepMeshSizes, HourglassCache
from stridebench.harness.backbones.mesh.published import FAMILIES, PointMesh, SlidingCache, start_of
from stridebench.harness.core.cache import Cache, Window
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import SAMPLES
from stridebench.harness.errors import ContractError, UsageError, WeightsError
from stridebench.harness.registry import TASKS
from stridebench.harness.train.teacher import Teacher
from tests.support.caches import check_history, check_tree, feed, feed_windows
from tests.support.layouts import layout
from tests.support.tiny_mesh import ENCODER, POINT_SIZES, seeded_by_names, tiny_point_mesh

WINDOW, CONTEXT = 36, 100
TOKENS = np.random.default_rng(3).integers(0, 4700, CONTEXT).tolist()
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


# The window of DeepMesh's sampler: every row reads exactly the entries from its start on.


@pytest.fixture(scope="module")
def net() -> Conditioned:
    """A tiny model of a window of 36, which forgets 18, and one point cloud."""
    sizes = {**POINT_SIZES["deepmesh"], "window": WINDOW, "context": CONTEXT}
    params = {"architecture": "deepmesh", "random": {"seed": 1, "sizes": sizes, "encoder": ENCODER}}
    model: Any = PointMesh.load("tiny", params, "fp32", "cpu")._model
    with torch.inference_mode():
        points = torch.from_numpy(POINTS)
        return Conditioned.of(model, model.rotations(), points)


def sliding_rows(net: Conditioned, tokens: Sequence[int]) -> Tensor:
    """Logits of all rows; those of each start are read at once by an empty cache, from the start on."""
    starts = start_of(np.arange(len(tokens)), WINDOW)
    rows = []
    for start in np.unique(starts).tolist():
        end = int(np.flatnonzero(starts == start)[-1]) + 1
        ids = torch.tensor(tokens[start:end])
        logits = HourglassCache(net).extend(Window(ids, torch.arange(start, end), 0, None, end - start)).logits
        rows.append(logits[np.flatnonzero(starts == start) - start])
    return torch.cat(rows)


def test_the_window_starts_where_the_released_sampler_starts_it() -> None:
    """Its own lines: cur_pos tokens are there, and those from ``start`` on are read."""
    released, first = {}, 0
    for cur_pos in range(1, 30_000):
        if cur_pos >= 9001 and (cur_pos - 9001) % 4500 == 0:
            first = 4500 + ((cur_pos - 9001) // 4500) * 4500
            assert cur_pos - first == 4501
        released[cur_pos - 1] = first  # the row of the last token attends from there
    assert start_of(np.array([*released]), 9000).tolist() == [*released.values()]


@pytest.mark.parametrize("cuts", [[0, *range(20, 57), 71], [0]])
def test_windows_of_any_size_read_from_the_start_on(net: Conditioned, cuts: Sequence[int]) -> None:
    tokens = TOKENS[: CONTEXT - 4]
    logits, expected = feed_windows(SlidingCache(net), tokens, list(cuts)), sliding_rows(net, tokens)
    torch.testing.assert_close(logits, expected, rtol=0, atol=NEAR)
    everything = feed(HourglassCache(net), tokens[:WINDOW], 0)
    torch.testing.assert_close(logits[:WINDOW], everything, rtol=0, atol=NEAR)


@pytest.mark.slow
def test_logits_past_the_window_are_those_of_the_published_code() -> None:
    """Two forgettings; names seed the weights."""
    encoder = EncoderSizes(**{**ENCODER, "out": 1024})
    model = DeepMesh(DeepMeshSizes(32, 2, 48, window=WINDOW, context=CONTEXT, points=40, encoder=encoder))
    model.requires_grad_(False)
    seeded_by_names(model)
    points = torch.from_numpy(POINTS)
    tokens = [DeepMesh.prompt, *TOKENS[:99]]
    logits = feed_windows(SlidingCache(Conditioned.of(model, model.rotations(), points)), tokens, [0, 36, 37, 50, 54])
    reference = json.loads((Path(__file__).parent / "published_reference.json").read_text())["deepmesh_sliding"]
    found = logits[[0, 35, 36, 37, 53, 54, 55, 72, 99]][:, ::640]
    assert found.std() > 0.5
    torch.testing.assert_close(found, torch.tensor(reference), rtol=0, atol=1e-3)


def test_only_two_stretches_are_held_and_the_old_one_goes(net: Conditioned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stridebench.harness.backbones.mesh.published.SLACK", 4)
    cache = SlidingCache(net)
    feed(cache, TOKENS[:35], 0)
    for at in range(35, 60):
        feed(cache, TOKENS[at : at + 1], at)
        assert sorted(cache._stretches) == ([0] if at < 36 else [0, 18] if at < 40 else [18] if at < 54 else
                                            [18, 36] if at < 58 else [36])  # fmt: skip


@pytest.mark.parametrize("prefix", [33, 53])
def test_a_tree_over_the_start_gives_each_node_the_logits_of_its_own_chain(net: Conditioned, prefix: int) -> None:
    tree = (TOKENS[:prefix], TOKENS[60:70], [-1, -1, 0, 1, 2, 3, 4, 5, 6, 7])
    check_tree(SlidingCache(net), partial(sliding_rows, net), tree, (1, 3, 5, 7), TOKENS[70:75], NEAR)


@pytest.mark.slow
@settings(max_examples=6)
@given(data=st.data())
def test_after_any_history_the_cache_equals_a_fresh_one(net: Conditioned, data: st.DataObject) -> None:
    cache = SlidingCache(net)
    cache.keep(0)
    sliding = WINDOW - data.draw(st.integers(0, 6))
    feed(cache, TOKENS[:sliding], 0)

    class Shifted:
        """The cache behind a prefix, as `check_history` counts from 0."""

        def extend(self, window: Window) -> Any:
            return cache.extend(Window(window.tokens, window.positions + sliding, window.base + sliding, None,
                                       window.rows))  # fmt: skip

        def keep(self, length: int, entries: Sequence[int] = ()) -> None:
            cache.keep(length + sliding, entries)

    check_history(
        data, Shifted(), lambda tokens: sliding_rows(net, [*TOKENS[:sliding], *tokens])[sliding:], 4600, 60, NEAR
    )  # type: ignore[arg-type]  # it has both calls


def test_the_context_foreign_entries_and_trees_under_a_start_are_refused(net: Conditioned) -> None:
    cache = SlidingCache(net)
    with pytest.raises(ContractError, match="context of 100"):
        feed(cache, [*TOKENS, 1], 0)
    feed(cache, TOKENS[:20], 0)
    with pytest.raises(ContractError, match="keep"):
        cache.keep(19, (3,))
    with pytest.raises(ContractError, match="base"):
        cache.extend(Window(torch.tensor([1]), torch.tensor([20]), 21, None, 1))
    sees = torch.tensor([[True, False, False], [False, True, False], [True, False, True]])
    cache.extend(Window(torch.tensor([1, 2, 3]), torch.tensor([20, 20, 21]), 20, sees, 0))
    with pytest.raises(ContractError, match="a tree holds position 18"):
        cache.extend(Window(torch.tensor([1]), torch.tensor([36]), 23, None, 1))
