"""Word error rate: its conventions on sentences countable by hand, and its two rates."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stridebench.harness.errors import OutputError, UsageError
from stridebench.tasks.metrics import wer
from stridebench.tasks.metrics.wer import Count, Transcript


def transcript(reference: str, heard: str, id: str = "p") -> Transcript:
    return Transcript(id, reference, heard)


@pytest.fixture(autouse=True)
def no_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whether the package with the spellings is installed does not matter."""
    wer._normaliser.cache_clear()
    monkeypatch.setattr(wer, "table", lambda: None)
    yield
    wer._normaliser.cache_clear()


@pytest.fixture()
def spellings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wer, "table", lambda: {"colour": "color"})


@pytest.mark.parametrize(
    ("reference", "heard", "errors", "words"),
    [
        ("The cat sat.", "the cat sat", 0, 3),
        ("the cat sat", "the hat sat", 1, 3),
        ("the cat sat", "the cat", 1, 3),
        ("the cat sat", "the big cat sat down", 2, 3),
        ("a b", "c d e f g", 5, 2),
        ("the cat sat", "", 3, 3),
        ("the cat sat", " ?! ", 3, 3),
        ("It's twenty-five dollars, Mr Smith!", "it is $25 mister smith", 0, 5),
        ("um, well, we can't go", "Well we cannot (laughs) go.", 2, 5),
        ("one colour", "one color", 1, 2),
    ],
)
def test_errors_are_inserted_deleted_and_substituted_words(reference: str, heard: str, errors: int, words: int) -> None:
    assert wer.count(transcript(reference, heard), "wer_no_spelling") == Count(errors, words)


@pytest.mark.parametrize("reference", ["", "  ", "?!", "(laughs)"])
def test_a_reference_without_words_fails_with_that_reason(reference: str) -> None:
    with pytest.raises(OutputError, match="of p has no words after normalisation"):
        wer.scores(transcript(reference, "something"))


def test_without_the_table_wer_is_absent_and_says_why() -> None:
    assert wer.scores(transcript("one colour", "one color")) == {"wer_no_spelling": 0.5}
    scores = wer.corpus([transcript("one colour", "one color")])
    assert set(scores) == set(wer.SET_METRICS)
    assert scores["corpus_wer"].value is None and "[speech]" in scores["corpus_wer"].reason
    assert scores["corpus_wer_no_spelling"].value == 0.5


def test_with_the_table_the_two_rates_differ_where_spellings_do(spellings: None) -> None:
    assert wer.scores(transcript("one colour", "one color")) == {"wer": 0.0, "wer_no_spelling": 0.5}
    scores = wer.corpus([transcript("one colour", "one color")])
    assert (scores["corpus_wer"].value, scores["corpus_wer_no_spelling"].value) == (0.0, 0.5)


def test_the_corpus_rate_weighs_words_and_not_utterances() -> None:
    heard = [transcript("a b c d e f g h i j", "a b c d e f g h i j", "1"), transcript("x y", "x z", "2")]
    score = wer.corpus(heard)["corpus_wer_no_spelling"]
    assert (score.value, score.n, score.failures) == (1 / 12, 2, 0)
    assert score.low is None and score.reason.startswith("2 prompts")


def test_the_interval_resamples_prompts_and_not_repetitions() -> None:
    """Ten copies of eight prompts give the same interval as one copy."""
    once = [transcript("a b c d", "a b c d" if k % 2 else "a b", str(k)) for k in range(8)]
    one, ten = (wer.corpus(heard)["corpus_wer_no_spelling"] for heard in (once, once * 10))
    assert one.value == ten.value == 0.25
    assert one.low is not None and (one.low, one.high) == pytest.approx((ten.low, ten.high))
    assert (one.n, ten.n) == (8, 80)
    many = wer.corpus([t._replace(id=f"{t.id}/{k}") for k in range(10) for t in once])["corpus_wer_no_spelling"]
    assert many.low is not None and many.high is not None and 0 < many.low < 0.25 < many.high < 0.5


def test_an_utterance_without_a_reference_is_a_failure_that_is_counted() -> None:
    score = wer.corpus([transcript("a b", "a b", "1"), transcript("?!", "a", "2")])["corpus_wer_no_spelling"]
    assert (score.value, score.n, score.failures) == (0.0, 1, 1)
    none = wer.corpus([transcript("", "a")])["corpus_wer_no_spelling"]
    assert (none.value, none.n, none.failures, none.reason) == (None, 0, 1, "no utterance to score")


def test_a_table_that_is_not_whispers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "english.json"
    with pytest.raises(UsageError, match=r"english\.json cannot be read"):
        wer.read_table(path)
    path.write_text(json.dumps({"colour": "color"}))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(UsageError, match=f"has sha256 {digest} and Whisper's"):
        wer.read_table(path)
    monkeypatch.setattr(wer, "TABLE_SHA256", digest)
    assert wer.read_table(path) == {"colour": "color"}


def test_the_table_is_looked_for_in_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    raw = json.dumps({"colour": "color"}).encode()
    folder = tmp_path / "whisper_normalizer" / "normalizers"
    folder.mkdir(parents=True)
    (folder / "english.json").write_bytes(raw)
    (folder.parent / "__init__.py").write_text("raise AssertionError('nothing of it is run')")
    monkeypatch.setattr(wer, "TABLE_SHA256", hashlib.sha256(raw).hexdigest())
    monkeypatch.syspath_prepend(str(tmp_path))
    wer.table.cache_clear()
    assert wer.table() == {"colour": "color"}
    spec: Any = None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    wer.table.cache_clear()
    assert wer.table() is None
    monkeypatch.undo()
    wer.table.cache_clear()


def test_the_extra_brings_whispers_own_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    wer.table.cache_clear()
    table = wer.table()
    if table is None:
        pytest.skip("whisper-normalizer is not installed: pip install 'stridebench[speech]'")
    assert len(table) == 1739 and table["colour"] == "color"
    assert wer.count(transcript("the colour of honour", "the color of honor"), "wer") == Count(0, 4)
    assert wer.count(transcript("the colour of honour", "the color of honor"), "wer_no_spelling") == Count(2, 4)
