"""The published picture models, on random weights of their architectures and on small files of their formats."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig

from stridebench.harness.backbones import tiny as stand_in
from stridebench.harness.backbones.checkpoints import components
from stridebench.harness.backbones.image import llamagen, multimodal, tar, vqgan
from stridebench.harness.backbones.image import llamagen_modules as modules
from stridebench.harness.backbones.image.published import FAMILIES, RealImage, family_of
from stridebench.harness.backbones.slots.cache import Masks, SlotCache
from stridebench.harness.backbones.tiny import pictures as stand_ins
from stridebench.harness.backbones.tiny.texts import character_tokenizer
from stridebench.harness.core.capabilities import Grid
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import OutputError, UsageError, WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.record.outputs import Picture
from tests.support import tiny_image
from tests.support.caches import feed, feed_windows
from tests.support.caches import session as open_session
from tests.support.layouts import layout
from tests.support.tiny_image import CODES, MAKERS, PICTURE_REQUIREMENTS, Tiny, in_fp64

NEAR, FP64 = 1e-4, 1e-11
SCALE = 3.0


@pytest.fixture(scope="module", params=sorted(MAKERS))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return MAKERS[request.param](SCALE, tmp_path_factory.mktemp("parts"))


@pytest.fixture(params=sorted(MAKERS))
def tiny_fp64(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tiny]:
    yield from in_fp64(request.param, SCALE, tmp_path)


def grid_of(tiny: Tiny) -> Grid:
    grid = tiny.backbone.capabilities.grid
    assert grid is not None
    return grid


def drawn(tiny: Tiny, count: int, seed: int = 0) -> list[int]:
    """Ids of cells and forced ids, in the order of a picture."""
    allowed = (tiny.backbone.codes >= 0).nonzero()[:, 0]
    picks = allowed[torch.randint(len(allowed), (count,), generator=torch.Generator().manual_seed(seed))].tolist()
    forced = [grid_of(tiny).forced(place) for place in range(count)]
    return [pick if token is None else token for pick, token in zip(picks, forced, strict=True)]


def same(logits: Tensor, expected: Tensor, near: float) -> None:
    """Equal but for rounding, -inf at the same ids."""
    impossible = torch.isinf(expected)
    assert torch.equal(impossible, torch.isinf(logits)) and not impossible.all(1).any()
    torch.testing.assert_close(logits[~impossible], expected[~impossible], rtol=0, atol=near)


def test_capabilities(tiny: Tiny) -> None:
    capabilities, grid = tiny.backbone.capabilities, grid_of(tiny)
    assert capabilities.meets == PICTURE_REQUIREMENTS and grid.rows == grid.columns == 4
    assert tiny.backbone.modality({}) == "image" and len(tiny.backbone.codes) == capabilities.vocabulary
    codes = tiny.backbone.codes
    assert sorted(codes[codes >= 0].tolist()) == list(range(len(tiny.backbone.codebook)))


def test_a_window_equals_single_tokens(tiny_fp64: Tiny) -> None:
    encoded = tiny_fp64.backbone.open(tiny_fp64.prompt)
    prompt, tokens = len(encoded.tokens), [*encoded.tokens, *drawn(tiny_fp64, 16)]
    assert len(set(tokens)) >= 8
    one = feed_windows(encoded.cache(), tokens, range(len(tokens)))
    many = feed_windows(encoded.cache(), tokens, [0, prompt, prompt + 3])
    same(many[prompt - 1 :], one[prompt - 1 :], FP64)


@pytest.mark.parametrize("family", ["llamagen_c2i", "llamagen_t2i", "tar"])
def test_guidance_is_two_separate_passes_mixed(family: str, tmp_path: Path) -> None:
    """Of prompts that are vectors; below, transformers mixes the others."""
    tiny = MAKERS[family](SCALE, tmp_path)
    model, picture = tiny.backbone._model, drawn(tiny, 8)
    reading, masks = model.read(model.net, tiny.prompt), Masks(model.context, torch.float32, torch.device("cpu"))
    branches = []
    for net, prompt in ((reading.net, reading.tokens), (reading.other, reading.negative)):
        logits = feed(SlotCache(net, model.context, masks), [*prompt, *picture], 0)
        branches.append(logits[len(prompt) - 1 :, :CODES])
    assert not torch.allclose(branches[0], branches[1])
    mixed = branches[1] + SCALE * (branches[0] - branches[1])
    guided = feed(tiny.backbone.open(tiny.prompt).cache(), [*reading.tokens, *picture], 0)[len(reading.tokens) - 1 :]
    torch.testing.assert_close(guided[:, :CODES], mixed, rtol=0, atol=NEAR)


def greedy(tiny: Tiny) -> list[int]:
    encoded = tiny.backbone.open(tiny.prompt)
    target = open_session(encoded.cache(), tiny.backbone.capabilities, encoded.tokens)
    start = len(target)
    for _ in range(grid_of(tiny).length):
        target.append(target.forward()[0].argmax()[None])
    return list(target.tokens[start:])


@pytest.mark.parametrize("family", ["anole", "lumina", "emu3", "simplear"])
def test_tokens_are_those_of_transformers_generate(family: str, tmp_path: Path) -> None:
    """Its own guidance and its own constraint; for Chameleon without the ban on picture ids that its class has."""
    tiny = MAKERS[family](SCALE, tmp_path)
    model, reading, grid = tiny.origin, tiny.backbone._model.read(tiny.backbone._model.net, tiny.prompt), grid_of(tiny)
    if hasattr(model.model, "vocabulary_mapping"):
        model.model.vocabulary_mapping.__dict__["image_tokens"] = []
    cells = (tiny.backbone.codes >= 0).nonzero()[:, 0].tolist()

    def allowed(batch: int, ids: Tensor) -> list[int]:
        forced = grid.forced(len(ids) - len(reading.tokens))
        return cells if forced is None else [forced]

    greedily = {"do_sample": False, "guidance_scale": SCALE, "pad_token_id": 2}
    out = model.generate(
        torch.tensor([reading.tokens]),
        generation_config=GenerationConfig(max_new_tokens=grid.length, **greedily),
        negative_prompt_ids=torch.tensor([reading.negative]),
        prefix_allowed_tokens_fn=allowed,
    )
    tokens = greedy(tiny)
    assert out[0, len(reading.tokens) :].tolist() == tokens
    assert len(set(tokens)) > 1


def test_tokens_are_those_of_janus_generate(tmp_path: Path) -> None:
    tiny = MAKERS["janus"](SCALE, tmp_path)
    words, model = tiny.tokenizer, tiny.origin
    boi = words.get_vocab()["<begin_of_image>"]
    ids = [token - CODES for token in tiny.backbone.open(tiny.prompt).tokens]
    config = GenerationConfig(do_sample=False, guidance_scale=SCALE, bos_token_id=0, pad_token_id=4, max_length=100)
    config.generation_kwargs = {"boi_token_id": boi}
    assert words.get_vocab()["<｜▁pad▁｜>"] == 4 and ids[0] == 0 and ids[-1] == boi
    ids_tensor = torch.tensor([ids])
    out = model.generate(
        ids_tensor, attention_mask=torch.ones_like(ids_tensor), generation_mode="image", generation_config=config
    )
    assert out[0].tolist() == greedy(tiny)


def plain_forward(gpt: modules.GPT, prompt: Tensor, cells: list[int]) -> Tensor:
    """LlamaGen without a cache, by complex rotations: logits after the prompt and after each cell."""
    shape = gpt.shape
    x = torch.cat([prompt, gpt.tok_embeddings.weight[cells]])
    count, width = len(x), shape.width // shape.heads
    if shape.kind == "tar":
        x = x + gpt.abs_pe[0, :count]
    turns = torch.zeros(count, 1, width // 2, dtype=torch.complex64)
    rates = 10000.0 ** (-torch.arange(0, width // 2, 2) / (width // 2))
    for place in range(count - len(prompt)):
        row, column = divmod(place, shape.side)
        turns[len(prompt) + place, 0] = torch.exp(1j * torch.cat([row * rates, column * rates]))
    for layer in gpt.layers:
        parts: Any = layer
        q, k, v = parts.attention.wqkv(parts.attention_norm(x)).view(count, 3, shape.heads, width).unbind(1)
        if shape.kind != "tar":
            q, k = (
                torch.view_as_real(torch.view_as_complex(e.view(*e.shape[:2], -1, 2)) * turns).flatten(2)
                for e in (q, k)
            )
        scores = torch.einsum("nhd,mhd->hnm", q, k) / width**0.5
        scores = scores.masked_fill(torch.ones(count, count).triu(1).bool(), float("-inf"))
        x = x + parts.attention.wo(torch.einsum("hnm,mhd->nhd", scores.softmax(-1), v).reshape(count, -1))
        mlp, normed = parts.feed_forward, parts.ffn_norm(x)
        x = x + mlp.w2(functional.silu(mlp.w1(normed)) * mlp.w3(normed))
    return gpt.output(gpt.norm(x))[len(prompt) - 1 :]


@pytest.mark.parametrize("family", ["llamagen_c2i", "llamagen_t2i", "tar"])
def test_llamagen_and_tar_equal_a_forward_by_hand(family: str, tmp_path: Path) -> None:
    tiny = MAKERS[family](1.0, tmp_path)
    reading, cells = tiny.backbone._model.read(tiny.backbone._model.net, tiny.prompt), drawn(tiny, 14)
    net: Any = reading.net
    expected = plain_forward(net.gpt, net._prompt, cells)
    logits = feed(tiny.backbone.open(tiny.prompt).cache(), [*reading.tokens, *cells], 0)[len(reading.tokens) - 1 :]
    torch.testing.assert_close(logits[:, :CODES], expected, rtol=0, atol=NEAR)


def test_a_caption_loses_its_padding_and_keeps_its_positions(tmp_path: Path) -> None:
    """The published code masks leading vectors of zeros, so they are not read at all."""
    tiny = MAKERS["llamagen_t2i"](SCALE, tmp_path)
    condition = tiny.prompt.condition
    assert condition is not None
    bare = Prompt("p", condition=condition[2:])
    reading, plain = (tiny.backbone._model.read(tiny.backbone._model.net, prompt) for prompt in (tiny.prompt, bare))
    nets: list[Any] = [reading.net, plain.net, reading.other]
    assert len(reading.tokens) == len(reading.negative) == 4 and torch.equal(nets[0]._prompt, nets[1]._prompt)
    gpt = nets[0].gpt
    null = gpt.cls_embedding.uncond_embedding[-4:]
    torch.testing.assert_close(nets[2]._prompt, gpt.cls_embedding.cap_proj(null))


def test_a_picture_has_the_right_size_and_wrong_ids_are_no_picture(tiny: Tiny) -> None:
    grid, tokens = grid_of(tiny), drawn(tiny, grid_of(tiny).length)
    picture = tiny.backbone.decode(tokens)
    assert isinstance(picture, Picture)
    height = picture.pixels.shape[0]
    assert height in (8, 32, 64) and picture.pixels.shape == (height, height, 3)
    other = tiny.backbone.decode(drawn(tiny, grid.length, seed=5))
    assert not np.array_equal(picture.pixels, other.pixels)
    with pytest.raises(OutputError, match=rf"{grid.length} tokens .* and {len(tokens) - 1} were made"):
        tiny.backbone.decode(tokens[:-1])
    outside = int((tiny.backbone.codes < 0).nonzero()[0])
    for bad in (outside, -1, tiny.backbone.capabilities.vocabulary):
        with pytest.raises(OutputError, match="not a picture code"):
            tiny.backbone.decode([bad, *tokens[1:]])


@pytest.mark.parametrize("family", ["lumina", "emu3"])
def test_lines_and_frames_end_where_the_model_ends_them(family: str, tmp_path: Path) -> None:
    tiny = MAKERS[family](SCALE, tmp_path)
    grid, tokens = grid_of(tiny), greedy(tiny)
    assert grid.eol is not None and grid.stride == grid.columns + 1
    row_ends = [tokens[row * grid.stride + grid.columns] for row in range(grid.rows)]
    assert set(row_ends) == {grid.eol} and tuple(tokens[grid.rows * grid.stride :]) == grid.tail
    assert len(grid.tail) == {"lumina": 0, "emu3": 3}[family]
    with pytest.raises(OutputError, match=f"place {grid.columns} .* is id {grid.eol}"):
        tiny.backbone.decode([*tokens[: grid.columns], tokens[0], *tokens[grid.stride :]])


def test_pixels_are_those_of_transformers(tmp_path: Path) -> None:
    """Janus has LlamaGen's tokenizer: its decoder's weights load into ours under LlamaGen's names."""
    tiny = MAKERS["janus"](SCALE, tmp_path)
    vq = tiny.origin.model.vqmodel.eval()
    state = {key: value for key, value in vq.state_dict().items() if not key.startswith(("encoder", "quant_conv"))}
    for there, here in (("mid.block_1", "mid.0"), ("mid.attn_1", "mid.1"), ("mid.block_2", "mid.2")):
        state = {key.replace(there, here): value for key, value in state.items()}
    state = {
        key.replace("decoder.up.", "decoder.conv_blocks.").replace(".block.", ".res."): v for key, v in state.items()
    }
    decoder = vqgan.VQDecoder(vqgan.shape_of(state, normalised=True))
    decoder.load_state_dict(state)
    ids = torch.arange(16).view(4, 4)
    with torch.inference_mode():
        torch.testing.assert_close(decoder(ids), vq.decode(ids.view(1, -1))[0], rtol=0, atol=NEAR)


