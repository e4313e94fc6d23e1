"""Encoders of published tokenizers: their layout, and their codes beside those of transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import ChameleonVQVAEConfig, JanusVQVAEConfig
from transformers.models.chameleon.modeling_chameleon import ChameleonVQVAE
from transformers.models.janus.modeling_janus import JanusVQVAE

from stridebench.harness.backbones.image import tar, vqgan
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.plan import presets
from tests.support import tiny_image
from tests.support.caches import feed
from tests.support.layouts import layout

SIZES = {
    "base_channels": 32, "channel_multiplier": [1, 2, 2], "num_res_blocks": 2, "latent_channels": 32,
    "embed_dim": 8, "num_embeddings": 64,
}  # fmt: skip
FAMILIES = ["tar-1.5b", "llamagen-c2i-l", "anole-7b", "lumina-mgpt-7b-512", "janus-pro-1b", "emu3-gen"]


@pytest.mark.parametrize("name", ["llamagen_vq16", "chameleon_vqgan"])
def test_our_encoder_is_the_published_layout(name: str) -> None:
    """Nothing but the decoder's side and the codes are left out."""
    published = {key: torch.empty(sizes, device="meta") for key, sizes in layout(name).items()}
    own = vqgan.encoder_names(published)
    with torch.device("meta"):
        module = vqgan.build(own).state_dict()
    assert {key: value.shape for key, value in module.items()} == {key: value.shape for key, value in own.items()}
    kept = [key for key in published if not vqgan.ENCODER_UNUSED.match(key)]
    assert len(kept) == len(own) and all(key.startswith(("encoder.", "quant_conv.")) for key in kept)


@pytest.mark.parametrize("family", ["chameleon", "janus"])
def test_vectors_and_codes_are_those_of_transformers(family: str) -> None:
    """Janus has LlamaGen's tokenizer, whose vectors and codes lie on a sphere. Transformers' class forgets it."""
    torch.manual_seed(0)
    reference = (
        ChameleonVQVAE(ChameleonVQVAEConfig(**SIZES, attn_type="vanilla", attn_resolutions=None, resolution=32))
        if family == "chameleon"
        else JanusVQVAE(JanusVQVAEConfig(**SIZES, num_patches=4))
    ).eval()
    for weight in reference.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    state = {key.replace(".attn.block_", "."): value for key, value in reference.state_dict().items()}
    own = vqgan.encoder_names(state)
    encoder = vqgan.build(own)
    encoder.load_state_dict(own)
    book = reference.quantize.embedding.weight.detach()
    normalised = family == "janus"
    tokenizer = vqgan.VQTokenizer(
        torch.nn.functional.normalize(book, dim=-1) if normalised else book, 4, normalised, encoder, lambda x: x
    )
    pictures = torch.randint(0, 256, (2, 16, 16, 3), dtype=torch.uint8)
    with torch.no_grad():
        pixels = pictures.permute(0, 3, 1, 2).float() / 127.5 - 1
        vectors = reference.quant_conv(reference.encoder(pixels))
        torch.testing.assert_close(encoder(pixels), vectors, rtol=1e-3, atol=1e-3)
        if normalised:
            sphere = (torch.nn.functional.normalize(one, dim=-1) for one in (vectors.permute(0, 2, 3, 1), book))
            expected = (next(sphere).flatten(0, 2) @ next(sphere).T).argmax(-1)
        else:
            expected = reference.encode(pixels).image_tokens
    assert torch.equal(tokenizer.encode(pictures).flatten(), expected.flatten())
    assert len(expected.unique()) > 4


