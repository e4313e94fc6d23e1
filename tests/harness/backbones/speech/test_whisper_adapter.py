"""Cross-Regression on Whisper's decoder: gated rows against peft's merged weights, and an adapter that learns."""

from __future__ import annotations

import json
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from harness.backbones.speech.whisper import Whisper
from harness.core.cache import Cache, Window
from harness.core.draws import SeededDraws
from harness.core.loop import Decode, decode
from harness.core.run import open_run
from harness.core.sampling import Sampling
from harness.core.task import Prompt
from harness.errors import DataMissing, UsageError, WeightsError
from harness.plan import presets
from harness.registry import METHODS, RECIPES
from harness.synthetic import speech
from harness.train.gated_lora import GatedLora
from harness.train.loop import train
from methods.cross_regression import CrossRegression
from methods.training.adapters.denoising import Denoising, inputs, inside, roots, targets
from methods.training.adapters.recipes import TrainAdapter
from methods.training.adapters.recordings import Recordings, transcribed
from tests.support.peft_adapter import write_adapter
from tests.support.tiny_whisper import (
    FIRST,
    NEVER,
    PLAIN,
    SAID,
    VOCABULARY,
    features,
    load,
    sound,
    tiny_whisper,
)

peft = pytest.importorskip("peft")
TARGETS = r"model\.decoder\.layers\.\d\.(self_attn\.[qkv]_proj|.*out_proj|encoder_attn\.q_proj|fc[12])"
TOKENS = (1, PLAIN, 14, 15, 9, 26, 5, 35, 3)
NEAR = 1e-4


@pytest.fixture(scope="module", autouse=True)
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Whisper that comes to an end now and then."""
    model = tiny_whisper()
    torch.nn.init.normal_(model.model.decoder.embed_tokens.weight.data[0], std=0.8)  # as padding it was zero
    model.generation_config.suppress_tokens = NEVER[1:]
    folder = tmp_path_factory.mktemp("whisper")
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(weights: Path) -> Whisper:
    return load(weights)


def adapted(**how: Any) -> Any:
    """peft's model, whose low-rank products are not zero as they begin."""
    made = peft.get_peft_model(
        tiny_whisper(), peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": TARGETS, **how})
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        for name, weight in made.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.2)
    return made


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Whisper:
    folder = tmp_path_factory.mktemp("plain")
    tiny_whisper().save_pretrained(folder)
    return load(folder)


