"""Training of Medusa's heads: a short run, the loss by hand, the controls, and the shipped heads."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import shipped
from stridebench.harness.registry import RECIPES
from stridebench.harness.train import windows as prompt_sources
from stridebench.harness.train.loop import train
from stridebench.harness.train.passages import PassagePlan
from stridebench.harness.train.recipe import autocast
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.harness.train.windows import prompts
from stridebench.methods.drafters.heads.net import Config, Heads
from stridebench.methods.training.heads.examples import (
    Examples,
    HeadTraining,
    examples,
    frequent,
    hits,
    lead,
    ngram_hits,
    shares,
)
from tests.support.random_heads import random_heads

TINY = replace(
    RECIPES.get("medusa-embedded-code"), plan=PassagePlan("code", 1, 1, rows=8, new=12), heads=2, batch=32, steps=12
)


class TestTraining:
    def test_a_short_training_learns_and_its_card_has_controls(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STRIDE_CACHE", str(tmp_path / "cache"))
        model = TINY.build({})
        assert isinstance(model, HeadTraining)
        random = np.random.default_rng
        before = float(TINY.loss(model, 0, random(0)).detach())
        done = train("medusa-embedded-code", TINY, tmp_path / "out", {})
        teacher = Teacher.load("embedded-code", "fp32")
        heads = Heads.load(done.folder, teacher.backbone.tied_embeddings)
        model.heads.load_state_dict(heads.state_dict())
        assert done.finished and float(TINY.loss(model, 0, random(0)).detach()) < before
        card = json.loads((done.folder / "card.json").read_text())["figures"]
        assert card["top1_head1"] == pytest.approx(heads.config.ranks[0][0], abs=1e-4)
        assert {f"top1_head2{key}" for key in ("", "_untrained", "_shuffled", "_untrained_lead")} <= set(card)
        assert {"top1_head1_ngram", "top3_head1_ngram", "top1_head1_ngram_lead"} <= set(card)
        assert heads.config.fingerprint == teacher.backbone.fingerprint

    def test_the_loss_by_hand(self) -> None:
        """0.8 and 0.64 times each head's cross-entropy; a token that is not proposed has no weight."""
        heads = random_heads(heads=2, kept=3)
        rows = torch.randn(2, 1, 4)
        data = Examples(rows, torch.tensor([[4, 6], [5, 1]]), torch.tensor([0, 0]))
        model, recipe = HeadTraining(heads, 7, data, data), replace(TINY, batch=2)
        with autocast():
            logs = heads(rows).float().log_softmax(-1)

        chosen = np.random.default_rng(3).integers(2, size=2)
        assert sorted(chosen) == [0, 1]
        expected = 0.8 * -logs[0, 0, 1] + 0.64 * -(logs[1, 0, 2] + logs[1, 1, 0]) / 2
        torch.testing.assert_close(recipe.loss(model, 0, np.random.default_rng(3)), expected)

    def test_controls_are_zero_weights_and_permuted_weights(self) -> None:
        heads = random_heads(kept=3)
        data = Examples(torch.randn(2, 1, 4), torch.tensor([[4], [1]]), torch.tensor([0, 0]))
        model = HeadTraining(heads, 7, data, data)
        assert all(not weight.any() for weight in model.control().parameters())
        shuffled = model.control(shuffled=True)
        for permuted, trained in zip(shuffled.parameters(), heads.parameters(), strict=True):
            assert torch.equal(permuted.flatten().sort().values, trained.flatten().sort().values)
        assert not torch.equal(shuffled.blocks[0].last, heads.blocks[0].last)
        assert torch.equal(shuffled.ids, heads.ids) and torch.equal(shuffled.shared, heads.shared)


MEASURED = pytest.mark.skipif(not os.environ.get("STRIDE_MEASURE"), reason="a minute or more; set STRIDE_MEASURE=1")