@pytest.mark.parametrize("name", FAMILIES)
def test_a_backbone_reads_pictures_of_its_own_size(name: str) -> None:
    backbone = presets.load(f"tiny:{name}", "fp32")
    tokenizer, grid = backbone.tokenizer(), backbone.capabilities.grid
    side = grid.rows * tokenizer.factor
    ids = tokenizer.encode(torch.randint(0, 256, (2, side, side, 3), dtype=torch.uint8))
    assert ids.shape == (2, grid.rows, grid.columns)
    assert tokenizer.decode(ids).shape == (2, side, side, 3)
    vectors = tokenizer.codebook[ids].requires_grad_()
    tokenizer.paint(vectors).sum().backward()
    assert vectors.grad is not None and vectors.grad.abs().sum() > 0
    table = backbone.picture_ids()
    assert backbone.codes[table].tolist() == list(range(len(table)))
    with pytest.raises(UsageError, match=f"multiples of {tokenizer.factor}; found"):
        tokenizer.encode(torch.zeros(1, side + 1, side, 3, dtype=torch.uint8))


def test_a_family_without_an_encoder_is_one_message() -> None:
    with pytest.raises(UsageError, match=r"simplear-0\.5b comes without an encoder"):
        presets.load("tiny:simplear-0.5b", "fp32").tokenizer()


def test_a_file_without_an_encoder_is_one_message(tmp_path: Path) -> None:
    backbone = presets.load("tiny:tar-1.5b", "fp32")
    file = Path(presets.resolve("tiny:tar-1.5b").params["parts"]["vq"]["path"])
    body = torch.load(file)["model"]
    whole = {key: value for key, value in body.items() if not key.startswith(("encoder.", "quant_conv."))}
    torch.save({"model": whole}, tmp_path / "vq.pt")
    request = vqgan.PictureRequest("tiny", {"vq": tmp_path / "vq.pt"}, {}, torch.float32, "cpu")
    with pytest.raises(WeightsError, match="has no encoder of pictures"):
        vqgan.read(request, vqgan.VQDecoder(vqgan.VQShape(32, 8, 32, (64, 32), 2)))
    assert backbone.tokenizer().factor == 2


# Tar's stand-ins: a text becomes a picture through a language model, TA-Tok and the de-tokenizer of each size.


SIDES = {"tar-1.5b-256": 4, "tar-1.5b": 8, "tar-7b": 8, "tar-1.5b-1024": 16}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins are written into a folder that the tests of this file share."""
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path_factory.getbasetemp() / "tar-cache"))


@pytest.mark.slow
def test_each_size_has_a_stand_in_whose_pictures_are_as_large_to_one_another() -> None:
    assert {name for name in presets.by_name() if name.startswith("tar-")} == set(SIDES)
    models: dict[str, Any] = {name: presets.load(f"tiny:{name}", "fp32") for name in ("tar-1.5b-256", "tar-1.5b")}
    for name, model in models.items():
        grid = model.capabilities.grid
        assert (grid.rows, grid.columns) == (SIDES[name], SIDES[name]) and model.capabilities.guidance == 4.0
        picture = model.decode(np.arange(grid.rows * grid.columns) + 7)
        assert picture.pixels.shape == (2 * SIDES[name], 2 * SIDES[name], 3)
    small, large = (model.codebook for model in models.values())
    assert torch.equal(small, large)  # of one tokenizer, so that one drafts for the other


@pytest.mark.slow
def test_the_language_model_writes_the_codes_of_a_text() -> None:
    model = presets.load("tiny:tar-1.5b-256", "fp32")
    one, other = (model.open(Prompt("p", text=text)) for text in ("a red fox", "a blue cat"))
    assert len(one.tokens) == 81
    rows = [encoded.cache() for encoded in (one, model.open(Prompt("p", text="a red fox")), other)]
    first, again, different = (feed(cache, one.tokens, 0, rows=1) for cache in rows)
    assert torch.equal(first, again) and not torch.allclose(first, different)


def test_backbones_of_one_language_model_share_it_and_let_it_go(tmp_path: Path) -> None:
    presets.fetch("tiny:tar-1.5b-256")
    folder = Path(presets.resolve("tiny:tar-1.5b-256").params["parts"]["model"]["path"])
    one, two = (tiny_image.request({"length": 81}, model=place) for place in (folder, folder / ".." / folder.name))
    first = tar._language_model(one)
    assert tar._language_model(two) is first
    bf16 = tar._language_model(replace(one, dtype=torch.bfloat16))
    assert bf16 is not first and len(tar.LOADED) == 2
    del first, bf16
    assert not tar.LOADED
