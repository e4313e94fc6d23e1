"""The training loop: seeded, resumable bit for bit, limited in time, with a card of the result."""

import json
import signal
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from stridebench.harness.errors import ContractError, UsageError
from stridebench.harness.registry import Registry
from stridebench.harness.train import loop as training
from stridebench.harness.train.loop import train
from stridebench.harness.train.recipe import Recipe


class Line(Recipe):
    """y = 3x + 1 with a dropout, so that torch's generator matters too."""

    summary = "a line"
    source = "made here"
    steps = 40
    rate = 0.05
    warmup = 4
    average = 0.9

    def build(self, requirements):
        return nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.1))

    def loss(self, model, step, random):
        x = torch.from_numpy(random.normal(size=(8, 1)).astype(np.float32))
        return (model(x) - 3 * x - 1).square().mean()

    def evaluate(self, model):
        return {"slope": float(next(model.parameters()))}


def weights(folder):
    return load_file(folder / "model.safetensors")


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def killed():
    raise KeyboardInterrupt


ENDS = {"^C": (120.0, lambda: signal.raise_signal(signal.SIGINT), 27), "a kill": (-1.0, killed, 28)}
"""Seconds between checkpoints, what ends a training after its 13th step, and the steps that the next call takes."""


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("every_s", "end", "taken"), ENDS.values(), ids=ENDS)
def test_an_interrupted_training_ends_with_the_weights_of_an_uninterrupted_one(
    tmp_path, monkeypatch, every_s, end, taken
):
    uninterrupted = train("line", Line(), tmp_path / "uninterrupted", {})
    monkeypatch.setattr(training, "SAVE_EVERY_S", every_s)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        train("line", Line(), tmp_path / "cut", {}, watch=lambda progress: progress.step == 13 and end())
    assert signal.getsignal(signal.SIGINT) is handler
    again = train("line", Line(), tmp_path / "cut", {})
    assert uninterrupted.finished and again.finished and (again.step, again.taken) == (40, taken)
    assert equal(weights(tmp_path / "uninterrupted"), weights(tmp_path / "cut"))


def test_the_card_describes_the_training(tmp_path):
    train("line", Line(), tmp_path, {})
    card = json.loads((tmp_path / "card.json").read_text())
    assert (card["steps"], card["seed"], card["parameters"]) == (40, 0, 2)
    train("line", Line(), tmp_path / "other", {}, seed=1)
    assert not equal(weights(tmp_path), weights(tmp_path / "other"))
    assert card["curve"][-1][0] == 40 and card["curve"][-1][1] < card["curve"][0][1]
    assert set(card["sha256"]) == {"model.safetensors"} and "slope" in card["figures"]
    assert all(t.dtype == torch.bfloat16 for t in weights(tmp_path).values())


def test_minutes_stop_it_unfinished_and_hours_finish_it(tmp_path):
    outcome = train("line", Line(), tmp_path / "a", {}, minutes=0)
    assert not outcome.finished and outcome.step == 1 and not (tmp_path / "a" / "card.json").exists()

    class Short(Line):
        hours = 0.0

    outcome = train("line", Short(), tmp_path / "b", {})
    card = json.loads((tmp_path / "b" / "card.json").read_text())
    assert outcome.finished and (card["steps"], card["planned_steps"]) == (1, 40)


def test_a_checkpoint_of_another_recipe_or_seed_is_refused(tmp_path):
    train("line", Line(), tmp_path, {}, minutes=0)
    with pytest.raises(UsageError, match=r"'line' with seed 0; found recipe 'curve'"):
        train("curve", Line(), tmp_path, {})
    with pytest.raises(UsageError, match="seed 1"):
        train("line", Line(), tmp_path, {}, seed=1)


@dataclass(frozen=True)
class Steep(Line):
    """A line whose slope is a setting; where its data lies and how long it may take are none."""

    slope: float = 3.0
    hours: float = 1.0
    folder: str = "here"


def test_a_checkpoint_of_other_settings_or_parts_is_refused(tmp_path):
    def trained(part=b"one", **settings):
        (tmp_path / "part").mkdir(exist_ok=True)
        (tmp_path / "part" / "model.safetensors").write_bytes(part)
        return train("line", Steep(**settings), tmp_path / "out", {"part": tmp_path / "part"})

    assert trained().taken == 40 and trained(hours=2.0, folder="there").taken == 0
    with pytest.raises(UsageError, match=r"other data or settings: slope 3\.0 there and 2\.0 now\. Give .* --name"):
        trained(slope=2.0)
    with pytest.raises(UsageError, match=r"other data or settings: part\.part "):
        trained(part=b"other")
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["settings"]["slope"] == 3.0 and "folder" not in card["settings"]


def test_a_damaged_checkpoint_is_named(tmp_path):
    (tmp_path / "checkpoint.pt").write_bytes(b"no")
    with pytest.raises(UsageError, match=r"checkpoint\.pt cannot be read"):
        train("line", Line(), tmp_path, {})


def test_recipes_are_instances_with_names_of_their_own():
    registry = Registry("recipe", "none")
    registry.register("emoji-vq")(Line())
    with pytest.raises(ContractError, match="two recipes"):
        registry.register("emoji-vq")(Line())
