"""Training of Cross-Regression's adapters: windows, the gated stream, export, and Algorithm 3 by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets
from stridebench.harness.train.gated_lora import GatedLora
from stridebench.harness.train.teacher import Passage
from stridebench.methods.cross_regression import CrossRegression
from stridebench.methods.training.adapters import recipes
from stridebench.methods.training.adapters.recipes import Denoising, inputs, noised, roots, targets, weights

PASSAGE = Passage(tuple(range(2, 22)), 5)


class TestWindows:
    def test_windows_lie_end_to_end_behind_the_prompt(self) -> None:
        assert roots(PASSAGE, 4).tolist() == [4, 8, 12]
        assert targets(PASSAGE, 4).tolist() == [[7, 8, 9, 10], [11, 12, 13, 14], [15, 16, 17, 18]]

    @pytest.mark.parametrize("hop", (0, 3))
    def test_an_answer_shorter_than_a_window_has_none(self, hop: int) -> None:
        assert roots(Passage((2, 3), 2), 4, hop).tolist() == []
        assert roots(Passage((2, 3, 4), 2), 8).tolist() == []

    def test_an_adapter_without_any_window_is_refused(self) -> None:
        adapted = GatedLora("tiny-llama", 4, 8)
        with pytest.raises(UsageError, match=r"0 of 1 passages to train on and 1 of 1 to check on .* window of 8"):
            Denoising(adapted, [Passage((2, 3, 4), 2)], [PASSAGE], 8)

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
        for layers in ((7, 9), (0, 2), (1, 0), (-1, 1)):
            with pytest.raises(UsageError, match=rf"no linear layers in \({layers[0]}, {layers[1]}\); it has 2 layers"):
                GatedLora("tiny-llama", 4, 8, layers=layers)


@pytest.mark.usefixtures("unchecked")
def test_the_loss_is_that_of_algorithm_3_and_the_buffer_takes_the_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipes, "noised", lambda slots, vocabulary, random, least: slots)
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
