"""The adapter of picture models: captions, guidance, windows, pictures and variants on random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.image import adapter as image
from stridebench.harness.backbones.image.adapter import ImageModel
from stridebench.harness.backbones.image.vq import VQ
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import shipped
from stridebench.harness.errors import OutputError, UsageError, WeightsError
from stridebench.harness.record.outputs import Picture
from stridebench.harness.train.recipe import save_bf16
from tests.support.caches import feed
from tests.support.tiny_image import PICTURE_REQUIREMENTS
from tests.support.tiny_picture import BEGIN, CODES, EMPTY, PICTURE, SIDE, WORDS, params, prompt, tiny_picture_model

NEAR = 1e-4


@pytest.fixture(scope="module")
def model() -> ImageModel:
    return tiny_picture_model()


class TestPrompts:
    def test_words_then_the_begin_of_a_picture(self, model: ImageModel) -> None:
        assert model.open(prompt("a dog")).tokens == (CODES, CODES + 2, BEGIN)
        assert model.encode("A  Dog\n") == [CODES, CODES + 2, BEGIN]
        assert model.encode("") == model.encode("  ") == [EMPTY, BEGIN]

    def test_ids_are_taken_as_they_are(self, model: ImageModel) -> None:
        assert model.open(Prompt("p", tokens=(3, BEGIN))).tokens == (3, BEGIN)

    @pytest.mark.parametrize(
        ("wrong", "says"),
        [
            (Prompt("p", "a cats"), r"'tiny' does not know the word 'cats'; did you mean 'cat'\? It knows: a"),
            (Prompt("p", tokens=()), f"reads one or more from 0 to {BEGIN}"),
            (Prompt("p", tokens=(BEGIN + 1,)), f"reads one or more from 0 to {BEGIN}"),
            (Prompt("p", tokens=(-1, BEGIN)), f"reads one or more from 0 to {BEGIN}"),
            (Prompt("p", "a " * 31), r"has 32 tokens; with 9 of a picture they would pass the context of 40"),
            (Prompt("p", "a cat", condition=np.zeros(3)), "has another condition"),
        ],
    )
    def test_wrong_prompts_are_refused(self, model: ImageModel, wrong: Prompt, says: str) -> None:
        with pytest.raises(UsageError, match=says):
            model.open(wrong)

    def test_capabilities(self, model: ImageModel) -> None:
        grid = model.capabilities.grid
        assert grid is not None and (grid.rows, grid.columns, grid.length) == (SIDE, SIDE, SIDE * SIDE)
        assert model.capabilities.meets == ImageModel.meets({}) == PICTURE_REQUIREMENTS
        assert (model.capabilities.vocabulary, model.capabilities.eos) == (BEGIN + 1, frozenset())
        assert ImageModel.modality({}) == "image"
        assert model.capabilities.codebook is not None and model.capabilities.codebook.shape == (CODES, 1)


def by_hand(model: ImageModel, ids: list[int], cells: list[int], scale: float) -> Tensor:
    """Two passes of the bare net over everything, mixed."""
    rows = [feed(model._slots(model._net), [*ids, *cells], 0)[len(ids) - 1 :]]
    rows.append(feed(model._slots(model._net), [EMPTY, BEGIN, *cells], 0)[1:])
    return rows[1] + scale * (rows[0] - rows[1])


class TestGuidance:
    @pytest.mark.parametrize("scale", [0.0, 1.0, 2.5])
    def test_rows_mix_two_passes_and_only_codes_are_possible(self, scale: float) -> None:
        model, cells = tiny_picture_model(scale), [3, 0, 16, 5, 5]
        encoded = model.open(prompt())
        ids, cache = list(encoded.tokens), encoded.cache()
        feed(cache, ids[:-1], 0, rows=0)
        rows = torch.cat([feed(cache, [ids[-1], *cells[:2]], len(ids) - 1), feed(cache, cells[2:], len(ids) + 2)])
        expected = by_hand(model, ids, cells, scale)
        torch.testing.assert_close(rows[:, :CODES], expected[:, :CODES], rtol=0, atol=NEAR)
        assert torch.isinf(rows[:, CODES:]).all()

    def test_without_a_prompt_the_caption_is_empty(self, model: ImageModel) -> None:
        rows = feed(model.cache(), [EMPTY, BEGIN, 4], 0)[1:]
        expected = feed(model._slots(model._net), [EMPTY, BEGIN, 4], 0)[1:]
        torch.testing.assert_close(rows[:, :CODES], expected[:, :CODES], rtol=0, atol=NEAR)


class TestPictures:
    def test_levels_become_greys(self, model: ImageModel) -> None:
        pixels = model.decode([0, 16, 8, *[0] * 6]).pixels
        assert pixels.shape == (SIDE, SIDE, 3)
        assert pixels[0].tolist() == [[0] * 3, [255] * 3, [128] * 3]

    @pytest.mark.parametrize(
        ("tokens", "says"),
        [
            ([0] * 8, r"has 9 tokens \(3 rows of 3\) and 8 were made: set max_new_tokens to 9"),
            ([0] * 10, "and 10 were made"),
            ([0] * 8 + [CODES], f"token {CODES} stands for no colour; the codes of 'tiny' end at {CODES}"),
            ([-1] + [0] * 8, "token -1 stands for no colour"),
        ],
    )
    def test_tokens_that_make_no_picture_are_refused(self, model: ImageModel, tokens: list[int], says: str) -> None:
        with pytest.raises(OutputError, match=says):
            model.decode(tokens)

    def test_codes_of_a_tokenizer_are_painted_by_it(self, tmp_path: Path) -> None:
        vq = VQ().eval()
        save_bf16(vq, tmp_path)
        sizes = {"picture": {**PICTURE, "codes": 1024}, "vocab_size": 1024 + len(WORDS) + 2}
        spec = {**params(**sizes), "pixels": {"folder": str(tmp_path)}}
        model = ImageModel.load("tiny", spec, "fp32", "cpu")
        picture = model.decode([5, 900, *[7] * 7])
        assert isinstance(picture, Picture) and picture.pixels.shape == (4 * SIDE, 4 * SIDE, 3)
        expected = VQ.load(tmp_path)
        torch.testing.assert_close(model.capabilities.codebook, expected.codebook)
        ids = torch.tensor([5, 900, *[7] * 7]).view(1, SIDE, SIDE)
        assert np.array_equal(picture.pixels, expected.decode(ids)[0].numpy())
        grey = ImageModel.load("tiny", params(**sizes), "fp32", "cpu")
        assert grey.fingerprint != model.fingerprint


class TestLoading:
    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"guidance": "much"}, "guidance is 'much'; give a number from 0"),
            ({"guidance": -1}, "guidance is -1"),
            ({"pixels": {"hub": {"id": "a/b"}}}, "pixels is a source hub; give shipped: NAME or folder: PATH"),
        ],
    )
    def test_parameters_are_checked(self, changes: dict[str, Any], says: str) -> None:
        with pytest.raises(UsageError, match=says):
            ImageModel.load("tiny", {**params(), **changes}, "fp32", "cpu")

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"picture": None}, "config.json has no entry `picture`"),
            ({"picture": {"rows": 3}}, "config.json has no entry `picture`"),
            ({"picture": {**PICTURE, "rows": 0}}, "do not make up the vocabulary"),
            ({"vocab_size": 30}, "17 codes, 5 words and 2 more ids do not make up the vocabulary of 30"),
        ],
    )
    def test_a_configuration_without_pictures_is_refused(self, changes: dict[str, Any], says: str) -> None:
        with pytest.raises(WeightsError, match=says):
            tiny_picture_model(**changes)

    def test_a_missing_tokenizer_and_one_of_other_codes_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(WeightsError, match="is not a VQ tokenizer"):
            ImageModel.load("tiny", {**params(), "pixels": {"folder": str(tmp_path)}}, "fp32", "cpu")
        save_bf16(VQ(), tmp_path)
        with pytest.raises(WeightsError, match=r"17 codes, and the tokenizer in .* has 1024"):
            ImageModel.load("tiny", {**params(), "pixels": {"folder": str(tmp_path)}}, "fp32", "cpu")

    def test_each_variant_has_its_own_fingerprint(self, model: ImageModel) -> None:
        assert model.variant({}) is model
        plain, short = model.variant({"guidance": "1"}), model.variant({"layers": "2"})
        fingerprints = {model.fingerprint, plain.fingerprint, short.fingerprint, tiny_picture_model(2.0).fingerprint}
        assert len(fingerprints) == 4
        ids = list(model.open(prompt()).tokens)
        rows = feed(plain.open(prompt()).cache(), ids, 0)[-1:]
        torch.testing.assert_close(rows[:, :CODES], by_hand(model, ids, [], 1.0)[:, :CODES], rtol=0, atol=NEAR)
        assert not torch.allclose(feed(short.cache(), [EMPTY, BEGIN], 0), feed(model.cache(), [EMPTY, BEGIN], 0))
        for overrides, says in (({"depth": "2"}, "no variant with depth"), ({"guidance": "x"}, "give a number")):
            with pytest.raises(UsageError, match=says):
                model.variant(overrides)


@pytest.mark.parametrize("family", [("emoji-image", "emoji-image-small"), ("digits-s", "digits-l")])
def test_the_shipped_models_of_a_family_have_one_vocabulary(family: tuple[str, str]) -> None:
    configs = [shipped(name) / "config.json" for name in family]
    assert len({json.loads(config.read_text())["vocab_size"] for config in configs if config.exists()}) <= 1


def test_rotations_in_bf16_are_those_of_fp32_at_the_end_of_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequencies that were rounded to bf16 turn the last position by another angle."""
    turns, fuse, context = [], image.forward_of, 1024

    def turned(model: Any, products: Any) -> Any:
        turns.append(model.model.rotary_emb(torch.empty(1, dtype=torch.float32), torch.tensor([[context - 1]])))
        return fuse(model, products)

    monkeypatch.setattr(image, "forward_of", turned)
    for dtype in ("fp32", "bf16"):
        ImageModel.load("tiny", params(max_position_embeddings=context), dtype, "cpu")
    (whole, rounded) = turns
    assert all(torch.equal(*tables) for tables in zip(whole, rounded, strict=True))
