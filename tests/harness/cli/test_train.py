"""`stride train` from the command line: the list of recipes, refusals, a stop and a resume."""

import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from stridebench.harness.discover import load_recipes
from stridebench.harness.registry import RECIPES
from stridebench.harness.train.recipe import Recipe
from tests.support.cli import refused, stride

load_recipes()


class Point(Recipe):
    """One number, pulled to 2."""

    summary = "a number"
    source = "made here"
    requires = ("emoji-vq",)
    steps = 5

    def build(self, requirements):
        return nn.Linear(1, 1, bias=False)

    def loss(self, model, step, random: np.random.Generator):
        return (model(torch.ones(1, 1)) - 2).square().mean()

    def evaluate(self, model):
        return {}


@pytest.fixture()
def point(monkeypatch):
    monkeypatch.setitem(RECIPES._items, "point", Point())
    monkeypatch.setitem(RECIPES._source, "point", "here")


def test_every_recipe_is_listed_with_its_data_and_hours(point):
    rows = stride("train", "--json").document
    assert {"point", "emoji-vq"} <= {row["name"] for row in rows}
    assert all(row["source"] and row["summary"] and 0 < row["hours"] <= 4 for row in rows), rows


def test_a_training_stops_and_resumes(point, tmp_path):
    words = ("train", "backbone", "point", "--out", tmp_path / "p", "--part", f"emoji-vq={tmp_path}", "--json")
    first = stride(*words, "--minutes", 0)
    assert (first.code, first.document["finished"], first.document["step"]) == (0, False, 1)
    second = stride(*words)
    assert (second.document["finished"], second.document["step"]) == (True, 5)
    assert (tmp_path / "p" / "model.safetensors").exists() and (tmp_path / "p" / "card.json").exists()


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_saves_the_step_or_says_that_there_is_none(point, tmp_path, monkeypatch):
    words = ("train", "backbone", "point", "--out", tmp_path / "p", "--part", f"emoji-vq={tmp_path}")
    loss, build = Point.loss, Point.build

    def interrupting(self, model, step, random):
        if step == 1:
            signal.raise_signal(signal.SIGINT)
        return loss(self, model, step, random)

    def interrupted(self, requirements):
        raise KeyboardInterrupt

    monkeypatch.setattr(Point, "build", interrupted)
    outcome = stride(*words)
    assert outcome.code == 3 and "has no checkpoint" in outcome.err
    monkeypatch.setattr(Point, "build", build)
    monkeypatch.setattr(Point, "loss", interrupting)
    outcome = stride(*words)
    assert outcome.code == 3 and f"the checkpoint is in {tmp_path / 'p'}" in outcome.err
    assert stride(*words, "--json").document["taken"] == 3


@pytest.mark.parametrize("option", [("--threads", 0), ("--seed", 10**22), ("--minutes", "nan")])
def test_a_number_out_of_range_is_refused(point, option):
    outcome = stride("train", "backbone", "point", *option)
    assert outcome.code == 2 and f"Invalid value for '{option[0]}'" in outcome.err


@pytest.mark.slow
def test_two_trainings_on_different_data_are_two_adapters_and_two_cards(tmp_path, monkeypatch):
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("".join(f"{name} prompt {n}\n" for n in range(3)))

    def words(file, *more):
        small = ("steps=2", "rank=4", "width=8", "batch=1", "data.new=24")
        settings = [word for setting in (*small, *more) for word in ("--set", setting)]
        data = ("--backbone", "tiny:llama2-7b", "--data", tmp_path / f"{file}.txt")
        return ("train", "cross-regression", *data, "--dtype", "fp32", *settings)

    first = stride(*words("a"), "--json")
    assert (first.code, first.document["taken"]) == (0, 2), first.err
    again = stride(*words("a"))
    assert again.code == 0 and "with the same data and settings, so no step was taken" in again.out
    outcome = stride(*words("b"))
    other = outcome.err
    assert (outcome.code, outcome.out) == (2, "") and "Traceback" not in other
    assert "other data or settings: data.sha256 " in other and "Give this training another --name" in other
    warmer = stride(*words("a", "data.temperature=0.6")).err
    assert "data.temperature None there and 0.6 now" in warmer
    second = stride(*words("b"), "--name", "b", "--json").document
    assert second["taken"] == 2 and second["folder"].endswith("trained/b-tiny-llama2-7b")
    cards = [json.loads((Path(one["folder"]) / "card.json").read_text()) for one in (first.document, second)]
    assert cards[0]["settings"]["data.sha256"] != cards[1]["settings"]["data.sha256"]
    assert cards[0]["settings"]["data.temperature"] is None and cards[0]["sha256"] != cards[1]["sha256"]


def test_wrong_names_kinds_and_parts_are_one_error(point, tmp_path):
    assert "did you mean 'point'" in refused("train", "backbone", "pont")
    assert "of kind 'backbone', not 'scorer'" in refused("train", "scorer", "point")
    assert "'bone' is not a kind of recipe" in refused("train", "bone")
    assert "write NAME=FOLDER" in refused("train", "backbone", "point", "--part", "emoji-vq")
    assert "add --backbone NAME" in refused("train", "backbone", "point", "--device", "cuda")
    assert "add --backbone NAME" in refused("train", "backbone", "point", "--dtype", "fp16")
    assert "name a recipe to train" in refused("train", "backbone", "--minutes", 5)
    assert "name a recipe to train" in refused("train", "--seed", 4)
    strange = ("--backbone", "embedded-code", "--data", "{name: programs, 1: 2}")
    assert "has no parameter '1'" in refused("train", "medusa", *strange)
    missing = refused("train", "backbone", "point", "--part", f"emoji-vq={tmp_path / 'no'}")
    assert "builds on 'emoji-vq'" in missing and "train it first" in missing
