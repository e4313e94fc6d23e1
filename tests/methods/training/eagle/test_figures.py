"""Figures of feature drafters: counts at the drafter's positions, and leads over controls."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from stridebench.harness.discover import shipped
from stridebench.harness.plan import presets
from stridebench.harness.registry import RECIPES
from stridebench.harness.train.passages import NGram
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.methods.drafters.eagle.net import FeatureDrafterNet
from stridebench.methods.training.eagle.recipes import FeatureRecipe, figures, measured, measured_ngram, shuffled
from stridebench.methods.training.eagle.student import Example, FeatureStudent, collate, commonest, examples
from tests.support.feature_toys import small_recipe, tiny


@pytest.mark.usefixtures("passages_of_the_session", "unchecked")
def test_counts_predict_at_the_drafters_positions() -> None:
    """An n-gram control, position by position, from the last token of the prompt on."""
    student = cast(FeatureStudent, small_recipe("eagle1-embedded-code").build({}))
    development = student.lessons.development[:2]
    measured_figures, hits = measured_ngram(student, development)
    counts = NGram.of(example.tokens[None] for example in student.lessons.train)
    correct = []
    for example in development:
        for position in range(max(1, example.start - 1), len(example.tokens)):
            guessed = counts.guesses(example.tokens[None, : position + 1])[0, -1].tolist()
            target = int(student.target_logits(example.rows[position, :, -1].float()).argmax())
            correct.append([guess == target for guess in guessed])
    assert measured_figures["top1_1"] == pytest.approx(np.mean([first for first, *_ in correct]))
    assert measured_figures["top3_1"] == pytest.approx(np.mean([any(ranks) for ranks in correct]))
    assert (hits.first.sum(), hits.three.sum(), hits.counted.sum()) == (
        sum(first for first, *_ in correct),
        sum(any(ranks) for ranks in correct),
        len(correct),
    )


@pytest.mark.usefixtures("passages_of_the_session", "unchecked")
def test_a_card_has_the_lead_over_each_control() -> None:
    student = cast(FeatureStudent, small_recipe("eagle1-embedded-code").build({}))
    measured_figures = figures(student)
    for control in ("untrained", "shuffled", "ngram"):
        gain = measured_figures["top1_1"] - measured_figures[f"top1_1_{control}"]
        assert measured_figures[f"top1_1_{control}_lead"] <= gain
    assert measured_figures["top1_1_ngram_lead"] < 0, "an untrained drafter is worse than counts"


@pytest.mark.skipif(not os.environ.get("STRIDE_MEASURE"), reason="a minute or more; STRIDE_MEASURE=1 asks for it")
def test_the_shipped_drafter_is_above_its_controls_by_more_than_chance() -> None:
    """Paired by passage of held-out captions; the interval of the mean difference at two standard errors."""
    recipe = cast(FeatureRecipe, RECIPES.get("eagle1-embedded-image"))
    student = replace(recipe, plan=replace(recipe.plan, train=4)).build({})
    held_out, drafter = student.lessons.development[:40], FeatureDrafterNet.load(shipped("eagle1-embedded-image"))
    counts = NGram.of(example.tokens[None] for example in student.lessons.train)

    def shares(net: FeatureDrafterNet) -> Tensor:
        return torch.tensor([measured(student, net, [example], 1).figures["top1_1"] for example in held_out])

    def guessed(example: Example) -> float:
        counted = collate([example], [0], student.lessons.teacher).counted[0]
        correct = counts.guess(example.tokens[None])[0, 1:] == example.best[1:]
        return float(correct[counted].float().mean())

    controls = {
        "untrained": shares(FeatureDrafterNet(drafter.shape)),
        "shuffled": shares(shuffled(drafter)),
        "n-gram": torch.tensor([guessed(example) for example in held_out]),
    }
    for name, control in controls.items():
        difference = shares(drafter) - control
        assert float(difference.mean() - 2 * difference.std() / len(held_out) ** 0.5) > 0, name


TOKENS = (5, 9, 22, 31, 7, 40, 11, 3, 3, 58)


class TestData:
    def test_the_row_of_an_entry_predicts_the_token_behind_it(self) -> None:
        model = tiny("fp32")
        (example,) = examples(Teacher(model), [Passage(TOKENS, 3)], ())
        batch = collate([example], [0], Teacher(model))
        assert batch.tokens[0].tolist() == list(TOKENS[1:])
        logits = batch.heads[0] @ model.tied_embeddings().unembed.T
        assert logits.argmax(-1).tolist() == example.best[1:].tolist()
        assert batch.counted[0].tolist() == [False, *[True] * 8]

    def test_ends_of_rows_and_ids_that_are_not_proposed_do_not_count(self) -> None:
        teacher = Teacher(presets.load("embedded-image-8x8", "fp32"))
        grid = teacher.capabilities.grid
        assert grid is not None
        passage = Passage((0, 1, *range(8), cast(int, grid.eol), 5, 6), 2)
        (example,) = examples(teacher, [passage], ())
        counted = collate([example], [0], teacher).counted[0]
        assert counted.tolist() == [t != 8 for t in range(12)]  # entry 8 is followed by the end of the first row
        proposed = torch.ones(teacher.capabilities.vocabulary, dtype=torch.bool)
        proposed[example.best[4]] = False
        fewer = collate([example], [0], teacher, proposed).counted[0]
        assert not bool(fewer[3])

    def test_the_most_frequent_ids(self) -> None:
        row = torch.zeros(5, 1, 1, 2)
        example = Example(torch.tensor([9, 4, 4, 2, 7]), row, torch.tensor([4, 4, 2, 2, 2]), 1)
        assert commonest([example], 2, 10).tolist() == [2, 4]
