"""Scenes as a task: GenEval's judgement of detected objects, the detector, prompts and set scores."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from stridebench.harness.core.task import Scored
from stridebench.harness.discover import load_recipes
from stridebench.harness.errors import OutputError, WeightsError
from stridebench.harness.record.outputs import Picture
from stridebench.harness.registry import RECIPES
from stridebench.harness.synthetic import emoji
from stridebench.harness.train.loop import train
from stridebench.tasks import emoji_scenes
from stridebench.tasks.emoji_scenes import EmojiScenes
from stridebench.tasks.metrics import detector
from stridebench.tasks.metrics.detector import exact, shares, truth
from stridebench.tasks.metrics.geneval import DetectedObject, regions
from stridebench.tasks.metrics.geneval import judge_attributes as judge
from tests.support.extras import needs_image_extra

needs_weights = pytest.mark.skipif(
    not (detector.WEIGHTS / "model.safetensors").exists(), reason="the detector is not shipped here"
)


def detected(kind: str, x: float = 10, y: float = 10, colour: str = "", score: float = 1.0) -> DetectedObject:
    return DetectedObject(kind, colour, x, y, 16, score)


def asked(kind: str, count: int = 1, **more: Any) -> dict[str, Any]:
    return {"class": kind, "count": count, **more}


PLACED = ("object", "position", "overall")
CAT, RED = [asked("cat")], [asked("heart", color="red")]
COLOURS = [*RED, asked("book", color="blue")]
BESIDE = [asked("fox"), asked("cat", position=["left of", 0])]
RED_HEART, BLUE_HEART = (detected("heart", colour=colour, score=0.9) for colour in ("red", "blue"))
FOX = detected("fox", 25, 30)


class TestJudge:
    @pytest.mark.parametrize(
        ("include", "objects", "scores"),
        [
            (CAT, [detected("cat"), detected("fox")], {"object": 1, "overall": 1}),
            (CAT, [detected("fox")], {"object": 0, "overall": 0}),
            (CAT, [], {"object": 0, "overall": 0}),
            ([*CAT, asked("fox")], [detected("cat"), detected("fox")], {"object": 1, "overall": 1}),
            ([*CAT, asked("fox")], [detected("cat")] * 2, {"object": 0, "overall": 0}),
            (RED, [detected("heart", colour="blue", score=0.8), RED_HEART], {"object": 1, "colour": 1, "overall": 1}),
            (RED, [RED_HEART, detected("heart", colour="blue", score=0.95)], {"object": 1, "colour": 0, "overall": 0}),
            (RED, [detected("circle", colour="red")], {"object": 0, "colour": 0, "overall": 0}),
            (COLOURS, [RED_HEART, detected("book", colour="blue")], {"object": 1, "colour": 1, "overall": 1}),
            (COLOURS, [BLUE_HEART, detected("book", colour="red")], {"object": 1, "colour": 0, "overall": 0}),
            (BESIDE, [detected("cat", 0, 30), FOX], {"object": 1, "position": 1, "overall": 1}),
            (BESIDE, [detected("cat", 50, 30), FOX], {"object": 1, "position": 0, "overall": 0}),
            (BESIDE, [detected("cat", 10, 30)], {"object": 0, "position": 0, "overall": 0}),
            # only counts forbid more objects
            (BESIDE, [detected("cat", 0, 30), FOX, detected("cat", 60, 30, score=0.6)], dict.fromkeys(PLACED, 1)),
        ],
    )
    def test_what_is_asked_for_must_be_detected(self, include, objects, scores):
        assert judge(objects, {"include": include}) == scores

    @pytest.mark.parametrize(("count", "right"), [(0, 0), (2, 0), (3, 1), (4, 0)])
    def test_a_count_is_exact(self, count, right):
        three = {"tag": "counting", "include": [asked("cat", 3)], "exclude": [asked("cat", 4)]}
        scores = judge([detected("cat")] * count + [detected("fox")] * 2, three)
        assert scores == {"object": float(count > 0), "count": right, "overall": right}

    def test_every_scene_meets_its_own_specification_and_not_anothers(self):
        drawn = emoji.scenes(0, "held-out", 240)
        for scene in drawn:
            assert set(judge(truth(scene), emoji.specification(scene)).values()) == {1.0}
        crossed = [judge(truth(a), emoji.specification(b))["overall"] for a, b in zip(drawn, drawn[6:], strict=False)]
        assert np.mean(crossed) < 0.1


def test_detected_boxes_give_the_regions():
    codes = regions([detected("cat", 16, 16)], textured=True)
    assert (codes[2:6, 2:6] == emoji.OBJECT).all() and (codes == emoji.OBJECT).sum() == 16
    assert (codes[6:] == emoji.TEXTURED).all() and (regions([], textured=False, cells=8) == emoji.SMOOTH).all()


@needs_weights
def test_the_task_names_the_regions_of_a_picture():
    task = EmojiScenes(limit=12, family="single_object")
    grounds = set()
    for prompt, scene in zip(task.prompts(), task.scenes(), strict=True):
        names = task.regions(prompt, Picture(emoji.render(scene, 64)), (16, 16))
        truth = emoji.regions(scene).ravel() == emoji.OBJECT
        ground = "textured" if scene.ground.textured else "smooth"
        assert len(names) == 256 and set(names) == {"object", ground}
        assert np.mean((np.array(names) == "object") == truth) > 0.9
        grounds.add(ground)
    assert grounds == {"smooth", "textured"}


class TestDetector:
    def test_sizes_other_than_a_scenes_are_failed_samples(self):
        with pytest.raises(OutputError, match="48x64 pixels cannot be scored"):
            detector.find(detector.Detector(), np.zeros((1, 64, 48, 3), dtype=np.uint8))

    def test_missing_and_foreign_weights_are_refused(self, tmp_path):
        with pytest.raises(WeightsError, match="stride train scorer emoji-detector"):
            detector.load(tmp_path)
        save_file({"other": torch.zeros(1)}, tmp_path / "model.safetensors")
        with pytest.raises(WeightsError, match="is not a detector"):
            detector.load(tmp_path)

    def test_an_untrained_net_finds_nothing(self):
        assert detector.find(detector.Detector(), np.zeros((2, 64, 64, 3), dtype=np.uint8)) == [[], []]

    @pytest.mark.parametrize(
        ("change", "wrong"),
        [
            (lambda objects: objects, set()),
            (lambda objects: objects[1:], {"object", "count", "colour", "position"}),
            (lambda objects: [*objects, objects[0]], {"count", "colour", "position"}),
            (lambda objects: [replace(one, colour="") for one in objects], {"colour"}),
            (lambda objects: [replace(one, x=one.x + 8) for one in objects], {"position"}),
            (lambda objects: [replace(a, x=b.x, y=b.y) for a, b in pairwise([*objects, objects[0]])], {"position"}),
        ],
    )
    def test_each_aspect_is_exact_or_not(self, change, wrong):
        scene = next(s for s in emoji.scenes(0, "train", 60) if s.family == "color_attr")
        correct = exact(change(truth(scene)), scene)
        assert {name for name, right in correct.items() if not right} == wrong

    def test_shares_are_over_scenes(self):
        drawn = emoji.scenes(0, "held-out", 12)
        accuracies = shares([truth(scene) for scene in drawn[:6]] + [[]] * 6, drawn)
        assert set(accuracies.values()) == {0.5}
        assert {"object", "count", "colour", "position", "asked_count", "asked_overall"} <= set(accuracies)

    @pytest.mark.slow
    def test_a_short_training_learns_and_resumes(self, tmp_path, monkeypatch):
        from stridebench.harness.backbones.image.vq import VQ
        from stridebench.tasks.training import detector as recipe

        load_recipes()
        monkeypatch.setattr(RECIPES.get("emoji-vq"), "load", lambda folder: VQ().eval(), raising=False)
        monkeypatch.setattr(recipe, "BATCH", 5)
        short = recipe.EmojiDetector()
        short.steps, short.warmup = 4, 1
        monkeypatch.setattr(short, "evaluate", lambda model: {})
        parts = {"emoji-vq": tmp_path}
        train("detector", short, tmp_path / "whole", parts)
        train("detector", short, tmp_path / "parts", parts, minutes=0)
        train("detector", short, tmp_path / "parts", parts)
        one, other = detector.load(tmp_path / "whole"), detector.load(tmp_path / "parts")
        for name, tensor in one.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[name]), name
        curve = json.loads((tmp_path / "whole" / "card.json").read_text())["curve"]
        assert curve[-1][1] < curve[0][1]

    def test_targets_follow_the_shift(self):
        from stridebench.tasks.training import detector as recipe

        scene = emoji.scenes(0, "train", 1)[0]
        still, moved = (recipe._targets([scene], np.zeros(1, bool), shift)[0] for shift in ((0, 0), (1, -1)))
        assert (moved - still).tolist() == [0, 1, -1, 0, 0]
        pixels = detector.prepare(emoji.render(scene)[None])
        assert torch.equal(recipe._moved(pixels, (1, -1))[:, :, 4:, :-4], pixels[:, :, :-4, 4:])

    @needs_weights
    @pytest.mark.parametrize(("size", "least"), [(64, 0.97), (32, 0.9)])
    def test_the_shipped_one_is_right_on_held_out_scenes(self, size, least):
        drawn = emoji.scenes(77, "held-out", 120)
        objects = detector.find(detector.shipped(), np.stack([emoji.render(scene, size) for scene in drawn]))
        parts = [exact(one, scene) for one, scene in zip(objects, drawn, strict=True)]
        for name in ("object", "count", "colour", "position"):
            assert np.mean([part[name] for part in parts]) >= least, name

    def test_a_broken_object_keeps_its_pieces_and_is_no_target(self):
        from stridebench.tasks.training import detector as recipe

        scenes = emoji.scenes(0, "train", 2)
        targets = recipe._targets(scenes, np.array([True, False]), (0, 0))
        assert set(targets[:, 0]) == {1}
        whole, broken = emoji.render(scenes[0]), recipe.shuffled(scenes[0], 64, np.random.default_rng(0))
        assert (np.sort(whole.reshape(-1, 3), 0) == np.sort(broken.reshape(-1, 3), 0)).all()
        outside = (emoji.regions(scenes[0]) != emoji.OBJECT).repeat(4, 0).repeat(4, 1)
        assert (whole == broken)[outside].all() and not (whole == broken)[~outside].all()

    @needs_weights
    def test_the_shipped_one_is_not_misled_by_pieces_of_objects(self):
        """Squares are left out, because a shuffled square is still much like one."""
        from stridebench.tasks.training import detector as recipe

        random, drawn = np.random.default_rng(0), emoji.scenes(78, "held-out", 80)
        drawn = [scene for scene in drawn if "square" not in {thing.kind for thing in scene.things}]
        pieces = np.stack([recipe.shuffled(scene, 64, random) for scene in drawn])
        objects = detector.find(detector.shipped(), pieces)
        assert np.mean([exact(one, scene)["count"] for one, scene in zip(objects, drawn, strict=True)]) < 0.2

    @needs_weights
    def test_the_shipped_one_finds_nothing_on_bare_ground(self):
        from stridebench.harness.synthetic.emoji_sprites import paint

        bare = np.stack([paint(scene.ground) for scene in emoji.scenes(5, "held-out", 60)]).astype(np.uint8)
        assert sum(map(len, detector.find(detector.shipped(), bare))) <= 1


class TestTask:
    def test_prompts_are_held_out_and_in_a_fixed_order(self):
        task = EmojiScenes(limit=60)
        prompts = task.prompts()
        assert list(prompts) == list(task.prompts())
        assert len({prompt.id for prompt in prompts}) == 60
        assert [prompt.category for prompt in prompts[:6]] == list(emoji.FAMILIES)
        assert prompts[0] == EmojiScenes(limit=6).prompts()[0] != EmojiScenes(limit=6, seed=1).prompts()[0]
        json.dumps([dict(prompt.data) for prompt in prompts])
        train_scenes = {repr(s.things) + repr(s.ground) for s in emoji.scenes(1000, "train", 500)}
        assert not train_scenes & {repr(s.things) + repr(s.ground) for s in task.scenes()}

    def test_one_family_can_be_chosen(self):
        assert {prompt.category for prompt in EmojiScenes(limit=5, family="position").prompts()} == {"position"}

    def test_a_picture_of_the_wrong_size_and_a_text_are_failed_samples(self):
        task = EmojiScenes(limit=1)
        prompt = task.prompts()[0]
        with pytest.raises(OutputError, match="32x32 pixels and the task asks for 64x64"):
            task.score(prompt, Picture(np.zeros((32, 32, 3), dtype=np.uint8)), ())
        with pytest.raises(OutputError, match="is a str"):
            task.score(prompt, "a cat", ())

    def test_references_are_other_scenes(self):
        task = EmojiScenes(limit=8, size=32)
        real = task.reference(8)
        assert [picture.pixels.shape for picture in real] == [(32, 32, 3)] * 8
        own = [emoji.render(scene, 32) for scene in task.scenes()]
        assert not any((a.pixels == b).all() for a in real for b in own)

    @needs_image_extra
    def test_distances_are_to_real_scenes_and_absent_weights_are_a_reason(self, monkeypatch, tmp_path):
        class Mean(emoji_scenes.EffLite0):
            enough, width = 4, 4

            def __init__(self):
                pass

            @classmethod
            def open(cls, folder=""):
                return cls()

            def features(self, pictures):
                return np.stack([picture.pixels.reshape(-1, 3)[::31].ravel()[:4] for picture in pictures]) / 255.0

        task = EmojiScenes(limit=6, scorers="fd_efflite0, fid", weights=str(tmp_path))
        monkeypatch.setitem(emoji_scenes.NETS, "fd_efflite0", Mean)
        monkeypatch.setattr(EmojiScenes, "_swapped", lambda self, outputs: None)
        real = task.reference(6)
        outputs = [Scored(p, 0, picture, {"overall": 1.0}) for p, picture in zip(task.prompts(), real, strict=True)]
        scores = task.score_set(outputs)
        assert scores["fd_efflite0"].value == pytest.approx(0, abs=1e-5)
        assert scores["fid"].value is None and str(tmp_path) in scores["fid"].reason
        black = [Scored(one.prompt, 0, Picture(one.output.pixels * 0), one.scores) for one in outputs]
        assert task.score_set(black)["fd_efflite0"].value > 0.1

    @needs_weights
    def test_real_scenes_score_and_swapped_prompts_do_not(self):
        task = EmojiScenes(limit=36, size=32)
        drawn = {prompt.id: scene for prompt, scene in zip(task.prompts(), task.scenes(), strict=True)}
        outputs = []
        for prompt in task.prompts():
            picture = Picture(emoji.render(drawn[prompt.id], 32))
            scores = task.score(prompt, picture, ())
            family_scores = {"counting": {"count"}, "single_object": set(), "colors": set()}
            more = family_scores.get(prompt.category, {"position"})
            assert set(scores) == {"object", "colour", "overall"} | more
            outputs.append(Scored(prompt, 0, picture, scores))
        scores = task.score_set(outputs)
        assert scores["families"].value >= 0.9 and scores["families"].n == 36
        assert scores["swapped"].value <= 0.1
        assert scores == task.score_set(outputs[::-1])

    def test_families_count_alike_however_many_prompts_they_have(self, monkeypatch):
        monkeypatch.setattr(EmojiScenes, "_swapped", lambda self, outputs: None)
        prompts = EmojiScenes(limit=12).prompts()
        outputs = [Scored(p, 0, "", {"overall": float(p.category == "colors")}) for p in prompts[:7]]
        scores = EmojiScenes().score_set(outputs)
        assert (scores["families"].value, scores["families"].n) == (pytest.approx(1 / 6), 7)
        assert (scores["colors"].value, scores["single_object"].value, scores["single_object"].n) == (1, 0, 2)
        assert EmojiScenes().score_set(outputs[:5])["families"].value is None
