"""Conversion of a GGUF file to a folder of transformers in fp32, which loads a hundred times faster.

A file from wheels may be an archive of CTranslate2 instead, which its first bytes show.
"""

from __future__ import annotations

import shutil
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
    load_gguf_checkpoint,
)

from stridebench.harness.backbones.speech import ctranslate2
from stridebench.harness.errors import WeightsError, listed
from stridebench.harness.machine.quiet import quiet

Q4_1_BYTES = 20
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
COMPUTED = ("rotary_emb", "inv_freq")
"""Buffers that a model derives from its configuration: no file holds them."""


def to_folder(name: str, file: Path, folder: Path) -> None:
    """Convert a file of either kind.

    Raises:
        WeightsError: as the converter of its kind.
    """
    with open(file, "rb") as opened:
        head = opened.read(64)
    if ctranslate2.recognises(head):
        ctranslate2.whisper_to_folder(name, file, folder)
    else:
        gguf_to_folder(name, file, folder)


def gguf_to_folder(name: str, gguf: Path, folder: Path) -> None:
    """Read weights and tokenizer of a GGUF file and save both.

    Raises:
        WeightsError: the file is damaged, or of an architecture that transformers cannot read.
    """
    architecture = _architecture(name, gguf)
    try:
        with quiet():
            model = _model(gguf)
            tokenizer = AutoTokenizer.from_pretrained(
                gguf.parent, gguf_file=gguf.name, local_files_only=True, trust_remote_code=False
            )
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except Exception as error:  # readers of GGUF raise what a cut or foreign file happens to cause
        raise WeightsError(
            f"{name}: the GGUF architecture {architecture!r} of {gguf.name} cannot be read by this "
            f"transformers ({error}). Take the same model from the hub, or a file of Llama, Qwen2, Mistral, "
            f"Gemma and the like"
        ) from error


