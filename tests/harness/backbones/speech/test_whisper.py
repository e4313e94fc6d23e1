"""Whisper: the decoder over slots, the encoder at open, its grammar, and archives of CTranslate2 read back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from wave import open as wave_file

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.backbones.speech import Whisper, prompt_ids
from stridebench.harness.core.backbone import EncodedPrompt
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.plan import presets
from stridebench.tasks.metrics import wer
from stridebench.tasks.utterances import Utterances
from tests.support.caches import feed
from tests.support.cli import stride
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


def near(logits: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(logits, expected, rtol=0, atol=NEAR)


TOKENS = [int(t) for t in torch.randint(0, VOCABULARY, (40,), generator=torch.Generator().manual_seed(3))]


def fresh(model: Whisper, tokens: Sequence[int], seed: int = 0) -> Tensor:
    return feed(encoded(model, seed).cache(), tokens, 0)


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


@torch.inference_mode()
def test_logits_equal_transformers_but_for_suppressed_ids(model: Whisper) -> None:
    other = fresh(model, [1, PLAIN, *TOKENS])
    seed = 1
    ids = torch.tensor([1, PLAIN, *TOKENS])
    expected = tiny_whisper()(features(seed), decoder_input_ids=ids[None]).logits[0]
    logits = fresh(model, ids.tolist(), seed)
    expected[:, NEVER] = float("-inf")
    expected[1, FIRST] = float("-inf")
    near(logits, expected)
    assert float((logits - other)[:, SAID].abs().max()) > 0.1, "another recording has other logits"
    assert bool(logits[:, NEVER].isinf().all()) and bool(logits[1, FIRST].isinf().all())
    assert bool(logits[[0, 2]][:, FIRST].isfinite().all())


def test_greedy_tokens_equal_those_of_generate(model: Whisper) -> None:
    prompt = Prompt("p", condition=sound(0))
    generated = tiny_whisper().generate(features(0), max_new_tokens=40, do_sample=False, num_beams=1)[0].tolist()
    decoded = decode(model, prompt, 40)
    assert generated == decoded
    assert len(set(decoded)) >= 16


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
        (np.zeros(0, np.float32), "holds no sound"),
        (np.zeros((2, 800), np.float32), r"holds float32 \(2, 800\)"),
        (np.zeros(800, np.int16), r"holds int16 \(800,\)"),
        (3000 * sound(), "has a sample of"),
        (np.full(800, np.nan, np.float32), "has a sample of nan"),
    ],
)
def test_wrong_recordings_are_refused(model: Whisper, wave: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        model.open(Prompt("p", condition=wave))


def test_a_long_recording_is_cut_and_its_row_says_so(
    folder: Path, model: Whisper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny model hears one second; a run of LibriSpeech's longest utterances goes on."""
    long = sound(seconds=1.9)
    opened_long, cut = (model.open(Prompt("p", condition=wave)) for wave in (long, long[:SECOND]))
    assert cut.unread == "" and opened_long.unread == "Whisper heard the first 1 s of 1.90 s of sound"
    near(feed(opened_long.cache(), TOKENS[:4], 0), feed(cut.cache(), TOKENS[:4], 0))
    place = tmp_path / "dev" / "1" / "2"
    place.mkdir(parents=True)
    with wave_file(str(place / "1-2-0000.wav"), "wb") as file:
        file.setparams((1, 2, SECOND, 0, "NONE", ""))
        file.writeframes((32767 * long).astype("<i2").tobytes())
    (place / "1-2.trans.txt").write_text("1-2-0000 HE SAID MORE\n")
    preset = {"adapter": "whisper", "source": {"folder": str(folder)}, "licence": "none"}
    (tmp_path / "tiny-ears.yaml").write_text(json.dumps(preset))
    monkeypatch.setenv("STRIDE_PRESETS", str(tmp_path))
    task = json.dumps({"name": "librispeech", "folder": str(tmp_path / "dev"), "limit": 0})
    words = ("--method", "autoregressive", "--backbone", "tiny-ears", "--task", task, "--max-new-tokens", 4)
    outcome = stride("run", *words, "--set", "prove=false", "--out", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert "1 of 1 prompts were read in part: Whisper heard the first 1 s of 1.90 s" in " ".join(outcome.out.split())


def test_a_recording_is_required_and_no_text_is_read(model: Whisper) -> None:
    with pytest.raises(UsageError, match="open a prompt with a recording"):
        model.cache()
    with pytest.raises(UsageError, match="cannot read a text prompt"):
        model.encode("hello")
    assert model.decode([5, 6]) == ""
    assert Whisper.modality({}) == "speech" and not Whisper.reads_text({})
    assert model.capabilities.meets == {Requirement.TREE_MASK, Requirement.DRAFTER, Requirement.GATE}
    capabilities = model.capabilities
    assert (capabilities.vocabulary, capabilities.context, capabilities.eos) == (VOCABULARY, CONTEXT, {0})


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
    deeper = {**config, "activation_function": "gelu", "decoder_layers": 4}
    (tmp_path / "relu" / "config.json").write_text(json.dumps(deeper))
    with pytest.raises(WeightsError, match=r"lacks \d+ tensors .* model\.decoder\.layers\.3"):
        load(tmp_path / "relu")


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
        spoken = {"language": "en", "task": "transcribe"} if real.capabilities.vocabulary == 51865 else {}
        generated = plain.generate(mel, do_sample=False, num_beams=1, max_new_tokens=40, **spoken)[0].tolist()
        decoded = decode(real, prompt, 40)
        assert [t for t in generated if t not in real.capabilities.eos][-len(decoded) + 1 :] == decoded[:-1]
        transcripts.append(wer.Transcript(prompt.id, prompt.data["reference"], real.decode(decoded)))
    errors = wer.corpus(transcripts)["corpus_wer_no_spelling"]
    assert errors.value is not None and errors.value < 0.05
