"""Goals of the models that come with the package, measured on held-out prompts; those not reached are strict failures.

A measurement takes minutes: STRIDE_MEASURE=1 asks for it. What was measured when the weights were made is in DECISIONS.
"""

import os

import numpy as np
import pytest
import torch

from harness import presets
from harness.draws import SeededDraws
from harness.errors import OutputError
from harness.law import Sampling
from harness.loop import decode, open_run
from harness.registry import METHODS
from harness.task import Scored
from tasks.scenes import EmojiScenes
from tasks.shapes import Shapes

GOALS = {"object": 0.8, "colour": 0.7, "count": 0.6, "position": 0.6}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("STRIDE_MEASURE"), reason="takes five minutes; STRIDE_MEASURE=1 asks for it"),
]


@pytest.fixture(scope="module")
def scores():
    model, task = presets.load("embedded-image", "fp32"), EmojiScenes(n=256)
    found = []
    with torch.inference_mode():
        for prompt in task.prompts():
            draws = SeededDraws(0, "emoji_scenes", prompt.id, 0)
            run = open_run(model, lambda name: model, prompt, Sampling(1.0), model.offers.grid.length, draws)
            run.eos = frozenset()
            tokens = decode(METHODS.get("autoregressive")(), run).tokens
            found.append(task.score(prompt, model.decode(tokens), tokens))
    return found


@pytest.mark.xfail(strict=True, reason="a first version of the weights; see DECISIONS, embedded-image")
@pytest.mark.parametrize("name", GOALS)
def test_pictures_show_what_their_captions_ask_for(scores, name):
    assert np.mean([one[name] for one in scores if name in one]) >= GOALS[name]


@pytest.fixture(scope="module")
def meshes():
    """Chamfer distances over 40 test shapes, by the sampling of BPT: of the outputs, and what they are read against."""
    model, task, found = presets.load("embedded-mesh", "fp32"), Shapes(count=40), []
    with torch.inference_mode():
        for prompt in task.prompts():
            draws = SeededDraws(0, "shapes", prompt.id, 0)
            bpt = Sampling(0.5, top_k=50, top_p=0.95, order="filter_first")
            run = open_run(model, lambda name: model, prompt, bpt, 1000, draws)
            tokens = decode(METHODS.get("autoregressive")(), run).tokens
            try:
                output = model.decode(tokens)
                found.append(Scored(prompt, 0, output, task.score(prompt, output, tokens)))
            except OutputError:
                continue
    around = {name: score.value for name, score in task.score_set(found).items()}
    return {"chamfer": float(np.mean([one.scores["chamfer"] for one in found])), **around}


@pytest.mark.xfail(strict=True, reason="a first version of the weights; see DECISIONS, embedded-mesh")
def test_meshes_come_nearer_to_their_points_than_the_nearest_training_shape(meshes):
    assert meshes["chamfer"] < meshes["retrieval_chamfer"]


@pytest.mark.xfail(strict=True, reason="a first version of the weights; see DECISIONS, embedded-mesh")
def test_meshes_are_twice_as_far_from_another_shape(meshes):
    assert meshes["swapped_chamfer"] > 2 * meshes["chamfer"]
