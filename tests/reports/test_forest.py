"""The picture and the three sentences that a run ends with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from stridebench.reports import forest
from stridebench.reports.ranked import conclusions, gains, groups, loses
from stridebench.reports.summary import summarise
from tests.support.fake_store import empty, meta, record, step

SETTING = {
    **{"backbone": "m", "dtype": "fp32", "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    **{"order": "temperature_first", "task": "t", "max_new_tokens": 8, "batch": 1, "status": "done", "n_failed": 0},
}


def cell(label: str, verdict: str, speed: tuple[float, float, float], **more: Any) -> dict[str, Any]:
    """A row of a summary; speed is the estimate, the low and the high end."""
    named = dict(zip(("speedup", "speedup_low", "speedup_high"), speed, strict=True))
    quality = {"score.overall": 1.0, "score.overall_low": 0.9, "score.overall_high": 1.0, "audit_visible_tv": 0.1}
    row = {"label": label, "verdict": verdict, "role": "method", **named, "speedup_n": 12, "predicted": speed[0]}
    likelihood = {"logprob_diff": 0.0, "logprob_diff_low": -0.1, "logprob_diff_high": 0.1}
    return {**SETTING, **row, **quality, **likelihood, **more}


@pytest.fixture
def small() -> pd.DataFrame:
    return pd.DataFrame(
        [
            cell("ar", "exact", (1, 1, 1), role="baseline"),
            cell("slow", "exact", (0.8, 0.7, 0.9)),
            cell("fast", "exact", (1.5, 1.4, 1.6)),
            cell("vague", "exact", (1.1, 0.9, 1.2)),
            cell("lossy", "approximate", (3, 2.5, 3.5), logprob_diff=-0.3, logprob_diff_high=-0.2),
            cell("wrong", "approximate", (4, 3.5, 4.5), **{"score.overall": 0.5, "score.overall_high": 0.7}),
            cell("harmless", "approximate", (2, 1.8, 2.2)),
        ]
    )


def test_methods_are_ranked_and_what_they_gain_and_lose_follows_from_intervals(small: pd.DataFrame) -> None:
    (group,) = groups(small)
    rows = {row["label"]: row for row in group.rows()}
    assert list(rows) == ["wrong", "lossy", "harmless", "fast", "vague", "slow"]
    assert [gains(rows[name]) for name in ("fast", "vague", "slow")] == [True, None, False]
    assert [name for name, row in rows.items() if loses(row, group)] == ["wrong", "lossy"]
    assert group.title == "m fp32 · t · T = 1 · n = 12" and group.score == "score.overall"
    assert forest.quality(rows["lossy"], group) == "loses 0.30 nat, captions right 100 % (AR 100 %)"


def test_a_score_that_is_better_where_it_is_lower_loses_above_the_baseline(small: pd.DataFrame) -> None:
    chamfer = small.rename(columns=lambda name: name.replace("overall", "chamfer"))
    (group,) = groups(chamfer.assign(**{"score.chamfer": 0.1, "score.chamfer_low": 0.2, "score.chamfer_high": 0.3}))
    assert all(loses(row, group) for row in group.rows() if row["verdict"] == "approximate")


def test_three_sentences_say_what_pays_what_it_costs_and_what_was_not_shown(small: pd.DataFrame) -> None:
    pays, costs, unseen = conclusions(small)
    assert pays == "Exact and faster, 1 of 3 cells; the fastest of each setting: fast 1.50× [1.40, 1.60] (m, t, T = 1)."
    assert "shown to lose quality: wrong 4.00× [3.50, 4.50] (captions right 50 %, AR 100 %), lossy" in costs
    assert "(0.30 nat a token; captions right 100 %, AR 100 %); no loss shown: harmless 2.00×" in costs
    assert unseen.startswith("Not shown: whether vague is faster; a bias below 0.1 ")
    none = conclusions(small[small["label"].isin(["ar", "slow"])])
    assert none[0] == "Exact methods: none of 1 is shown to be faster here."
    assert conclusions(summarise(empty())) == []


def test_a_run_without_intervals_or_with_failures_says_so(small: pd.DataFrame) -> None:
    few = small.assign(speedup_n=3, n_failed=1, speedup_low=float("nan"), speedup_high=float("nan"))
    unseen = conclusions(few)[-1]
    assert "intervals for m, t, T = 1, of fewer than 6 prompts" in unseen and "7 samples that failed or" in unseen


def test_broken_and_unverified_cells_are_named(small: pd.DataFrame) -> None:
    verdicts = small["verdict"].where(small["label"] != "fast", "broken").replace("exact", "unverified")
    pays, broken, _, unseen = conclusions(small.assign(verdict=verdicts))
    assert pays == "No method is proved exact here." and broken.endswith("say nothing: fast.")
    assert "whether 2 unverified cells are exact" in unseen
    batches = small["verdict"].replace("exact", "unverified in batches")
    assert "whether 3 unverified cells are exact" in conclusions(small.assign(verdict=batches))[-1]


@pytest.mark.parametrize("flag", ["invalid: 12 of 20 failed", "disturbed timing: a speed-up of 2.74x at 1.00 tokens"])
def test_a_speed_up_that_a_flag_takes_back_is_no_gain(small: pd.DataFrame, flag: str) -> None:
    flags = [f"first; {flag}" if label == "fast" else "" for label in small["label"]]
    pays, *_, unseen = conclusions(small.assign(flags=flags))
    assert pays == "Exact methods: none of 3 is shown to be faster here." and "whether fast, vague are" in unseen


def test_two_uses_of_a_task_are_two_settings() -> None:
    store = empty()
    for number, length in enumerate((2, 3)):
        for role in ("baseline", "method"):
            facts = {"role": role, "task_params": {"length": length, "seed": 0}, "baseline": f"baseline{length}"}
            steps = [step(0, 0, ms=10.0 + 5 * number * (role == "method"))] * 4
            records = [record(f"p{i}", steps, scores={"right": float(length == 2)}) for i in range(8)]
            store.add(meta(f"{role}{length}", label=role, **facts), records)
    frame = summarise(store)
    assert list(frame["task"]) == ["toy length=2"] * 2 + ["toy length=3"] * 2
    assert [len(group.methods) for group in groups(frame)] == [1, 1]
    assert [float(group.baseline["score.right"]) for group in groups(frame)] == [1.0, 0.0]


def test_the_picture_repeats_byte_for_byte_and_a_column_is_narrow(small: pd.DataFrame, tmp_path: Path) -> None:
    one, two = (forest.write(small, tmp_path / name, "mine") for name in "ab")
    assert [path.name for path in one] == ["forest.png", "forest.svg"]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]
    column = forest.draw(small, "mine", column=True)
    assert column is not None and column.get_figwidth() == 3.3
    assert forest.write(summarise(empty()), tmp_path / "c", "none") == [] and not (tmp_path / "c").exists()


def test_greedy_cells_alone_have_no_panel_of_log_probabilities(small: pd.DataFrame) -> None:
    labels = [
        {axes.get_xlabel().split(",")[0] for axes in figure.axes}
        for figure in (forest.draw(small), forest.draw(small.assign(temperature=0.0, agreement=1.0)))
        if figure is not None
    ]
    assert "log-prob \N{MINUS SIGN} AR" in labels[0] and len(labels) == 2
    assert not any(label.startswith("log-prob") for label in labels[1])


def test_rows_of_a_real_summary_are_drawn(frame: pd.DataFrame) -> None:
    figure = forest.draw(frame)
    assert figure is not None
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    methods = frame[(frame["role"] == "method") & frame["speedup"].notna() & (frame["status"] == "done")]
    assert set(methods["label"]) <= set(labels)


def test_figures_that_are_absent_lose_and_gain_nothing(small: pd.DataFrame) -> None:
    """A column of a summary without a single figure holds None."""
    absent = small.assign(logprob_diff=None, logprob_diff_low=None, logprob_diff_high=None, predicted=None)
    absent = absent.assign(**{f"score.overall{end}": None for end in ("", "_low", "_high")}, audit_visible_tv=None)
    (group,) = groups(absent)
    assert group.score is None and not any(loses(row, group) for row in group.rows())
    assert "a bias of 3 exact cells at T > 0" in conclusions(absent)[-1] and forest.draw(absent) is not None


def test_long_labels_of_one_method_differ_in_the_picture(small: pd.DataFrame) -> None:
    labels = [f"speculative drafter=self:weights=int4 gamma=3 verifier={name}" for name in ("block", "coupled")]
    frame = pd.concat([small, pd.DataFrame([cell(label, "exact", (1, 0.9, 1.1)) for label in labels])])
    figure = forest.draw(frame, "")
    assert figure is not None
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    short = [name for name in names if name.startswith("speculative …")]
    assert len(set(short)) == 2 and all(len(name) == forest.LONGEST for name in short)
    assert {name.rpartition("=")[2] for name in short} == {"block", "coupled"}
