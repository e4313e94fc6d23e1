"""Drafters of another vocabulary: what two vocabularies share, and a cache that reads one in the ids of the other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from stridebench.harness.backbones.base import Identity
from stridebench.harness.backbones.slots.net import Released
from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.backbones.text.wrapped import (
    VOCABS,
    Intersection,
    TranslatedBackbone,
    TranslatedCache,
    WritingCache,
    WrittenText,
    texts_of,
)
from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.core.loop import decode
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets
from stridebench.methods.autoregressive import Autoregressive
from stridebench.methods.specinfer import SpecInfer
from stridebench.methods.speculative import Speculative
from tests.support.decodes import decoded, run_on

TARGET, DRAFTER = Tabular("target", {"vocabulary": 3}), Tabular("drafter", {"vocabulary": 5, "seed": 7})
TEXTS = {"b": [9, 9, 4, 4, 2, 1]}
SHARED = Intersection(
    torch.tensor([0, 3]), torch.tensor([0, 2]), [b"a", b"b", b"c"], TEXTS.__getitem__, {0: (0,), 2: (3, 0)}
)
"""Id 1 of the target is four ids of the drafter, the last of six. Id 2 is two, of which the first is its own token."""


def rows(cache: Cache, tokens: Sequence[int], start: int, count: int) -> Tensor:
    places = torch.arange(start, start + len(tokens))
    return cache.extend(Window(torch.tensor(tokens), places, start, None, count)).logits


def test_the_shared_tokens_are_those_with_the_same_text() -> None:
    shared = Intersection.of(DRAFTER, TARGET)
    assert (shared.own.tolist(), shared.target.tolist()) == ([0, 1], [0, 1])
    assert [list(shared.read(token)) for token in range(3)] == [[0], [1], [0]]


def test_of_several_ids_with_one_text_the_first_one_stands_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {3: [b"a", b"b", b"a"], 5: ["", b"b", b"a", b"b", b"a"]}
    monkeypatch.setattr(Tabular, "pieces", lambda self: texts[self.vocabulary])
    shared = Intersection.of(DRAFTER, TARGET)
    assert (shared.own.tolist(), shared.target.tolist()) == ([2, 1], [0, 1])


def test_special_ids_are_shared_by_name_and_parts_of_a_letter_are_read_by_their_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The target's "<s>" is special, and 1 to 4 are parts of letters; the drafter has a text "<s>" too."""
    target = ["<s>", b"\xe4", b"\xb8\xad", b"\xad\xff", b"\xfe", ""]
    pieces = {6: target, 5: [b"<s>", b"\xb8", b"\xad", b"\xe4", "<s>"]}
    monkeypatch.setattr(Tabular, "pieces", lambda self: pieces[self.vocabulary])
    shared = Intersection.of(DRAFTER, Tabular("target", {"vocabulary": 6}))
    assert (shared.own.tolist(), shared.target.tolist()) == ([4, 3], [0, 1])
    assert [list(shared.read(token)) for token in range(6)] == [[4], [3], [1, 2], [2], [0], [0]]


@pytest.mark.parametrize("vocab", VOCABS)
def test_without_a_shared_token_there_is_no_drafter(vocab: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {3: [b"a", b"b", "c"], 5: [b"c", b"d", b"e", "a", "b"]}
    monkeypatch.setattr(Tabular, "pieces", lambda self: texts[self.vocabulary])
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
    torch.tensor([0, 1]),
    torch.tensor([0, 1]),
    [b"a", b"b", b"c", b"d"],
    {"c": [3], "d": [4]}.__getitem__,
    {0: (0,), 1: (1,)},
)
WRITTEN = WrittenText(LETTERS, [b"a", b"b", b"cd", b"c", b"d"], lambda text: ["abcd".index(letter) for letter in text])


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


@pytest.mark.parametrize("vocab", VOCABS)
def test_letters_of_several_tokens_are_drafted(vocab: str) -> None:
    """The drafter is the target; of its random bytes, those that are no letters end a text."""
    model = presets.load("tiny:smollm2-135m", "fp32", "cpu")
    name = f"tiny:smollm2-135m:vocab={vocab}"
    steps = decoded(
        Speculative(name, 3), model, model.encode("中文字é"), 24, drafter=presets.drafter(model, name)
    ).steps
    assert sum(step.accepted for step in steps) >= 0.6 * sum(step.drafted for step in steps)


def test_a_written_letter_is_read_in_the_targets_tokens_from_any_of_its_bytes() -> None:
    model = presets.load("tiny:smollm2-135m", "fp32", "cpu")
    pieces = texts_of(model.pieces())
    text = WrittenText(Intersection.of(model, model), pieces, model.encode)
    start, *ids = model.encode("a中文é")
    for count in range(len(ids)):
        rest = b"".join(pieces[id] for id in ids[count:])
        assert text.tokens([start, *ids[:count]], rest) == ids[count:], count


def test_a_tree_on_another_vocabulary_is_an_error() -> None:
    run = run_on(TARGET, (0,), 8, drafter=TARGET.variant({"drafter": "toy:vocab=tli"}))
    with pytest.raises(UsageError, match="another vocabulary drafts chains"):
        decode(SpecInfer("toy:vocab=tli", widths=(2, 1)), run)


def test_an_unknown_kind_of_vocabulary_names_those_that_are_known() -> None:
    model = presets.load("embedded-code", "fp32", "cpu")
    with pytest.raises(UsageError, match=r"vocab is 'slam'; known: tli, slem"):
        presets.drafter(model, "embedded-digits-s:vocab=slam")


def test_pieces_have_their_space_and_their_bytes_and_special_ids_have_names() -> None:
    model = presets.load("tiny:smollm2-135m", "fp32", "cpu")
    pieces = model.pieces()
    assert len(pieces) == model.capabilities.vocabulary and {b" ", b"a", b"\n"} <= set(pieces)
    assert {piece for piece in pieces if piece and isinstance(piece, str)} == {"<s>", "</s>"}
    assert b"".join(texts_of([pieces[id] for id in model.encode(" é中")])).decode() == " é中"


def test_bytes_of_sentencepiece_are_pieces() -> None:
    vocabulary = {"\u2581a": 0, "b": 1, "<0xE4>": 2, "<0x0A>": 3, "<unk>": 4}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.ByteFallback()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    model = HFCausal(Identity("x", "fp32", "cpu", Capabilities(6, 8), ""), Released(0), fast)
    assert model.pieces() == [b" a", b"b", b"\xe4", b"\n", "<unk>", ""]
