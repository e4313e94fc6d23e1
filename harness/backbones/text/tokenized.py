"""Adapters that read and write text through a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stridebench.harness.backbones.base import Adapter, Identity
from stridebench.harness.backbones.text import chat
from stridebench.harness.core.backbone import EncodedPrompt
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError


class TokenizedAdapter(Adapter):
    """An adapter with a tokenizer and, where a preset says ``chat: true``, a chat template.

    Args:
        identity: of the loaded model.
        tokenizer: of transformers; None for random weights.
        template: a name of `chat.TEMPLATES` or `chat.OWN`; None: texts are sent unchanged.

    Attributes:
        task_template: what one message is written through where only a task says ``chat: true``; None: the tokenizer's
            own template.
    """

    task_template: str | None = None

    def __init__(self, identity: Identity, tokenizer: Any, template: str | None = None) -> None:
        super().__init__(identity)
        self._tokenizer, self._template = tokenizer, template

    def open(self, prompt: Prompt) -> EncodedPrompt:
        """A text is sent as a user's turn where there is a template; ids are sent unchanged.

        One message is written through the preset's template, and several through the tokenizer's own.

        Raises:
            UsageError: the tokenizer lacks the template, or a token of it.
        """
        if prompt.messages:
            if self._tokenizer is None:
                raise UsageError(f"{self.name}: the prompt is a conversation, and the weights come without a tokenizer")
            named = self.task_template if len(prompt.messages) == 1 else None
            template = self._template or named or chat.OWN
            if template != chat.OWN:
                chat.fit(self.name, template, self._tokenizer)
            ids = chat.conversation(self.name, template, self._tokenizer, prompt.messages)
            return EncodedPrompt(tuple(ids), self.cache)
        if self._template is None or prompt.tokens is not None:
            return super().open(prompt)
        return EncodedPrompt(tuple(chat.turn(self._template, self._tokenizer, prompt.text or "")), self.cache)

    def encode(self, text: str) -> list[int]:
        """The tokenizer's ids, with a beginning-of-text token only where it adds one."""
        if self._tokenizer is None:
            return super().encode(text)
        ids = list(self._tokenizer(text).input_ids)
        if max(ids, default=0) >= self.capabilities.vocabulary:
            raise UsageError(
                f"{self.name}: the tokenizer has {len(self._tokenizer)} ids and the model has "
                f"{self.capabilities.vocabulary}, and a prompt has id {max(ids)}; leave that special token out"
            )
        return ids

    def _text(self, tokens: Sequence[int], **options: Any) -> str:
        """Text without special tokens; empty where there is no tokenizer."""
        if self._tokenizer is None:
            return ""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True, **options))