@pytest.fixture(scope="module")
def folder(plain: Whisper, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter"), adapted(), plain.fingerprint)


def opened(model: Whisper) -> Cache:
    return model.open(Prompt("p", condition=sound())).cache()


def feed(cache: Cache, first: int, end: int, gate: list[int] | None, adapter: Any) -> Tensor:
    marks = None if gate is None else torch.tensor(gate, dtype=torch.bool)
    ids, count = torch.tensor(TOKENS[first:end]), end - first
    return cache.extend(Window(ids, torch.arange(first, end), first, None, count, gate=marks, adapter=adapter)).logits


class TestRows:
    def test_rows_with_the_gate_are_those_of_merged_weights(self, plain: Whisper, folder: Path) -> None:
        merged = adapted().merge_and_unload()
        with torch.inference_mode():
            theirs = merged(features(0), decoder_input_ids=torch.tensor([TOKENS])).logits[0]
        found = feed(opened(plain), 0, 9, [1] * 9, plain.adapter(folder))
        torch.testing.assert_close(found[2:, SAID], theirs[2:, SAID], atol=NEAR, rtol=0)
        base = feed(opened(plain), 0, 9, None, None)
        assert (found - base)[:, SAID].abs().amax(1).min() > 0.1, "the adapter changes every row"

    def test_rows_without_it_are_the_bases_to_the_bit(self, plain: Whisper, folder: Path) -> None:
        found = feed(opened(plain), 0, 9, [0] * 9, plain.adapter(folder))
        assert torch.equal(found, feed(opened(plain), 0, 9, None, None))

    @pytest.mark.parametrize("first", [1, 4, 8])
    def test_mixed_rows_are_those_of_windows_behind_one_another(self, plain: Whisper, folder: Path, first: int) -> None:
        """A prefix without the adapter, then rows with it, which read the prefix's keys and values from the cache."""
        adapter = plain.adapter(folder)
        joint = feed(opened(plain), 0, 9, [int(place >= first) for place in range(9)], adapter)
        cache = opened(plain)
        parts = [feed(cache, 0, first, None, None), feed(cache, first, 9, [1] * (9 - first), adapter)]
        torch.testing.assert_close(joint, torch.cat(parts), atol=NEAR, rtol=0)

    def test_a_gated_window_that_is_let_go_leaves_nothing(self, plain: Whisper, folder: Path) -> None:
        cache = opened(plain)
        feed(cache, 0, 4, None, None)
        feed(cache, 4, 9, [1] * 5, plain.adapter(folder))
        cache.keep(4)
        found = feed(cache, 4, 9, None, None)
        torch.testing.assert_close(found, feed(opened(plain), 0, 9, None, None)[4:], atol=NEAR, rtol=0)

    def test_what_is_never_said_is_not_drafted_either(self, plain: Whisper, folder: Path) -> None:
        found = feed(opened(plain), 0, 9, [1] * 9, plain.adapter(folder))
        assert bool(found[:, NEVER].isinf().all()) and bool(found[1, FIRST].isinf().all())

    def test_some_layers_alone(self, plain: Whisper, tmp_path: Path) -> None:
        how = {"target_modules": r"model\.decoder\.layers\.1\.(self_attn\.v_proj|fc2)"}
        merged = adapted(**how).merge_and_unload()
        with torch.inference_mode():
            theirs = merged(features(0), decoder_input_ids=torch.tensor([TOKENS])).logits[0]
        adapter = plain.adapter(write_adapter(tmp_path, adapted(**how), plain.fingerprint))
        found = feed(opened(plain), 0, 9, [1] * 9, adapter)
        torch.testing.assert_close(found[2:, SAID], theirs[2:, SAID], atol=NEAR, rtol=0)


class TestRefusals:
    def test_an_adapter_of_other_weights(self, base: Whisper, folder: Path) -> None:
        with pytest.raises(WeightsError, match=r"was trained for tiny .*stride train adapter"):
            base.adapter(folder)

    @pytest.mark.parametrize(
        "wrong", [r"model\.decoder\.layers\.0\.encoder_attn\.k_proj", r"model\.encoder\.layers\.0\.fc1"]
    )
    def test_what_is_computed_once_a_recording(self, plain: Whisper, wrong: str, tmp_path: Path) -> None:
        made = write_adapter(tmp_path, adapted(target_modules=wrong), plain.fingerprint)
        with pytest.raises(WeightsError, match=f"the adapter changes {wrong}, which is computed once a recording"):
            plain.adapter(made)

    def test_layers_that_are_not_there(self, plain: Whisper, folder: Path) -> None:
        fewer = plain._decoder.pick((0, 2))
        fewer._shapes = {name: size for name, size in fewer._shapes.items() if ".2." not in name}
        found = plain.adapter(folder)
        assert len(found) == 3 and set(found[0]) == {"qkv", "out", "ask", "out_ask", "up", "down"}
        from harness.backbones.slots import lora

        with pytest.raises(WeightsError, match=r"changes model\.decoder\.layers\.2\.\S+ by .*another model"):
            fewer.fitted(lora.read(folder, plain, torch.float32))


def decoded(method: Any, model: Whisper, budget: int = 40, seed: int = 0) -> Decode:
    prompt = Prompt("p", condition=sound(seed))
    return decode(
        method, open_run(model, lambda name: model, prompt, Sampling(0.0), budget, SeededDraws(0, "t", "p", 0))
    )


@pytest.mark.parametrize("layout", ["joint", "sequential"])
def test_decodes_are_those_of_the_base_whatever_the_adapter_says(layout: Any, plain: Whisper, folder: Path) -> None:
    for seed in range(2):
        made = decoded(CrossRegression(adapter=str(folder), horizon=5, layout=layout), plain, seed=seed)
        assert made.tokens == decoded(METHODS.get("autoregressive")(), plain, seed=seed).tokens
        assert len(made.tokens) == 40


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
    """A preset, a cache, and recordings of which some are a benchmark's."""
    (tmp_path / "presets").mkdir()
    preset = f"adapter: whisper\nsource: {{folder: {weights}}}\nlicence: none\nnote: a test\n"
    (tmp_path / "presets" / "tiny-whisper.yaml").write_text(preset)
    root = tmp_path / "recordings"
    for key, value in (("PRESETS", "presets"), ("RECORDINGS", "recordings"), ("CACHE", "cache")):
        monkeypatch.setenv(f"STRIDE_{key}", str(tmp_path / value))
    asked = "The old ferry leaves the island before the sun comes up."
    record(root, "awb", [*(f"SENTENCE NUMBER {n}" for n in range(16)), asked], 10)
    record(root, "slt", ["A SENTENCE OF OUR OWN"], 40)
    return root


RECIPE = TrainAdapter(
    summary="a test",
    backbone="tiny-whisper",
    plan=Recordings(),
    rank=4,
    alpha=8,
    width=4,
    hop=3,
    batch=2,
    steps=40,
    rate=2e-2,
)


class TestRecordings:
    def test_transcripts_are_the_backbones_and_none_is_a_benchmarks(
        self, spoken: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        body = GatedLora("tiny-whisper", 4, 8).frozen
        found = transcribed(body, Recordings())
        said = capsys.readouterr().err
        assert "of 18 recordings 2 are a benchmark's, 16 were heard" in said
        kept = len(found.train) + len(found.development)
        assert kept == 16 - found.skipped.get("have no end", 0) >= 6 and found.development
        model = presets.load("tiny-whisper", "bf16")
        for passage in found.train[:2]:
            run = open_run(
                model,
                lambda name: model,
                Prompt("p", condition=passage.condition),
                Sampling(0.0),
                60,
                SeededDraws(0, "t", "p", 0),
            )
            assert passage.tokens[passage.start :] == decode(METHODS.get("autoregressive")(), run).tokens
            assert passage.tokens[-1] in model.capabilities.eos

    def test_each_is_heard_once(self, spoken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = transcribed(GatedLora("tiny-whisper", 4, 8).frozen, Recordings())
        monkeypatch.setattr(Whisper, "hear", lambda *_: pytest.fail("it is heard again"))
        body = GatedLora("tiny-whisper", 4, 8).frozen
        again = transcribed(body, Recordings())
        assert [each.tokens for each in again.train] == [each.tokens for each in first.train]
        assert {path.suffix for path in body._home.iterdir()} == {".safetensors"}  # type: ignore[attr-defined]

    def test_a_sentence_of_a_benchmark_is_known_by_what_is_heard_too(
        self, spoken: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        body = GatedLora("tiny-whisper", 4, 8).frozen
        monkeypatch.setattr(Whisper, "decode", lambda *_: "the old ferry leaves the island before the sun comes up")
        with pytest.raises(UsageError, match=r"are heard as a benchmark's.*: 0 are left to train on"):
            transcribed(body, Recordings())

    def test_what_is_not_there_says_what_to_put_where(self, spoken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STRIDE_RECORDINGS", str(spoken / "nowhere"))
        with pytest.raises(DataMissing, match=r"nowhere is not there\. Put a part of LibriSpeech.*STRIDE_RECORDINGS"):
            RECIPE.build({})
        monkeypatch.delenv("STRIDE_RECORDINGS")
        with pytest.raises(DataMissing, match=r"cache/data/LibriSpeech/train-clean-100 is not there"):
            speech.recordings_folder()

    def test_text_hears_nothing(self, spoken: Path) -> None:
        body = GatedLora("embedded-code", 4, 8).frozen
        with pytest.raises(UsageError, match="embedded-code reads text; recordings are for a backbone of whisper"):
            body.transcript(sound())


class TestTraining:
    def test_windows_are_read_as_the_joint_layout_reads_them(
        self, spoken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Windows of one pass against a gated draft in a session of each prefix, through the exported adapter."""
        made = GatedLora("tiny-whisper", 4, 8)
        with torch.no_grad():
            for matrix in (*made.down, *made.up):
                matrix.copy_(torch.linspace(-1, 1, matrix.numel()).sin().view_as(matrix).bfloat16() / 4)
        made.export(tmp_path / "made")
        model = presets.load("tiny-whisper", "fp32")
        passage = replace_condition(made)
        assert isinstance(model, Whisper)
        states = model.hear(Prompt("p", condition=passage.condition))
        monkeypatch.setattr(
            made.frozen, "_encoded", lambda recording: {"states": states}
        )  # those of the cache are bf16
        text, at = torch.tensor(passage.tokens), roots(passage, 4, 3)
        assert at.tolist() == [1, 4, 7]
        windows = inputs(text, at, torch.randint(VOCABULARY, (3, 4), generator=torch.Generator().manual_seed(0)))
        with torch.no_grad():
            found = made(text, windows, at, passage.condition)
        said = [token for token in range(VOCABULARY) if token not in (*NEVER, *FIRST)]
        for number, root in enumerate(at.tolist()):
            prompt = Prompt("p", tokens=passage.tokens[: root + 1], condition=passage.condition)
            run = open_run(model, lambda name: model, prompt, Sampling(1.0), 20, SeededDraws(0, "t", "p", 0))
            state = CrossRegression(adapter=str(tmp_path / "made"), horizon=4).start(run)
            state.placeholders = windows[number, 1:]
            run.target.prefill()
            logits = run.target.forward(state.window(run, run.nothing.tokens, 4))
            torch.testing.assert_close(logits[1:, said], found.predictive[number][:, said], atol=NEAR, rtol=0)
            torch.testing.assert_close(logits[0, said], found.control[number, 0, said], atol=NEAR, rtol=0)
        assert bool((found.control[0, 0, FIRST] < -9e3).all() and (found.control[1, 0, FIRST] > -9e3).all())

    def test_a_window_behind_the_end_counts_nothing(self, spoken: Path) -> None:
        made = GatedLora("tiny-whisper", 4, 8)
        passage = replace_condition(made)
        assert inside(passage, 4, 3).tolist() == [[True] * 4, [True] * 4, [True, False, False, False]]
        assert targets(passage, 4, 3)[2].tolist() == [passage.tokens[8]] * 4
        model = Denoising(made, [passage], [passage], 4, 3)
        right, within = model.hits()
        assert within.sum() == 9 and not bool((right & ~within).any())
        whole = float(model.denoised(0, np.random.default_rng(0)))
        model.replay[2, 1:] = 5  # what stands behind the end is read by rows behind it alone
        model.replay[:2] = targets(passage, 4, 3)[:2]
        model.replay[2, 0] = passage.tokens[8]
        assert float(model.denoised(0, np.random.default_rng(0))) == pytest.approx(whole, rel=1e-5)

    @pytest.mark.slow
    def test_an_adapter_learns_and_what_is_exported_decodes(self, spoken: Path, tmp_path: Path) -> None:
        recipe = replace(RECIPE, rank=8, alpha=16)
        model = recipe.build({})
        assert isinstance(model, Denoising)
        before, learning = float(astray(model)), [weight for weight in model.parameters() if weight.requires_grad]
        optimiser = torch.optim.AdamW(learning, 1e-2)
        for _ in range(40):  # the same windows again and again: random weights say little that would carry over
            optimiser.zero_grad()
            astray(model).backward()
            optimiser.step()
        assert float(astray(model)) < before / 2
        assert bool(recipe.loss(model, 0, np.random.default_rng(0)).isfinite())
        recipe.export(model, tmp_path)
        target = presets.load("tiny-whisper", "fp32")
        ours = decoded(CrossRegression(str(tmp_path), horizon=4), target)
        assert ours.tokens == decoded(METHODS.get("autoregressive")(), target).tokens
        how = json.loads((tmp_path / "adapter_config.json").read_text())
        assert how["task_type"] is None and not any("encoder" in name.split(".")[1] for name in how["target_modules"])

    def test_it_goes_on_where_it_stopped(self, spoken: Path, tmp_path: Path) -> None:
        four = replace(RECIPE, steps=4)
        train("tiny", four, tmp_path / "once", {})
        train("tiny", four, tmp_path / "twice", {}, minutes=0)
        train("tiny", four, tmp_path / "twice", {})
        name = "adapter_model.safetensors"
        assert (tmp_path / "once" / name).read_bytes() == (tmp_path / "twice" / name).read_bytes()

    def test_the_recipe_is_named_after_what_it_is_for(self) -> None:
        recipe = RECIPES.get("cross-regression-whisper-base")
        assert (recipe.kind, recipe.backbone, recipe.hop) == ("adapter", "whisper-base", 4)


def astray(model: Denoising) -> torch.Tensor:
    """Mean KL of the predictive laws, in nats, where rows read random ids."""
    found = []
    for number, passage in enumerate(model.train_on):
        text, at = torch.tensor(passage.tokens), roots(passage, model.width, model.hop)
        ids = torch.from_numpy(np.random.default_rng(number).integers(VOCABULARY, size=(len(at), model.width)))
        made = model.adapted(text, inputs(text, at, ids), at, passage.condition)
        p, q = made.control.detach().float().log_softmax(-1), made.predictive.float().log_softmax(-1)
        found.append((p.exp() * (p - q)).sum(-1)[inside(passage, model.width, model.hop)])
    return torch.cat(found).mean()


def replace_condition(made: GatedLora) -> Any:
    """Nine tokens behind a recording."""
    passage = made.frozen.transcript(sound(3))
    return passage._replace(tokens=TOKENS)
