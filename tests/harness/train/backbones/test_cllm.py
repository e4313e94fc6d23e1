"""CLLM's training: trajectories of Jacobi decoding, both losses by hand, one pass for texts and states, export."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets
from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic.code import programs
from stridebench.harness.train.backbones.cllm import (
    Consistent,
    TrainCllm,
    Trajectory,
    TrajectoryBatch,
    TrajectoryBlock,
    TrajectoryPlan,
    blocks_of,
    inner,
    losses,
    packed,
    repeats,
    tokens_a_pass,
    trajectories,
    trajectory,
)
from stridebench.harness.train.finetuning import FinetunedText, Tuning
from stridebench.harness.train.finetuning import load_text_backbone as load_backbone
from stridebench.harness.train.loop import train
from stridebench.harness.train.teacher import Passage, Teacher
from tests.support.tiny_llama import TINY

TRAJECTORY = Trajectory(
    (7, 8, 1, 2, 3, 4, 5, 6),
    2,
    (TrajectoryBlock(1, ((8, 7, 7, 8), (8, 1, 9, 9), (8, 1, 2, 3))), TrajectoryBlock(4, ((3, 4, 5, 6),))),
)
"""A prompt of two tokens, a block that is stable in the third pass and one that is stable at once."""


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "tiny-llama.yaml").write_text(TINY)
    monkeypatch.setenv("STRIDE_PRESETS", str(tmp_path / "presets"))
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path / "cache"))


def logits_of(name: str, tokens: tuple[int, ...]) -> torch.Tensor:
    """Logits of all rows of a text alone."""
    return Teacher.load(name, "fp32").read(Passage(tokens, 1), (), logits=True).logits


class TestTuned:
    @pytest.mark.parametrize("rank", [0, 4])
    def test_it_starts_as_the_base_and_its_rows_give_its_logits(self, rank: int) -> None:
        pytest.importorskip("peft")
        tuned, tokens = FinetunedText("tiny-llama", Tuning(rank, 8)), torch.tensor([[3, 1, 4, 1, 5]])
        read = tuned(tokens)
        torch.testing.assert_close(read.logits[0], logits_of("tiny-llama", (3, 1, 4, 1, 5)), rtol=0, atol=1e-5)
        assert torch.equal(read.logits, tuned.base(tokens))
        unembed = presets.load("tiny-llama", "fp32").tied_embeddings().unembed
        torch.testing.assert_close(read.rows @ unembed.T, read.logits, rtol=0, atol=1e-5)

    def test_only_low_rank_matrices_learn_and_the_base_is_unchanged(self) -> None:
        pytest.importorskip("peft")
        tuned, tokens = FinetunedText("tiny-llama", Tuning(4, 8)), torch.tensor([[3, 1, 4]])
        names = [name for name, weight in tuned.named_parameters() if weight.requires_grad]
        assert len(names) == 2 * 7 * 2 and all("lora_" in name for name in names)
        before = tuned.base(tokens)
        for name, weight in tuned.named_parameters():
            if "lora_B" in name:
                weight.data.normal_(std=0.3)
        assert torch.equal(tuned.base(tokens), before) and not torch.allclose(tuned(tokens).logits, before, atol=0.1)

    @pytest.mark.parametrize("rank", [0, 4])
    def test_an_export_gives_the_trained_logits_and_reads_text(self, rank: int, tmp_path: Path) -> None:
        pytest.importorskip("peft")
        tuned = FinetunedText("embedded-code", Tuning(rank, 8))
        with torch.no_grad():
            for name, weight in tuned.named_parameters():
                if "lora_B" in name or (not rank and "q_proj" in name):
                    weight.add_(torch.randn_like(weight), alpha=0.05)
        tuned.export(tmp_path / "out")
        exported, old = load_backbone("exported", tmp_path / "out"), presets.load("embedded-code", "fp32")
        tokens = exported.encode("def f(x):\n")
        assert tokens == old.encode("def f(x):\n") and exported.decode(tokens) == "def f(x):\n"
        assert exported.capabilities == old.capabilities and exported.fingerprint != old.fingerprint
        logprobs = Teacher(exported).read(Passage(tuple(tokens), 1), (), logits=True).logits.log_softmax(-1)
        expected = tuned(torch.tensor([tokens])).logits[0].log_softmax(-1)
        error = (logprobs - expected).abs().max()
        distance_to_base = (tuned.base(torch.tensor([tokens]))[0].log_softmax(-1) - expected).abs().max()
        assert error < 0.15 and error < 0.25 * distance_to_base, "only bf16 rounding differs"

    def test_another_kind_of_backbone_is_refused(self) -> None:
        with pytest.raises(UsageError, match="tabular is a backbone of tabular"):
            FinetunedText("tabular", Tuning(0))


class TestTrajectories:
    def test_each_state_is_the_models_prediction_from_the_previous_one(self) -> None:
        model = presets.load("tiny-llama", "fp32")
        decoded = trajectory(model, (2, 9, 4), 20, 6, SeededDraws(0, "t", "p", 0))
        assert len(decoded.tokens) == 23 and decoded.blocks[0].place == 2
        alone = logits_of("tiny-llama", decoded.tokens).argmax(-1).tolist()
        assert list(decoded.tokens[3:]) == alone[2:-1], "greedy decoding"
        for block, right in blocks_of(decoded):
            assert block.states[0][0] == right[0] and block.states[-1] == right
            for one, other in zip(block.states, block.states[1:], strict=False):
                predicted = logits_of("tiny-llama", (*decoded.tokens[: block.place], *one)).argmax(-1)[block.place : -1]
                assert (one[0], *predicted.tolist()) == other
        assert {token for token in decoded.blocks[0].states[0][1:]} <= {2, 9, 4}
        assert tokens_a_pass([decoded]) == 20 / decoded.passes and decoded.passes <= 20

    def test_the_end_of_a_text_ends_its_last_block(self) -> None:
        model = presets.load("embedded-code", "fp32")
        head = next(programs(np.random.default_rng(0), False)).head
        decoded = trajectory(model, model.encode(head), 200, 16, SeededDraws(0, "t", "p", 0))
        assert decoded.tokens[-1] in model.capabilities.eos and len(decoded.tokens) < 200 + decoded.start
        last, right = blocks_of(decoded)[-1]
        assert {len(state) for state in last.states} == {len(decoded.tokens) - last.place} == {len(right)}

    def test_trajectories_of_a_split_are_computed_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        teacher, plan = Teacher.load("embedded-code", "fp32"), TrajectoryPlan(prompts=1, new=6, block=4)
        first = trajectories(teacher, plan, held_out=True)
        assert "1 Jacobi trajectories (held-out)" in capsys.readouterr().err
        assert trajectories(teacher, plan, held_out=True) == first and capsys.readouterr().err == ""
        head = next(programs(np.random.default_rng(0), True)).head
        assert list(first[0].tokens[: first[0].start]) == teacher.backbone.encode(head)

    def test_texts_with_a_token_repeated_ten_times_are_dropped(self) -> None:
        assert repeats([1, *[5] * 10, 2]) and not repeats([*[5] * 9, 2, *[5] * 9]) and not repeats([])


class TestLosses:
    def test_a_state_is_read_as_if_it_were_in_the_text(self) -> None:
        """Batched with a longer text, so that rows are padded."""
        long = replace_tokens(TRAJECTORY, (*TRAJECTORY.tokens, 9, 9, 9))
        batch = packed([TRAJECTORY, long], np.random.default_rng(0))
        logits = FinetunedText("tiny-llama", Tuning(0))(batch.tokens, batch.places, batch.mask()).logits[0]
        count = len(TRAJECTORY.tokens)
        torch.testing.assert_close(logits[:count], logits_of("tiny-llama", TRAJECTORY.tokens), rtol=0, atol=1e-5)
        state = tuple(batch.tokens[0, 11:15].tolist())
        assert state in inner(blocks_of(TRAJECTORY)[0]) and batch.tokens.shape == (2, 15)
        expected = logits_of("tiny-llama", (7, *state))[1:]
        torch.testing.assert_close(logits[11:], expected, rtol=0, atol=1e-5)

    def test_the_loss_starts_at_the_first_wrong_token(self) -> None:
        """The row before it predicts the right token; a block's last row predicts the next block's first token."""
        for seed in range(8):
            batch = packed([TRAJECTORY], np.random.default_rng(seed))
            state = tuple(batch.tokens[0, 8:].tolist())
            targets = {(8, 7, 7, 8): [1, 2, 3, -1], (8, 1, 9, 9): [-1, 2, 3, -1]}
            assert batch.target[0].tolist() == [-1] * 8 + targets[state]
            assert batch.is_text[0].tolist() == [True] * 8 + [False] * 4

    def test_both_losses_by_hand(self) -> None:
        torch.manual_seed(0)
        logits = torch.randn(1, 4, 5, requires_grad=True)
        blank = torch.zeros(1, 4, dtype=torch.long)
        sees = torch.zeros(1, 4, 4, dtype=torch.bool)
        batch = TrajectoryBatch(
            blank, blank, sees, torch.tensor([[True, True, False, False]]), torch.tensor([[-1, -1, -1, 1]])
        )
        base = torch.randn(1, 3, 5)
        consistency, autoregressive = losses(logits, batch, base)
        logs, p = logits.log_softmax(-1)[0], base.softmax(-1)[0]
        torch.testing.assert_close(autoregressive, -(p[:2] * logs[:2]).sum() / 2)
        torch.testing.assert_close(consistency, -(logs[1].exp() * logs[3]).sum())
        (slope,) = torch.autograd.grad(consistency, logits)
        assert not slope[0, :3].any() and slope[0, 3].any(), "predictions on the fixed point get no gradient"

    def test_the_loss_is_the_consistency_plus_ten_times_the_texts_own(self) -> None:
        recipe = TrainCllm(summary="", backbone="tiny-llama", together=1)
        model = Consistent(FinetunedText("tiny-llama", Tuning(0)), [TRAJECTORY])
        state = tuple(packed([TRAJECTORY], after_choice(0)).tokens[0, 8:].tolist())
        right, wrong = logits_of("tiny-llama", TRAJECTORY.tokens), logits_of("tiny-llama", (7, *state))
        first = 1 if state[1] == 7 else 2
        text_loss = functional.cross_entropy(wrong[first:4], right[first:4].softmax(-1))
        own = functional.cross_entropy(right, right.softmax(-1))
        loss = float(recipe.loss(model, 0, np.random.default_rng(0)).detach())
        assert loss == pytest.approx(float(text_loss + 10 * own), rel=0.02), "up to bf16 rounding"


def replace_tokens(original: Trajectory, tokens: tuple[int, ...]) -> Trajectory:
    return original._replace(tokens=tokens)


def after_choice(seed: int) -> np.random.Generator:
    """The generator after the choice of the step's text."""
    random = np.random.default_rng(seed)
    random.choice(1, size=1, replace=False)
    return random


