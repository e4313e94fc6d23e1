"""Cross-Regression on Whisper's decoder: gated rows against peft's merged weights, and the training of an adapter."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.speech import Whisper
from stridebench.harness.core.cache import Cache, Window
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import DataMissing, UsageError, WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.synthetic import speech
from stridebench.harness.train.gated_lora import GatedLora
from stridebench.methods.autoregressive import Autoregressive
from stridebench.methods.cross_regression import CrossRegression
from stridebench.methods.training.adapters.recipes import (
    Denoising,
    Recordings,
    TrainAdapter,
    inputs,
    inside,
    roots,
    targets,
    transcribed,
)
from tests.support import peft_adapter
from tests.support.decodes import decoded, run_on
from tests.support.peft_adapter import write_adapter
from tests.support.tiny_whisper import FIRST, NEVER, PLAIN, SAID, VOCABULARY, features, load, sound, tiny_whisper

peft = pytest.importorskip("peft")
TARGETS = r"model\.decoder\.layers\.\d\.(self_attn\.[qkv]_proj|.*out_proj|encoder_attn\.q_proj|fc[12])"
TOKENS = (1, PLAIN, 14, 15, 9, 26, 5, 35, 3)
NEAR = 1e-4
RECORDING = sound()


@pytest.fixture(scope="module", autouse=True)
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Whisper that sometimes emits its end of text."""
    model = tiny_whisper()
    torch.nn.init.normal_(model.model.decoder.embed_tokens.weight.data[0], std=0.8)  # as padding it was zero
    model.generation_config.suppress_tokens = NEVER[1:]
    folder = tmp_path_factory.mktemp("whisper")
    model.save_pretrained(folder)
    return folder


def adapted(**settings: Any) -> Any:
    return peft_adapter.adapted(tiny_whisper(), **{"target_modules": TARGETS, **settings})


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Whisper:
    folder = tmp_path_factory.mktemp("plain")
    tiny_whisper().save_pretrained(folder)
    return load(folder)


