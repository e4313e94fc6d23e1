"""Passages of a teacher: benchmarks are left out; plans grow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stridebench.harness.train.passages import PassagePlan, TextPlan, passages_of
from stridebench.harness.train.windows import benchmark_captions, prompts
from stridebench.tasks.emoji_scenes import EmojiScenes


def test_a_text_plan_keeps_its_folder_and_the_numbers_of_batches_do_not_matter() -> None:
    plan = TextPlan(rows=4, few=2, new=10, most=40, top=5, batches=2, checks=1)
    assert plan.digest("abc") == TextPlan(rows=4, few=2, new=10, most=40, top=5).digest("abc") != plan.digest("abd")


def test_passages_of_a_benchmarks_captions_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captions = {prompt.text for prompt in EmojiScenes(limit=256).prompts()}
    assert captions <= benchmark_captions()
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    plan = PassagePlan("scenes", train=2, development=0, rows=20, new=1)
    passages = passages_of("embedded-image-8x8", plan)
    texts = prompts("scenes", 0, "train", 40)
    expected = [tuple(passages.teacher.backbone.encode(text)) for text in texts if text not in benchmark_captions()]
    assert 0 < len(expected) < 40
    assert [passage.tokens[: passage.start] for passage in passages.train] == expected


def test_a_larger_plan_reuses_the_passages_of_a_smaller_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    plan = PassagePlan("code", train=1, development=1, rows=3, new=5)
    first = passages_of("embedded-code", plan)
    assert "train passages 1 of 1" in capsys.readouterr().err
    more = passages_of("embedded-code", replace(plan, train=2))
    assert capsys.readouterr().err == "embedded-code: train passages 2 of 2\n"
    assert more.train[:3] == first.train and more.development == first.development
    assert all(p.start < len(p.tokens) <= p.start + 5 for p in more.train)
