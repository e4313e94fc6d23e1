"""The backbone that an engine's tokens are held against: its tokenizer and its distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.engine import Weights
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import WeightsError
from stridebench.harness.plan import presets


@dataclass(frozen=True)
class Reference:
    """A backbone, or its name alone where a suite says ``reference: false``.

    Args:
        name: of the backbone.
        backbone: None: only texts are known.
    """

    name: str
    backbone: Backbone | None

    @classmethod
    def load(cls, name: str, dtype: str, device: str, fetch: bool, wanted: bool) -> Reference:
        """Load the weights, or nothing.

        Raises:
            WeightsError: they are not there.
        """
        return cls(name, presets.load(name, dtype, device, fetch) if wanted else None)

    @cached_property
    def weights(self) -> Weights:
        """Where its weights lie, for engines that load them."""
        declared = presets.resolve(self.name).params.get("source")
        if declared is None:
            return Weights()
        source = sources.parse(self.name, declared)
        try:
            folder = None if source.kind == "random" else str(sources.locate(self.name, source))
        except WeightsError:
            folder = None
        return Weights(folder, partial(_gguf, self.name, source))

    def ids(self, prompt: Prompt) -> tuple[int, ...]:
        """The ids of a prompt; empty where only its text is known."""
        if self.backbone is not None:
            return tuple(map(int, self.backbone.open(prompt).tokens))
        return tuple(prompt.tokens or ())

    def text(self, tokens: Sequence[int]) -> str | None:
        """Some ids as its tokenizer reads them; None: there is no reference, or it makes no text."""
        if self.backbone is None or not tokens:
            return None
        text = self.backbone.decode(tokens)
        return text if isinstance(text, str) and text else None

    def misfit(self, tokens: Sequence[int], text: str | None) -> str | None:
        """Why some ids are not of this backbone's tokenizer; None: nothing speaks against it."""
        if self.backbone is None or not tokens:
            return None
        vocabulary = self.backbone.capabilities.vocabulary
        if beyond := [token for token in tokens if not 0 <= token < vocabulary]:
            return f"the id {beyond[0]} is outside the vocabulary of {vocabulary} of {self.name}"
        own = self.backbone.decode(tokens)
        if text is None or not isinstance(own, str) or not own:
            return None
        told, own = text.strip().rstrip("\ufffd"), own.strip()
        if own.startswith(told) or told.startswith(own.rstrip("\ufffd")):
            return None
        return f"the ids decode to {own[:40]!r} with the tokenizer of {self.name}, and the engine says {told[:40]!r}"


def _gguf(name: str, source: sources.Source) -> str | None:
    path = sources.gguf(name, source)
    return None if path is None else str(path)
