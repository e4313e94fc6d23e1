"""Training of XSpecMesh's heads: the model's meshes as data, losses by hand, low-rank tuning and its exports."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from stridebench.harness.backbones.mesh.fused_mesh import read
from stridebench.harness.backbones.mesh.network import MeshModel, MeshSizes
from stridebench.harness.backbones.slots import lora
from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.registry import RECIPES
from stridebench.harness.train.backbones.shapes_mesh import ShapesMesh
from stridebench.harness.train.finetuning import FinetunedMesh, Tuning, load_backbone
from stridebench.harness.train.loop import train
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.methods.drafters.heads.net import Heads, read_config
from stridebench.methods.multi_head import MultiHead
from stridebench.methods.training.heads.examples import Meshes, ShapePlan, drawn, head_losses
from stridebench.methods.training.heads.recipes import divergence, drift
from stridebench.methods.training.heads.xspecmesh import MeshTraining, head_loss, joint_loss

SIZES = MeshSizes(32, 3, 2, 48, 8, encoder_layers=1, context=24, window=0, shared_coordinates=True)
PLAN = ShapePlan(train=3, development=2, new=20)
STAGE_1 = {
    name: replace(RECIPES.get(f"xspecmesh-{name}"), plan=PLAN, heads=2, steps=12, rate=2e-2)
    for name in ("mlp", "cross")
}
STAGE_2 = {
    name: replace(RECIPES.get(f"xspecmesh-cross-{name}"), plan=PLAN, steps=6, rate=1e-2) for name in ("lora", "full")
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny backbone's folder."""
    path = tmp_path_factory.mktemp("base")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MeshModel(SIZES)
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.data.mul_(2)
    ShapesMesh(sizes=SIZES).export(model, path)
    return path


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests' own meshes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRIDE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def stage_1_heads(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of stage 1."""
    out = tmp_path_factory.mktemp("cross")
    return train("xspecmesh-cross", STAGE_1["cross"], out, {"shapes-mesh": base}).folder


def figures(folder: Path) -> dict[str, float]:
    card: dict[str, Any] = json.loads((folder / "card.json").read_text())
    return dict(card["figures"])


def tuning(base: Path, stage_1_heads: Path, variant: str = "lora") -> MeshTraining:
    model = STAGE_2[variant].build({"shapes-mesh": base, "xspecmesh-cross": stage_1_heads})
    assert isinstance(model, MeshTraining)
    return model


def same_condition(one: Passage, other: Passage) -> bool:
    """Whether two passages have the same points."""
    return np.array_equal(np.asarray(one.condition), np.asarray(other.condition))


