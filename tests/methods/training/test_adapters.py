"""Training of Cross-Regression's adapters: windows, Algorithm 3 by hand, export, and a training that learns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from harness.backbones.text.hf_causal import HFCausal
from harness.core.draws import SeededDraws
from harness.core.loop import Decode, decode
from harness.core.method import Method
from harness.core.run import open_run
from harness.core.sampling import Sampling
from harness.core.task import Prompt
from harness.errors import UsageError
from harness.plan import presets
from harness.registry import METHODS, RECIPES
from harness.train.gated_lora import GatedLora
from harness.train.loop import train
from harness.train.passages import Passages, Plan
from harness.train.teacher import Passage, Teacher
from methods.cross_regression import CrossRegression
from methods.training.adapters import denoising, recipes
from methods.training.adapters.denoising import Denoising, inputs, noised, roots, targets, weights
from methods.training.adapters.recipes import TrainAdapter
from tests.support.tiny_llama import TINY

PASSAGE = Passage(tuple(range(2, 22)), 5)
RECIPE = TrainAdapter(
    summary="a test", backbone="tiny-llama", plan=Plan("code"), rank=4, alpha=8, width=4, batch=2, steps=60, rate=1e-2
)


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "tiny-llama.yaml").write_text(TINY)
    monkeypatch.setenv("STRIDE_PRESETS", str(tmp_path / "presets"))


def greedy(count: int) -> Passages:
    """The model's own passages, the same ones on both sides."""
    teacher = Teacher.load("tiny-llama", "fp32")
    requests = [Prompt("", tokens=(n, n + 1)) for n in range(count)]
    passages = teacher.continued(requests, 22, Sampling(0.0), SeededDraws(0, "t", "p", 0))
    return Passages(teacher, passages, passages)


def counting(folder: Path) -> None:
    """Make the preset a model that counts upwards: 80 steps on such texts."""
    body = HFCausal.load(
        "tiny-llama", {**presets.resolve("tiny-llama").params, "forward": "transformers"}, "fp32", "cpu"
    )
    model = body._net.model.train().requires_grad_(True)  # type: ignore[attr-defined]  # of transformers
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(80):
        texts = (torch.randint(30, (16, 1), generator=generator) + torch.arange(24)) % 30
        optimiser.zero_grad()
        model(input_ids=texts, labels=texts).loss.backward()
        optimiser.step()
    model.save_pretrained(folder / "counting")
    preset = f"adapter: hf_causal\nsource: {{folder: {folder / 'counting'}}}\nlicence: none\nnote: a test\n"
    (folder / "tiny-llama.yaml").write_text(preset)


class TestWindows:
    def test_windows_lie_end_to_end_behind_the_prompt(self) -> None:
        assert roots(PASSAGE, 4).tolist() == [4, 8, 12]
        assert targets(PASSAGE, 4).tolist() == [[7, 8, 9, 10], [11, 12, 13, 14], [15, 16, 17, 18]]

    def test_a_row_reads_the_slot_before_it(self) -> None:
        text, at = torch.tensor(PASSAGE.tokens), roots(PASSAGE, 4)
        assert inputs(text, at, targets(PASSAGE, 4)).tolist() == [[6, 7, 8, 9], [10, 11, 12, 13], [14, 15, 16, 17]]

    def test_weights_by_hand(self) -> None:
        """Right: no, yes, yes, no. s_4 = 0, s_3 = 0 (4 is wrong), s_2 = 1, s_1 = 2."""
        assert weights(torch.tensor([[False, True, True, False]])).tolist() == [[3, 2, 1, 1]]
        assert weights(torch.tensor([[True, True, True, True]])).tolist() == [[4, 3, 2, 1]]

    def test_noise_has_every_strength(self) -> None:
        slots = noised(torch.full((400, 16), 7), 1000, np.random.default_rng(0))
        share = (slots != 7).double().mean(1)
        assert share.mean() == pytest.approx(0.5, abs=0.1)
        assert (share < 0.1).any() and (share > 0.9).any()


