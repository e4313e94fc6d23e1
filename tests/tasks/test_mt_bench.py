"""MT-Bench over a small file of the published format: turns, answers, and scores of a judge."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness.core.task import Prompt, Scored
from stridebench.harness.errors import OutputError, UsageError
from stridebench.tasks import mt_bench as judge
from stridebench.tasks.mt_bench import CATEGORIES, MtBench
from stridebench.tasks.spec_bench import CATEGORIES as SIX
from stridebench.tasks.spec_bench import SpecBench
from tests.support.text_benchmarks import ANSWERS, MT, SPEC, task_of, write_rows


def judged(question: int, score: float, answer: str, turn: int = 1, model: str = "m") -> dict[str, Any]:
    """A line as FastChat's gen_judgment writes it."""
    judged_text = f"[Question]\nWhat?\n\n[The Start of Assistant's Answer]\n{answer}\n[The End of Assistant's Answer]"
    head = {"question_id": question, "model": model, "user_prompt": judged_text}
    return {**head, "score": score, "turn": turn, "tstamp": 1.0}


def scored(prompt: Prompt, output: str) -> Scored:
    return Scored(prompt, 0, output, {})


class TestMtBench:
    def test_the_first_turn_is_the_default(self, text_files: Path) -> None:
        one, two = MtBench().prompts()
        assert (one.id, one.text, one.category) == ("mt_bench/81", "Write a blog.", "writing")
        assert two.data["references"] == ("4", "8") and two.data["asked"] == ("What is 2 + 2?", "Double it.")

    @pytest.mark.parametrize(
        ("family", "text"),
        [
            ("vicuna", "What is 2 + 2? ASSISTANT: 4</s>USER: Double it."),
            ("llama2", "What is 2 + 2? [/INST] 4 </s><s>[INST] Double it."),
            (
                "llama3",
                "What is 2 + 2?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n4<|eot_id|>"
                "<|start_header_id|>user<|end_header_id|>\n\nDouble it.",
            ),
            ("qwen", "What is 2 + 2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n<|im_start|>user\nDouble it."),
        ],
    )
    def test_the_second_turn_follows_a_given_answer(self, text_files: Path, tmp_path: Path, family, text) -> None:
        answers = write_rows(tmp_path / "m.jsonl", ANSWERS)
        prompts = MtBench(turn=2, answers=answers, conversation=family).prompts()
        assert [p.id for p in prompts] == ["mt_bench/81/2", "mt_bench/111/2"] and prompts[1].text == text

    def test_both_turns_of_a_question_are_one_cluster(self, text_files: Path, tmp_path: Path) -> None:
        prompts = MtBench(turn=0, answers=write_rows(tmp_path / "m.jsonl", ANSWERS)).prompts()
        assert [p.id for p in prompts] == ["mt_bench/81", "mt_bench/81/2", "mt_bench/111", "mt_bench/111/2"]
        assert [p.cluster for p in prompts] == ["mt_bench/81"] * 2 + ["mt_bench/111"] * 2
        assert [m["content"] for m in prompts[3].messages] == ["What is 2 + 2?", "4", "Double it."]

    def test_missing_and_malformed_answers_are_refused(self, text_files: Path, tmp_path: Path) -> None:
        short = MtBench(turn=2, answers=write_rows(tmp_path / "m.jsonl", ANSWERS[:1]), conversation="qwen")
        with pytest.raises(UsageError, match="lacks an answer to question 111"):
            short.prompts()
        bad = MtBench(turn=2, answers=write_rows(tmp_path / "m.jsonl", [{"question_id": 81}]), conversation="qwen")
        with pytest.raises(UsageError, match=r"m.jsonl:1: no choices"):
            bad.prompts()
        with pytest.raises(UsageError, match="is not there"):
            MtBench(turn=2, answers=str(tmp_path / "none"), conversation="qwen").prompts()

    def test_spec_benchs_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r":3: category is 'translation'; MT-Bench has writing"):
            task_of("mt_bench", tmp_path, SPEC).prompts()

    def test_without_a_judge_there_is_a_reason_and_no_figure(self, text_files: Path) -> None:
        task = MtBench()
        (score,) = task.score_set([scored(p, "x") for p in task.prompts()]).values()
        assert score.value is None and score.reason.startswith("no judge")
        assert MtBench.metrics == ()

    def test_a_judges_scores_are_means_by_category(self, text_files: Path, tmp_path: Path) -> None:
        rows = [judged(81, 8, "my text"), judged(81, 6, "my text"), judged(111, 3, "four"), judged(111, 9, "five")]
        task = MtBench(scores=write_rows(tmp_path / "j.jsonl", rows))
        figures = task.score_set([scored(p, o) for p, o in zip(task.prompts(), (" my text\n", "four"), strict=True)])
        values = {name: (score.value, score.n, score.failures) for name, score in figures.items()}
        assert values == {
            "judge_score": (5.0, 2, 0),
            "judge_score_writing": (7.0, 1, 0),
            "judge_score_math": (3.0, 1, 0),
        }
        assert set(figures) <= set(MtBench.set_metrics) and len(MtBench.set_metrics) == 1 + len(CATEGORIES)

    def test_no_score_stands_for_another_output_turn_or_model(self, text_files: Path, tmp_path: Path) -> None:
        rows = [judged(81, 8, "my text", turn=2), judged(81, 9, "my text", model="other"), judged(111, -1, "four")]
        task = MtBench(scores=write_rows(tmp_path / "j.jsonl", rows), judged="m")
        one, two = task.prompts()
        score = task.score_set([scored(one, "my text"), scored(two, "four")])["judge_score"]
        assert (score.value, score.n, score.failures) == (None, 0, 2) and "nobody judged this text" in score.reason
        judgements = judge.read(Path(task.scores))
        assert judge.score_of(scored(one, "my text"), judgements) == 9
        for output, says in ((scored(two, "four"), "its judgement lacks a score"), (scored(two, " "), "is empty")):
            with pytest.raises(OutputError, match=says):
                judge.score_of(output, judgements)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"score": 11}, "score is 11; a judge gives 1 to 10"),
            ({"score": 0}, "score is 0"),
            ({"score": "8"}, "must be numbers"),
            ({"turn": None}, "must be numbers"),
            ({"user_prompt": None}, "neither answer nor user_prompt"),
        ],
    )
    def test_malformed_scores_are_refused(self, tmp_path: Path, change, says) -> None:
        path = write_rows(tmp_path / "j.jsonl", [judged(81, 8, "x"), {**judged(81, 8, "x"), **change}])
        with pytest.raises(UsageError) as error:
            judge.read(Path(path))
        assert "j.jsonl:2: " in str(error.value) and says in str(error.value)


