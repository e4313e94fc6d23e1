"""Chat templates, each as its family of models published it, and adapters that read and write text through a tokenizer.

A preset names its ``template``, and ``chat`` turns it on. The default is off, because a prompt to complete, such as a
function's head and docstring, must reach the model unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from stridebench.harness.backbones.base import Adapter, Identity
from stridebench.harness.core.backbone import EncodedPrompt
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError

OWN = "own"
"""The template that comes with the tokenizer."""


BYTE = re.compile("<0x([0-9A-F]{2})>")
"""SentencePiece's name of a token that is one byte."""


@cache
def byte_letters() -> Mapping[str, int]:
    """Return the byte of each letter in the names of a byte-level tokenizer's tokens."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}


@dataclass(frozen=True)
class Template:
    """The text around a turn, without the beginning-of-text token.

    Args:
        marks: texts that must each be one token.
        bos: whether the text starts with the beginning-of-text token.
        strip: white space around the turn is dropped.
    """

    before: str
    after: str
    marks: tuple[str, ...] = ()
    bos: bool = True
    strip: bool = False

    def __call__(self, text: str) -> str:
        return f"{self.before}{text.strip() if self.strip else text}{self.after}"


TEMPLATES = {
    # meta-llama/llama, llama/generation.py
    "llama2": Template("[INST] ", " [/INST]", strip=True),
    # meta-llama/llama3, llama/tokenizer.py, ChatFormat
    "llama3": Template(
        "<|start_header_id|>user<|end_header_id|>\n\n",
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        strip=True,
    ),
    # Qwen/Qwen2.5-7B-Instruct, tokenizer_config.json
    "qwen": Template(
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\n",
        "<|im_end|>\n<|im_start|>assistant\n",
        ("<|im_start|>", "<|im_end|>"),
        bos=False,
    ),
    # deepseek-ai/DeepSeek-R1-Distill-*, tokenizer_config.json: the answer starts inside the thoughts
    "deepseek": Template("<｜User｜>", "<｜Assistant｜><think>\n", ("<｜User｜>", "<｜Assistant｜>")),
    # lm-sys/FastChat, vicuna_v1.1
    "vicuna": Template(
        "A chat between a curious user and an artificial intelligence assistant. "
        "The assistant gives helpful, detailed, and polite answers to the user's questions. USER: ",
        " ASSISTANT:",
    ),
    # GAIR-NLP/abel, evaluation
    "abel": Template("Question:\n", "\nAnswer:\nLet's think step by step.\n"),
}


def check(name: str, params: Mapping[str, Any]) -> str | None:
    """Return the template of texts, or None if texts are sent unchanged; UsageError if the settings are wrong."""
    template, chat = params.get("template"), params.get("chat", False)
    if template is not None and template not in (OWN, *TEMPLATES):
        raise UsageError(f"{name}: there is no template {template!r}; choose one of {', '.join((OWN, *TEMPLATES))}")
    if not isinstance(chat, bool):
        raise UsageError(f"{name}: chat is {chat!r}; true sends every text as a user's turn, false as it stands")
    if chat and template is None:
        raise UsageError(f"{name}: chat is true and there is no template; choose {', '.join((OWN, *TEMPLATES))}")
    return template if chat else None


def fit(name: str, template: str | None, tokenizer: Any) -> None:
    """Raise UsageError for a tokenizer that is missing, lacks a template, or would split a template's marks."""
    if template is None:
        return
    if tokenizer is None:
        raise UsageError(f"{name}: chat is true and the weights come without a tokenizer")
    if template == OWN:
        if not getattr(tokenizer, "chat_template", None):
            raise UsageError(f"{name}: the tokenizer lacks a template; choose one of {', '.join(TEMPLATES)}")
        return
    vocabulary = tokenizer.get_vocab()
    for mark in TEMPLATES[template].marks:
        if mark not in vocabulary:
            raise UsageError(f"{name}: the template {template!r} needs the token {mark!r}, which the tokenizer lacks")


