"""Examples for feature drafters: targets, the entries that count, and frequent ids."""

from __future__ import annotations

from typing import cast

import torch

from stridebench.harness.plan import presets
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.methods.training.eagle.student import Example, collate, commonest, examples
from tests.support.feature_toys import tiny

TOKENS = (5, 9, 22, 31, 7, 40, 11, 3, 3, 58)


class TestData:
    def test_the_row_of_an_entry_predicts_the_token_behind_it(self) -> None:
        model = tiny("fp32")
        (example,) = examples(Teacher(model), [Passage(TOKENS, 3)], ())
        batch = collate([example], [0], Teacher(model))
        assert batch.tokens[0].tolist() == list(TOKENS[1:])
        logits = batch.heads[0] @ model.tied_embeddings().unembed.T
        assert logits.argmax(-1).tolist() == example.best[1:].tolist()
        assert batch.counted[0].tolist() == [False, *[True] * 8]

    def test_ends_of_rows_and_ids_that_are_not_proposed_do_not_count(self) -> None:
        teacher = Teacher(presets.load("embedded-image-8x8", "fp32"))
        grid = teacher.capabilities.grid
        assert grid is not None
        passage = Passage((0, 1, *range(8), cast(int, grid.eol), 5, 6), 2)
        (example,) = examples(teacher, [passage], ())
        counted = collate([example], [0], teacher).counted[0]
        assert counted.tolist() == [t != 8 for t in range(12)]  # entry 8 is followed by the end of the first row
        proposed = torch.ones(teacher.capabilities.vocabulary, dtype=torch.bool)
        proposed[example.best[4]] = False
        fewer = collate([example], [0], teacher, proposed).counted[0]
        assert not bool(fewer[3])

    def test_the_most_frequent_ids(self) -> None:
        row = torch.zeros(5, 1, 1, 2)
        example = Example(torch.tensor([9, 4, 4, 2, 7]), row, torch.tensor([4, 4, 2, 2, 2]), 1)
        assert commonest([example], 2, 10).tolist() == [2, 4]