def test_codes_of_finite_scalar_quantisation() -> None:
    codes = multimodal.fsq((8, 8, 8, 5, 5, 5))
    assert codes.shape == (64000, 6) and len(codes.unique(dim=0)) == 64000
    assert codes[0].tolist() == [-1.0] * 6 and codes[1].tolist() == [-0.75, *[-1.0] * 5]
    assert codes[-1].tolist() == [0.75, 0.75, 0.75, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("llamagen_c2i_l", modules.published("c2i", "L", 24)),
        ("llamagen_c2i_xl", modules.published("c2i", "XL", 24)),
        ("llamagen_t2i_xl", modules.published("t2i", "XL", 32)),
        ("tar_ar_dtok_256", modules.published("tar", "LP", 16)),
        ("tar_ar_dtok_512", modules.published("tar", "LP", 32)),
        ("tar_ar_dtok_1024", modules.published("tar", "LP", 64)),
    ],
)
def test_our_modules_have_the_published_layout(name: str, shape: modules.LlamaGenShape) -> None:
    """0 missing, 0 unexpected, every shape."""
    with torch.device("meta"):
        own = modules.GPT(shape).state_dict()
    assert {key: tuple(value.shape) for key, value in own.items()} == layout(name)


LLAMAGEN_VQ = vqgan.VQShape(16384, 8)
CHAMELEON_VQ = vqgan.VQShape(8192, 256, attends=False, normalised=False)


