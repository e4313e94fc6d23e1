"""Where each token of an output came from, as far as the stored steps say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from stridebench.harness.errors import OutputError

ACCEPTED, CORRECTED, BONUS, FORCED, DECODED = "accepted", "corrected", "bonus", "forced", "decoded"
ORIGINS = {
    ACCEPTED: "drafted, and accepted",
    CORRECTED: "drawn in the place of a rejected draft",
    BONUS: "drawn after the last draft, none of which was rejected",
    FORCED: "the only token that could stand there",
    DECODED: "drawn without a draft",
}
"""What a token was, and what that means."""
UNREADABLE = "\N{REPLACEMENT CHARACTER}"


class Decoder(Protocol):
    """What `Backbone.decode` is."""

    def __call__(self, tokens: Sequence[int]) -> object:
        """The output of ids."""


def origins(steps: Iterable[Any], tokens: int) -> list[str] | None:
    """The origin of each of the output's ``tokens`` tokens, one of ``ORIGINS``; None: a canvas is filled in any order.

    Args:
        steps: of one decode, in order, with the attributes of `Step`.
    """
    steps = list(steps)
    if tokens > 1 and all(not step.drafted and step.emitted == 1 and step.rows >= tokens for step in steps):
        return None  # each pass reads every position and fills one of them
    out: list[str] = []
    for step in steps:
        if not step.drafted and step.emitted > 1:
            return None
        last = DECODED if not step.drafted else CORRECTED if step.tested > step.accepted else BONUS
        of_step = [ACCEPTED] * step.accepted + [last] * (step.emitted - step.accepted)
        out += [FORCED] * step.emitted if step.forced == step.emitted else of_step
    return out[:tokens]


def pieces(decode: Decoder, tokens: Sequence[int]) -> tuple[str, ...]:
    """The text that each token adds to the output; several tokens of one character add it with the last of them.

    A token is decoded behind the one before it, because some tokenizers leave out the space of a first token.
    Nothing is returned where there is no tokenizer, or the tokens cannot be decoded one by one.
    """
    out: list[str] = []
    before: list[int] = []
    open_tokens: list[int] = []
    for token in tokens:
        open_tokens.append(token)
        try:
            head, text = decode(before) if before else "", decode([*before, *open_tokens])
        except OutputError:
            return ()
        if not isinstance(head, str) or not isinstance(text, str):
            return ()
        if text.endswith(UNREADABLE) and len(open_tokens) < 4:  # a character has four bytes at most
            out.append("")
            continue
        out.append(text.removeprefix(head))
        before, open_tokens = [token], []
    return tuple(out) if any(out) else ()
