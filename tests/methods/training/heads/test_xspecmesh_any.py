"""XSpecMesh's second stage on a tiny BPT: losses by hand, what learns, and what a run reads of the export."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stridebench.harness import discover
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.train import recipe
from stridebench.harness.train.finetuning import FinetunedBPT, Tuning, finetuned
from stridebench.harness.train.general import TaskPlan, general
from stridebench.harness.train.loop import train
from stridebench.methods.drafters.heads.net import read_config
from stridebench.methods.multi_head import MultiHead
from stridebench.methods.training.heads.xspecmesh import MeshTraining, joint_loss, printed_loss, tuned_passes

BPT = "tiny:bpt"
PLAN = TaskPlan("point_clouds", {"folder": str(discover.SAMPLES / "point_clouds")}, limit=2, new=12, dtype="fp32")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests' own meshes."""
    pytest.importorskip("peft")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRIDE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads of stage 1."""
    recipe = general("xspecmesh-cross", BPT, PLAN, {"steps": 2, "heads": 2, "together": 1})
    return train("xspecmesh-cross", recipe, tmp_path_factory.mktemp("heads"), {}).folder


@pytest.fixture(scope="module")
def model(heads: Path) -> MeshTraining:
    """Heads and decoder before the first step."""
    built = general("xspecmesh-cross-lora", BPT, PLAN, {}).build({"xspecmesh-cross": heads})
    assert isinstance(built, MeshTraining)
    return built


def test_only_matrices_of_the_decoder_and_the_heads_learn(model: MeshTraining) -> None:
    learning = [name for name, weight in model.named_parameters() if weight.requires_grad]
    tuned = [name for name in learning if name.startswith("tuned")]
    assert len(tuned) == 3 * (4 + 4 + 2) * 2  # layers; linears of both attentions and of the gated layer; A and B
    assert all("lora_" in name and ".decoder." in name for name in tuned)
    assert {name.split(".")[0] for name in learning} == {"tuned", "heads"}


def test_before_the_first_step_the_rows_and_logits_are_those_of_the_base(
    model: MeshTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "NATIVE_BF16", False)  # trainings multiply in it, the base model does not
    passage = model.train_on.passages[0]
    assert model.base is not None
    base = model.base.read(passage, (-1,), logits=True)
    [(own, _, after)] = tuned_passes(model, [0])
    torch.testing.assert_close(own, base.logits[passage.start - 1 : -1, :-1], rtol=0, atol=1e-4)
    assert after[:, 0].tolist() == list(passage.tokens[passage.start + 1 :])


def test_equation_7_as_printed_is_sums_over_the_tokens_of_the_passage(model: MeshTraining) -> None:
    [(own, heads, _)] = tuned_passes(model, [0])
    y, start = model.train_on.passages[0].tokens, model.train_on.passages[0].start
    backbone = -sum(own.log_softmax(-1)[row, token] for row, token in enumerate(y[start:]))
    weighed = torch.zeros(())
    for d in (1, 2):
        logs = heads[d - 1].log_softmax(-1)
        weighed = weighed - 0.8**d * sum(logs[row, token] for row, token in enumerate(y[start + d :]))
    torch.testing.assert_close(printed_loss(model, [0], 50.0), 50 * backbone + weighed, rtol=1e-4, atol=0)
    assert float(joint_loss(model, [0], 50.0).detach()) < float(printed_loss(model, [0], 50.0).detach())


@pytest.mark.parametrize("labels", ["probs", "tokens"])
def test_both_losses_move_every_matrix(model: MeshTraining, labels: str) -> None:
    model.zero_grad()
    loss = joint_loss if labels == "probs" else printed_loss
    loss(model, [0], 1.0).backward()  # type: ignore[no-untyped-call]  # torch annotates it in part
    ups = [w.grad for name, w in model.named_parameters() if "lora_B" in name]
    assert ups and all(grad is not None and grad.any() for grad in ups)


@pytest.mark.slow
def test_a_run_decodes_with_the_exported_heads_on_the_merged_backbone(heads: Path, tmp_path: Path) -> None:
    settings = {"steps": 2, "together": 1, "rate": 1e-2, "labels": "tokens"}
    recipe = general("xspecmesh-cross-lora", BPT, PLAN, settings)
    done = train("xspecmesh-cross-lora", recipe, tmp_path, {"xspecmesh-cross": heads})
    card: dict[str, Any] = json.loads((done.folder / "card.json").read_text())
    assert done.finished and card["figures"]["divergence"] > 1e-6
    merged = presets.load(f"{BPT}:lora={done.folder / 'backbone'}", "fp32")
    base = presets.load(BPT, "fp32")
    assert read_config(done.folder).fingerprint == merged.fingerprint != base.fingerprint
    condition = next(iter(PLAN.sides()[0])).condition

    def steps(target: Any) -> Any:
        run = open_run(target, lambda name: target, Prompt("p", condition=condition), Sampling(1.0), 6,
                       SeededDraws(0, "t", "p", 0))  # fmt: skip
        return decode(MultiHead(heads=str(done.folder)), run).steps

    assert steps(merged)[0].drafted == 2
    with pytest.raises(WeightsError, match=r"trained for .*bpt"):
        steps(base)
    with pytest.raises(WeightsError, match="trained for other weights"):
        presets.load(f"tiny:deepmesh-0.5b:lora={done.folder / 'backbone'}", "fp32")


def test_what_cannot_learn_is_refused_by_name(heads: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="give 1 or more"):
        FinetunedBPT(BPT, Tuning(0))
    with pytest.raises(UsageError, match=r"tiny:deepmesh-0\.5b is a backbone of point_mesh"):
        finetuned("tiny:deepmesh-0.5b", Tuning())
    with pytest.raises(UsageError, match="embedded-mesh learns on the CPU"):
        finetuned("embedded-mesh", Tuning(), "cuda")
    other = shutil.copytree(heads, tmp_path / "other")
    config = (heads / "config.json").read_text()
    (other / "config.json").write_text(config.replace(read_config(heads).fingerprint, "f" * 64))
    with pytest.raises(UsageError, match="other weights than those of tiny:bpt: train them with stride train xspec"):
        general("xspecmesh-cross-lora", BPT, PLAN, {}).build({"xspecmesh-cross": other})
