"""Emoji scenes: pictures agree with their captions, and splits share no composition."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from harness.errors import UsageError
from harness.synthetic import emoji, emoji_make, emoji_sprites
from harness.synthetic.emoji_ground import paint
from harness.synthetic.emoji_layout import CELLS, STEP
from tasks.metrics.geneval import relations
from tasks.metrics.scene_truth import truth


def box(thing: emoji.Thing) -> tuple[slice, slice]:
    top, left, side = thing.row * STEP, thing.column * STEP, thing.side * STEP
    return slice(top, top + side), slice(left, left + side)


def composition(scene: emoji.Scene) -> tuple[object, ...]:
    ground = scene.ground
    return scene.things, ground.pattern, ground.near, ground.far, ground.direction


@pytest.fixture(scope="module")
def drawn() -> list[emoji.Scene]:
    return emoji.scenes(0, "train", 600) + emoji.scenes(0, "held-out", 300)


def test_captions_are_short_and_of_the_closed_vocabulary(drawn):
    words = [emoji.caption(scene).split() for scene in drawn]
    assert max(map(len, words)) <= 16
    assert {word for caption in words for word in caption} == set(emoji.VOCABULARY)
    assert len(set(emoji.VOCABULARY)) == len(emoji.VOCABULARY)


@pytest.mark.parametrize(
    ("family", "count", "named"),
    [
        ("single_object", {1}, False),
        ("two_object", {2}, False),
        ("counting", {2, 3, 4}, False),
        ("colors", {1}, True),
        ("position", {2}, False),
        ("color_attr", {2}, True),
    ],
)
def test_families_have_their_objects(drawn, family, count, named):
    mine = [scene for scene in drawn if scene.family == family]
    assert {len(scene.things) for scene in mine} == count
    for scene in mine:
        kinds, colours = {t.kind for t in scene.things}, {t.colour for t in scene.things}
        assert len(kinds) == (1 if family == "counting" else len(scene.things))
        assert not named or ("" not in colours and len(colours) == len(scene.things))
        assert named == any(word in emoji.COLOURS for word in emoji.caption(scene).split())


@pytest.mark.parametrize(
    ("scene", "caption"),
    [
        ((("cat", ""),), "a large cat on rough"),
        ((("octopus", ""),) * 3, "three times a large octopus on rough"),
        ((("apple", "red"), ("heart", "blue")), "a large red apple and a large blue heart on rough"),
    ],
)
def test_captions_by_hand(scene, caption):
    family = {1: "single_object", 2: "color_attr", 3: "counting"}[len(scene)]
    things = tuple(emoji.Thing(kind, colour, "large", 0, 3 * i) for i, (kind, colour) in enumerate(scene))
    ground = emoji.Ground("noise", 0, 1, 0, 0)
    assert emoji.caption(emoji.Scene(family, things, ground, sized=True)) == caption


def test_a_position_caption_and_its_specification_name_the_same_relation():
    things = (emoji.Thing("orange", "", "small", 0, 0), emoji.Thing("cat", "", "small", 0, 4))
    scene = emoji.Scene("position", things, emoji.Ground("gradient", 0, 1, 0, 0), "left of")
    assert emoji.caption(scene) == "an orange left of a cat on smooth"
    assert emoji.specification(scene) == {
        "tag": "position",
        "include": [{"class": "cat", "count": 1}, {"class": "orange", "count": 1, "position": ["left of", 0]}],
        "exclude": [],
    }


def test_a_counting_specification_excludes_one_object_more(drawn):
    scene = next(scene for scene in drawn if scene.family == "counting" and len(scene.things) == 3)
    kind = scene.things[0].kind
    specification = emoji.specification(scene)
    assert specification["include"] == [{"class": kind, "count": 3}] and specification["exclude"] == [
        {"class": kind, "count": 4}
    ]


def test_stated_relations_hold_by_genevals_rule(drawn):
    for scene in drawn:
        if scene.family == "position":
            first, second = truth(scene)
            assert relations(first.detection(), second.detection()) == {scene.relation}


def test_objects_lie_inside_the_picture_and_do_not_overlap(drawn):
    for scene in drawn:
        occupied = np.zeros((64, 64), dtype=int)
        for thing in scene.things:
            assert thing.row + thing.side <= CELLS and thing.column + thing.side <= CELLS
            occupied[box(thing)] += 1
        assert occupied.max() == 1


def test_no_composition_is_in_both_splits_whatever_the_seed():
    random = np.random.default_rng(7)
    train = {composition(emoji.scene(random, "train", "single_object")) for _ in range(1500)}
    held_out = {composition(emoji.scene(random, "held-out", "single_object")) for _ in range(300)}
    assert not train & held_out


def test_scenes_equal_those_of_the_shipped_weights_training():
    """With another digest, tokenizer, detector and models must be trained again."""
    drawn = emoji.scenes(9, "held-out", 200)
    assert zlib.crc32(repr(drawn).encode()) == 4040608343
    assert zlib.crc32(" ".join(emoji.VOCABULARY).encode()) == 1744941313


def test_a_tenth_of_all_compositions_is_held_out():
    from harness.synthetic.emoji_scene import draw_scene, is_held_out

    random = np.random.default_rng(3)
    share = np.mean([is_held_out(draw_scene(random, "two_object")) for _ in range(4000)])
    assert abs(share - 0.1) < 0.02


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
    looks = [(kind, colour) for kind in emoji.KINDS for colour in emoji.COLOURED.get(kind, ("",))]
    assert len(emoji.KINDS) == 36 and len(looks) == 56
    for side in (24, 16, 12, 8):
        pixels = np.stack([emoji_sprites.sprite(kind, colour, side).colour.ravel() for kind, colour in looks])
        distances = np.abs(pixels[:, None] - pixels[None]).mean(-1) + 1000 * np.eye(len(looks))
        assert distances.min() > 8


def test_textures_are_rough_and_gradients_are_not(drawn):
    rough = {True: [], False: []}
    for scene in drawn[:300]:
        rough[scene.ground.textured].append(np.abs(np.diff(paint(scene.ground)[::2], axis=0)).mean())
    assert max(rough[False]) < 1.5 < min(rough[True]) and np.median(rough[True]) > 10
    assert 0.4 < len(rough[True]) / 300 < 0.6


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
        assert list(data["names"]) == list(emoji_make.CODES)
    other = Path(font_manager.findfont("DejaVu Sans"))
    with pytest.raises(UsageError, match=r"NotoColorEmoji"):
        emoji_make.make(other)


def test_the_licence_lies_beside_the_sprites():
    assert "SIL OPEN FONT LICENSE" in (emoji_sprites.DATA.parent / "emoji-licence.txt").read_text()
