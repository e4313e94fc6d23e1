"""Chat templates as published, and small models of the architectures that use them."""

from __future__ import annotations

import json
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
from tests.support.caches import feed_windows
from tests.support.tiny_text import SIZES

"""The published configurations: how many parameters a preset states follows from them."""


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
    config = AutoConfig.for_model(**{**TINY["llama"], "vocab_size": len(tok)})
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    tok.save_pretrained(path)
    return path


def opened(path: Path, prompt: Prompt, **params: Any) -> tuple[int, ...]:
    model = HFCausal.load("tiny", {"source": {"folder": str(path)}, **params}, "fp32", "cpu")
    return model.open(prompt).tokens


TINY = {
    kind: {"model_type": kind, **SIZES, "vocab_size": 97, "max_position_embeddings": 256, "tie_word_embeddings": False}
    for kind in ("llama", "qwen2")
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_chat_wraps_a_turn_as_published(name: str, tmp_path: Path) -> None:
    marks, bos = chat.TEMPLATES[name].marks, name != "qwen"
    tok = byte_tokenizer(bos, marks)
    path, prompt = folder(tmp_path, tok), Prompt("1", QUESTION)
    wrapped = opened(path, prompt, template=name, chat=True)
    assert tok.decode(wrapped, clean_up_tokenization_spaces=False) == "<s>" * bos + PUBLISHED[name]
    for mark in marks:
        assert tok.convert_tokens_to_ids(mark) in wrapped
    assert list(opened(path, prompt, template=name, chat=False)) == tok(QUESTION).input_ids
    assert list(opened(path, prompt, template=name)) == tok(QUESTION).input_ids
    assert opened(path, Prompt("1", tokens=(5, 6)), template=name, chat=True) == (5, 6)


def test_every_template_has_a_published_string() -> None:
    assert set(PUBLISHED) == set(chat.TEMPLATES)


def test_white_space_around_a_turn_is_stripped_as_published() -> None:
    for name, template in chat.TEMPLATES.items():
        assert (f" {QUESTION}\n" in template(f" {QUESTION}\n")) == (name not in ("llama2", "llama3"))


def test_the_beginning_token_is_added_once() -> None:
    tok = byte_tokenizer(bos=False)
    tok.bos_token = "<s>"
    assert chat.turn("abel", tok, QUESTION)[0] == 256 == chat.turn("abel", byte_tokenizer(bos=True), QUESTION)[0]
    assert chat.turn("abel", tok, QUESTION).count(256) == 1


def test_template_own_is_the_tokenizers_template(tmp_path: Path) -> None:
    tok = byte_tokenizer(bos=True, template=OWN)
    ids = opened(folder(tmp_path, tok), Prompt("1", QUESTION), template="own", chat=True)
    assert tok.decode(ids, clean_up_tokenization_spaces=False) == f"<u>{QUESTION}</u><a>"


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"template": "lama2", "chat": True}, "no template 'lama2'; choose one of own, llama2"),
        ({"chat": True}, "chat is true and there is no template"),
        ({"template": "llama2", "chat": "yes"}, "chat is 'yes'; true sends"),
        ({"template": "llama3", "chat": True}, r"needs the token '<\|start_header_id\|>', which the tokenizer lacks"),
        ({"template": "own", "chat": True}, "the tokenizer lacks a template"),
    ],
)
def test_templates_that_cannot_work_are_refused_at_load(params: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        opened(folder(tmp_path, byte_tokenizer(bos=True)), Prompt("1", QUESTION), **params)


def test_chat_without_a_tokenizer_is_refused() -> None:
    config = {key: value for key, value in TINY["llama"].items() if key != "model_type"}
    source = {"random": {"model_type": "llama", "config": config, "seed": 0}}
    with pytest.raises(UsageError, match="the weights come without a tokenizer"):
        HFCausal.load("x", {"source": source, "template": "llama2", "chat": True}, "fp32", "cpu")


def test_a_variant_keeps_the_template_and_another_vocabulary_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, byte_tokenizer(bos=True))
    params = {"source": {"folder": str(path)}, "template": "abel", "chat": True}
    model = HFCausal.load("tiny", params, "fp32", "cpu")
    assert model.variant({"layers": "2"}).open(Prompt("1", QUESTION)).tokens == model.open(Prompt("1", QUESTION)).tokens
    with pytest.raises(WeightsError, match="says vocabulary: 32000 and the weights have 258"):
        HFCausal.load("tiny", {**params, "vocabulary": 32000}, "fp32", "cpu")


@pytest.mark.parametrize("forward", ["fused", "transformers"])
@pytest.mark.parametrize("kind", TINY)
def test_small_models_of_each_architecture_equal_generate(kind: str, forward: str) -> None:
    """Llama with shared key heads, Qwen2 with biases that are not zero; windows of any size give the same logits."""
    torch.manual_seed(1)
    reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY[kind])).eval()
    for name, tensor in reference.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(tensor, std=0.5)
    assert (kind == "qwen2") == any(name.endswith("bias") for name, _ in reference.named_parameters())
    prompt = [int(t) for t in torch.randperm(90)[:24]]
    ids = torch.tensor([prompt])
    attention_mask = torch.ones_like(ids)
    generated = reference.generate(ids, attention_mask=attention_mask, max_new_tokens=24, do_sample=False)[0].tolist()
    assert len(set(generated)) >= 16
    with torch.inference_mode():
        expected = reference(torch.tensor([generated])).logits[0]
    model = served(reference, forward)
    logits = feed_windows(model.cache(), generated, (0, 1, 6, 23, 25, 26))
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    assert logits[23:-1].argmax(-1).tolist() == generated[24:]


def served(reference: Any, forward: str) -> HFCausal:
    """The adapter over the reference's weights, saved to a folder."""
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        reference.save_pretrained(place)
        config = json.loads((Path(place) / "config.json").read_text())
        assert config["model_type"] in TINY
        return HFCausal.load("tiny", {"source": {"folder": place}, "forward": forward}, "fp32", "cpu")


class TestTaskThatSaysChat:
    """`chat: true` of a task sends one message, and the preset's template writes it, though its own chat is off."""

    MESSAGE = Prompt("1", QUESTION, messages=({"role": "user", "content": QUESTION},))

    def test_the_presets_template_writes_it(self, tmp_path: Path) -> None:
        tok = byte_tokenizer(bos=True, template=OWN)
        ids = opened(folder(tmp_path, tok), self.MESSAGE, template="abel")
        assert ids == tuple(chat.turn("abel", tok, QUESTION))

    def test_several_messages_go_through_the_tokenizers_own(self, tmp_path: Path) -> None:
        tok = byte_tokenizer(bos=True, template=OWN)
        more = Prompt("1", QUESTION, messages=({"role": "system", "content": "Hi"}, *self.MESSAGE.messages))
        ids = opened(folder(tmp_path, tok), more, template="abel")
        assert tok.decode(ids, clean_up_tokenization_spaces=False) == f"<u>Hi</u><u>{QUESTION}</u><a>"

    @pytest.mark.parametrize(
        ("params", "says"),
        [
            ({"template": "llama3"}, r"needs the token '<\|start_header_id\|>', which the tokenizer lacks"),
            ({}, "the tokenizer brings no chat template"),
            ({"template": "own"}, "the tokenizer brings no chat template"),
        ],
    )
    def test_a_template_that_the_tokenizer_lacks_is_one_message(
        self, params: dict[str, Any], says: str, tmp_path: Path
    ) -> None:
        with pytest.raises(UsageError, match=says):
            opened(folder(tmp_path, byte_tokenizer(bos=True)), self.MESSAGE, **params)
