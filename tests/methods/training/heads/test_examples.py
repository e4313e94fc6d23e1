"""Examples for heads: rows and their targets, shares, leads and n-gram counts by hand."""

from __future__ import annotations

import pytest
import torch

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.methods.drafters.heads.net import Config, Heads
from stridebench.methods.training.heads.examples import Examples, examples, frequent, hits, lead, ngram_hits, shares


class TestExamples:
    def test_an_example_is_a_row_that_emitted_a_token_and_the_tokens_after_it(self) -> None:
        """The prompt is 4 5; row 1 gave 6, and head 1 is to guess 7."""
        teacher = Teacher(Tabular("tabular", {"vocabulary": 9}))
        long, short = Passage((4, 5, 6, 7, 8), 2), Passage((4, 5, 6), 2)
        data, rows = examples(teacher, [long, short], 2), teacher.read(long, (-1,)).hidden
        assert rows is not None
        assert torch.equal(data.rows, rows[1:3, :, 0].bfloat16())
        assert data.after.tolist() == [[7, 8], [8, -1]]
        assert data.passage.tolist() == [0, 0]

    def test_forced_tokens_are_no_targets(self) -> None:
        teacher = Teacher(Tabular("tabular", {"vocabulary": 9, "grid": (2, 2, 8)}))
        data = examples(teacher, [Passage((1, 2, 3, 8, 4, 5, 8), 1)], 2)
        assert data.after.tolist() == [[3, -1], [-1, 4], [4, 5], [5, -1], [-1, -1]]

    def test_shares_and_lead_by_hand(self) -> None:
        after = torch.tensor([[1], [2], [-1], [1]])
        rows = torch.tensor([[1.0, 0, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0], [0, 1, 0, 0]])[:, None]
        data = Examples(rows, after, torch.tensor([0, 0, 1, 1]))
        unembed = torch.tensor([[0.0, 0, 0, 9], [3, 2, 1, 0], [2, 3, 3, 0]])
        correct = hits(Heads(Config("toy", "", 4, heads=1), unembed), data)
        assert correct[:, 0].tolist() == [
            [True, False, False],
            [True, False, False],
            [False, False, False],
            [False, True, False],
        ]
        assert shares(correct, data) == [pytest.approx([2 / 3, 1 / 3, 0.0])]
        assert lead(correct, correct, data) == [0.0]
        assert lead(correct, torch.zeros_like(correct), data) == [0.0]  # one of the two passages gains nothing

    def test_ngrams_are_conditioned_on_the_token_that_a_row_emitted(self) -> None:
        """Head 0 predicts the token behind it, head 1 the one after that; rows are those of `examples`."""
        teacher = Teacher(Tabular("tabular", {"vocabulary": 9}))
        counted = [Passage((1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 7, 5), 1)]
        predicted = Passage((1, 2, 3, 5), 1)
        data = examples(teacher, [predicted], 2)
        correct = ngram_hits(teacher, counted, [predicted], 2)
        assert data.after.tolist() == [[3, 5], [5, -1]]
        assert correct[0].tolist() == [[True, False, False], [True, False, False]]  # 1 2 -> 3, and 1 2 _ -> 5 twice
        assert correct[1].tolist() == [[False, True, False], [False, False, False]]  # 2 3 -> 4 first, then 5

    def test_the_most_frequent_ids_of_passages(self) -> None:
        assert frequent([Passage((5, 5, 3), 1), Passage((3, 9, 5), 1)], 2).tolist() == [3, 5]
