"""Passages of a teacher: benchmarks are left out; plans grow."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.synthetic.code import programs
from stridebench.harness.train import teacher as teachers
from stridebench.harness.train import windows as prompt_sources
from stridebench.harness.train.passages import NGram, PassagePlan, TextPlan, passages_of
from stridebench.harness.train.teacher import Teacher
from stridebench.harness.train.windows import benchmark_captions, prompts, side_of
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


def test_counts_back_off_to_shorter_contexts() -> None:
    counts = NGram.of([torch.tensor([[1, 2, 3, 1, 2, 3, 1, 2, 4], [9, 2, 5, 9, 2, 5, 7, 7, 7]])])
    assert counts.guess(torch.tensor([[1, 2, 0, 9, 2, 8, 2]])).tolist() == [[2, 3, 2, 2, 5, 2, 3]]
    assert counts.guesses(torch.tensor([[1, 2, 4, 3]]))[0].tolist() == [[2, 1, 7], [3, 4, 5], [2, 1, 7], [1, 2, 7]]


def test_counts_of_a_later_token() -> None:
    counts = NGram.of([torch.tensor([[1, 2, 3, 4, 1, 2, 5, 4]])], ahead=1)
    assert counts.guess(torch.tensor([[1, 2, 9]])).tolist() == [[3, 4, 2]]  # 1 _ 3, 1 2 _ 4; else the commonest
    assert counts.guesses(torch.tensor([[2]])).tolist() == [[[4, 2, 3]]]


def test_sides_are_disjoint_and_have_no_prompt_of_a_benchmark() -> None:
    train_, development = (set(prompts("code", 0, side, 60)) for side in prompt_sources.SIDES)
    assert {side_of(text) for text in train_} == {"train"} and {side_of(text) for text in development} != {"train"}
    assert len(train_) == len(development) == 60 and not train_ & development
    benchmark = {p.head for p in islice(programs(np.random.default_rng(1), held_out=True), 300)}
    assert not (train_ | development) & benchmark


def test_more_prompts_than_exist_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_sources, "DRAWN", 5)
    with pytest.raises(UsageError, match=r"has \d development prompts and 900 are asked for"):
        prompts("code", 0, "development", 900)


@pytest.mark.parametrize(("native", "asked", "dtype"), [("fp64", (), "fp64"), ("bf16", ("fp32",), "fp32")])
def test_a_backbone_is_read_in_the_type_of_the_machine_unless_another_is_asked_for(
    native: str, asked: tuple[str, ...], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teachers, "native_dtype", lambda device: native)
    assert Teacher.load("embedded-code", *asked).backbone.dtype == dtype


def test_greedy_passages_are_the_models_own_decoding() -> None:
    """Several rows of different lengths in one pass against single ones."""
    teacher = Teacher.load("embedded-code", "fp32")
    texts = [p.head for p in islice(programs(np.random.default_rng(3), held_out=True), 3)]
    requests = [Prompt(str(n), text) for n, text in enumerate(texts)]
    draws = SeededDraws(0, "t", "p", 0)
    together = teacher.continued(requests, 12, Sampling(0.0), draws)
    assert together == [teacher.continued([request], 12, Sampling(0.0), draws)[0] for request in requests]
    rows = teacher.read(together[0], (-1,), logits=True)
    behind = slice(together[0].start - 1, len(together[0].tokens) - 1)
    assert rows.logits.argmax(-1)[behind].tolist() == list(together[0].tokens[together[0].start :])
    assert rows.hidden is not None
    z = rows.hidden[:, 0, 0] @ teacher.backbone.tied_embeddings().unembed.T
    torch.testing.assert_close(z, rows.logits, rtol=1e-4, atol=1e-4)
