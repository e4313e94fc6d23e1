"""Tokenizers of stand-ins: bytes for language models, characters behind special words for picture models."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast


def byte_tokenizer(bos: bool, marks: tuple[str, ...] = (), template: str | None = None) -> PreTrainedTokenizerFast:
    """A lossless tokenizer of bytes with a token for each mark."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", *marks])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 256)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>" if bos else None, eos_token="</s>")
    fast.chat_template = template
    return fast


def character_tokenizer(special: Sequence[str], opens: bool = False) -> Any:
    """One id a character behind the special words; with `opens`, texts begin with <s>."""
    words = ["<s>", "</s>", "<unk>", *special, *string.printable]
    words_only = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, "<unk>"))
    words_only.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    if opens:
        words_only.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=words_only, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.add_special_tokens({"additional_special_tokens": list(special)})
    return fast