def turn(template: str, tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a text as a user's turn, up to where the answer starts."""
    if template == OWN:
        messages = [{"role": "user", "content": text}]
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
    wrap = TEMPLATES[template]
    ids = list(tokenizer(wrap(text)).input_ids)
    start = tokenizer.bos_token_id
    return [start, *ids] if wrap.bos and start is not None and ids[:1] != [start] else ids


def conversation(name: str, template: str, tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Return the ids of a conversation, up to where the answer starts, or raise UsageError.

    Messages have the keys role and content; a template of `TEMPLATES` writes one message of a user.
    """
    if template == OWN:
        from jinja2 import TemplateError

        if not getattr(tokenizer, "chat_template", None):
            raise UsageError(
                f"{name}: the prompt is a conversation, and the tokenizer brings no chat template. "
                f"Give a prompt instead of messages, or a backbone with a template"
            )
        plain = [dict(message) for message in messages]
        try:
            return list(tokenizer.apply_chat_template(plain, add_generation_prompt=True, return_dict=False))
        except TemplateError as error:
            raise UsageError(f"{name}: the tokenizer's template refuses these messages: {error}") from error
    if len(messages) > 1:
        raise UsageError(
            f"{name}: the template {template!r} writes one message of a user; found {len(messages)} messages. "
            f"Take template: {OWN}, or send the whole text as a prompt"
        )
    return turn(template, tokenizer, messages[0]["content"])


class TokenizedAdapter(Adapter):
    """An adapter with a tokenizer, or None for random weights, and a template, or None if texts are sent unchanged.

    Attributes:
        task_template: writes one message if only a task says ``chat: true``; None for that of the tokenizer.
    """

    task_template: str | None = None

    def __init__(self, identity: Identity, tokenizer: Any, template: str | None = None) -> None:
        super().__init__(identity)
        self._tokenizer, self._template = tokenizer, template

    def open(self, prompt: Prompt) -> EncodedPrompt:
        """Read a text as a user's turn if there is a template, and ids unchanged.

        One message is written through the preset's template, and several through the tokenizer's.
        """
        if prompt.messages:
            if self._tokenizer is None:
                raise UsageError(f"{self.name}: the prompt is a conversation, and the weights come without a tokenizer")
            named = self.task_template if len(prompt.messages) == 1 else None
            template = self._template or named or OWN
            if template != OWN:
                fit(self.name, template, self._tokenizer)
            ids = conversation(self.name, template, self._tokenizer, prompt.messages)
            return EncodedPrompt(tuple(ids), self.cache)
        if self._template is None or prompt.tokens is not None:
            return super().open(prompt)
        return EncodedPrompt(tuple(turn(self._template, self._tokenizer, prompt.text or "")), self.cache)

    def encode(self, text: str) -> list[int]:
        if self._tokenizer is None:
            return super().encode(text)
        ids = list(self._tokenizer(text).input_ids)
        if max(ids, default=0) >= self.capabilities.vocabulary:
            raise UsageError(
                f"{self.name}: the tokenizer has {len(self._tokenizer)} ids and the model has "
                f"{self.capabilities.vocabulary}, and a prompt has id {max(ids)}; leave that special token out"
            )
        return ids

    def pieces(self) -> Sequence[bytes | str]:
        if self._tokenizer is None:
            return super().pieces()
        special = set(self._tokenizer.all_special_ids)
        names = self._tokenizer.convert_ids_to_tokens(range(len(self._tokenizer)))
        texts = [self._piece(name) if name and id not in special else name or "" for id, name in enumerate(names)]
        size = self.capabilities.vocabulary
        return texts[:size] + [""] * (size - len(texts))

    def _piece(self, name: str) -> bytes:
        """Return the text of a token. SentencePiece's decoder leaves out the first space, which it writes as a mark."""
        if name.startswith("\u2581"):
            return name.replace("\u2581", " ").encode()
        text = str(self._tokenizer.convert_tokens_to_string([name]))
        if "\ufffd" in text and (byte := BYTE.fullmatch(name)):
            return bytes.fromhex(byte[1])
        if "\ufffd" in text and byte_letters().keys() >= set(name):
            return bytes(byte_letters()[letter] for letter in name)
        return text.encode()

    def _text(self, tokens: Sequence[int], **options: Any) -> str:
        """Return text without special tokens; empty without a tokenizer."""
        if self._tokenizer is None:
            return ""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True, **options))