@pytest.fixture(scope="module")
def folder(plain: Whisper, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter"), adapted(), plain.fingerprint)


def opened(model: Whisper) -> Cache:
    return model.open(Prompt("p", condition=RECORDING)).cache()


def feed(cache: Cache, first: int, end: int, gate: list[int] | None, adapter: Any) -> Tensor:
    marks = None if gate is None else torch.tensor(gate, dtype=torch.bool)
    ids, count = torch.tensor(TOKENS[first:end]), end - first
    return cache.extend(Window(ids, torch.arange(first, end), first, None, count, gate=marks, adapter=adapter)).logits


class TestRows:
    def test_rows_with_the_gate_are_those_of_merged_weights(self, plain: Whisper, folder: Path) -> None:
        merged = adapted().merge_and_unload()
        with torch.inference_mode():
            expected = merged(features(0), decoder_input_ids=torch.tensor([TOKENS])).logits[0]
        logits = feed(opened(plain), 0, 9, [1] * 9, plain.adapter(folder))
        torch.testing.assert_close(logits[2:, SAID], expected[2:, SAID], atol=NEAR, rtol=0)
        base = feed(opened(plain), 0, 9, None, None)
        assert (logits - base)[:, SAID].abs().amax(1).min() > 0.1, "the adapter changes every row"
        assert bool(logits[:, NEVER].isinf().all()) and bool(logits[1, FIRST].isinf().all()), "none is drafted"

    def test_rows_without_the_gate_equal_the_base_bit_for_bit(self, plain: Whisper, folder: Path) -> None:
        logits = feed(opened(plain), 0, 9, [0] * 9, plain.adapter(folder))
        assert torch.equal(logits, feed(opened(plain), 0, 9, None, None))

    def test_mixed_rows_equal_successive_windows(self, plain: Whisper, folder: Path) -> None:
        """A prefix without the adapter, then rows with it, which attend to the prefix's cached keys and values."""
        adapter, first = plain.adapter(folder), 4
        joint = feed(
            opened(plain),
            0,
            9,
            [int(place >= first) for place in range(9)],
            adapter,
        )
        cache = opened(plain)
        parts = [feed(cache, 0, first, None, None), feed(cache, first, 9, [1] * (9 - first), adapter)]
        torch.testing.assert_close(joint, torch.cat(parts), atol=NEAR, rtol=0)


@pytest.mark.parametrize(
    "wrong", [r"model\.decoder\.layers\.0\.encoder_attn\.k_proj", r"model\.encoder\.layers\.0\.fc1"]
)
def test_layers_computed_once_a_recording_are_refused(plain: Whisper, wrong: str, tmp_path: Path) -> None:
    adapter_folder = write_adapter(tmp_path, adapted(target_modules=wrong), plain.fingerprint)
    with pytest.raises(WeightsError, match=f"the adapter changes {wrong}, which is computed once a recording"):
        plain.adapter(adapter_folder)


@pytest.mark.parametrize("layout", ["joint", "sequential"])
def test_any_adapter_decodes_the_tokens_of_the_base(layout: Any, plain: Whisper, folder: Path) -> None:
    prompt = Prompt("p", condition=RECORDING)
    result = decoded(CrossRegression(adapter=str(folder), horizon=5, layout=layout), plain, prompt, 40)
    assert result.tokens == decoded(Autoregressive(), plain, prompt, 40).tokens
    assert len(result.tokens) == 40


def record(root: Path, speaker: str, texts: list[str], seed: int) -> None:
    """A chapter of a speaker, as WAV."""
    place = root / speaker / "1"
    place.mkdir(parents=True)
    for number, _ in enumerate(texts):
        with wave.open(str(place / f"{speaker}-1-{number}.wav"), "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes((32000 * sound(seed + number).clip(-1, 1)).astype("<i2").tobytes())
    lines = [f"{speaker}-1-{number} {text}" for number, text in enumerate(texts)]
    (place / f"{speaker}-1.trans.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture()
def spoken(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A preset, a cache, and recordings; two of them are a benchmark's."""
    (tmp_path / "presets").mkdir()
    preset = f"adapter: whisper\nsource: {{folder: {weights}}}\nlicence: none\nnote: a test\n"
    (tmp_path / "presets" / "tiny-whisper.yaml").write_text(preset)
    root = tmp_path / "recordings"
    for key, value in (("PRESETS", "presets"), ("RECORDINGS", "recordings"), ("CACHE", "cache")):
        monkeypatch.setenv(f"STRIDE_{key}", str(tmp_path / value))
    benchmark_sentence = "The old ferry leaves the island before the sun comes up."
    record(root, "awb", [*(f"SENTENCE NUMBER {n}" for n in range(16)), benchmark_sentence], 10)
    record(root, "slt", ["A SENTENCE OF OUR OWN"], 40)
    return root


SIZES: dict[str, Any] = {"rank": 4, "alpha": 8, "width": 4, "hop": 3, "batch": 2, "steps": 40}
RECIPE = TrainAdapter(summary="a test", backbone="tiny-whisper", plan=Recordings(), rate=2e-2, **SIZES)


class TestRecordings:
    def test_transcripts_are_the_backbones_made_once_and_skip_benchmark_sentences(
        self, spoken: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        body = GatedLora("tiny-whisper", 4, 8).frozen
        passages = transcribed(body, Recordings())
        log = capsys.readouterr().err
        assert "of 18 recordings 2 are a benchmark's, 16 were heard" in log
        count = len(passages.train) + len(passages.development)
        assert count == 16 - passages.skipped.get("have no end", 0) >= 6 and passages.development
        model = presets.load("tiny-whisper", "bf16")
        for passage in passages.train[:2]:
            greedy = decoded(Autoregressive(), model, Prompt("p", condition=passage.condition), 60)
            assert passage.tokens[passage.start :] == greedy.tokens
            assert passage.tokens[-1] in model.capabilities.eos
        monkeypatch.setattr(Whisper, "hear", lambda *_: pytest.fail("it is transcribed again"))
        body = GatedLora("tiny-whisper", 4, 8).frozen
        again = transcribed(body, Recordings())
        assert [passage.tokens for passage in again.train] == [passage.tokens for passage in passages.train]
        assert {path.suffix for path in body._home.iterdir()} == {".safetensors"}  # type: ignore[attr-defined]

    def test_a_benchmark_sentence_is_also_recognised_by_its_transcript(
        self, spoken: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        body = GatedLora("tiny-whisper", 4, 8).frozen
        monkeypatch.setattr(Whisper, "decode", lambda *_: "the old ferry leaves the island before the sun comes up")
        with pytest.raises(UsageError, match=r"are heard as a benchmark's.*: 0 are left to train on"):
            transcribed(body, Recordings())

    def test_the_error_of_absent_recordings_names_the_folder(
        self, spoken: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STRIDE_RECORDINGS", str(spoken / "nowhere"))
        with pytest.raises(DataMissing, match=r"nowhere is not there\. Put a part of LibriSpeech.*STRIDE_RECORDINGS"):
            RECIPE.build({})
        monkeypatch.delenv("STRIDE_RECORDINGS")
        with pytest.raises(DataMissing, match=r"cache/data/LibriSpeech/train-clean-100 is not there"):
            speech.recordings_folder()

    def test_a_text_backbone_refuses_recordings(self, spoken: Path) -> None:
        body = GatedLora("embedded-code", 4, 8).frozen
        with pytest.raises(UsageError, match="embedded-code reads text; recordings are for a backbone of whisper"):
            body.transcript(sound())


class TestTraining:
    def test_training_windows_equal_the_joint_layout(
        self, spoken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Windows of one pass against a gated draft in a session over each prefix, through the exported adapter."""
        adapted_model = GatedLora("tiny-whisper", 4, 8)
        with torch.no_grad():
            for matrix in (*adapted_model.down, *adapted_model.up):
                matrix.copy_(torch.linspace(-1, 1, matrix.numel()).sin().view_as(matrix).bfloat16() / 4)
        adapted_model.export(tmp_path / "made")
        model = presets.load("tiny-whisper", "fp32")
        passage = nine_token_passage(adapted_model)
        assert isinstance(model, Whisper)
        states = model.hear(Prompt("p", condition=passage.condition))
        # those of the cache are bf16
        monkeypatch.setattr(adapted_model.frozen, "_encoded", lambda recording: {"states": states})
        text, at = torch.tensor(passage.tokens), roots(passage, 4, 3)
        assert at.tolist() == [1, 4, 7]
        windows = inputs(text, at, torch.randint(VOCABULARY, (3, 4), generator=torch.Generator().manual_seed(0)))
        with torch.no_grad():
            losses = adapted_model(text, windows, at, passage.condition)
        allowed_ids = [token for token in range(VOCABULARY) if token not in (*NEVER, *FIRST)]
        for number, root in enumerate(at.tolist()):
            prompt = Prompt("p", tokens=passage.tokens[: root + 1], condition=passage.condition)
            run = run_on(model, prompt, 20, temperature=1.0)
            state = CrossRegression(adapter=str(tmp_path / "made"), horizon=4).start(run)
            state.placeholders = windows[number, 1:]
            run.target.prefill()
            logits = run.target.forward(state.window(run, run.nothing.tokens, 4))
            expected = torch.cat([losses.control[number, :1], losses.predictive[number]])
            torch.testing.assert_close(logits[:, allowed_ids], expected[:, allowed_ids], atol=NEAR, rtol=0)
        assert bool((losses.control[0, 0, FIRST] < -9e3).all() and (losses.control[1, 0, FIRST] > -9e3).all())

    def test_positions_after_the_end_do_not_count(self, spoken: Path) -> None:
        adapted_model = GatedLora("tiny-whisper", 4, 8)
        passage = nine_token_passage(adapted_model)
        assert inside(passage, 4, 3).tolist() == [[True] * 4, [True] * 4, [True, False, False, False]]
        assert targets(passage, 4, 3)[2].tolist() == [passage.tokens[8]] * 4
        model = Denoising(adapted_model, [passage], [passage], 4, 3)
        right, within = model.hits()
        assert within.sum() == 9 and not bool((right & ~within).any())
        loss = float(model.denoised(0, np.random.default_rng(0)))
        model.replay[2, 1:] = 5  # only rows after the end read tokens after the end
        model.replay[:2] = targets(passage, 4, 3)[:2]
        model.replay[2, 0] = passage.tokens[8]
        assert float(model.denoised(0, np.random.default_rng(0))) == pytest.approx(loss, rel=1e-5)


def nine_token_passage(adapted_model: GatedLora) -> Any:
    """A passage of nine tokens after a recording."""
    passage = adapted_model.frozen.transcript(sound(3))
    return passage._replace(tokens=TOKENS)
