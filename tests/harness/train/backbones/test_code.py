"""The recipe of the code model: training, rows, and the shipped weights."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.backbones.text.masked import MaskedModel, llada_name
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.cache import Window
from stridebench.harness.core.canvas import Canvas
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.run import open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.kernels import int8
from stridebench.harness.plan import presets
from stridebench.harness.synthetic import code
from stridebench.harness.train.backbones.code import BlocksCode, Code, MaskChains, MaskedCode, PardCode, TextBlocks
from stridebench.harness.train.loop import train

TINY = Code(vocabulary=300, width=32, layers=2, heads=2, inner=48, length=64, batch=4, steps=25)


def written(count: int, seed: int = 0) -> list[code.Program]:
    random = np.random.default_rng(seed)
    return [code.program(random) for _ in range(count)]


def test_the_recipe_trains_resumes_and_loads_as_a_backbone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[float] = []
    done = train("code", TINY, tmp_path / "one", {}, watch=lambda progress: losses.append(progress.loss))
    assert done.finished and losses[-1] < losses[0] - 0.3
    model = presets.load(str(tmp_path / "one"), "fp32")
    text = written(1)[0].head
    ids = model.encode(text)
    assert model.decode(ids) == text
    assert model.capabilities.vocabulary == 300 and model.capabilities.eos == {0}
    assert max(ids) < 300 and len(ids) < len(text)


def test_rows_depend_on_the_generator_only_and_start_with_a_program() -> None:
    rows = [TINY._rows(np.random.default_rng(3), 2, held_out=False) for _ in range(2)]
    assert torch.equal(*rows) and rows[0].shape == (2, 65)
    assert rows[0][0, 0] == 0
    text = TINY.tokenizer.decode(rows[0].flatten().tolist())
    assert text.startswith("def ")


def test_a_mask_predicts_the_token_behind_its_chain() -> None:
    rows = MaskChains.of(np.array([2, 0, 3, 1]))  # the last two chains are cut: nothing stands behind token 4
    assert list(zip(rows.token.tolist(), rows.depth.tolist(), strict=True)) == [
        *((0, 0), (1, 0), (2, 0), (3, 0)),
        *((0, 1), (0, 2), (2, 1)),
    ]
    assert rows.predicted(torch.arange(10, 15)[None]).tolist() == [[11, 12, 13, 14, 12, 13, 14]]


def test_a_drafter_for_pard_reads_masks_in_a_decode_as_in_its_training(tmp_path: Path) -> None:
    """One pass of a session over text and masks has the logits of the training's pass for the chain of that token."""
    recipe = PardCode(vocabulary=300, width=32, heads=2, inner=48, length=32, batch=2, steps=12, drafts=4)
    done = train("pard", recipe, tmp_path / "pard", {})
    figures = json.loads((done.folder / "card.json").read_text())["figures"]
    assert done.finished and list(figures) == ["guessed_1", "guessed_2", "guessed_3", "guessed_4"]
    model = presets.load(str(done.folder), "fp32")
    assert model.capabilities.pard == recipe.mask and recipe.mask not in model.encode(written(1)[0].text)
    network = LlamaForCausalLM.from_pretrained(done.folder, dtype=torch.float32)
    tokens = recipe._rows(np.random.default_rng(1), 1, held_out=True)[:, :13]
    rows = MaskChains.of(np.array([*[0] * 8, 3, *[0] * 3]))
    expected = recipe._read(network, tokens, rows)[0, (rows.token == 8)]
    window = [*tokens[0, :9].tolist(), *[recipe.mask] * 3]
    cache = model.open(Prompt("x", tokens=tuple(window))).cache()
    logits = cache.extend(Window(torch.tensor(window), torch.arange(12), 0, None, 4)).logits
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_a_text_has_as_many_blocks_as_fit() -> None:
    rows = TextBlocks.of(6, 3, 1)  # a second block would need a seventh token
    assert rows.token.tolist() == [0, 1, 2, 3, 4, 5, 1, 2, 3]
    assert rows.depth.tolist() == [0] * 6 + [0, 1, 2]
    assert TextBlocks.of(7, 3, 0).number.tolist() == [0] * 7 + [0, 0, 0, 1, 1, 1]


