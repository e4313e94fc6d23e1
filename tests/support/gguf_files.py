"""A small GGUF file of a Llama with random weights and a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np

WIDTH, VOCABULARY = 32, 40


def write_gguf(
    path: Path,
    architecture: str = "llama",
    feed_forward: int = 64,
    q4_1: bool = False,
    keys: Mapping[str, str | float] | None = None,
    tensors: Mapping[str, Sequence[float]] | None = None,
) -> Path:
    """``feed_forward``: as the settings say; the tensors are for 64. ``q4_1``: matrices are quantised so."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    tokens = ["<|end|>", *map(chr, range(ord("a"), ord("z") + 1)), *map(str, range(10)), "Ġ", "ab", "cd"]
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (VOCABULARY - 1))
    writer.add_token_merges(["a b", "c d"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    for key, value in (keys or {}).items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(key, value)  # type: ignore[operator]  # of either type
    for name, entries in (tensors or {}).items():
        writer.add_tensor(name, np.array(entries, dtype=np.float32))
    generator = np.random.default_rng(0)
    for name, shape in {
        "token_embd": (VOCABULARY, WIDTH),
        "output_norm": (WIDTH,),
        "output": (VOCABULARY, WIDTH),
        "blk.0.attn_norm": (WIDTH,),
        "blk.0.attn_q": (WIDTH, WIDTH),
        "blk.0.attn_k": (WIDTH // 2, WIDTH),
        "blk.0.attn_v": (WIDTH // 2, WIDTH),
        "blk.0.attn_output": (WIDTH, WIDTH),
        "blk.0.ffn_norm": (WIDTH,),
        "blk.0.ffn_gate": (64, WIDTH),
        "blk.0.ffn_up": (64, WIDTH),
        "blk.0.ffn_down": (WIDTH, 64),
    }.items():
        tensor = generator.standard_normal(shape, dtype=np.float32)
        if q4_1 and len(shape) == 2:
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(f"{name}.weight", gguf.quants.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(f"{name}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