class TestStreams:
    def test_windows_are_read_as_the_joint_layout_reads_them(self, tmp_path: Path) -> None:
        """Windows of one pass against a gated draft in a session of each prefix, through the exported adapter."""
        adapted = GatedLora("tiny-llama", 4, 8)
        with torch.no_grad():
            for matrix in (*adapted.down, *adapted.up):
                matrix.copy_(torch.linspace(-1, 1, matrix.numel()).sin().view_as(matrix).bfloat16() / 4)
        adapted.export(tmp_path / "adapter")
        model = presets.load("tiny-llama", "fp32")
        text, at = torch.tensor(PASSAGE.tokens), roots(PASSAGE, 4)
        windows = inputs(text, at, torch.randint(31, (3, 4), generator=torch.Generator().manual_seed(0)))
        with torch.no_grad():
            rows = adapted(text, windows, at)
        for number, root in enumerate(at.tolist()):
            run = open_run(
                model, lambda name: model, PASSAGE.tokens[: root + 1], Sampling(1.0), 20, SeededDraws(0, "t", "p", 0)
            )
            state = CrossRegression(adapter=str(tmp_path / "adapter"), horizon=4).start(run)
            state.placeholders = windows[number, 1:]
            run.target.prefill()
            logits = run.target.forward(state.window(run, run.nothing.tokens, 4))
            torch.testing.assert_close(logits[1:], rows.predictive[number], atol=1e-4, rtol=0)
            torch.testing.assert_close(logits[0], rows.control[number, 0], atol=1e-4, rtol=0)

    def test_peft_reads_an_exported_adapter(self, tmp_path: Path) -> None:
        peft = pytest.importorskip("peft")
        adapted = GatedLora("tiny-llama", 4, 8, layers=(1, 1))
        with torch.no_grad():
            for matrix in adapted.up:
                matrix.copy_(torch.linspace(-1, 1, matrix.numel()).view_as(matrix).bfloat16())
            for matrix in adapted.down:
                matrix.copy_(matrix.bfloat16())
        adapted.export(tmp_path)
        text = torch.tensor([3, 1, 4, 1, 5, 9])
        with torch.no_grad():  # a window of the whole text has no prefix, so all that it reads is gated
            predictive = adapted(text, text[None], torch.tensor([0])).predictive[0]
            peft_logits = peft.PeftModel.from_pretrained(adapted.frozen.model, tmp_path)(input_ids=text[None]).logits[0]
        torch.testing.assert_close(predictive, peft_logits, atol=1e-4, rtol=0)
        assert {name.split(".")[2] for name in adapted._linears} == {"1"}

    def test_the_state_has_low_rank_matrices_only(self) -> None:
        assert {name.split(".")[0] for name in GatedLora("tiny-llama", 4, 8).state_dict()} == {"down", "up"}

    def test_other_backbones_and_layers_are_refused(self) -> None:
        with pytest.raises(UsageError, match="tabular is a backbone of tabular"):
            GatedLora("tabular", 4, 8)
        with pytest.raises(UsageError, match=r"no linear layers in \(7, 9\); it has 2 layers"):
            GatedLora("tiny-llama", 4, 8, layers=(7, 9))


@pytest.mark.usefixtures("unchecked")
class TestTraining:
    def test_the_loss_is_that_of_algorithm_3_and_the_buffer_takes_the_guesses(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(denoising, "noised", lambda slots, vocabulary, random, least: slots)
        model = Denoising(GatedLora("tiny-llama", 4, 8), [PASSAGE], [PASSAGE], 4)
        text, at, x = torch.tensor(PASSAGE.tokens), roots(PASSAGE, 4), targets(PASSAGE, 4)
        assert torch.equal(model.replay, x)
        logits = model.adapted(text, inputs(text, at, x), at)
        p, q = logits.control.softmax(-1), logits.predictive.log_softmax(-1)
        total = norm = 0.0
        for window in range(3):
            correct = (q[window].argmax(-1) == x[window]).tolist()
            for t in range(4):
                follow = 0
                while t + follow + 1 < 4 and correct[t + follow + 1]:
                    follow += 1
                total += (follow + 1) * -float((p[window, t] * q[window, t]).sum())
                norm += follow + 1
        assert float(model.denoised(0, np.random.default_rng(0))) == pytest.approx(total / norm, rel=1e-5)
        assert torch.equal(model.replay, q.argmax(-1))

    @pytest.mark.slow
    def test_an_adapter_learns_and_decodes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a model that counts upwards; the curve is a running mean over some twenty steps."""
        counting(tmp_path / "presets")
        monkeypatch.setattr(recipes, "passages_of", lambda backbone, plan: greedy(8))
        done = train("tiny", replace(RECIPE, rank=8, alpha=16, steps=60, rate=3e-2), tmp_path / "out", {})
        card = json.loads((done.folder / "card.json").read_text())
        assert done.finished and card["figures"]["windows"] == 8 * 5
        assert card["curve"][-1][1] < 0.85 * card["curve"][0][1]
        model = presets.load("tiny-llama", "fp32")

        def decoded(method: Method[Any]) -> Decode:
            run = open_run(model, lambda name: model, (0, 1), Sampling(0.0), 20, SeededDraws(0, "t", "p", 0))
            return decode(method, run)

        cross_regression, autoregressive = (
            decoded(CrossRegression(str(done.folder), horizon=4)),
            decoded(METHODS.get("autoregressive")()),
        )
        assert cross_regression.tokens == autoregressive.tokens == tuple(range(2, 22))

    def test_a_resumed_training_has_the_same_weights(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The replay buffer is in the checkpoint: two steps and two are four."""
        monkeypatch.setattr(recipes, "passages_of", lambda backbone, plan: greedy(3))
        four = replace(RECIPE, steps=4)
        train("tiny", four, tmp_path / "once", {})
        train("tiny", four, tmp_path / "twice", {}, minutes=0)
        train("tiny", four, tmp_path / "twice", {})
        name = "adapter_model.safetensors"
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()

    @pytest.mark.parametrize("name", ["cross-regression-embedded-code", "cross-regression-smollm2-135m"])
    def test_recipes_are_named_after_their_backbones(self, name: str) -> None:
        recipe = RECIPES.get(name)
        assert (recipe.kind, f"cross-regression-{recipe.backbone}") == ("adapter", name)
