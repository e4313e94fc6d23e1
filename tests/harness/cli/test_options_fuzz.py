"""Values of options of any form: a plan, or one message."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.cli import stride
from tests.support.fuzz import SHORT_OR_LONG, assert_one_message, fuzz, plain, words

BASE = ("run", "--method", "sjd", "--backbone", "tabular", "--task", "{name: tabular, limit: 1}", "--dry-run")
OPTIONS = ("--method", "--backbone", "--task", "--dtype", "-t", "--max-new-tokens", "--batch", "--limit", "--seed")
values = (
    words | plain.map(str) | st.sampled_from(["nan", "inf", "1e400", "0x10", "-0", "{", "[[", "a: b: c", "~", "!!set"])
)
settings = st.builds("{}={}".format, st.sampled_from(["top_p", "top_k", "batch", "report", "beside"]) | words, values)
pairs = st.tuples(st.sampled_from(OPTIONS), values) | st.tuples(st.just("--set"), settings | values)
VERBS = ("report", "show", "gate check", "gate make", "gate", "exchange import", "paper study tally", "nonsense")


def argument(text: str) -> str:
    """What a shell can pass on."""
    return text.replace("\0", "")


def planned(options: list[tuple[str, str]]) -> None:
    assert_one_message(stride(*BASE, *(argument(word) for pair in options for word in pair)))


def called(line: list[str]) -> None:
    assert_one_message(stride(*line[0].split(), *map(argument, line[1:])))


@SHORT_OR_LONG
def test_options_of_run(long: bool) -> None:
    fuzz(st.lists(pairs, min_size=1, max_size=2), planned, 40, long)


@SHORT_OR_LONG
def test_words_of_other_verbs(long: bool) -> None:
    """Words that name nothing; none of them may be a folder of a run."""
    names = st.text(min_size=1, max_size=6).map("no such {}".format) | st.sampled_from(
        ["", "-1", "--json", "/", "\udcff"]
    )
    fuzz(st.tuples(st.sampled_from(VERBS), names, names).map(list), called, 25, long)
