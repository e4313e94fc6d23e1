"""Training of picture models: the exported model, samples and losses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.image.adapter import ImageModel, PictureLayout
from stridebench.harness.backbones.image.vq import VQ
from stridebench.harness.core.draft import Fill
from stridebench.harness.core.models import Models
from stridebench.harness.errors import OutputError, WeightsError
from stridebench.harness.registry import RECIPES
from stridebench.harness.train.backbones import decoder
from stridebench.harness.train.backbones import emoji_image as recipes
from stridebench.harness.train.backbones.image_recipe import PictureBatch, nats, random_groups, sample
from stridebench.harness.train.recipe import save_bf16
from tests.support.caches import feed
from tests.support.tiny_picture import CAPTION, CODES, SIDE, WORDS, params, prompt

NEAR = 1e-4


LAYOUT = PictureLayout(SIDE, SIDE, CODES, WORDS)

CLOSED = dataclasses.replace(LAYOUT, closed=True)
ORDER_FREE = dataclasses.replace(LAYOUT, queries=True)


def small_decoder(dropout: float = 0.0, layout: PictureLayout = LAYOUT) -> decoder.TrainableDecoder:
    torch.manual_seed(0)
    model = decoder.TrainableDecoder(
        decoder.DecoderShape(layout.vocabulary, 32, 48, 2, 2, 40), layout.config(), dropout
    )
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + torch.rand_like(weight))
        model.embed.mul_(20)
        model.head.mul_(5)
    return model.eval()


class TestTraining:
    @pytest.mark.parametrize("layout", [LAYOUT, CLOSED], ids=["open", "closed"])
    def test_the_exported_model_computes_the_losses_of_the_trained_one(
        self, layout: PictureLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In fp32 on both sides; the tolerance covers the rounding of the stored weights."""
        monkeypatch.setattr(decoder, "PRODUCTS", torch.float32)
        trained = small_decoder(layout=layout)
        trained.export(tmp_path)
        model = ImageModel.load("tiny", {"source": {"folder": str(tmp_path)}}, "fp32", "cpu")
        assert model._net.kind == "fused"
        assert model.capabilities.grid == layout.grid
        ids, cells = model.encode(CAPTION), torch.tensor([3, 0, 16, 5, 5, 1, 2, 9, 11])
        written = layout.written(cells)
        assert model.decode(written.tolist()).pixels.shape[:2] == (SIDE, SIDE)
        rows = feed(model.open(prompt()).cache(), [*ids, *written[:-1].tolist()], 0)[len(ids) - 1 :]
        with torch.no_grad():
            losses = nats(trained, layout, PictureBatch([CAPTION], cells[None]))[0]
        expected = -rows[layout.places(), :CODES].log_softmax(-1)[torch.arange(9), cells]
        torch.testing.assert_close(losses, expected, rtol=0, atol=0.03)
        assert float(rows[layout.places(), :CODES].std()) > 1

    @pytest.mark.parametrize("seed", [1, 2])
    def test_an_order_free_model_decodes_as_trained(
        self, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Group after group on a canvas, against the one pass of the training over cells and queries."""
        monkeypatch.setattr(decoder, "PRODUCTS", torch.float32)
        trained = small_decoder(layout=ORDER_FREE)
        trained.export(tmp_path)
        model = ImageModel.load("tiny", {"source": {"folder": str(tmp_path)}, "queries": True}, "fp32", "cpu")
        cells, groups = torch.tensor([3, 0, 16, 5, 5, 1, 2, 9, 11]), random_groups(np.random.default_rng(seed), 9)
        assert 1 < len(set(groups.tolist())) < 9
        with torch.no_grad():
            batch = PictureBatch([CAPTION], cells[None])
            losses = nats(trained, ORDER_FREE, batch, np.random.default_rng(seed))[0]
        canvas, expected = Models(model, lambda name: model, prompt()).canvas(9), torch.zeros(9)
        for group in range(max(groups) + 1):
            chosen = torch.from_numpy(np.flatnonzero(groups == group))
            with torch.inference_mode():
                logits = canvas.ask((canvas.start + chosen).tolist())
            assert not logits[:, CODES:].isfinite().any()
            expected[chosen] = -logits[:, :CODES].log_softmax(-1).gather(1, cells[chosen, None])[:, 0]
            canvas.fill(Fill(canvas.start + chosen, cells[chosen]))
        torch.testing.assert_close(losses, expected, rtol=0, atol=0.03)

    def test_a_query_knows_the_cells_of_earlier_groups_alone(self) -> None:
        model, cells = small_decoder(layout=ORDER_FREE), torch.arange(9)[None]
        groups = random_groups(np.random.default_rng(3), 9)

        def losses(cells: Tensor) -> Tensor:
            with torch.no_grad():
                return nats(model, ORDER_FREE, PictureBatch(["a dog"], cells), np.random.default_rng(3))[0]

        before = losses(cells)
        for cell in range(9):
            changed = cells.clone()
            changed[0, cell] = 12
            later = torch.from_numpy(groups > groups[cell]) | (torch.arange(9) == cell)
            assert (losses(changed) != before).tolist() == later.tolist()

    def test_groups_are_between_an_eighth_of_the_cells_and_all(self) -> None:
        counts = [len(np.unique(random_groups(np.random.default_rng(seed), 64))) for seed in range(60)]
        assert min(counts) >= 8 and max(counts) <= 64 and sum(count <= 22 for count in counts) in range(20, 41)

    def test_the_preset_and_the_configuration_must_agree_on_queries(self) -> None:
        given = params(vocab_size=ORDER_FREE.vocabulary, picture=ORDER_FREE.config()["picture"])
        assert ImageModel.load("tiny", {**given, "queries": True}, "fp32", "cpu").capabilities.queries == range(24, 33)
        with pytest.raises(WeightsError, match=r"config\.json says queries: True, and the preset the opposite"):
            ImageModel.load("tiny", given, "fp32", "cpu")

    def test_rows_of_a_closed_picture_end_with_their_token_and_no_other(self) -> None:
        model = ImageModel.load(
            "tiny", params(vocab_size=CLOSED.vocabulary, picture=CLOSED.config()["picture"]), "fp32", "cpu"
        )
        eol = CLOSED.grid.eol
        assert eol == CLOSED.vocabulary - 1
        assert CLOSED.written(torch.arange(9)).tolist() == [0, 1, 2, eol, 3, 4, 5, eol, 6, 7, 8, eol]
        ids = model.encode(CAPTION)
        rows = feed(model.open(prompt()).cache(), [*ids, *[1, 2, 3, eol, 4]], 0)[len(ids) - 1 :]
        assert rows.isfinite().nonzero()[:, 0].bincount().tolist() == [CODES, CODES, CODES, 1, CODES, CODES]
        assert float(rows[3, eol]) > float("-inf")
        with pytest.raises(OutputError, match=f"place 3 of a picture of 'tiny' is id {eol}; found 0"):
            model.decode([1, 2, 3, 0, 1, 2, 3, eol, 1, 2, 3, eol])
        with pytest.raises(OutputError, match="set max_new_tokens to 12"):
            model.decode([1] * 9)

    def test_a_sample_of_closed_rows_has_the_distribution_of_its_second_row(self) -> None:
        """The first cell of a row follows the end of the one before it."""
        layout = dataclasses.replace(CLOSED, rows=2, columns=1)
        trained = small_decoder(layout=layout)
        with torch.no_grad():
            drawn = sample(trained, layout, ["a cat"] * 3000, np.random.default_rng(0))
            common = int(drawn[:, 0].mode().values)
            ids = torch.tensor([[*layout.prompt("", "a cat"), common, layout.grid.eol or 0]])
            probs = trained.logits(trained(ids)[0, -1], CODES).softmax(-1)
        second = drawn[drawn[:, 0] == common, 1]
        share = torch.bincount(second, minlength=CODES) / len(second)
        assert float((share - probs).abs().sum() / 2) < 1.2 * (CODES / len(second)) ** 0.5

    def test_captions_do_not_change_each_others_losses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(decoder, "PRODUCTS", torch.float32)
        trained, captions = small_decoder(), ["a cat", CAPTION, ""]
        cells = torch.randint(0, CODES, (3, 9), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            together = nats(trained, LAYOUT, PictureBatch(captions, cells))
            alone = [nats(trained, LAYOUT, PictureBatch([c], x[None]))[0] for c, x in zip(captions, cells, strict=True)]
        torch.testing.assert_close(together, torch.stack(alone), rtol=0, atol=1e-5)

    def test_samples_follow_the_distribution_of_the_first_cell(self) -> None:
        """1,500 draws at a fixed seed; a correct sampler differs by more than 0.08 in one reseeding of 10,000."""
        trained = small_decoder()
        with torch.no_grad():
            prompts = [torch.tensor([LAYOUT.prompt("", text)]) for text in ("a cat", "")]
            rows = [trained.logits(trained(ids)[0, -1], CODES) for ids in prompts]
            probs = torch.lerp(rows[1], rows[0], 2.0).softmax(-1)
            drawn = sample(trained, PictureLayout(1, 1, CODES, WORDS), ["a cat"] * 1500, np.random.default_rng(0), 2.0)
        share = torch.bincount(drawn[:, 0], minlength=CODES) / 1500
        assert float((share - probs).abs().sum() / 2) < 0.08

    def test_dropout_acts_in_training_only(self) -> None:
        trained = small_decoder(0.5)
        ids = torch.tensor([[1, 2, 3]])
        assert torch.equal(trained(ids), trained(ids))
        assert not torch.equal(trained.train()(ids), trained(ids))

    def test_steps_on_scenes_lower_the_loss_and_the_tokenizer_is_not_trained(self, tmp_path: Path) -> None:
        save_bf16(VQ(), tmp_path)
        recipe = RECIPES.get("emoji-image-8x8")
        recipe = dataclasses.replace(recipe, width=32, inner=32, layers=1, heads=2, batch=6, compiled=False)
        torch.manual_seed(0)
        model = recipe.build({recipes.TOKENIZER: tmp_path})
        assert not any("vq" in name or "encoder" in name for name in model.state_dict())
        assert recipe.layout.cells == 64
        optimiser = torch.optim.AdamW(recipe.groups(model), lr=1e-2)
        losses = []
        for _ in range(6):
            loss = recipe.loss(model, 0, np.random.default_rng(0))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(float(loss.detach()))
        assert losses[-1] < losses[0] - 0.3
