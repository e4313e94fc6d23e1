"""GenEval, DPG-Bench and T2I-CompBench++: recorded detections and answers, scored by hand beside the code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scipy.stats import binom

from stridebench.harness.errors import OutputError, UsageError
from stridebench.tasks.metrics import dpg, geneval
from stridebench.tasks.metrics import t2i_compbench as t2i

BENCH = {"class": "bench", "count": 1}
RED_BENCH = {**BENCH, "color": "red"}
COW = {"class": "cow", "count": 1}
THREE = {"include": [{"class": "cow", "count": 3}], "exclude": [{"class": "cow", "count": 4}]}
LEFT = {"include": [COW, {**BENCH, "position": ["left of", 0]}]}


def at(x: float, y: float, size: float = 100, score: float = 0.95, colour: str = "") -> geneval.Detection:
    return geneval.Detection((x, y, x + size, y + size), score, colour)


class TestGenEvalJudge:
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
            ({"bench": [at(0, 0)], "cow": [at(9, 9)]}, {"include": [BENCH, COW]}, True),
            # counting: three asked for, a fourth is excluded
            ({"cow": [at(0, 0)] * 3}, THREE, True),
            ({"cow": [at(0, 0)] * 4}, THREE, False),
            # the surest object alone is asked for its colour
            ({"bench": [at(0, 0, colour="red"), at(9, 9)]}, {"include": [RED_BENCH]}, True),
            ({"bench": [at(0, 0, colour="blue"), at(9, 9, colour="red")]}, {"include": [RED_BENCH]}, False),
            # position: the second object against the first
            ({"cow": [at(300, 0)], "bench": [at(0, 0)]}, LEFT, True),
            ({"cow": [at(0, 0)], "bench": [at(300, 0)]}, LEFT, False),
            ({"bench": [at(0, 0)]}, LEFT, False),
        ],
    )
    def test_a_picture_is_right_if_every_clause_holds(self, boxes, metadata, correct):
        judged = geneval.judge(boxes, metadata)
        assert judged.correct is correct and bool(judged.reasons) is not correct

    def test_the_reason_says_what_is_lacking(self):
        lacking = geneval.judge({"bench": [at(0, 0, colour="blue")]}, {"include": [RED_BENCH]})
        assert lacking.reasons == ("expected red bench>=1, found 0",)


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
        assert [summary[f"geneval_{name}"].value for name in SIX] == [1, 0.5, 0.25, 0.75, 0, 0.25]
        assert summary["geneval_overall"].value == pytest.approx(2.75 / 6)
        assert summary["geneval_overall"].n == 19 and summary["geneval_counting"].n == 4
        assert summary["geneval_overall"].low is None  # three of the families have fewer than four prompts

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


class TestT2IResults:
    def test_a_complex_prompt_has_a_kind(self):
        spatial, action = ["The hat was on top of the rack."], ["The fish swam through the water."]
        kinds = [t2i.kind_of(text, spatial, action) for text in ("the hat was on top of the rack", *action, "Other.")]
        assert kinds == ["spatial", "action", "both"]

    def write(self, path: Path, rows: object) -> Path:
        path.write_text(json.dumps(rows))
        return path

    def test_the_mean_by_category_over_numbers_or_texts(self, tmp_path):
        rows = [{"question_id": i, "answer": answer} for i, answer in enumerate(["0.2500", "0.7500", 1.0])]
        summary = t2i.summary({"color": t2i.read_results(self.write(tmp_path / "vqa_result.json", rows[::-1]))})
        assert summary["t2i_color"].value == pytest.approx(2 / 3) and summary["t2i_color"].n == 3
        assert summary["t2i_spatial"].value is None

    def test_the_interval_is_over_prompts_of_ten_pictures(self):
        four = {number: float(number // 10 % 2) for number in range(40)}
        summary = t2i.summary({"shape": four})["t2i_shape"]
        mid_p = [binom.sf(2, 4, end) + binom.pmf(2, 4, end) / 2 for end in (summary.low, summary.high)]
        assert summary.value == 0.5 and mid_p == pytest.approx([0.025, 0.975])

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
