"""Drafters of another vocabulary: what two vocabularies share, and a cache that reads one in the ids of the other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.text.wrapped import Intersection, TranslatedBackbone, TranslatedCache
from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.cache import Cache, Window
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets
from stridebench.methods.specinfer import SpecInfer

TARGET, DRAFTER = Tabular("target", {"vocabulary": 3}), Tabular("drafter", {"vocabulary": 5, "seed": 7})
TEXTS = {"b": [9, 9, 4, 4, 2, 1]}
SHARED = Intersection(torch.tensor([0, 3]), torch.tensor([0, 2]), "abc", TEXTS.__getitem__, {0: (0,), 2: (3, 0)})
"""Id 1 of the target is four ids of the drafter, the last of six. Id 2 is two, of which the first is its own token."""


def rows(cache: Cache, tokens: Sequence[int], start: int, count: int) -> Tensor:
    places = torch.arange(start, start + len(tokens))
    return cache.extend(Window(torch.tensor(tokens), places, start, None, count)).logits


def test_the_shared_tokens_are_those_with_the_same_text() -> None:
    shared = Intersection.of(DRAFTER, TARGET)
    assert (shared.own.tolist(), shared.target.tolist()) == ([0, 1], [0, 1])
    assert [list(shared.read(token)) for token in range(3)] == [[0], [1], [0]]


def test_of_several_ids_with_one_text_the_first_one_stands_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {3: ["a", "b", "a"], 5: ["", "b", "a", "b", "a"]}
    monkeypatch.setattr(Tabular, "pieces", lambda self: texts[self.vocabulary])
    shared = Intersection.of(DRAFTER, TARGET)
    assert (shared.own.tolist(), shared.target.tolist()) == ([2, 1], [0, 1])


def test_without_a_shared_token_there_is_no_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tabular, "pieces", lambda self: [f"{self.vocabulary} {id}" for id in range(self.vocabulary)])
    with pytest.raises(UsageError, match="drafter and target have no token in common"):
        TranslatedBackbone(DRAFTER, TARGET)


def test_logits_are_those_behind_the_last_id_of_a_token_at_the_shared_ids() -> None:
    cache = TranslatedCache(DRAFTER.cache(), SHARED)
    logits = torch.cat([rows(cache, (0, 1), 0, 1), rows(cache, (2, 0), 2, 2)])
    own = rows(DRAFTER.cache(), (0, 4, 4, 2, 1, 3, 0, 0), 0, 8)[[4, 6, 7]]
    assert torch.equal(logits[:, [0, 2]], own[:, [0, 3]])
    assert torch.isneginf(logits[:, 1]).all()


@pytest.mark.parametrize(("length", "entries"), [(1, (0, 1)), (3, ()), (2, (0,))])
def test_a_kept_beginning_is_read_as_if_nothing_had_followed(length: int, entries: tuple[int, ...]) -> None:
    cache = TranslatedCache(DRAFTER.cache(), SHARED)
    rows(cache, (0, 1, 2, 1), 0, 0)
    cache.keep(length, entries)
    again = rows(cache, (2,), 3, 1)
    assert torch.equal(again, rows(TranslatedCache(DRAFTER.cache(), SHARED), (0, 1, 2, 2), 0, 1))


def test_a_tree_on_another_vocabulary_is_an_error() -> None:
    run = open_run(
        TARGET, lambda name: TARGET.variant({"drafter": name}), (0,), Sampling(), 8, SeededDraws(0, "t", "p", 0)
    )
    with pytest.raises(UsageError, match="another vocabulary drafts chains"):
        decode(SpecInfer("toy:vocab=tli", widths=(2, 1)), run)


def test_an_unknown_kind_of_vocabulary_names_those_that_are_known() -> None:
    model = presets.load("embedded-code", "fp32", "cpu")
    with pytest.raises(UsageError, match=r"vocab is 'slam'; known: tli"):
        presets.drafter(model, "embedded-digits-s:vocab=slam")


def test_pieces_have_their_space_and_special_ids_have_none() -> None:
    model = presets.load("tiny:smollm2-135m", "fp32", "cpu")
    pieces = model.pieces()
    assert len(pieces) == model.capabilities.vocabulary and {" ", "a", "\n"} <= set(pieces)
    assert not any("im_start" in piece for piece in pieces)
