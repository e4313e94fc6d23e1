"""Chat templates as published, and the adapters that write turns with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from stridebench.harness.backbones.text import chat
from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.backbones.tiny.texts import byte_tokenizer
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, WeightsError
from tests.support.tiny_text import SIZES, tiny

QUESTION = "What is 2+3?"
PUBLISHED = {
    "llama2": "[INST] What is 2+3? [/INST]",
    "llama3": "<|start_header_id|>user<|end_header_id|>\n\nWhat is 2+3?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "qwen": "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\nWhat is 2+3?<|im_end|>\n<|im_start|>assistant\n",
    "deepseek": "<｜User｜>What is 2+3?<｜Assistant｜><think>\n",
    "vicuna": "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
    "detailed, and polite answers to the user's questions. USER: What is 2+3? ASSISTANT:",
    "abel": "Question:\nWhat is 2+3?\nAnswer:\nLet's think step by step.\n",
}
OWN = "{% for m in messages %}<u>{{ m['content'] }}</u>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"


def folder(path: Path, tok: PreTrainedTokenizerFast) -> Path:
    """A tiny model of random weights and a tokenizer, as a folder of transformers."""
    config = AutoConfig.for_model("llama", **{**SIZES, "vocab_size": len(tok)})
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    tok.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer brings no template."""
    return folder(tmp_path_factory.mktemp("plain"), byte_tokenizer(bos=True))


def opened(path: Path, prompt: Prompt, **params: Any) -> tuple[int, ...]:
    model = HFCausal.load("tiny", {"source": {"folder": str(path)}, **params}, "fp32", "cpu")
    return model.open(prompt).tokens


def test_a_turn_is_wrapped_as_published() -> None:
    assert set(PUBLISHED) == set(chat.TEMPLATES)
    for name, published in PUBLISHED.items():
        template, bos = chat.TEMPLATES[name], name != "qwen"
        tok = byte_tokenizer(bos, template.marks)
        wrapped = chat.turn(name, tok, QUESTION)
        assert tok.decode(wrapped, clean_up_tokenization_spaces=False) == "<s>" * bos + published
        assert all(tok.convert_tokens_to_ids(mark) in wrapped for mark in template.marks)
        strips = f" {QUESTION}\n" not in template(f" {QUESTION}\n")
        assert strips == (name in ("llama2", "llama3"))


def test_texts_are_wrapped_if_chat_is_on_and_tokens_never(tmp_path: Path) -> None:
    tok = byte_tokenizer(True, chat.TEMPLATES["llama3"].marks)
    path, prompt = folder(tmp_path, tok), Prompt("1", QUESTION)
    assert opened(path, prompt, template="llama3", chat=True) == tuple(chat.turn("llama3", tok, QUESTION))
    assert list(opened(path, prompt, template="llama3", chat=False)) == tok(QUESTION).input_ids
    assert list(opened(path, prompt, template="llama3")) == tok(QUESTION).input_ids
    assert opened(path, Prompt("1", tokens=(5, 6)), template="llama3", chat=True) == (5, 6)


def test_the_beginning_token_is_added_once() -> None:
    tok = byte_tokenizer(bos=False)
    tok.bos_token = "<s>"
    assert chat.turn("abel", tok, QUESTION)[0] == 256 == chat.turn("abel", byte_tokenizer(bos=True), QUESTION)[0]
    assert chat.turn("abel", tok, QUESTION).count(256) == 1


MESSAGE = Prompt("1", QUESTION, messages=({"role": "user", "content": QUESTION},))
LLAMA3_LACKS = r"needs the token '<\|start_header_id\|>', which the tokenizer lacks"


@pytest.mark.parametrize(
    ("prompt", "params", "says"),
    [
        (None, {"template": "lama2", "chat": True}, "no template 'lama2'; choose one of own, llama2"),
        (None, {"chat": True}, "chat is true and there is no template"),
        (None, {"template": "llama2", "chat": "yes"}, "chat is 'yes'; true sends"),
        (None, {"template": "llama3", "chat": True}, LLAMA3_LACKS),
        (None, {"template": "own", "chat": True}, "the tokenizer lacks a template"),
        (MESSAGE, {"template": "llama3"}, LLAMA3_LACKS),
        (MESSAGE, {}, "the tokenizer brings no chat template"),
        (MESSAGE, {"template": "own"}, "the tokenizer brings no chat template"),
    ],
)
def test_templates_that_cannot_work_are_refused(
    prompt: Prompt | None, params: dict[str, Any], says: str, plain: Path
) -> None:
    """At load if the backbone's chat is on, and for a message of a task that says chat."""
    with pytest.raises(UsageError, match=says):
        opened(plain, prompt or Prompt("1", QUESTION), **params)


def test_chat_without_a_tokenizer_is_refused() -> None:
    with pytest.raises(UsageError, match="the weights come without a tokenizer"):
        tiny(template="llama2", chat=True)


def test_a_variant_keeps_the_template_and_another_vocabulary_is_refused(plain: Path) -> None:
    params = {"source": {"folder": str(plain)}, "template": "abel", "chat": True}
    model = HFCausal.load("tiny", params, "fp32", "cpu")
    assert model.variant({"layers": "2"}).open(Prompt("1", QUESTION)).tokens == model.open(Prompt("1", QUESTION)).tokens
    with pytest.raises(WeightsError, match="says vocabulary: 32000 and the weights have 258"):
        HFCausal.load("tiny", {**params, "vocabulary": 32000}, "fp32", "cpu")


class TestTaskThatSaysChat:
    """`chat: true` of a task sends one message, and the preset's template writes it, though its own chat is off."""

    def test_the_presets_template_writes_one_and_the_tokenizers_own_several(self, tmp_path: Path) -> None:
        tok = byte_tokenizer(bos=True, template=OWN)
        path = folder(tmp_path, tok)
        assert opened(path, MESSAGE, template="abel") == tuple(chat.turn("abel", tok, QUESTION))
        own = opened(path, Prompt("1", QUESTION), template="own", chat=True)
        assert tok.decode(own, clean_up_tokenization_spaces=False) == f"<u>{QUESTION}</u><a>"
        more = Prompt("1", QUESTION, messages=({"role": "system", "content": "Hi"}, *MESSAGE.messages))
        ids = opened(path, more, template="abel")
        assert tok.decode(ids, clean_up_tokenization_spaces=False) == f"<u>Hi</u><u>{QUESTION}</u><a>"
