"""Drafters of another vocabulary: what two vocabularies share, and a cache that reads one in the ids of the other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.text.wrapped import (
    VOCABS,
    Intersection,
    TranslatedBackbone,
    TranslatedCache,
    WritingCache,
    WrittenText,
)
from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.loop import decode
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets
from stridebench.methods.autoregressive import Autoregressive
from stridebench.methods.specinfer import SpecInfer
from stridebench.methods.speculative import Speculative
from tests.support.decodes import decoded, run_on

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


@pytest.mark.parametrize("vocab", VOCABS)
def test_without_a_shared_token_there_is_no_drafter(vocab: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tabular, "pieces", lambda self: [f"{self.vocabulary} {id}" for id in range(self.vocabulary)])
    with pytest.raises(UsageError, match="drafter and target have no token in common"):
        TranslatedBackbone(DRAFTER, TARGET, vocab)


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


# A drafter that writes "b", then "cd", then "a", whatever it reads; the target has "a", "b", "c" and "d".
LETTERS = Intersection(
    torch.tensor([0, 1]), torch.tensor([0, 1]), "abcd", {"c": [3], "d": [4]}.__getitem__, {0: (0,), 1: (1,)}
)
WRITTEN = WrittenText(LETTERS, ["a", "b", "cd", "c", "d"], lambda text: ["abcd".index(letter) for letter in text])


class Writer(Cache):
    """Writes the ids 1, 2 and 0 in turn, by the number of its entries."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def extend(self, window: Window) -> Rows:
        assert window.positions.tolist() == list(range(len(self.read), len(self.read) + len(window.tokens)))
        self.read += window.tokens.tolist()
        return Rows(torch.eye(5)[[[1, 2, 0][(len(self.read) - 1) % 3]]][: window.rows])

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        del self.read[length:]


def test_a_text_that_the_drafter_writes_is_read_in_the_targets_tokens() -> None:
    """Behind "a" it writes "b" and "cd": "b" is settled by "c", "c" by "d", and "d" by the "a" that comes then."""
    inner = Writer()
    cache = WritingCache(inner, WRITTEN)
    passes, said = [], []
    for place, token in enumerate([0, 1, 2, 3]):
        result = cache.extend(Window(torch.tensor([token]), torch.tensor([place]), place, None, 1))
        said.append(torch.isfinite(result.logits[0]).nonzero()[:, 0].tolist())
        passes.append(result.passes)
    assert (said, passes) == ([[1], [2], [3], [0]], [2, 0, 1, 1])
    assert inner.read == [0, 1, 2, 0]


def test_what_was_written_is_dropped_at_a_token_that_it_does_not_have() -> None:
    inner = Writer()
    cache = WritingCache(inner, WRITTEN)
    for place, tokens in enumerate([[0], [1], [2]]):
        cache.extend(Window(torch.tensor(tokens), torch.tensor([place]), place, None, 1))
    cache.keep(2)
    cache.extend(Window(torch.tensor([3, 0]), torch.tensor([2, 3]), 2, None, 0))
    assert inner.read == [0, 1, 4, 0]  # each token by itself


def test_drafts_of_a_text_are_counted_by_the_passes_that_write_it() -> None:
    run = run_on(TARGET, (0, 1), 20, drafter=TARGET.variant({"drafter": "toy:vocab=slem"}))
    steps = decode(Speculative("toy:vocab=slem", 4), run).steps
    assert sum(step.draft_nfe for step in steps) == run.models.meter.drafts > sum(step.drafted for step in steps) / 2
    assert {step.draft_nfe - step.drafted for step in steps} > {0} and sum(step.accepted for step in steps) > 0


def test_a_text_of_another_tokenizer_leaves_greedy_tokens_as_they_are() -> None:
    model = presets.load("tiny:smollm2-135m", "fp32", "cpu")
    name, prompt = "embedded-code:vocab=slem", model.encode("def total(values):")
    plain = decoded(Autoregressive(), model, prompt, 12)
    drafted = decoded(Speculative(name, 3), model, prompt, 12, drafter=presets.drafter(model, name))
    assert plain.tokens == drafted.tokens and sum(step.drafted for step in drafted.steps) > 12


def test_a_tree_on_another_vocabulary_is_an_error() -> None:
    run = run_on(TARGET, (0,), 8, drafter=TARGET.variant({"drafter": "toy:vocab=tli"}))
    with pytest.raises(UsageError, match="another vocabulary drafts chains"):
        decode(SpecInfer("toy:vocab=tli", widths=(2, 1)), run)


def test_an_unknown_kind_of_vocabulary_names_those_that_are_known() -> None:
    model = presets.load("embedded-code", "fp32", "cpu")
    with pytest.raises(UsageError, match=r"vocab is 'slam'; known: tli, slem"):
        presets.drafter(model, "embedded-digits-s:vocab=slam")


def test_pieces_have_their_space_and_special_ids_have_none() -> None:
    model = presets.load("tiny:smollm2-135m", "fp32", "cpu")
    pieces = model.pieces()
    assert len(pieces) == model.capabilities.vocabulary and {" ", "a", "\n"} <= set(pieces)
    assert not any("im_start" in piece for piece in pieces)
