"""Training of feature drafters: its features are those of decoding, and it learns."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.core.draft import Draft
from harness.core.loop import decode
from harness.core.sampling import Sampling
from harness.discover import shipped
from harness.plan import presets
from harness.registry import RECIPES
from harness.train.loop import train
from harness.train.ngram_control import NGram
from harness.train.passages import Plan
from harness.train.teacher import Passage, Teacher
from methods.drafters.eagle.drafter import FeatureDrafter
from methods.drafters.eagle.net import FeatureNet
from methods.eagle1 import Eagle1
from methods.eagle2 import Eagle2
from methods.eagle3 import Eagle3
from methods.training.eagle.examples import Example, collate, commonest, examples
from methods.training.eagle.feature_recipe import FeatureRecipe
from methods.training.eagle.figures import figures, measured, measured_ngram, shuffled
from methods.training.eagle.student import Student
from methods.training.eagle.training_time_test import unroll
from tests.support.feature_toys import folder_for, run_on, started, tiny

TOKENS = (5, 9, 22, 31, 7, 40, 11, 3, 3, 58)
EAGLE3_SHAPE = {"kind": "eagle3", "taps": 3, "kept": 30}


class TestAgainstDecoding:
    @pytest.mark.parametrize(("method", "changes"), [(Eagle2, {}), (Eagle3, EAGLE3_SHAPE)])
    def test_rounds_are_the_features_of_a_chain_of_drafts(
        self, method: type[Eagle2], changes: dict[str, object], tmp_path: Path
    ) -> None:
        """Entry 4, then tokens of the passage as drafts: the features of rounds 0, 1 and 2 at entry 4."""
        model = tiny()
        folder = folder_for(model, tmp_path, **changes)
        run = run_on(model, Sampling(1.0), 40, TOKENS[:6])
        drafter = cast(FeatureDrafter, started(method(features=folder), run).drafter)
        reader = drafter.root(run)
        assert reader is not None
        session = run.opened[folder]
        decoded = [session.newest[0, 0, 0]]
        for depth, token in enumerate(TOKENS[6:8]):
            reader.read(Draft(torch.tensor([token]), parents=torch.tensor([depth - 1])))
            decoded.append(session.newest[0, 0, 0])
        teacher = Teacher(model)
        taps = method().taps if changes else ()
        hidden = teacher.read(Passage(TOKENS, 3), (*taps, -1)).hidden
        assert hidden is not None
        example = Example(torch.tensor(TOKENS), hidden, torch.zeros(len(TOKENS), dtype=torch.long), 3)
        batch = collate([example], [0], teacher)
        net = FeatureNet.load(tmp_path).double()
        rounds = unroll(net, model.tied_embeddings().embed[batch.tokens], batch.features.double(), batch.visible, 3)
        for trained, drafted in zip(rounds, decoded, strict=True):
            torch.testing.assert_close(trained[0, 4], drafted, rtol=0, atol=1e-5)

    def test_both_branches_of_guidance_read_as_in_decoding(self, tmp_path: Path) -> None:
        model = presets.load("embedded-image-8x8", "fp32")
        folder, prompt = folder_for(model, tmp_path), (*model.encode("")[:1] * 3, *model.encode(""))
        tokens = (*prompt, 7, 300, 12, 12, 9)
        run = run_on(model, Sampling(1.0), 40, prompt)
        drafter = cast(FeatureDrafter, started(Eagle2(features=folder), run).drafter)
        run.target.sync(tokens)
        run.target.prefill()
        assert drafter.root(run) is not None
        teacher = Teacher(model)
        hidden = teacher.read(Passage(tokens, len(prompt)), (-1,)).hidden
        assert hidden is not None
        example = Example(torch.tensor(tokens), hidden, torch.zeros(len(tokens), dtype=torch.long), len(prompt))
        batch = collate([example] * 2, [0, 1], teacher)
        (features,) = unroll(
            FeatureNet.load(tmp_path), model.tied_embeddings().embed[batch.tokens], batch.features, batch.visible, 1
        )
        torch.testing.assert_close(features[:, -1], run.opened[folder].newest[0, :, 0], rtol=0, atol=1e-4)


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


def small(name: str, **changes: object) -> FeatureRecipe:
    """A recipe on few passages."""
    recipe = cast(FeatureRecipe, RECIPES.get(name))
    plan = Plan("code", train=1, development=1, rows=8, new=24)
    return replace(recipe, plan=plan, rows=2, steps=20, warmup=2, rate=4e-3, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of its own."""
    return tmp_path_factory.mktemp("cache")