def integer_minima(name: str, gguf: Path, target: Path) -> Path:
    """Copy a GGUF file with the minimum m of each Q4_1 block set to a multiple of its scale d: -round(-m / d) d.

    OpenVINO reads Q4_1 so: it keeps integer zero points (gguf_utils/building_blocks.cpp of openvino.genai 2026.4).

    Args:
        target: the file to write.

    Raises:
        WeightsError: the file is damaged, or has no block of Q4_1.
    """
    from gguf import GGMLQuantizationType, GGUFReader

    _architecture(name, gguf)
    shutil.copyfile(gguf, target)
    try:
        tensors = GGUFReader(target, "r+").tensors
    except (ValueError, IndexError, KeyError, OSError) as error:
        raise WeightsError(f"{name}: {gguf} is damaged ({error}); fetch it again, or name another file") from error
    blocks = [tensor.data for tensor in tensors if tensor.tensor_type == GGMLQuantizationType.Q4_1]
    if not blocks:
        raise WeightsError(f"{name}: {gguf.name} has no Q4_1 blocks, so it has no minima to round; take it as it is")
    for data in blocks:
        halves = data.view(np.float16).reshape(-1, Q4_1_BYTES // 2)  # d, m, then 32 weights of 4 bits
        scale, minimum = halves[:, 0].astype(np.float32), halves[:, 1].astype(np.float32)
        points = np.divide(-minimum, scale, out=np.zeros_like(scale), where=scale != 0)
        halves[:, 1] = -np.clip(np.rint(points), 0, 255) * scale
    return target


def _architecture(name: str, gguf: Path) -> str:
    """The architecture in the first bytes, where every writer puts it. Reading all fields takes seconds."""
    with open(gguf, "rb") as file:
        head = file.read(256)
    if len(head) < 64 or head[:4] != b"GGUF":
        raise WeightsError(f"{name}: {gguf} is not a GGUF file; fetch it again, or name another file")
    key, rest = _string(head[24:])
    return _string(rest[4:])[0] if key == "general.architecture" else "unknown"


def _unread_keys(reader: Any, architecture: str, config: Any) -> list[str]:
    """Return the settings of the model that neither transformers nor `_rope_parameters` reads."""
    known = {*GGUF_CONFIG_MAPPING.get(architecture, {}), *GGUF_CONFIG_MAPPING.get(config.model_type, {})}
    width = getattr(config, "head_dim", None)
    return [
        f"{key} = {value}"
        for key, value in ((key, field.contents()) for key, field in reader.fields.items())
        if (rest := key.removeprefix(f"{architecture}.")) != key
        and rest not in known
        and not rest.startswith("rope.scal")
        and not (rest in ("attention.key_length", "attention.value_length") and value == width)
    ]


def _rope_parameters(reader: Any, architecture: str, config: Any) -> dict[str, Any]:
    """Return the scaling of rotations, which transformers does not read from a GGUF file.

    llama.cpp divides frequency i by entry i of ``rope_freqs`` (Llama 3.1), whatever formula gave it. Transformers has
    such divisors in LongRoPE only, where two lists and a factor of 1 give the same rotations at all lengths.

    Raises:
        ValueError: a scaling of another type, or without its factor.
    """
    tensors = {tensor.name: tensor.data.tolist() for tensor in reader.tensors if tensor.name in ROPE_TENSORS}
    start = f"{architecture}.rope.scaling."
    scaling = {key.removeprefix(start): f.contents() for key, f in reader.fields.items() if key.startswith(start)}
    kind = scaling.pop("type", "none")
    if kind == "none" and f"{architecture}.rope.scale_linear" in reader.fields:
        kind, scaling["factor"] = "linear", reader.fields[f"{architecture}.rope.scale_linear"].contents()
    original = int(scaling.get("original_context_length", config.max_position_embeddings))
    if "rope_freqs.weight" in tensors and kind == "none":
        freqs = tensors["rope_freqs.weight"]
        whole = {"original_max_position_embeddings": int(config.max_position_embeddings), "attention_factor": 1.0}
        return {"rope_type": "longrope", "short_factor": freqs, "long_factor": freqs, **whole}
    if not tensors and kind == "none":
        return {}
    if not tensors and kind == "linear":
        return {"rope_type": "linear", "factor": float(scaling["factor"])}
    if not tensors and kind == "yarn":
        factor = float(scaling["factor"])
        attention = float(scaling.get("attn_factor", scaling.get("yarn_attn_factor", 1.0))) * (0.1 * log(factor) + 1)
        betas = {key: float(scaling[f"yarn_{key}"]) for key in ("beta_fast", "beta_slow") if f"yarn_{key}" in scaling}
        start_of = {"factor": factor, "original_max_position_embeddings": original, "attention_factor": attention}
        return {"rope_type": "yarn", **start_of, **betas}
    raise ValueError(f"rope.scaling.type {kind!r} with {', '.join(tensors) or 'no tensor of factors'} is not supported")


def _string(raw: bytes) -> tuple[str, bytes]:
    """A length-prefixed string, and the bytes after it."""
    size = int.from_bytes(raw[:8], "little")
    return raw[8 : 8 + size].decode(errors="replace"), raw[8 + size :]


def _model(gguf: Path) -> Any:
    """The dequantised model. `from_pretrained` needs one more package for this, and marks the model as quantised."""
    from gguf import GGUFReader

    config = AutoConfig.from_pretrained(
        gguf.parent, gguf_file=gguf.name, local_files_only=True, trust_remote_code=False
    )
    reader = GGUFReader(gguf)
    architecture = str(reader.fields["general.architecture"].contents())
    if rope := _rope_parameters(reader, architecture, config):
        config = type(config).from_dict({**config.to_dict(), "rope_parameters": {**config.rope_parameters, **rope}})
    config.unread_keys = _unread_keys(reader, architecture, config)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=config.to_dict())
    known = {*get_gguf_hf_weights_map(model, processor), *ROPE_TENSORS}
    unread = [tensor.name for tensor in reader.tensors if tensor.name not in known and "exps" not in tensor.name]
    if unread:
        raise ValueError(f"{len(unread)} tensors are not read: {listed(unread)}")
    read = load_gguf_checkpoint(str(gguf), return_tensors=True, model_to_load=model)
    report = model.load_state_dict(read["tensors"], strict=False, assign=True)
    model.tie_weights()
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    lost = [key for key in report.missing_keys if key not in tied and not any(buffer in key for buffer in COMPUTED)]
    if lost or report.unexpected_keys:
        raise ValueError(f"tensors missing: {lost[:3]}, not expected: {report.unexpected_keys[:3]}")
    return model
