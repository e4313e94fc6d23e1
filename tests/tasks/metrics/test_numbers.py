"""The three published rules for numbers in answers."""

from __future__ import annotations

import pytest

from stridebench.tasks import gsm8k as numbers


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
        assert (numbers.official(text), numbers.strict(text), numbers.flexible(text)) == (official, strict, flexible)

    def test_the_strict_rule_reads_chains_of_thought(self) -> None:
        assert numbers.strict("3 + 4 = 7. The answer is 7.\n", numbers.SAID) == "7"
        assert numbers.strict("The answer is 7", numbers.SAID) is None
