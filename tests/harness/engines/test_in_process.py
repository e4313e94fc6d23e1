"""Engines in this process: transformers on a model that ships, OpenVINO where model and library are here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.core.engine import EngineFault, EngineRequest, EngineWeights
from stridebench.harness.discover import shipped
from stridebench.harness.engines.openvino_genai import OpenVINOGenAI
from stridebench.harness.engines.transformers import Transformers
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets, resolve
from stridebench.harness.plan.expand import expand

FOLDER = str(shipped("code"))
PROMPT = (5, 9, 12, 5, 9, 12, 5, 9)


def request(temperature: float = 0.0, seed: int = 0, tokens: int = 12) -> EngineRequest:
    return EngineRequest(PROMPT, None, tokens, temperature, seed=seed, ignore_eos=True)


@pytest.fixture(scope="module")
def plain() -> Iterator[Transformers]:
    with Transformers() as engine:
        engine.open(EngineWeights(FOLDER))
        yield engine


def test_a_greedy_decode_is_that_of_the_model(plain: Transformers) -> None:
    reply = plain.generate(request())
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype="float32")
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        for _ in range(12):
            ids = torch.cat([ids, model(ids).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert reply.tokens == tuple(ids[0, len(PROMPT) :].tolist())
    assert reply.acceptance is None and [chunk.tokens for chunk in reply.chunks] == [1] * 12
    assert (reply.output_tokens, reply.prompt_tokens, reply.finish) == (12, len(PROMPT), "length")


def test_the_seed_decides_a_draw_and_torchs_own_generator_is_put_back(plain: Transformers) -> None:
    before = torch.get_rng_state()
    first, again, other = (plain.generate(request(1.0, seed)).tokens for seed in (1, 1, 2))
    assert first == again != other
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    "options",
    [
        {"prompt_lookup": 3},
        {"assistant": FOLDER, "num_assistant_tokens": 3},
        {"early_exit": 1, "num_assistant_tokens": 3},
    ],
)
def test_drafts_are_counted_step_by_step(plain: Transformers, options: dict[str, object]) -> None:
    with Transformers(**options) as engine:  # type: ignore[arg-type]
        engine.open(EngineWeights(FOLDER))
        reply = engine.generate(request())
    assert reply.tokens == plain.generate(request()).tokens
    counts = reply.acceptance
    assert counts is not None and counts.histogram is not None and counts.accepted is not None
    assert sum(counts.histogram) == counts.draft_steps and counts.drafted
    assert sum(number * steps for number, steps in enumerate(counts.histogram)) == counts.accepted > 0
    assert counts.target_passes == 12 - counts.accepted == len(reply.chunks)


def test_options_that_exclude_each_other_and_a_model_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="one of them"):
        Transformers(assistant="x", prompt_lookup=2)
    with pytest.raises(UsageError, match="choose float32, bfloat16, float16"):
        Transformers(dtype="fp8")
    with pytest.raises(UsageError, match="no folder of weights"):
        Transformers().open(EngineWeights())
    with pytest.raises(EngineFault, match="cannot load"):
        Transformers(model="/no/such/folder").open(EngineWeights())


def gguf_file() -> str:
    """The file of the smallest published model."""
    source = sources.parse("smollm2-135m", presets.resolve("smollm2-135m").params["source"])
    file = sources.gguf_place(source)
    if file is None or not file.is_file():
        pytest.skip("the GGUF file of smollm2-135m is not here; a run with the engine openvino_genai fetches it")
    return str(file)


@pytest.mark.model
@pytest.mark.slow
def test_openvino_reads_the_gguf_file_and_honours_seed_and_budget() -> None:
    pytest.importorskip("openvino_genai", reason="needs the extra engines")
    with OpenVINOGenAI() as engine:
        engine.open(EngineWeights(gguf=gguf_file))
        first, again, other = (engine.generate(request(1.0, seed, 6)) for seed in (1, 1, 2))
    assert first.tokens == again.tokens != other.tokens
    assert first.output_tokens == 6 and sum(chunk.tokens or 0 for chunk in first.chunks) == 6
    assert engine.told()["version"]


def test_openvino_is_skipped_before_the_run_if_the_backbone_has_no_gguf_file() -> None:
    own, tiny = (expand(resolve.of_command("engines", resolve.Overrides(tiny=tiny))).engines for tiny in (False, True))
    assert {cell.skip for cell in own} == {None}
    reasons = {cell.skip for cell in tiny if cell.use.name == "openvino_genai"}
    assert reasons == {"openvino_genai reads a GGUF file, which tiny:smollm2-135m is not: name one with `model`"}
    assert {cell.skip for cell in tiny if cell.use.name == "transformers"} == {None}


def test_openvino_without_a_model_or_with_a_broken_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name a GGUF file"):
        OpenVINOGenAI().open(EngineWeights())
    pytest.importorskip("openvino_genai", reason="needs the extra engines")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF????")
    with pytest.raises(EngineFault, match="OpenVINO cannot load"):
        OpenVINOGenAI(model=str(tmp_path / "broken.gguf")).open(EngineWeights())
