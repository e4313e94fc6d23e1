"""Counts of n-grams, the control of trained drafters."""

from __future__ import annotations

import torch

from stridebench.harness.train.passages import NGram


def test_counts_back_off_to_shorter_contexts() -> None:
    counts = NGram.of([torch.tensor([[1, 2, 3, 1, 2, 3, 1, 2, 4], [9, 2, 5, 9, 2, 5, 7, 7, 7]])])
    assert counts.guess(torch.tensor([[1, 2, 0, 9, 2, 8, 2]])).tolist() == [[2, 3, 2, 2, 5, 2, 3]]
    assert counts.guesses(torch.tensor([[1, 2, 4, 3]]))[0].tolist() == [[2, 1, 7], [3, 4, 5], [2, 1, 7], [1, 2, 7]]


def test_counts_of_a_later_token() -> None:
    counts = NGram.of([torch.tensor([[1, 2, 3, 4, 1, 2, 5, 4]])], ahead=1)
    assert counts.guess(torch.tensor([[1, 2, 9]])).tolist() == [[3, 4, 2]]  # 1 _ 3, 1 2 _ 4; else the commonest
    assert counts.guesses(torch.tensor([[2]])).tolist() == [[[4, 2, 3]]]
