"""The contract of a backbone: capabilities, caches, a tokenizer, a fingerprint. It does not know any method."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from stridebench.harness.core.cache import Cache
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError
from stridebench.harness.record.outputs import Output

DTYPES = ("fp32", "bf16", "fp16", "fp64")


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt as a backbone reads it.

    Args:
        tokens: prompt ids, at least one.
        cache: makes an empty cache for this prompt, with everything that conditions the model besides its tokens:
            encoder states, a second guidance branch.
        condition: the encoder's rows of the prompt's condition, if the backbone meets CONDITION.
        unread: says which part of the prompt the model did not read, for the row; "" if it read all.
        negative: tokens of the prompt of a second guidance branch; 0 if there is none.
    """

    tokens: tuple[int, ...]
    cache: Callable[[], Cache]
    condition: Float[Tensor, "K C"] | None = None
    unread: str = ""
    negative: int = 0


@dataclass(frozen=True, eq=False)
class TiedEmbeddings:
    """Embedding and unembedding of a model, which drafters over its hidden rows share. They may be views: read only.

    Args:
        embed: row v is the first layer's input for id v.
        unembed: raw logits are its products with normed rows, or with what ``lift`` makes of them.
        lift: the layers of the head before its last product, F wide, or None if F is E.
    """

    embed: Float[Tensor, "V E"]
    unembed: Float[Tensor, "V F"]
    lift: Callable[[Tensor], Tensor] | None = None

    def logits(self, rows: Float[Tensor, "*B E"]) -> Float[Tensor, "*B V"]:
        """Return the raw logits of normed rows."""
        return functional.linear(rows if self.lift is None else self.lift(rows), self.unembed)


class Backbone(ABC):
    """A loaded model. One object serves any number of caches; it holds no state of a decode.

    Attributes:
        name: as the user wrote it.
        dtype: one of ``DTYPES``.
        device: a torch device string.
        default_dtype: its type unless the user names another.
        toy_drafters: whether it makes a toy of any drafter and component, so that none is loaded.
        capabilities: vocabulary, context, end-of-text ids and requirements met.
        fingerprint: hex digest of weights and configuration: part of every cell's provenance.
        forward_kind: the implementation that computes its passes, as the record says it; if empty, the class's name.
        weights_bytes: size of its weights in fp32; 0 if unknown.
        weights_form: full, or the format that its weights were rounded to.
        weights_of: the backbone whose weights it computes with, or None if it reads no other's.
        notes: facts that a reader of its numbers must know, such as weights in its folder that are not read.
    """

    default_dtype: ClassVar[str] = "fp32"
    toy_drafters: ClassVar[bool] = False
    name: str
    dtype: str
    device: str
    capabilities: Capabilities
    fingerprint: str
    forward_kind: str = ""
    weights_bytes: int = 0
    weights_form: str = "full"
    weights_of: Backbone | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    @abstractmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> Backbone:
        """Load the backbone; ``params`` holds the preset's parameters, without the adapter's name.

        Raises:
            UsageError: a parameter is unknown or of the wrong type.
            WeightsError: the weights are missing, damaged or of an architecture this adapter cannot serve.
        """

    @classmethod
    @abstractmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        """Return the requirements that it would meet, decided without loading it."""

    @classmethod
    def reads_text(cls, params: Mapping[str, Any]) -> bool:
        """Return whether it would have a tokenizer; True if that is not known."""
        return True

    @classmethod
    def modality(cls, params: Mapping[str, Any]) -> str:
        """Return the kind of its outputs: text, image, mesh or speech.

        Tasks of another modality are skipped with that reason.
        """
        return "text"

    @classmethod
    def refuse_settings(cls, name: str, params: Mapping[str, Any]) -> None:
        """Refuse weights that are here, as ``load`` would, where their settings alone say that they cannot be served.

        Raises:
            WeightsError: they are damaged, or of a model that this adapter cannot serve.
        """
        return

    @abstractmethod
    def cache(self) -> Cache:
        """Return a new, empty cache, without a condition.

        Raises:
            UsageError: the model cannot run without one.
        """

    def open(self, prompt: Prompt) -> EncodedPrompt:
        """Read a prompt: its ids, and the encoder's pass if there is one (timed here, apart from the decode).

        Raises:
            UsageError: the prompt is not of this backbone's kind, or its condition has the wrong shape.
        """
        if prompt.messages:
            raise UsageError(
                f"the backbone {self.name!r} has no chat template, so it cannot read messages; give a prompt"
            )
        ids = prompt.tokens if prompt.tokens is not None else prompt.cut(self.encode(prompt.text or ""))
        return EncodedPrompt(tuple(ids), self.cache)

    def tied_embeddings(self) -> TiedEmbeddings:
        """Return its embedding and unembedding.

        Raises:
            UsageError: it has none that drafters can use.
        """
        raise UsageError(f"the backbone {self.name!r} lends no embedding; take one whose hidden rows a model makes")

    def adapter(self, folder: Path | None) -> Any:
        """Return an adapter of these weights, for the gate of a window; a toy one if ``folder`` is None.

        Raises:
            UsageError: no row of it can be gated. WeightsError: the folder holds none, or one of other weights.
        """
        raise UsageError(f"the backbone {self.name!r} gates no rows; take one that meets GATE")

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, with beginning-of-text if the model wants it."""
        raise UsageError(
            f"the backbone {self.name!r} has no tokenizer, so it cannot read a text prompt; put the files of its "
            f"tokenizer next to its weights"
        )

    def pieces(self) -> Sequence[bytes | str]:
        """Return the text of every id in UTF-8, of which an id may hold a part; "" for ids without a token.

        A special id has no text, but a name, which is a `str`.

        Raises:
            UsageError: there is no tokenizer.
        """
        raise UsageError(f"the backbone {self.name!r} has no tokenizer, so its tokens cannot be compared by their text")

    def release(self) -> None:  # noqa: B027  # most adapters hold what they have
        """Release its weights, if it can: it still decodes ids to outputs, but makes no more caches."""

    def decode(self, tokens: Sequence[int]) -> Output:
        """Return the output of these ids: a text (empty if there is no tokenizer), a picture or a mesh.

        Raises:
            OutputError: they have no output, such as a mesh that cannot be parsed; the sample fails, and is counted.
        """
        return ""

    def variant(self, params: Mapping[str, str]) -> Backbone:
        """Return a cheaper reading of the same weights, for a self-drafter: ``{"layers": "26"}`` and the like.

        Raises:
            UsageError: this backbone has no such variant.
        """
        if not params:
            return self
        raise UsageError(f"the backbone {self.name!r} has no variant with {', '.join(sorted(params))}")
