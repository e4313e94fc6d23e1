"""Weights that are read tensor by tensor are those that the loader of transformers reads."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config

from stridebench.harness.backbones.checkpoints import streamed, transformers_models
from stridebench.harness.backbones.slots.fused_llama import FusedLlama
from stridebench.harness.backbones.slots.net import SlotInputs, Slots
from stridebench.harness.errors import WeightsError

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 64,
}
ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SIZES),
    "tied": lambda: LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama3": lambda: LlamaConfig(**SIZES, rope_scaling={**ROPE, "original_max_position_embeddings": 32}),
    "mistral": lambda: MistralConfig(**SIZES),
    "qwen2": lambda: Qwen2Config(**SIZES),
}


def saved(config: Any, folder: Path, **options: Any) -> Path:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config.eos_token_id = [7, 9]
    model.save_pretrained(folder, **options)
    return folder


def read(folder: Path, dtype: torch.dtype) -> Any:
    model = streamed.read(folder, transformers_models.read_config("small", folder), "sdpa", dtype)
    return None if model is None else streamed.fill(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", CONFIGS)
def test_every_tensor_and_table_is_that_of_transformers(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    folder = saved(CONFIGS[kind](), tmp_path)
    model = read(folder, dtype)
    other = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    for own, theirs in ((model.state_dict(), other.state_dict()), (buffers(model), buffers(other))):
        assert own.keys() == theirs.keys()
        assert all(torch.equal(own[name], theirs[name]) and own[name].dtype == theirs[name].dtype for name in own)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == (kind == "tied")
    assert model.generation_config.to_dict() == other.generation_config.to_dict()
    ids = torch.tensor([[1, 5, 2, 30]])
    assert torch.equal(model(ids).logits, other(ids).logits) and not model.training


def buffers(model: Any) -> dict[str, torch.Tensor]:
    return dict(model.named_buffers())


def test_a_file_in_shards_is_read_and_none_stays_mapped(tmp_path: Path) -> None:
    folder = saved(CONFIGS["llama"](), tmp_path, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    model = read(folder, torch.float32)
    whole = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).state_dict()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in model.state_dict().items())
    if sys.platform == "linux":
        del whole
        assert str(folder) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("fault", ["missing", "unknown", "shape", "quantised", "gpt2"])
def test_a_folder_of_another_kind_is_left_to_transformers(fault: str, tmp_path: Path) -> None:
    folder = saved(CONFIGS["llama"](), tmp_path)
    tensors, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    if fault == "missing":
        del tensors["model.norm.weight"]
    if fault == "unknown":
        tensors["model.other.weight"] = torch.ones(2)
    if fault == "shape":
        tensors["model.norm.weight"] = torch.ones(31)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config |= {"quantised": {"quantization_config": {"quant_method": "awq"}}}.get(fault, {})
    config |= {"gpt2": {"architectures": ["GPT2LMHeadModel"]}}.get(fault, {})
    (folder / "config.json").write_text(json.dumps(config))
    assert read(folder, torch.float32) is None
    if fault in ("missing", "shape"):
        with pytest.raises(WeightsError, match=r"model\.norm\.weight"):
            transformers_models.read_model(
                "small", folder, transformers_models.read_config("small", folder), "sdpa", torch.float32
            )


@pytest.mark.parametrize("kind", ["tied", "qwen2"])
def test_weights_that_are_read_while_they_are_packed_give_the_same_logits(kind: str, tmp_path: Path) -> None:
    folder = saved(CONFIGS[kind](), tmp_path)
    config = transformers_models.read_config("small", folder)
    later = transformers_models.read_model("small", folder, config, "sdpa", torch.float32, "cpu")
    assert all(weight.is_meta for weight in later.parameters())
    now = transformers_models.read_model("small", folder, config, "sdpa", torch.float32)
    assert not any(weight.is_meta for weight in now.parameters())
    ids = torch.tensor([1, 5, 2, 30])
    logits = [
        FusedLlama(model)(SlotInputs(ids, torch.arange(4), None, Slots(2, 64).layers), 4) for model in (later, now)
    ]
    assert torch.equal(*logits)


def test_tables_of_rotations_keep_their_type() -> None:
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"](), dtype=torch.float32)
    placed = transformers_models.place(model, "cpu", torch.bfloat16)
    assert {weight.dtype for weight in placed.parameters()} == {torch.bfloat16}
    assert {table.dtype for table in placed.buffers()} == {torch.float32}
