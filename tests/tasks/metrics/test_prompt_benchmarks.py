"""GenEval, DPG-Bench and T2I-CompBench++: recorded detections and answers, scored by hand beside the code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from stridebench.harness.errors import ContractError, OutputError, UsageError
from stridebench.tasks.metrics import dpg, geneval
from stridebench.tasks.metrics import t2i_compbench as t2i
from stridebench.tasks.metrics.t2i_compbench import iou, position_2d, position_3d, same

BENCH = {"class": "bench", "count": 1}
RED_BENCH = {**BENCH, "color": "red"}
COW = {"class": "cow", "count": 1}


def at(x: float, y: float, size: float = 100, score: float = 0.95, colour: str = "") -> geneval.Detection:
    return geneval.Detection((x, y, x + size, y + size), score, colour)


class TestGenEvalJudge:
    @pytest.mark.parametrize(
        ("tag", "scores", "expected"),
        [
            ("single_object", [0.31, 0.3, 0.9], [0.9, 0.31]),  # above 0.3, surest first
            ("counting", [0.91, 0.9, 0.5], [0.91]),  # above 0.9
            ("single_object", [0.5] * 20, [0.5] * 16),  # sixteen at most
            ("single_object", [0.1], None),
        ],
    )
    def test_which_boxes_count(self, tag, scores, expected):
        boxes = geneval.confident({"bench": [at(0, 0, score=score) for score in scores]}, tag)
        assert [box.score for box in boxes["bench"]] == expected if expected else boxes == {}

    @pytest.mark.parametrize(
        ("one", "other", "expected"),
        [
            (at(0, 0), at(300, 0), {"left of"}),
            (at(300, 0), at(0, 0), {"right of"}),
            (at(0, 0), at(0, 300), {"above"}),
            (at(0, 300), at(0, 0), {"below"}),
            (at(0, 0), at(300, 300), {"left of", "above"}),  # (300 - 20) / 424 = 0.66 both ways
            (at(0, 0), at(300, 150), {"left of"}),  # (150 - 20) / 335 = 0.39: too little to be above
            (at(0, 0), at(19, 0), set()),  # within a tenth of the summed sizes, 20
            (at(0, 0), at(21, 0), set()),  # 1 / 21 of the way is not past half
            (at(0, 0), at(41, 0), {"left of"}),  # 21 / 41 is
        ],
    )
    def test_relations_of_two_boxes(self, one, other, expected):
        assert geneval.relations(one, other) == expected

    @pytest.mark.parametrize(
        ("boxes", "metadata", "correct"),
        [
            ({"bench": [at(0, 0)]}, {"include": [BENCH]}, True),
            ({}, {"include": [BENCH]}, False),
            ({"bench": [at(0, 0)], "cow": [at(9, 9)]}, {"include": [BENCH, {"class": "cow", "count": 1}]}, True),
            # counting: three asked for, a fourth is excluded
            (
                {"cow": [at(0, 0)] * 3},
                {"include": [{"class": "cow", "count": 3}], "exclude": [{"class": "cow", "count": 4}]},
                True,
            ),
            (
                {"cow": [at(0, 0)] * 4},
                {"include": [{"class": "cow", "count": 3}], "exclude": [{"class": "cow", "count": 4}]},
                False,
            ),
            # the surest object alone is asked for its colour
            ({"bench": [at(0, 0, colour="red"), at(9, 9)]}, {"include": [RED_BENCH]}, True),
            ({"bench": [at(0, 0, colour="blue"), at(9, 9, colour="red")]}, {"include": [RED_BENCH]}, False),
            # position: the second object against the first
            (
                {"cow": [at(300, 0)], "bench": [at(0, 0)]},
                {"include": [COW, {**BENCH, "position": ["left of", 0]}]},
                True,
            ),
            (
                {"cow": [at(0, 0)], "bench": [at(300, 0)]},
                {"include": [COW, {**BENCH, "position": ["left of", 0]}]},
                False,
            ),
            ({"bench": [at(0, 0)]}, {"include": [COW, {**BENCH, "position": ["left of", 0]}]}, False),
        ],
    )  # fmt: skip
    def test_a_picture_is_right_if_every_clause_holds(self, boxes, metadata, correct):
        judged = geneval.judge(boxes, metadata)
        assert judged.correct is correct and bool(judged.reasons) is not correct

    def test_the_reason_says_what_is_lacking(self):
        judged = geneval.judge({"bench": [at(0, 0, colour="blue")]}, {"include": [RED_BENCH]})
        assert judged.reasons == ("expected red bench>=1, found 0",)


def result_lines(right: dict[str, list[list[bool]]]) -> list[str]:
    """Lines as evaluate_images.py writes them: for each family, for each prompt, its pictures."""
    out = []
    for tag, prompts in right.items():
        for number, pictures in enumerate(prompts):
            prompt = f"a photo of {tag} {number}"
            metadata = json.dumps({"tag": tag, "include": [BENCH], "prompt": prompt})
            for index, correct in enumerate(pictures):
                row = {"filename": f"{number:05d}/samples/{index:04d}.png", "tag": tag, "prompt": prompt}
                out.append(json.dumps({**row, "correct": correct, "reason": "", "metadata": metadata, "details": "{}"}))
    return out


SIX = {
    "single_object": [[True, True], [True, True]],  # 4 / 4
    "two_object": [[True, False]],  # 1 / 2
    "counting": [[False, False], [False, True]],  # 1 / 4
    "colors": [[True, True, True, False]],  # 3 / 4
    "position": [[False]],  # 0
    "color_attr": [[True, False], [False, False]],  # 1 / 4
}


class TestGenEvalSummary:
    def test_shares_and_their_unweighted_mean(self, tmp_path):
        """As summary_scores.py: the families weigh the same, whatever their number of pictures."""
        lines = result_lines(SIX)
        (tmp_path / "results.jsonl").write_text("\n".join(lines) + "\n")
        summary = geneval.summary(geneval.read_results(tmp_path / "results.jsonl"))
        shares = {
            "single_object": 1,
            "two_object": 0.5,
            "counting": 0.25,
            "colors": 0.75,
            "position": 0,
            "color_attr": 0.25,
        }
        assert {name: summary[f"geneval_{name}"].value for name in shares} == shares
        assert summary["geneval_overall"].value == pytest.approx(2.75 / 6)
        assert summary["geneval_overall"].n == 19 and summary["geneval_counting"].n == 4
        assert summary["geneval_overall"].low < 2.75 / 6 < summary["geneval_overall"].high

    def test_the_order_of_lines_changes_nothing(self, tmp_path):
        lines = result_lines(SIX)
        (tmp_path / "a.jsonl").write_text("\n".join(lines))
        (tmp_path / "b.jsonl").write_text("\n".join(lines[::-1]))
        assert geneval.summary(geneval.read_results(tmp_path / "a.jsonl")) == geneval.summary(
            geneval.read_results(tmp_path / "b.jsonl")
        )

    def test_a_family_without_pictures_leaves_no_overall(self):
        summary = geneval.summary([geneval.GenEvalResult("colors", "{}", True)])
        assert summary["geneval_colors"].value == 1.0
        assert summary["geneval_overall"].value is None and "counting" in summary["geneval_overall"].reason

    @pytest.mark.parametrize(
        ("line", "what"),
        [
            ("{", "2: not JSON"),
            ("[1]", "2: a JSON object is expected; found list"),
            ('{"correct": "yes"}', "2: correct is 'yes', not true or false"),
            ('{"correct": true, "tag": "size", "metadata": "{}"}', "2: tag is 'size'"),
            ('{"correct": true, "tag": "colors"}', "2: metadata is None"),
        ],
    )
    def test_a_malformed_line_is_named(self, tmp_path, line, what):
        path = tmp_path / "results.jsonl"
        path.write_text(result_lines(SIX)[0] + "\n" + line + "\n")
        with pytest.raises(UsageError) as error:
            geneval.read_results(path)
        assert f"{path}:{what}" in str(error.value)


COLUMNS = "item_id,text,keywords,proposition_id,dependency,category_broad,category_detailed,tuple"
CSV = f"""{COLUMNS},question_natural_language
skipped,a prompt,,1,0,global,,global - (x),Is this row left out?
cats,two cats,,1,0,entity,whole,entity - whole (cats),Are there cats?
cats,two cats,,2,1,attribute,colour,"attribute - color (cats, black)","Are the cats, all of them, black?"
cats,two cats,,3,"1,2",relation,spatial,"relation - spatial (cats, mat, on)",Are the cats on a mat?
cats,two cats,,4,3,other,count,"other - count (cats, ==2)",Are there two cats?
sea,the sea,,1,0,entity,whole,entity - whole (sea),Is there a sea?
sea,the sea,,2,1,attribute,colour,"attribute - color (sea, blue)",Is the sea blue?
"""


@pytest.fixture()
def questions(tmp_path) -> dict[str, tuple[dpg.Proposition, ...]]:
    (tmp_path / "dpg_bench.csv").write_text(CSV)
    return dpg.read_questions(tmp_path / "dpg_bench.csv")


class TestDpg:
    def test_the_first_row_is_left_out_and_dependencies_are_read(self, questions):
        assert list(questions) == ["cats", "sea"]
        assert [q.parents for q in questions["cats"]] == [(0,), (1,), (1, 2), (3,)]
        assert [q.category for q in questions["sea"]] == ["entity - whole", "attribute - color"]

    @pytest.mark.parametrize(
        ("answers", "score"),
        [
            ("yyyy", 1.0),
            ("nyyy", 0.0),  # all depend on the first, the last through the third
            ("ynyy", 0.25),  # the third falls with the second, the fourth with the third
            ("yyny", 0.5),
            ("yyyn", 0.75),
        ],
    )
    def test_a_proposition_falls_with_its_parents(self, questions, answers, score):
        answered = {number: answer == "y" for number, answer in enumerate(answers, 1)}
        marks = dpg.picture_marks(questions["cats"], [answered])
        assert marks.score == score and marks.answers == answered

    def test_crops_are_averaged_and_the_last_gives_the_categories(self, questions):
        marks = dpg.picture_marks(questions["sea"], [{1: True, 2: True}, {1: False, 2: True}])
        assert marks == dpg.Marks(0.5, {1: False, 2: True})

    def test_bench_and_categories_by_hand(self, questions):
        """cats: n y y y -> 0; sea: y n -> 1/2. Raw answers: entity n, y; attribute y, n; relation y; other y."""
        marks = {
            "sea": dpg.picture_marks(questions["sea"], [{1: True, 2: False}]),
            "cats": dpg.picture_marks(questions["cats"], [{1: False, 2: True, 3: True, 4: True}]),
        }
        summary = dpg.summary(questions, marks, failures=3)
        assert summary["dpg_bench"].value == pytest.approx(25) and summary["dpg_bench"].failures == 3
        assert (summary["dpg_entity"].value, summary["dpg_attribute"].value) == (50, 50)
        assert (summary["dpg_relation"].value, summary["dpg_other"].value) == (100, 100)
        assert summary["dpg_global"].value is None and summary["dpg_global"].reason
        assert {name: component.value for name, component in dpg.fine_categories(questions, marks).items()} == {
            "attribute - color": 50,
            "entity - whole": 50,
            "other - count": 100,
            "relation - spatial": 100,
        }
        assert dpg.summary(questions, dict(reversed(marks.items())), failures=3) == summary

    def test_recorded_answers_are_matched_by_picture_and_question(self, questions, tmp_path):
        rows = [
            ("sea", "Is the sea blue?", "no"),
            ("cats", "Are there cats?", "yes"),
            ("sea", "Is there a sea?", "yes"),
        ]
        rows += [("cats", "Are the cats, all of them, black?", "yes"), ("cats", "Are the cats on a mat?", "no")]
        rows += [("cats", "Are there two cats?", "yes")]
        path = tmp_path / "res_detail.txt"
        path.write_text("".join(f"out, dir/{item}.png, (0, 0, 512, 512), {q}, {answer}\n" for item, q, answer in rows))
        read = dpg.read_details(path)
        cats = dpg.picture_marks(questions["cats"], [dpg.by_id(questions["cats"], crop) for crop in read["cats"]])
        sea = dpg.picture_marks(questions["sea"], [dpg.by_id(questions["sea"], crop) for crop in read["sea"]])
        assert (cats.score, sea.score) == (0.5, 0.5)
        path.write_text("a line of another kind\n")
        with pytest.raises(UsageError, match=r"res_detail\.txt:1: expected: picture path"):
            dpg.read_details(path)

    def test_missing_answers_and_lost_parents_fail_the_picture(self, questions):
        with pytest.raises(OutputError, match=r"no answer to the questions \[2\]"):
            dpg.picture_marks(questions["sea"], [{1: True}])
        with pytest.raises(OutputError, match="question 2 depends on 1"):
            dpg.picture_marks(questions["sea"][1:], [{2: True}])
        with pytest.raises(OutputError, match="no crop"):
            dpg.picture_marks(questions["sea"], [])

    @pytest.mark.parametrize(
        ("row", "what"),
        [
            ("x,t,,one,0,a,b,e (c),Q?", "3: proposition_id is 'one', not a number"),
            ("x,t,,1,zero,a,b,e (c),Q?", "3: dependency is 'zero', not a number"),
            ("x,t,,1,0,a,b,e (c)", "3: 8 fields, and the header has 9"),
            ("x,t,,1,0,a,b,e (c),", "3: question_natural_language is ''"),
        ],
    )
    def test_a_malformed_row_is_named(self, tmp_path, row, what):
        path = tmp_path / "dpg_bench.csv"
        path.write_text("\n".join(CSV.splitlines()[:2]) + "\n" + row + "\n")
        with pytest.raises(UsageError) as error:
            dpg.read_questions(path)
        assert f"{path}:{what}" in str(error.value)


def box(x: float, y: float, size: float = 100) -> tuple[float, float, float, float]:
    return (x, y, x + size, y + size)


class TestT2IBoxes:
    def test_overlap_by_hand(self):
        """Squares of 100 shifted by 50: 5,000 shared of 15,000."""
        assert iou(box(0, 0), box(50, 0)) == pytest.approx(1 / 3)
        assert iou(box(0, 0), box(200, 0)) == 0

    @pytest.mark.parametrize(
        ("relation", "one", "other", "score"),
        [
            ("on the left of", box(0, 0), box(300, 0), 1.0),
            ("on the left of", box(300, 0), box(0, 0), 0.0),
            ("on the right of", box(300, 0), box(0, 0), 1.0),
            ("on the top of", box(0, 0), box(0, 300), 1.0),
            ("on the bottom of", box(0, 300), box(0, 0), 1.0),
            ("on the left of", box(0, 0), box(300, 300), 0.0),  # as far down as across
            ("on the left of", box(0, 0), box(50, 0), 0.3),  # overlap 1/3: 0.1 / (1/3)
            ("next to", box(0, 0), box(300, 0), 1.0),  # level: one distance is below 150
            ("near", box(0, 0), box(300, 200), 0.5),  # 150 / 300
            ("on top of", box(0, 0), box(0, 300), 0.0),  # no relation of the official code
            (None, box(0, 0), box(300, 0), 0.0),
        ],
    )
    def test_position_in_the_plane(self, relation, one, other, score):
        assert position_2d(relation, one, other) == pytest.approx(score)

    @pytest.mark.parametrize(
        ("relation", "shift", "score"),
        [
            ("in front of", 25, 1.0),  # overlap 0.6 > 0.5, the first is nearer
            ("in front of", 50, 2 / 3),  # overlap 1/3: over 0.5
            ("in front of", 200, 0.0),  # no overlap
            ("behind", 25, 0.0),
            ("hidden", 25, 0.0),
        ],
    )
    def test_position_in_depth(self, relation, shift, score):
        """The map falls along its first axis, which the official code takes for x."""
        depth = np.linspace(1, 0, 400)[:, None] * np.ones((1, 400))
        assert position_3d(relation, box(0, 0), box(shift, 0), depth) == pytest.approx(score)
        if relation == "behind":
            assert position_3d(relation, box(shift, 0), box(0, 0), depth) == 1.0

    def test_boxes_that_lie_in_one_another_are_the_same(self):
        assert same(box(0, 0), box(1, 1, 20)) and same(box(0, 0), box(2, 0))
        assert not same(box(0, 0), box(30, 0))


class TestT2IScores:
    def test_blip_vqa_is_the_product_over_noun_phrases_to_four_digits(self):
        assert t2i.blip_vqa([0.9, 0.8, None, None]) == 0.72
        assert t2i.blip_vqa([0.12345, 0.5]) == 0.0617
        assert t2i.blip_vqa([None]) == 1.0

    def test_spatial_is_half_detection_half_position_and_nothing_below_a_half(self):
        cat, dog = t2i.T2IDetection("cat", box(0, 0), 0.8), t2i.T2IDetection("dog", box(300, 0), 0.6)
        prompt = "a cat on the left of a dog"
        assert t2i.spatial_2d(prompt, "cat", "dog", [cat, dog]) == pytest.approx(0.2 + 0.15 + 0.5)
        assert t2i.spatial_2d("a cat on the right of a dog", "cat", "dog", [cat, dog]) == 0.0  # 0.35
        assert t2i.spatial_2d(prompt, "cat", "dog", [cat]) == 0.0  # 0.2
        assert t2i.spatial_2d(prompt, "cat", "dog", []) == 0.0

    def test_people_are_found_as_persons(self):
        person, dog = t2i.T2IDetection("person", box(0, 0), 1.0), t2i.T2IDetection("dog", box(300, 0), 1.0)
        assert t2i.spatial_2d("a girl on the left of a dog", "girl", "dog", [dog, person]) == 1.0

    def test_three_dimensions_cut_nothing_off_and_match_parts_of_labels(self):
        depth = np.linspace(1, 0, 400)[:, None] * np.ones((1, 400))
        cat, dog = t2i.T2IDetection("house cat", box(0, 0), 0.8), t2i.T2IDetection("dog", box(50, 0), 0.4)
        prompt = "a cat in front of a dog"
        assert t2i.spatial_3d(prompt, "cat", "dog", [cat, dog], depth) == pytest.approx(0.2 + 0.1 + (2 / 3) / 2)
        assert t2i.spatial_3d(prompt, "cat", "dog", [cat], depth) == pytest.approx(0.2)
        assert t2i.spatial_3d(prompt, "cat", "dog", [], depth) == 0

    def test_of_several_matches_in_depth_the_last_before_both_are_found_counts(self):
        depth = np.ones((400, 400))
        cats = [t2i.T2IDetection("cat", box(0, 0), 0.2), t2i.T2IDetection("cat", box(50, 0), 0.6)]
        dog = t2i.T2IDetection("dog", box(300, 0), 0.4)
        prompt = "a cat behind a dog"
        assert t2i.spatial_3d(prompt, "cat", "dog", [*cats, dog], depth) == pytest.approx(0.25 * (0.6 + 0.4))
        assert t2i.spatial_3d(prompt, "cat", "cow", cats, depth) == pytest.approx(0.25 * 0.2)  # alone: its first

    @pytest.mark.parametrize(
        ("requested", "names", "score"),
        [
            ([("cat", 2)], ["cat", "cat"], 1.0),
            ([("cat", 2)], ["cat"], 0.5),
            ([("cat", 2)], [], 0.0),
            ([("cat", 1), ("dog", 2)], ["cat", "dog"], 0.75),
            ([("man", 1)], ["person"], 1.0),
            ([("ship", 1)], ["boat"], 1.0),
            ([("cat", 1)], ["house cat"], 1.0),
        ],
    )
    def test_numeracy(self, requested, names, score):
        boxes = [t2i.T2IDetection(name, box(200 * index, 0)) for index, name in enumerate(names)]
        assert t2i.numeracy(requested, boxes) == pytest.approx(score)

    def test_boxes_within_boxes_are_counted_once(self):
        twice = [
            t2i.T2IDetection("cat", box(0, 0)),
            t2i.T2IDetection("cat", box(1, 1)),
            t2i.T2IDetection("cat", box(300, 0)),
        ]
        assert t2i.numeracy([("cat", 2)], twice) == 1.0
        with pytest.raises(ContractError, match="names no object"):
            t2i.numeracy([], twice)

    def test_three_in_one_by_what_the_prompt_is_about(self):
        spatial, action = ["The hat was on top of the rack."], ["The fish swam through the water."]
        kinds = [t2i.kind_of(text, spatial, action) for text in ("the hat was on top of the rack", *action, "Other.")]
        assert kinds == ["spatial", "action", "both"]
        assert t2i.three_in_one(0.8, 0.4, 0.3, "spatial") == pytest.approx(0.6)
        assert t2i.three_in_one(0.8, 0.4, 0.3, "action") == pytest.approx(0.55)
        assert t2i.three_in_one(0.8, 0.4, 0.3, "both") == pytest.approx(0.5)

    def test_locality_is_the_first_of_the_official_order(self):
        assert t2i.locality("a cat next to a dog on the left of a cow") == "next to"
        assert t2i.locality("a cat and a dog") is None


class TestT2IResults:
    def write(self, path: Path, rows: object) -> Path:
        path.write_text(json.dumps(rows))
        return path

    def test_the_mean_by_category_over_numbers_or_texts(self, tmp_path):
        rows = [{"question_id": i, "answer": answer} for i, answer in enumerate(["0.2500", "0.7500", 1.0])]
        summary = t2i.summary({"color": t2i.read_results(self.write(tmp_path / "vqa_result.json", rows[::-1]))})
        assert summary["t2i_color"].value == pytest.approx(2 / 3) and summary["t2i_color"].n == 3
        assert summary["t2i_spatial"].value is None

    def test_the_interval_is_over_prompts_of_ten_pictures(self):
        one = {number: float(number // 10) for number in range(20)}
        summary = t2i.summary({"shape": one})["t2i_shape"]
        assert (summary.value, summary.low, summary.high) == (0.5, 0.0, 1.0)

    @pytest.mark.parametrize(
        ("rows", "what"),
        [
            ([{"question_id": 0, "answer": 1}, {"question_id": 1}], "entry 2: expected"),
            ([{"question_id": 0, "answer": 1}] * 2, "entry 2: question_id 0 is there twice"),
            ([{"question_id": 0, "answer": "yes"}], "entry 1: expected"),
            ({"a": 1}, "entry 1: expected"),
        ],
    )
    def test_a_malformed_entry_is_named(self, tmp_path, rows, what):
        path = self.write(tmp_path / "vqa_result.json", rows)
        with pytest.raises(UsageError, match=what):
            t2i.read_results(path)