def test_a_model_of_two_masks_reads_a_block_in_a_decode_as_in_its_training(tmp_path: Path) -> None:
    """One pass behind a text has the logits of the training's pass for the block that begins with its last token."""
    recipe = BlocksCode(length=16, batch=1, steps=1, block=4)
    done = train("blocks", recipe, tmp_path / "blocks", {})
    figures = json.loads((done.folder / "card.json").read_text())["figures"]
    assert done.finished and list(figures) == ["loss", "loss_base", "guessed_1", "guessed_2", "guessed_3"]
    assert abs(figures["loss"] / figures["loss_base"] - 1) < 0.02  # one step of a warm-up moves little
    params = {"source": {"folder": str(done.folder)}, "masks": "both"}
    model = HFCausal.load("x", params, "fp32", "cpu")
    assert model.capabilities.block_mask == recipe.mask
    network = recipe.build({})
    network.model.load_state_dict(LlamaForCausalLM.from_pretrained(done.folder, dtype=torch.float32).state_dict())
    tokens = recipe._rows(np.random.default_rng(1), 1, held_out=True)
    rows = TextBlocks.of(16, 4, 9)
    masked = (rows.depth > 0)[None]
    expected = recipe._read(network, tokens, rows, masked)[0, 16:][1:4]
    prompt = Prompt("x", tokens=tuple(tokens[0, :10].tolist()))
    run = open_run(model, lambda name: model, prompt, Sampling(0.0), 8, SeededDraws(0, "t", "p", 0))
    masks = Draft(torch.full((3,), recipe.mask))
    torch.testing.assert_close(run.target.forward(masks, mutual=True)[1:], expected, atol=1e-3, rtol=1e-3)


def test_a_masked_model_reads_a_block_in_a_decode_as_in_its_training(tmp_path: Path) -> None:
    """Behind two full blocks; its figures and its rows are those of the 8 bits that are stored."""
    recipe = MaskedCode(length=16, batch=1, steps=1, block=4)
    done = train("masked", recipe, tmp_path / "masked", {})
    figures = json.loads((done.folder / "card.json").read_text())["figures"]
    assert done.finished and list(figures) == ["nats", "nats_1", "nats_4", "nats_base"]
    assert (done.folder / "model.safetensors").stat().st_size < 1.2e6
    model = MaskedModel.load("x", {"source": {"folder": str(done.folder)}}, "fp32", "cpu")
    assert (model.capabilities.mask, model.capabilities.block) == (recipe.mask, 4) and model.encode("a")
    network = recipe.build({})
    stored = int8.read(done.folder / "model.safetensors")
    keys = [key for key in network.model.state_dict() if key != "lm_head.weight"]  # which is tied
    network.model.load_state_dict({key: stored[llada_name(key)] for key in keys}, strict=False)
    tokens = recipe._rows(np.random.default_rng(1), 1, held_out=True)
    rows = TextBlocks.of(16, 4, 0, causal=False)
    masked = ((rows.number == 2) & (torch.arange(len(rows.number)) >= 16) & (rows.depth != 1))[None]
    expected = recipe._read(network, tokens, rows, masked)[0, 24:28]
    ids = tokens[0, :12].clone()
    ids[[8, 10, 11]] = recipe.mask
    canvas = Canvas(model.cache(), model.capabilities, ids[:8].tolist(), length=8, stopwatch=Stopwatch(CpuClock()))
    canvas.read_full_blocks()
    logits = canvas.read(ids[8:], range(8, 12), "all")
    expected[:, recipe.mask] = float("-inf")
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def shipped() -> Backbone:
    return presets.load("embedded-code", "fp32", fetch=False)


def complete(model: Backbone, text: str, most: int = 40) -> str:
    encoded = model.open(Prompt("x", text))
    cache, tokens = encoded.cache(), list(encoded.tokens)
    generated: list[int] = []
    base = 0
    while len(generated) < most and not (generated and generated[-1] in model.capabilities.eos):
        new = tokens[base:]
        window = Window(torch.tensor(new), torch.arange(base, len(tokens)), base, None, 1)
        generated.append(int(cache.extend(window).logits[0].argmax()))
        base = len(tokens)
        tokens.append(generated[-1])
    return str(model.decode(generated))


def test_the_shipped_model_completes_held_out_functions(shipped: Backbone) -> None:
    """Greedy decoding gives 10 of 16 bodies exactly, random names included."""
    programs = list(islice(code.programs(np.random.default_rng(5), held_out=True), 16))
    right = sum(complete(shipped, p.head.rstrip()).startswith(f"\n{p.body}") for p in programs)
    assert right >= 8