FEW_IDS = {"kept": 100}
"""As eagle1-smollm2-135m has: rows of the target's unembedding for the ids it writes most."""


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("name", "method", "changes"),
    [
        ("eagle1-embedded-code", Eagle1, {}),
        ("eagle1-embedded-code", Eagle1, FEW_IDS),
        ("eagle3-embedded-code", Eagle3, {}),
    ],
)
def test_a_drafter_learns_and_its_drafts_are_accepted(
    name: str,
    method: type[Eagle1],
    changes: dict[str, int],
    cache_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Teacher, "home", property(lambda self: cache_folder))
    result = train(name, small(name, **changes), tmp_path, {})
    card = json.loads((tmp_path / "card.json").read_text())
    figures = card["figures"]
    assert result.finished
    assert card["curve"][-1][1] < card["curve"][0][1]
    assert {"top1_1", "top3_1", "accepted_1", "top1_3", "top1_1_untrained", "top1_1_shuffled"} <= set(figures)
    assert figures["top1_1"] > max(figures["top1_1_untrained"], figures["top1_1_shuffled"])
    assert figures["top3_1"] >= figures["top1_1"]
    assert 0 < figures["top1_1_ngram"] < figures["top3_1_ngram"] < 1
    model = presets.load("embedded-code", "fp32")
    steps = decode(method(features=str(tmp_path)), run_on(model, Sampling(0.0), 30, (1, 2, 3, 4))).steps
    assert sum(step.accepted for step in steps) > 0


def test_both_drafters_of_smollm2_have_the_same_data() -> None:
    first, third = (cast(FeatureRecipe, RECIPES.get(f"eagle{kind}-smollm2-135m")) for kind in (1, 3))
    assert (first.eagle, first.taps) == ("eagle1", ())
    assert (first.plan, first.kept, first.backbone) == (third.plan, third.kept, third.backbone)


@pytest.mark.usefixtures("unchecked")
def test_counts_predict_at_the_drafters_positions(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An n-gram control, position by position, from the last token of the prompt on."""
    monkeypatch.setattr(Teacher, "home", property(lambda self: cache_folder))
    student = cast(Student, small("eagle1-embedded-code").build({}))
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


@pytest.mark.usefixtures("unchecked")
def test_a_card_has_the_lead_over_each_control(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Teacher, "home", property(lambda self: cache_folder))
    student = cast(Student, small("eagle1-embedded-code").build({}))
    measured_figures = figures(student)
    for control in ("untrained", "shuffled", "ngram"):
        gain = measured_figures["top1_1"] - measured_figures[f"top1_1_{control}"]
        assert measured_figures[f"top1_1_{control}_lead"] <= gain
    assert measured_figures["top1_1_ngram_lead"] < 0, "an untrained drafter is worse than counts"


@pytest.mark.usefixtures("unchecked")
def test_the_seed_determines_the_weights(cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Teacher, "home", property(lambda self: cache_folder))
    recipe = small("eagle1-embedded-code")
    losses: list[Tensor] = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        student = recipe.build({})
        torch.manual_seed(seed)
        losses.append(recipe.loss(student, 0, np.random.default_rng(seed)).detach())
    assert losses[0] == losses[1] != losses[2]
    assert isinstance(student, Student)
    weights = dict(student.state_dict())
    assert all(key.startswith("net.") for key in weights), "lessons are in no checkpoint"
    assert not torch.equal(shuffled(student.net).down.weight, student.net.down.weight)


@pytest.mark.skipif(not os.environ.get("STRIDE_MEASURE"), reason="a minute or more; STRIDE_MEASURE=1 asks for it")
def test_the_shipped_drafter_is_above_its_controls_by_more_than_chance() -> None:
    """Paired by passage of held-out captions; the interval of the mean difference at two standard errors."""
    recipe = cast(FeatureRecipe, RECIPES.get("eagle1-embedded-image"))
    student = replace(recipe, plan=replace(recipe.plan, train=4)).build({})
    held_out, drafter = student.lessons.development[:40], FeatureNet.load(shipped("eagle1-embedded-image"))
    counts = NGram.of(example.tokens[None] for example in student.lessons.train)

    def shares(net: FeatureNet) -> Tensor:
        return torch.tensor([measured(student, net, [example], 1).figures["top1_1"] for example in held_out])

    def guessed(example: Example) -> float:
        counted = collate([example], [0], student.lessons.teacher).counted[0]
        correct = counts.guess(example.tokens[None])[0, 1:] == example.best[1:]
        return float(correct[counted].float().mean())

    controls = {
        "untrained": shares(FeatureNet(drafter.shape)),
        "shuffled": shares(shuffled(drafter)),
        "n-gram": torch.tensor([guessed(example) for example in held_out]),
    }
    for name, control in controls.items():
        difference = shares(drafter) - control
        assert float(difference.mean() - 2 * difference.std() / len(held_out) ** 0.5) > 0, name