class TestSpecBench:
    def test_six_categories_of_which_mt_bench_is_one(self, text_files: Path) -> None:
        prompts = SpecBench().prompts()
        assert Counter(p.category for p in prompts) == {"mt_bench": 2, **dict.fromkeys(SIX[1:], 1)} and len(SIX) == 6
        assert prompts[0].data["subcategory"] == "writing" and prompts[0].text == "Write a blog."

    def test_one_category_can_be_chosen(self, text_files: Path) -> None:
        assert [p.id for p in SpecBench(category="rag").prompts()] == ["spec_bench/304"]
        with pytest.raises(UsageError, match="category is 'math'"):
            SpecBench(category="math")

    def test_the_second_turn_is_mt_benchs(self, text_files: Path, tmp_path: Path) -> None:
        answers = write_rows(tmp_path / "m.jsonl", ANSWERS)
        prompts = SpecBench(turn=2, answers=answers, conversation="vicuna").prompts()
        assert [p.category for p in prompts] == ["mt_bench", "mt_bench"]
        with pytest.raises(UsageError, match="only those of mt_bench do"):
            SpecBench(category="rag", turn=2, answers=answers, conversation="vicuna").prompts()

    def test_mt_benchs_file_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="lacks questions of math_reasoning, qa, rag, summarization, translation"):
            task_of("spec_bench", tmp_path, MT).prompts()