@pytest.mark.parametrize(("name", "shape"), [("llamagen_vq16", LLAMAGEN_VQ), ("chameleon_vqgan", CHAMELEON_VQ)])
def test_our_picture_decoder_is_the_published_layout(name: str, shape: vqgan.VQShape) -> None:
    """Nothing but the encoder's side is left out."""
    published = {key: torch.empty(sizes, device="meta") for key, sizes in layout(name).items()}
    own = vqgan.own_names(published)
    with torch.device("meta"):
        module = vqgan.VQDecoder(shape).state_dict()
    assert {key: value.shape for key, value in module.items()} == {key: value.shape for key, value in own.items()}
    assert vqgan.shape_of(own, shape.normalised) == shape
    idle = [key for key in published if vqgan.UNUSED.match(key)]
    assert all(key.startswith(("encoder.", "quant_conv.", "quantize.codebook_used")) for key in idle)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_error_of_a_preset_names_each_absent_component_and_its_place(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    spec = next(spec for spec in presets.by_name().values() if spec.params.get("family") == family)
    assert (spec.adapter, spec.modality()) == ("real_image", "image")
    assert spec.meets() == PICTURE_REQUIREMENTS and spec.licence and family_of(family).components
    assert not components.ready(spec.params["parts"])
    with pytest.raises(WeightsError) as caught:
        RealImage.load(spec.name, spec.params, "bf16", "cpu")
    for component in spec.params["parts"].values():
        for part in (component["hub"], component.get("file", ""), str(components.place(component))):
            assert part in str(caught.value)


def saved(family: str, folder: Path) -> dict[str, Any]:
    """Parameters of a preset for small files of the published formats, which this writes."""
    published = next(spec.params for spec in presets.by_name().values() if spec.params.get("family") == family)
    paths = {key: folder / stand_in.FILES[key] for key in published["parts"] if key != "text"}
    pixels = published.get("pixels", 0) // stand_in.PIXELS
    stand_ins.save(family, paths, pixels)
    parts = {key: {"path": str(path)} for key, path in paths.items()}
    sized = {"pixels": pixels} if family == "tar" else {}
    return {**published, "parts": parts, "guidance": SCALE, **stand_in.PICTURES[family], **sized}


@pytest.mark.parametrize("family", sorted(MAKERS))
def test_files_of_the_published_formats_load(family: str, tmp_path: Path) -> None:
    params = saved(family, tmp_path)
    loaded = RealImage.load("tiny", params, "fp32", "cpu")
    prompt = Prompt("p", text="3 a red fox")
    if family == "llamagen_t2i":
        prompt = Prompt("p", condition=np.ones((5, 2048), dtype=np.float32))
    if family == "tar":
        prompt = Prompt("p", condition=np.ones((81, 24), dtype=np.float32))
    logits = feed(loaded.open(prompt).cache(), list(loaded.open(prompt).tokens), 0)
    assert torch.isfinite(logits[-1]).sum() == (loaded.codes >= 0).sum()
    first = next(iter(params["parts"]))
    Path(params["parts"][first]["path"]).rename(tmp_path / "gone")
    with pytest.raises(WeightsError, match=rf"{first} is the file or folder .*{first}"):
        RealImage.load("tiny", params, "fp32", "cpu")


def test_loading_keeps_the_weights(tmp_path: Path) -> None:
    """The loaded model gives the logits and pictures of the saved one, and has the fingerprint of its files."""
    loaded, again = (RealImage.load("tiny", saved("emu3", tmp_path), "fp32", "cpu") for _ in "ab")
    assert loaded.fingerprint == again.fingerprint
    tiny = MAKERS["emu3"](SCALE, tmp_path)
    tokens = [*tiny.backbone.open(tiny.prompt).tokens, *drawn(tiny, 6)]
    same(*(feed(one.open(tiny.prompt).cache(), tokens, 0)[-6:] for one in (loaded, tiny.backbone)), NEAR)
    pictures = [backbone.decode(drawn(tiny, grid_of(tiny).length)) for backbone in (loaded, tiny.backbone)]
    assert np.array_equal(pictures[0].pixels, pictures[1].pixels)


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    params = saved("llamagen_c2i", tmp_path)
    path = tmp_path / "gpt.pt"
    good = torch.load(path)["model"]
    for state, message in (
        ({key: tensor for key, tensor in good.items() if key != "norm.weight"}, "lacks norm.weight"),
        ({**good, "extra.weight": torch.ones(1)}, "has, and the model has not, extra.weight"),
        ({"nothing": 1}, "no tensors by name"),
        (None, "cannot be read as weights"),
    ):
        torch.save({"model": state}, path) if state else path.write_bytes(b"not weights")
        with pytest.raises(WeightsError, match=message):
            RealImage.load("tiny", params, "fp32", "cpu")


def test_a_folder_that_lacks_tensors_is_refused(tmp_path: Path) -> None:
    params = saved("anole", tmp_path)
    config = tmp_path / "model" / "config.json"
    body = json.loads(config.read_text())
    config.write_text(json.dumps({**body, "num_hidden_layers": 4}))
    with pytest.raises(WeightsError, match=r"lacks \d+ tensors of the model"):
        RealImage.load("tiny", params, "fp32", "cpu")
    (tmp_path / "model" / "tokenizer.json").unlink()
    (tmp_path / "model" / "tokenizer_config.json").unlink()
    config.write_text(json.dumps(body))
    with pytest.raises(WeightsError, match="lacks a tokenizer"):
        RealImage.load("tiny", params, "fp32", "cpu")


def test_a_configuration_without_a_vocabulary_map_uses_the_tokenizers(tmp_path: Path) -> None:
    """As in the published Anole, whose configuration is older than the field."""
    params = saved("anole", tmp_path)
    config = tmp_path / "model" / "config.json"
    body = json.loads(config.read_text())
    config.write_text(json.dumps({**body, "vocabulary_map": None}))
    loaded, tiny = RealImage.load("tiny", params, "fp32", "cpu"), MAKERS["anole"](SCALE, tmp_path)
    assert torch.equal(loaded.codes, tiny.backbone.codes)
    words = tiny.tokenizer.get_vocab()
    assert loaded.codes[words["IMGIMGDBZ"]] == 31 and loaded.codes[words["IMGIMGAZ"]] == 0


@pytest.fixture(scope="module")
def c2i_params(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return saved("llamagen_c2i", tmp_path_factory.mktemp("c2i"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "nothing"}, "no family of picture models 'nothing'"),
        ({"speed": 3}, "no parameter 'speed'"),
        ({"guidance": "high"}, "guidance is 'high'"),
        ({"parts": {}}, "must have gpt, vq"),
        ({"parts": {"gpt": {"path": "a"}, "vq": {"url": "b"}}}, "`parts` maps names"),
        ({"net": "XXXXL"}, "net is 'XXXXL'"),
        ({"pixels": 7}, "whole multiple of 2"),
    ],
)
def test_wrong_parameters_are_refused(change: Mapping[str, Any], message: str, c2i_params: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=message):
        RealImage.load("tiny", {**c2i_params, **change}, "fp32", "cpu")


