"""GSM8K over a small file of the published format."""

from __future__ import annotations

from pathlib import Path

import pytest

from stridebench.harness.errors import UsageError
from stridebench.tasks import gsm8k
from stridebench.tasks.gsm8k import Gsm8k
from tests.support.text_benchmarks import GSM8K, task_of, write_rows


class TestGsm8k:
    def test_each_form_has_its_prompt(self, text_files: Path) -> None:
        question = GSM8K[0]["question"]
        texts = {form: Gsm8k(form=form).prompts()[0].text for form in ("qa", "cot", "chat")}
        assert texts == {
            "qa": f"Question: {question}\nAnswer:",
            "cot": f"Q: {question}\nA: Let's think step by step.",
            "chat": question,
        }

    def test_shots_are_the_first_of_the_training_file(self, text_files: Path) -> None:
        one = Gsm8k(shots=1).prompts()[1]
        example = f"Question: {GSM8K[0]['question']}\nAnswer: {GSM8K[0]['answer']}\n\n"
        assert one.text == f"{example}Question: {GSM8K[1]['question']}\nAnswer:"
        assert one.data["asked"] == GSM8K[1]["question"] and one.data["answer"] == "1100"
        with pytest.raises(UsageError, match="has 2 examples and 3 shots"):
            Gsm8k(shots=3).prompts()

    def test_shots_of_a_chain_of_thought_come_from_their_own_file(self, text_files: Path, tmp_path: Path) -> None:
        exemplars = write_rows(
            tmp_path / "told.jsonl", [{"question": "One and one?", "answer": "It is 2. The answer is 2."}]
        )
        text = Gsm8k(form="cot", shots=1, exemplars=exemplars).prompts()[0].text
        assert text == f"Q: One and one?\nA: It is 2. The answer is 2.\n\nQ: {GSM8K[0]['question']}\nA:"

    @pytest.mark.parametrize(
        ("output", "scores"),
        [
            (" 2 * 3 = 6\n#### 6", (1, 1, 1, 1)),
            (" #### 6.", (0, 1, 1, 1)),
            (" She has 6 eggs", (0, 0, 1, 1)),
            (" #### 7", (0, 0, 0, 1)),
            (" I do not know", (0, 0, 0, 0)),
            ("", (0, 0, 0, 0)),
            (" #### 6\n\nQuestion: And 9 hens?\nAnswer: #### 27", (1, 1, 1, 1)),
        ],
    )
    def test_text_after_the_stop_does_not_count(self, text_files: Path, output, scores) -> None:
        result = Gsm8k().score(Gsm8k().prompts()[0], output, ())
        assert tuple(result.values()) == scores and tuple(result) == Gsm8k.metrics

    def test_a_comma_in_the_reference_does_not_matter(self, text_files: Path) -> None:
        prompt = Gsm8k().prompts()[1]
        for output in ("#### 1100", "#### 1,100"):
            assert set(Gsm8k().score(prompt, output, ()).values()) == {1.0}
        cot = Gsm8k(form="cot")
        assert cot.score(prompt, "The answer is 1,100.", ())["exact_match_strict"] == 1

    def test_a_reference_without_a_number_is_malformed(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r":1: answer has no '#### NUMBER'"):
            task_of("gsm8k", tmp_path, [{"question": "x", "answer": "6"}]).prompts()


class TestNumbers:
    @pytest.mark.parametrize(
        ("text", "official", "strict", "flexible"),
        [
            ("#### 18", "18", "18", "18"),
            ("#### 1,234", "1234", "1234", "1234"),
            ("#### -3", "-3", "-3", "-3"),
            ("so #### 18. Done.", "18.", "18", "18"),
            ("#### $18", None, None, "18"),
            ("####18", None, None, "18"),
            ("#### 5\n#### 6", "5", "5", "6"),
            ("The answer is 7", None, None, "7"),
            ("She pays $1,200.50 now.", None, None, "1200.50"),
            ("12 apples and 3 pears", None, None, "3"),
            ("x = -4", None, None, "-4"),
            ("none at all", None, None, None),
            ("", None, None, None),
            ("1 then ...", None, None, ".."),
        ],
    )
    def test_the_three_rules_read_their_numbers(self, text, official, strict, flexible) -> None:
        assert (gsm8k.official(text), gsm8k.strict(text), gsm8k.flexible(text)) == (official, strict, flexible)

    def test_the_strict_rule_reads_chains_of_thought(self) -> None:
        assert gsm8k.strict("3 + 4 = 7. The answer is 7.\n", gsm8k.SAID) == "7"
        assert gsm8k.strict("The answer is 7", gsm8k.SAID) is None
