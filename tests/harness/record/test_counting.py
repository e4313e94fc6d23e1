"""Runs that count otherwise are told apart."""

from __future__ import annotations

from stridebench.harness.record.counting import COUNTED, counting_difference
from stridebench.harness.record.files import READABLE, SCHEMA


def test_runs_of_one_version_count_alike() -> None:
    for version in READABLE:
        assert counting_difference({"schema": version}, {"schema": version}) is None


def test_the_difference_of_two_versions_says_what_each_counts() -> None:
    text = counting_difference({"schema": 1}, {"schema": 2})
    assert text is not None
    assert "version 1 counts passes and time of the steps alone" in text
    assert "version 2 passes and time of the method's start and steps" in text


def test_a_manifest_without_a_version_is_of_the_first() -> None:
    assert counting_difference({}, {"schema": 1}) is None
    assert counting_difference({}, {"schema": SCHEMA}) is not None


def test_every_version_that_is_read_says_what_it_counts() -> None:
    assert set(READABLE) == set(COUNTED)