class TestData:
    def test_the_backbone_makes_each_mesh_once(self, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
        teacher = Teacher(load_backbone("tiny", base))
        first = drawn(teacher, "other", 2, 6)
        assert "other shapes from 0 of 2" in capsys.readouterr().err
        more = drawn(teacher, "other", 3, 6)
        assert capsys.readouterr().err == "" and len(more) == 3
        for one, again in zip(first, more, strict=False):
            assert one.tokens == again.tokens and one.start == 1 and len(one.tokens) <= 7
            assert same_condition(one, again)
        assert one.condition is not None and one.condition.shape == (1024, 6)
        assert not same_condition(first[0], first[1])
        assert not same_condition(first[0], drawn(teacher, "train", 1, 6)[0])

    def test_each_passage_has_its_rows_tokens_and_condition(self, base: Path) -> None:
        teacher = Teacher(load_backbone("tiny", base))
        passages = drawn(teacher, "train", 3, 20)
        short = passages[1]._replace(tokens=passages[1].tokens[:2])
        meshes = Meshes.read(teacher, [passages[0], short, passages[2]], 2)
        assert [number for number, _ in meshes.numbered()] == [0, 2] and len(meshes.of(1).rows) == 0
        third = meshes.of(2)
        assert third.after[:, 0].tolist() == list(passages[2].tokens[2:])
        assert third.after[:-1, 1].tolist() == list(passages[2].tokens[3:]) and third.after[-1, 1] == -1
        encoded = teacher.backbone.open(Prompt("p", condition=passages[2].condition))
        assert encoded.condition is not None and torch.equal(meshes.conditions[2], encoded.condition)

    def test_a_backbone_without_a_condition_is_refused(self) -> None:
        toy = Tabular("tabular", {"vocabulary": 4})
        assert Teacher(toy).condition(Passage((0, 1), 1)).shape == (3, 4)
        plain = type("Plain", (), {"open": lambda self, prompt: replace(toy.open(prompt), condition=None)})()
        plain.name = "plain"
        with pytest.raises(UsageError, match="'plain' lends no condition"):
            Teacher(plain).condition(Passage((0, 1), 1))


class TestLosses:
    def test_deeper_heads_weigh_less_and_missing_tokens_nothing(self) -> None:
        logits = torch.randn(2, 3, 5)
        after = torch.tensor([[4, 1], [2, -1], [0, -1]])
        logs = logits.log_softmax(-1)
        first = -(logs[0, 0, 4] + logs[0, 1, 2] + logs[0, 2, 0]) / 3
        torch.testing.assert_close(head_losses(logits, after), 0.8 * first + 0.64 * -logs[1, 0, 1])
        assert float(head_losses(logits, torch.full((3, 2), -1))) == 0

    def test_the_joint_loss_is_fifty_times_the_backbones_plus_the_heads(self, base: Path, stage_1_heads: Path) -> None:
        """Before the first step the tuned backbone is the base, whose rows are cached."""
        model = tuning(base, stage_1_heads)
        heads = float(head_loss(model, [0, 2]).detach())
        own = []
        for number in (0, 2):
            rows = Teacher(load_backbone("tiny", base)).read(model.train_on.passages[number], (-1,), logits=True)
            probs = rows.logits[:-1].softmax(-1)
            own.append(functional.cross_entropy(rows.logits[:-1], probs))
        expected = 50 * float(sum(own)) / 2 + heads
        assert float(joint_loss(model, [0, 2], 50.0).detach()) == pytest.approx(expected, rel=0.01)

    def test_divergence_by_hand(self) -> None:
        p, q = torch.tensor([2.0, 0]).softmax(0), torch.tensor([0.5, 0.5])
        expected = (p * (p / q).log()).sum().double()
        measured = divergence(torch.tensor([[2.0, 0], [1, 1]]), torch.tensor([[1.0, 1], [3, 3]]))
        torch.testing.assert_close(measured, torch.stack([expected, torch.zeros_like(expected)]))


class TestStageOne:
    @pytest.mark.parametrize("name", STAGE_1)
    def test_heads_learn_and_their_card_has_controls(self, base: Path, tmp_path: Path, name: str) -> None:
        recipe, parts = STAGE_1[name], {"shapes-mesh": base}
        model = recipe.build(parts)
        assert isinstance(model, MeshTraining)
        before = float(head_loss(model, [0, 1, 2]).detach())
        done = train(f"xspecmesh-{name}", recipe, tmp_path, parts)
        target = load_backbone("embedded-mesh", base)
        model.heads = Heads.load(done.folder, target.tied_embeddings)
        assert done.finished and float(head_loss(model, [0, 1, 2]).detach()) < 0.97 * before
        config = read_config(done.folder)
        assert (config.fingerprint, config.own) == (target.fingerprint, False)
        assert (config.condition, config.layers) == (32 if name == "cross" else 0, 2)
        seen = {token for passage in model.train_on.passages for token in passage.tokens}
        assert set(model.heads.ids.tolist()) == seen and config.kept == len(seen)
        controls = {f"top1_head2{key}" for key in ("", "_untrained", "_shuffled", "_untrained_lead")}
        assert controls <= set(figures(done.folder))

    def test_every_weight_of_a_head_has_a_gradient(self, base: Path) -> None:
        model = STAGE_1["cross"].build({"shapes-mesh": base})
        assert isinstance(model, MeshTraining)
        for name, weight in model.heads.named_parameters():
            if name.endswith(("out", "last")):
                weight.data.normal_()
        head_loss(model, [0]).backward()  # type: ignore[no-untyped-call]  # torch annotates it in part
        assert not [name for name, weight in model.heads.named_parameters() if not weight.grad.any()]  # type: ignore[union-attr]


def first_weight(model: MeshModel) -> torch.Tensor:
    """A matrix of the second layer."""
    return model.get_parameter("layers.1.qkv.weight")


class TestStageTwo:
    def test_only_low_rank_matrices_of_the_decoder_and_the_heads_learn(self, base: Path, stage_1_heads: Path) -> None:
        pytest.importorskip("peft")
        model = tuning(base, stage_1_heads)
        names = [name for name, weight in model.named_parameters() if weight.requires_grad]
        tuned = [name for name in names if name.startswith("tuned")]
        assert len(tuned) == 2 * 7 * SIZES.layers and all("lora_" in name and ".layers." in name for name in tuned)
        assert not any("encoder" in name for name in names) and any(name.startswith("heads.blocks") for name in names)
        assert all(min(weight.shape) == 16 for name, weight in model.named_parameters() if "lora_" in name)

    def test_the_exported_matrices_are_added_twice_when_read(self, base: Path, tmp_path: Path) -> None:
        """alpha / rank = 2. The loaded model has the outputs of the tuned one."""
        pytest.importorskip("peft")
        torch.manual_seed(0)
        tuned = FinetunedMesh(base, Tuning())
        for name, weight in tuned.named_parameters():
            if "lora_B" in name:
                weight.data.normal_(std=0.05)
        layer: Any = tuned._mesh.layers[1].qkv
        original = first_weight(read("base", base))
        product = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
        tuned.export(tmp_path)
        merged = read("tuned", tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {"config.json", lora.SETTINGS, lora.TENSORS}
        torch.testing.assert_close(first_weight(merged), original + 2 * product, rtol=2**-7, atol=2**-9)
        cloud, tokens = torch.randn(40, 6), torch.tensor([5121, 3, 900])
        table = tuned.table()
        expected = tuned(tokens, cloud, table)
        states = merged.states(tokens[None], cloud[None], merged.codes())[0]
        torch.testing.assert_close(states, expected, rtol=0, atol=0.05)  # weights are rounded to bf16
        assert not torch.allclose(first_weight(merged), original)

    @pytest.mark.parametrize("variant", STAGE_2)
    def test_exported_heads_are_tied_to_the_merged_backbone(
        self, base: Path, stage_1_heads: Path, tmp_path: Path, variant: str
    ) -> None:
        pytest.importorskip("peft")
        parts = {"shapes-mesh": base, "xspecmesh-cross": stage_1_heads}
        done = train(f"xspecmesh-cross-{variant}", STAGE_2[variant], tmp_path, parts)
        merged, old = load_backbone("merged", done.folder / "backbone"), load_backbone("embedded-mesh", base)
        assert done.finished and read_config(done.folder).fingerprint == merged.fingerprint != old.fingerprint
        passages = drawn(Teacher(old), "development", 2, 20)
        far = drift(Teacher(old), Teacher(merged), passages)
        assert 1e-5 < far < 0.5 and figures(done.folder)["divergence"] == pytest.approx(far, abs=1e-5)
        assert abs(drift(Teacher(old), Teacher(old), passages)) < 1e-9
        prompt = Prompt("p", condition=drawn(Teacher(old), "train", 1, 20)[0].condition)
        method = MultiHead(heads=str(done.folder))
        run = open_run(merged, lambda name: merged, prompt, Sampling(0.0), 12, SeededDraws(0, "t", "p", 0))
        steps = decode(method, run).steps
        assert steps[0].drafted == steps[1].drafted == 2
        other = open_run(old, lambda name: old, prompt, Sampling(0.0), 12, SeededDraws(0, "t", "p", 0))
        with pytest.raises(WeightsError, match="trained for embedded-mesh merged"):
            decode(method, other)


def test_the_rows_of_table_3_are_recipes() -> None:
    for name, row in (("mlp", "B"), ("mlp-lora", "C"), ("cross", "D"), ("cross-lora", "E")):
        recipe = RECIPES.get(f"xspecmesh-{name}")
        assert recipe.kind == "heads" and f"row {row}" in recipe.summary and recipe.requires[0] == "shapes-mesh"
    assert RECIPES.get("xspecmesh-mlp-lora").requires[1] == "xspecmesh-mlp"


def test_the_rows_that_the_encoder_shares_stay_when_all_weights_learn(base: Path) -> None:
    tuned = FinetunedMesh(base, Tuning(0))
    fixed = {name for name, weight in tuned.named_parameters() if not weight.requires_grad}
    assert {"model.codes.blocks", "model.codes.steps"} <= fixed
    assert all(".encoder." in name for name in fixed - {"model.codes.blocks", "model.codes.steps"})