def gains(backbone: str, source: prompt_sources.Source) -> list[float]:
    """Lead in accuracy of each shipped head over the better control: lower ends of 95 % intervals.

    The passages have another seed and come from the development side.
    """
    folder = shipped(f"medusa-{backbone}")
    if not (folder / "model.safetensors").is_file():
        pytest.skip(f"the heads of {backbone} are not shipped here")
    teacher = Teacher.load(backbone)
    texts = prompts(source, 7, "development", 16)
    requests = [Prompt(str(n), text) for n, text in enumerate(texts)]
    new = 272 if source == "scenes" else 64  # whole pictures: their upper rows are mostly ground
    passages = teacher.continued(requests, new, Sampling(1.0), SeededDraws(7, "t", "p", 0))
    heads = Heads.load(folder, teacher.backbone.tied_embeddings).float()
    data = examples(teacher, passages, heads.config.heads)
    model = HeadTraining(heads, teacher.capabilities.vocabulary, data, data)
    correct = hits(heads, data)
    leads = [lead(correct, hits(control, data), data) for control in (model.control(), model.control(shuffled=True))]
    return [min(pair) for pair in zip(*leads, strict=True)]


def test_shipped_heads_are_above_their_controls() -> None:
    assert min(gains("embedded-code", "code")) > 0.1


@MEASURED
@pytest.mark.model
def test_the_first_three_heads_of_smollm2_are_above_their_controls() -> None:
    assert min(gains("smollm2-135m", "text")[:3]) > 0


@MEASURED
def test_all_heads_of_the_picture_model_are_above_their_controls() -> None:
    assert min(gains("embedded-image", "scenes")) > 0


class TestExamples:
    def test_an_example_is_a_row_that_emitted_a_token_and_the_tokens_after_it(self) -> None:
        """The prompt is 4 5; row 1 gave 6, and head 1 is to guess 7."""
        teacher = Teacher(Tabular("tabular", {"vocabulary": 9}))
        long, short = Passage((4, 5, 6, 7, 8), 2), Passage((4, 5, 6), 2)
        data, rows = examples(teacher, [long, short], 2), teacher.read(long, (-1,)).hidden
        assert rows is not None
        assert torch.equal(data.rows, rows[1:3, :, 0].bfloat16())
        assert data.after.tolist() == [[7, 8], [8, -1]]
        assert data.passage.tolist() == [0, 0]

    def test_forced_tokens_are_no_targets(self) -> None:
        teacher = Teacher(Tabular("tabular", {"vocabulary": 9, "grid": (2, 2, 8)}))
        data = examples(teacher, [Passage((1, 2, 3, 8, 4, 5, 8), 1)], 2)
        assert data.after.tolist() == [[3, -1], [-1, 4], [4, 5], [5, -1], [-1, -1]]

    def test_shares_and_lead_by_hand(self) -> None:
        after = torch.tensor([[1], [2], [-1], [1]])
        rows = torch.tensor([[1.0, 0, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0]])[:, None]
        data = Examples(rows, after, torch.tensor([0, 0, 1, 1]))
        unembed = torch.tensor([[0.0, 0, 0, 9], [3, 2, 1, 0], [2, 3, 3, 0]])
        correct = hits(Heads(Config("toy", "", 4, heads=1), unembed), data)
        assert correct[:, 0].tolist() == [
            [True, False, False],
            [True, False, False],
            [False, False, False],
            [False, True, False],
        ]
        assert shares(correct, data) == [pytest.approx([2 / 3, 1 / 3, 0.0])]
        assert lead(correct, correct, data) == [0.0]
        assert lead(correct, torch.zeros_like(correct), data) == [0.0]  # one of the two passages gains nothing

    def test_ngrams_are_conditioned_on_the_token_that_a_row_emitted(self) -> None:
        """Head 0 predicts the token behind it, head 1 the one after that; rows are those of `examples`."""
        teacher = Teacher(Tabular("tabular", {"vocabulary": 9}))
        counted = [Passage((1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 7, 5), 1)]
        predicted = Passage((1, 2, 3, 5), 1)
        data = examples(teacher, [predicted], 2)
        correct = ngram_hits(teacher, counted, [predicted], 2)
        assert data.after.tolist() == [[3, 5], [5, -1]]
        assert correct[0].tolist() == [[True, False, False], [True, False, False]]  # 1 2 -> 3, and 1 2 _ -> 5 twice
        assert correct[1].tolist() == [[False, True, False], [False, False, False]]  # 2 3 -> 4 first, then 5

    def test_the_most_frequent_ids_of_passages(self) -> None:
        assert frequent([Passage((5, 5, 3), 1), Passage((3, 9, 5), 1)], 2).tolist() == [3, 5]