@pytest.mark.parametrize(
    ("family", "prompt", "message"),
    [
        ("anole", Prompt("q", tokens=(1, 2)), "'q' has no text"),
        ("llamagen_c2i", Prompt("q", text="a fox"), "draws a class"),
        ("llamagen_c2i", Prompt("q", text="10"), "0 to 9, first"),
        ("llamagen_t2i", Prompt("q", text="a fox"), "a part `text`"),
        ("llamagen_t2i", Prompt("q", condition=np.ones((11, 12))), "n from 1 to 10"),
        ("llamagen_t2i", Prompt("q", condition=np.ones((3, 13))), r"condition \[3, 13\]"),
        ("tar", Prompt("q", text="a fox"), "has no condition"),
        ("tar", Prompt("q", condition=np.arange(80)), r"condition \[80\]"),
        ("emu3", Prompt("q", text="fox " * 400), "would pass the context"),
    ],
)
def test_wrong_prompts_are_refused(family: str, prompt: Prompt, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        MAKERS[family](SCALE, tmp_path).backbone.open(prompt)


def test_captions_go_through_t5(tmp_path: Path) -> None:
    """Lower case, single blanks, no padding, cut to the longest prompt."""
    from transformers import T5Config, T5EncoderModel

    sizes = {"vocab_size": 120, "d_model": 12, "d_kv": 4, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    torch.manual_seed(0)
    encoder = T5EncoderModel(T5Config(**sizes)).eval()
    words = character_tokenizer([])
    for saveable in (encoder, words):
        saveable.save_pretrained(tmp_path)
    captions = llamagen.t5(tiny_image.request({}), tmp_path, 5)
    expected = encoder(words("red f", return_tensors="pt").input_ids).last_hidden_state[0]
    torch.testing.assert_close(captions("  RED \n Fox"), expected)
    with pytest.raises(WeightsError, match="lacks a tokenizer"):
        llamagen.t5(tiny_image.request({}), tmp_path / "empty", 5)


def test_tar_writes_codes_once_a_prompt_and_embeds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for saveable in stand_ins.tar_parts(500):
        saveable.save_pretrained(tmp_path)
    monkeypatch.setattr(tar, "LENGTHS", (25, 16, 9))
    request = tiny_image.request({"length": 9, "normalised": True}, model=tmp_path)
    write, state = tar.writer(request), torch.get_rng_state()
    codes = write("a fox")
    assert torch.equal(codes, write("a fox")) and not torch.equal(codes, write("a cat"))
    assert codes.shape == (9,) and len(codes.unique()) > 2 and torch.equal(state, torch.get_rng_state())
    file = stand_ins.tatok_state(500, 24)
    torch.manual_seed(1)
    module = tar.Meanings(500, 24, 24, 1, 16)
    unused = {"encoder.weight": torch.ones(1), "decoder.vision_model.head.probe": torch.ones(1)}
    torch.testing.assert_close(tar.meanings(request, {**file, **unused})(codes), module(codes))
    del file["bottleneck.out_linear.bias"]
    with pytest.raises(WeightsError, match=r"lacks out_linear\.bias"):
        tar.meanings(request, file)


def test_a_component_copied_by_hand_is_used_and_an_absent_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    parts = {"vq": {"hub": "someone/something", "file": "a/b.pt"}, "model": {"hub": "someone/else"}}
    with pytest.raises(WeightsError, match=r"a/b\.pt of someone/something at revision main cannot be had"):
        components.fetch("tiny", parts)
    file = tmp_path / "files" / "someone--something" / "a" / "b.pt"
    folder = tmp_path / "files" / "someone--else"
    file.parent.mkdir(parents=True)
    folder.mkdir()
    file.write_bytes(b"x")
    assert components.find(parts["vq"]) == file and not components.ready(parts)
    (folder / "config.json").write_text("{}")
    assert components.ready(parts) and components.locate("tiny", parts) == {"vq": file, "model": folder}
    lines: list[str] = []
    components.fetch("tiny", parts, lines.append)
    assert not lines
