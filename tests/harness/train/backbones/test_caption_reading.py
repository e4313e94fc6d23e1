"""Whether captions are read: the alternatives of each attribute, and likelihoods of models that read and do not."""

from __future__ import annotations

import pytest
import torch

from stridebench.harness.backbones.image.adapter import PictureLayout
from stridebench.harness.synthetic import emoji
from stridebench.harness.train.backbones import decoder, emoji_image
from stridebench.harness.train.backbones.emoji_image import likelihoods
from stridebench.harness.train.backbones.image_recipe import PictureBatch

COUNTS = {"colour": 5, "kind": 5, "number": 4, "relation": 4}


@pytest.mark.parametrize("name", emoji.ATTRIBUTES)
def test_alternatives_differ_in_one_attribute_and_the_true_one_comes_first(name: str) -> None:
    family, alternatives = emoji.ATTRIBUTES[name]
    for scene in emoji.scenes(0, "held-out", 12, family):
        others = alternatives(scene)
        captions = [emoji.caption(other) for other in others]
        assert captions[0] == emoji.caption(scene) and len(set(captions)) == len(captions) == COUNTS[name]
        assert all(set(caption.split()) <= set(emoji.VOCABULARY) for caption in captions)
        looks = [{(thing.kind, thing.colour) for thing in other.things} for other in others]
        assert (looks.count(looks[0]) == len(looks)) == (name in ("number", "relation"))


def encode(scenes: list[emoji.EmojiScene]) -> torch.Tensor:
    """Two cells a scene; the second one tells the number of objects."""
    return torch.tensor([[0, len(scene.things)] for scene in scenes])


def test_a_model_that_ignores_captions_is_at_chance() -> None:
    layout = PictureLayout(1, 2, 8, emoji.VOCABULARY)
    model = decoder.TrainableDecoder(decoder.DecoderShape(layout.vocabulary, 16, 16, 1, 2, 64), layout.config()).eval()
    with torch.no_grad():
        model.head.zero_()
    chances = likelihoods(model, layout, encode, 3)
    assert chances == {f"reads_{name}": pytest.approx(1 / count) for name, count in COUNTS.items()}


def test_a_model_that_reads_numbers_only_is_right_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def reader(model: object, layout: PictureLayout, batch: PictureBatch) -> torch.Tensor:
        numbers = {word: number for number, word in emoji.NUMBERS.items()}
        read = torch.tensor([numbers.get(caption.split()[0], 1) for caption in batch.captions])
        return torch.stack([torch.zeros(len(read)), 20.0 * (read != batch.cells[:, 1])], 1)

    monkeypatch.setattr(emoji_image, "nats", reader)
    shares = likelihoods(object.__new__(decoder.TrainableDecoder), PictureLayout(1, 2, 8, emoji.VOCABULARY), encode, 3)
    assert shares["reads_number"] == pytest.approx(1, abs=1e-6)
    assert shares["reads_colour"] == pytest.approx(1 / 5)
