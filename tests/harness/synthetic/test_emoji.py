"""Emoji scenes: pictures agree with their captions, and splits share no composition."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from stridebench.harness.errors import UsageError
from stridebench.harness.synthetic import emoji, emoji_sprites
from stridebench.harness.synthetic.emoji import ARRANGEMENTS, CELLS, STEP, places
from stridebench.harness.synthetic.emoji_sprites import TEXTURED, paint
from stridebench.tasks.metrics.detector import truth
from stridebench.tasks.metrics.geneval import relations
from tests.support import emoji_font


def box(thing: emoji.Thing) -> tuple[slice, slice]:
    top, left, side = thing.row * STEP, thing.column * STEP, thing.side * STEP
    return slice(top, top + side), slice(left, left + side)


def composition(scene: emoji.EmojiScene) -> tuple[object, ...]:
    ground = scene.ground
    return scene.things, ground.pattern, ground.near, ground.far, ground.direction


@pytest.fixture(scope="module")
def drawn() -> list[emoji.EmojiScene]:
    return emoji.scenes(0, "train", 600) + emoji.scenes(0, "held-out", 300)


def test_a_caption_states_every_object_its_colour_the_number_the_place_and_the_ground(drawn):
    for scene in drawn:
        words = emoji.caption(scene).split()
        for thing in scene.things:
            assert f"{thing.colour} {thing.kind}" in " ".join(words)
        assert (scene.relation or ARRANGEMENTS[len(scene.things)][0]) in " ".join(words)
        assert words[-1] == ("rough" if scene.ground.textured else "smooth")
        numbers = [word for word in words if word in emoji.NUMBERS.values()]
        assert numbers == ([emoji.NUMBERS[len(scene.things)]] if scene.family == "counting" else [])
    assert {word for scene in drawn for word in emoji.caption(scene).split()} == set(emoji.VOCABULARY)


@pytest.mark.parametrize(
    ("number", "look", "caption"),
    [
        (1, ("car", "blue"), "a blue car at centre on rough"),
        (2, ("heart", "green"), "two times a green heart in row on rough"),
        (3, ("fish", "orange"), "three times an orange fish in triangle on rough"),
        (4, ("tree", "red"), "four times a red tree at corners on rough"),
    ],
)
def test_captions_by_hand(number, look, caption):
    things = tuple(emoji.Thing(*look, *corner) for corner in places(number, "", 1))
    assert emoji.caption(emoji.EmojiScene("counting", things, emoji.Ground("checks", 0, 1, 0, 0))) == caption


def test_a_position_caption_and_its_specification_name_the_same_relation():
    corners = places(2, "left of", 0)
    looks = (("fish", "orange"), ("car", "blue"))
    things = tuple(emoji.Thing(*look, *corner) for look, corner in zip(looks, corners, strict=True))
    scene = emoji.EmojiScene("position", things, emoji.Ground("gradient", 0, 1, 0, 0), "left of")
    assert emoji.caption(scene) == "an orange fish left of a blue car on smooth"
    assert emoji.specification(scene) == {
        "tag": "position",
        "include": [
            {"class": "car", "count": 1, "color": "blue"},
            {"class": "fish", "count": 1, "color": "orange", "position": ["left of", 0]},
        ],
        "exclude": [],
    }


def test_a_counting_specification_excludes_one_object_more(drawn):
    scene = next(scene for scene in drawn if scene.family == "counting" and len(scene.things) == 3)
    kind, colour = scene.things[0].kind, scene.things[0].colour
    specification = emoji.specification(scene)
    assert specification["include"] == [{"class": kind, "count": 3, "color": colour}]
    assert specification["exclude"] == [{"class": kind, "count": 4}]


def test_stated_relations_hold_by_genevals_rule(drawn):
    for scene in drawn:
        if scene.relation:
            first, second = truth(scene)
            assert relations(first.detection(), second.detection()) == {scene.relation}


def test_no_composition_is_in_both_splits_whatever_the_seed():
    random = np.random.default_rng(7)
    train = {composition(emoji.scene(random, "train", "single_object")) for _ in range(1500)}
    held_out = {composition(emoji.scene(random, "held-out", "single_object")) for _ in range(300)}
    assert not train & held_out


def test_scenes_equal_those_of_the_shipped_weights_training():
    """With another digest, tokenizer, detector and models must be trained again."""
    digests = {"train": 4245294645, "held-out": 1794225579}
    for split, digest in digests.items():
        drawn = emoji.scenes(9, split, 200)
        assert zlib.crc32(repr(drawn).replace("EmojiScene(", "Scene(").encode()) == digest
    assert zlib.crc32(" ".join(emoji.VOCABULARY).encode()) == 982680080


def test_scenes_are_reproducible_and_a_longer_list_extends_a_shorter_one():
    assert emoji.scenes(5, "train", 12) == emoji.scenes(5, "train", 30)[:12]
    assert emoji.scenes(5, "train", 12) != emoji.scenes(6, "train", 12)
    assert [s.family for s in emoji.scenes(5, "train", 6)] == list(emoji.FAMILIES)


@pytest.mark.parametrize("size", emoji.SIZES)
def test_pictures_show_objects_in_their_boxes_and_the_ground_elsewhere(drawn, size):
    for scene in drawn[:60]:
        pixels = emoji.render(scene, size)
        assert pixels.shape == (size, size, 3) and pixels.dtype == np.uint8
        ground = paint(scene.ground).reshape(size, 64 // size, size, 64 // size, 3).mean((1, 3))
        off = np.abs(pixels - ground).max(-1)
        off = off.repeat(64 // size, 0).repeat(64 // size, 1)
        for thing in scene.things:
            assert off[box(thing)].max() > 60
            off[box(thing)] = 0
        assert off.max() <= 1
        assert (pixels == emoji.render(scene, size)).all()


def test_sprites_of_one_size_all_differ():
    looks = [(kind, colour) for kind in emoji.KINDS for colour in emoji.COLOURS]
    assert len(looks) == 36
    for side in (24, 12):
        pixels = np.stack([emoji_sprites.sprite(kind, colour, side).colour.ravel() for kind, colour in looks])
        distances = np.abs(pixels[:, None] - pixels[None]).mean(-1) + 1000 * np.eye(len(looks))
        assert distances.min() > 8


def test_textures_are_rough_and_gradients_are_not(drawn):
    rough = {True: [], False: []}
    for scene in drawn[:300]:
        rough[scene.ground.textured].append(np.abs(np.diff(paint(scene.ground)[::2], axis=0)).mean())
    assert max(rough[False]) < 1.5 < min(rough[True])
    assert 0.1 < len(rough[True]) / 300 < 0.21


def test_a_tile_of_a_texture_has_one_colour_of_two():
    """Four pixels of 64, so that a token has at most one bit."""
    for pattern in TEXTURED:
        pixels = paint(emoji.Ground(pattern, 0, 3, 1, 5))
        tiles = pixels.reshape(16, 4, 16, 4, 3)
        assert (tiles == tiles[:, :1, :, :1]).all()
        assert len(np.unique(tiles.reshape(-1, 3), axis=0)) == 2


@pytest.mark.parametrize("cells", [16, 8])
def test_regions_name_objects_and_the_ground(drawn, cells):
    step = cells // CELLS
    for scene in drawn[:80]:
        regions = emoji.regions(scene, cells)
        boxes = np.zeros((cells, cells), dtype=bool)
        for thing in scene.things:
            part = tuple(slice(corner * step, (corner + thing.side) * step) for corner in (thing.row, thing.column))
            boxes[part] = True
            assert (regions[part] == emoji.OBJECT).mean() > 0.3
        assert (regions[~boxes] == (emoji.TEXTURED if scene.ground.textured else emoji.SMOOTH)).all()


def test_wrong_input_is_refused():
    with pytest.raises(UsageError, match="split 'test'"):
        emoji.scene(np.random.default_rng(0), "test")
    with pytest.raises(UsageError, match="families single_object"):
        emoji.scenes(0, "train", 1, "colours")
    with pytest.raises(UsageError, match="64 or 32 pixels, not at 48"):
        emoji.render(emoji.scenes(0, "train", 1)[0], 48)


def test_missing_sprites_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(emoji_sprites, "DATA", tmp_path / "emoji.npz")
    with pytest.raises(UsageError, match=r"emoji\.npz cannot be read"):
        emoji_sprites._layers.__wrapped__(24)


def test_the_maker_names_every_sprite_and_refuses_another_font():
    from matplotlib import font_manager

    with np.load(emoji_sprites.DATA) as data:
        assert list(data["names"]) == list(emoji_font.CODES)
    other = Path(font_manager.findfont("DejaVu Sans"))
    with pytest.raises(UsageError, match=r"NotoColorEmoji"):
        emoji_font.make(other)


def test_the_licence_lies_beside_the_sprites():
    assert "SIL OPEN FONT LICENSE" in (emoji_sprites.DATA.parent / "emoji-licence.txt").read_text()
