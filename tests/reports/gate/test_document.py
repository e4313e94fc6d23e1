"""A baseline whose checksum is right and whose content is none: one message that says what and where."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from stridebench.harness.errors import StoreError
from stridebench.reports.gate.baseline import check_content, digest, make_baseline, with_replay
from tests.support.fake_store import FakeStore, empty, meta, record, step


def store() -> FakeStore:
    run = empty()
    return run.add(meta("c0"), [record(f"p{i}", [step(1, 2)] * 5, scores={"wer": 0.1}) for i in range(6)])


def document() -> dict[str, Any]:
    """A right baseline with a replay, as it comes back from a file."""
    scores = [[f"p{i}", 0, 10, 6.5] for i in range(6)]
    texts = [[f"p{i}", 0, [1, 2, 3]] for i in range(6)]
    replay = {
        "suite": {"name": "toy"},
        "cells": {"c0": {"label": "c", "texts": texts, "scores": scores}},
        "skipped": {},
    }
    return json.loads(json.dumps(with_replay(make_baseline(store()), replay)))


ABSENT = object()
C0, ROW = ("cells", "c0"), ("cells", "c0", "samples", 0)
REPLAY = ("replay", "cells", "c0")
WRONG: dict[str, tuple[tuple[str | int, ...], Any, str]] = {
    "no key": (("key",), ABSENT, "lacks the entry key"),
    "no cells": (("cells",), {}, "has cells {}"),
    "no label": ((*C0, "label"), None, "has cells.c0.label None"),
    "no samples": ((*C0, "samples"), [], "that holds no sample"),
    "samples of text": ((*C0, "samples"), "x", "has cells.c0.samples 'x'"),
    "a short row": (ROW, ["p0", 0], "that has a row of 2 values for"),
    "no columns": ((*C0, "columns"), [], "that names no columns"),
    "a column is missing": ((*C0, "columns", 2), "outputs", "that lacks the column output"),
    "a column twice": ((*C0, "columns", -1), "output", "that names a column twice"),
    "tasks of text": (("key", "tasks"), ["x"], "has key.tasks.0 'x'"),
    "a prompt of a number": ((*ROW, 0), 3, "that has prompt 3"),
    "a count of nothing": ((*ROW, 2), None, "that has output None"),
    "a count below 0": ((*ROW, 2), -1, "that has output -1"),
    "a count that is no whole number": ((*ROW, 2), 1.5, "that has output 1.5"),
    "NaN": ((*ROW, 8), float("nan"), "nan"),
    "a row twice": ((*ROW, 0), "p1", "that has two rows of one prompt"),
    "noise below 0": ((*C0, "noise"), {"acceptance": -1.0}, "has cells.c0.noise.acceptance -1.0"),
    "a verdict of a number": (("verdicts",), {"c0": 1}, "has verdicts.c0 1"),
    "a replay of no suite": (("replay", "suite"), {}, "lacks the entry replay.suite.name"),
    "no texts": ((*REPLAY, "texts"), [], "texts and scores are not of the same samples"),
    "a text of words": ((*REPLAY, "texts", 0, 2), ["a"], "texts.0.2.0 'a'"),
    "a score of NaN": ((*REPLAY, "scores", 0, 3), float("nan"), "scores.0.3 nan"),
    "a score twice": ((*REPLAY, "scores", 0, 0), "p1", "not of the same samples"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_content_with_a_right_checksum_is_refused(case: str) -> None:
    path, value, words = WRONG[case]
    changed = copy.deepcopy(document())
    place: Any = changed
    for part in path[:-1]:
        place = place[part]
    if value is ABSENT:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    changed["sha256"] = digest(changed)
    with pytest.raises(StoreError) as error:
        check_content(changed)
    assert words in str(error.value) and str(error.value).endswith("make it again with `stride gate make RUN`")