@pytest.mark.slow
def test_a_training_learns_and_exports_a_backbone_with_its_figures(tmp_path: Path) -> None:
    recipe = replace(
        RECIPES.get("cllm-embedded-code"), plan=TrajectoryPlan(prompts=3, new=20), checks=2, steps=8, rate=3e-3
    )
    untrained = recipe.build({})
    before = float(recipe.loss(untrained, 0, np.random.default_rng(0)).detach())
    done = train("cllm-embedded-code", recipe, tmp_path / "out", {})
    trained, old = load_backbone("made", done.folder), presets.load("embedded-code", "fp32")
    assert done.finished and trained.fingerprint != old.fingerprint and trained.capabilities == old.capabilities
    assert json.loads((done.folder / "card.json").read_text())["curve"][-1][1] < before
    figures = json.loads((done.folder / "card.json").read_text())["figures"]
    few = replace(recipe.plan, prompts=2)
    assert figures["tokens_a_pass_base"] == pytest.approx(
        tokens_a_pass(trajectories(Teacher(old), few, True)), abs=1e-5
    )
    assert figures["tokens_a_pass"] == pytest.approx(tokens_a_pass(trajectories(Teacher(trained), few, True)), abs=1e-5)
    assert figures["divergence"] > 1e-4 and figures["bits"] != figures["bits_base"]


def test_the_preset_names_the_recipe_of_its_weights() -> None:
    spec = presets.resolve("embedded-code-cllm")
    assert (
        spec.params["source"] == {"shipped": "cllm-embedded-code"}
        and RECIPES.get("cllm-embedded-code").kind == "backbone"
    )
