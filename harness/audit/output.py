"""Audits an output: one pass of the model over it gives the distribution that each of its tokens claims."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.audit.bets import Bets, added_up, bet
from stridebench.harness.audit.laws import laws_of, outcomes_of
from stridebench.harness.audit.outcomes import step_places
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.models import Models
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.core.session import Session
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import ContractError, UsageError

UNGUIDED = "self:guidance=1"
"""The variant of a backbone that is not guided, by its name as a drafter."""
ROWS = 256
"""Rows of a large vocabulary that are held in fp64 at a time."""


def forced_logits(session: Session, output: Sequence[int]) -> Float[Tensor, "N V"]:
    """Return logits for each token of an output, from one pass behind the session's tokens.

    Args:
        session: of the prompt alone.
        output: at least one id.
    """
    session.prefill()
    return session.forward(Draft(torch.tensor(output[:-1], dtype=torch.long, device=session.device)))


def target_logits(backbone: Backbone, prompt: Prompt | Sequence[int], output: Sequence[int]) -> Float[Tensor, "N V"]:
    """Return logits of a backbone for each token of an output, with a fresh cache."""
    return forced_logits(Models(backbone, lambda name: backbone, prompt).target(), output)


def drafter_logits(
    backbone: Backbone,
    load_drafter: Callable[[str], Backbone],
    name: str,
    prompt: Prompt | Sequence[int],
    output: Sequence[int],
) -> Float[Tensor, "N V"]:
    """Return logits of a drafter for each token of an output, given the tokens before it alone."""
    return forced_logits(Models(backbone, load_drafter, prompt).drafter(name, 1), output)


def unguided_logits(
    backbone: Backbone,
    load_drafter: Callable[[str], Backbone],
    prompt: Prompt | Sequence[int],
    output: Sequence[int],
) -> Float[Tensor, "N V"] | None:
    """Return the logits of a guided backbone without its guidance, or None if it has none or cannot leave it out."""
    if backbone.capabilities.guidance == 1 or backbone.toy_drafters:
        return None
    try:
        return drafter_logits(backbone, load_drafter, UNGUIDED, prompt, output)
    except UsageError:
        return None


def bets_on(
    logits: Float[Tensor, "N V"],
    context: Sequence[int],
    sampling: Sampling,
    margin: float,
    draft_logits: Float[Tensor, "N V"] | None = None,
    plain_logits: Float[Tensor, "N V"] | None = None,
    emitted: Sequence[int] = (),
) -> Bets:
    """Return the bets on an output.

    Args:
        logits: of the target, for the last N tokens of ``context``.
        context: prompt and output.
        margin: distance of a logit from a cut of top-k or top-p within which nothing is bet; see `laws.MARGINS`.
        draft_logits: of a drafter, whose draws are warped as the target's.
        plain_logits: of the target without its guidance.
        emitted: tokens of each step, if they are known; then the places of a step are bet on too.

    Raises:
        UsageError: T = 0. ContractError: an alternative of a package breaks the contract, or logits are not finite.
    """
    if not torch.isfinite(logits.amax(-1)).all():  # -inf stands for a token that is not allowed
        raise ContractError(
            "the logits of the target are NaN or infinite, so no token can be held against them: check the weights, or "
            "audit in fp32 or bf16"
        )
    start, parts = len(context) - len(logits), []
    places = step_places(emitted, len(logits)) if emitted else None
    for first in range(0, len(logits), ROWS):
        laws = laws_of(logits[first : first + ROWS], sampling, margin)
        size, place = len(laws.probs), start + first
        tokens = torch.tensor(context[place : place + size], device=laws.probs.device)[:, None]
        q, plain = (
            None if table is None else warp(table[first : first + ROWS], sampling)
            for table in (draft_logits, plain_logits)
        )
        near, probs = (table.gather(1, tokens)[:, 0].cpu().numpy() for table in (laws.near, laws.probs))
        marks = None if places is None else places[first : first + ROWS]
        outcomes = outcomes_of(laws, context, place, sampling.top_p, q, plain, start, marks)
        parts.append(bet(outcomes, tokens[:, 0].cpu().numpy(), near, probs))
    return added_up(parts)


# Files with the tokens of any sampler have a JSON object per line, with the ids of a prompt and of its output.


KEYS = ("prompt_ids", "output_ids")


class FileOutput(NamedTuple):
    """The prompt and output ids of a line, and the tokens of each decode step; none if the line does not say."""

    prompt: list[int]
    output: list[int]
    emitted: list[int]


def read_outputs(path: Path, capabilities: Capabilities) -> list[FileOutput]:
    """Return the outputs of a file; empty lines and other keys are left out.

    Raises:
        UsageError: the file cannot be read or holds no line, or a line is not such an object, lacks an id, or has one
            outside the vocabulary or more than the context holds. The message names the line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # a JSON text may hold other ends of lines
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the tokens in {path}: {error}. Give a file of JSON lines.") from error
    outputs = [_output(f"{path}:{number}", line, capabilities) for number, line in _numbered(lines)]
    if not outputs:
        raise UsageError(f'{path} holds no output. Write one a line: {{"prompt_ids": [1, 2], "output_ids": [3]}}')
    return outputs


def _numbered(lines: list[str]) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def _output(where: str, line: str, capabilities: Capabilities) -> FileOutput:
    try:
        entry: Any = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}. Write one object a line.") from error
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: found a JSON {type(entry).__name__}; write an object with {' and '.join(KEYS)}")
    prompt, output = (_ids(where, key, entry.get(key), capabilities.vocabulary) for key in KEYS)
    if len(prompt) + len(output) > capabilities.context:
        raise UsageError(
            f"{where}: prompt and output have {len(prompt) + len(output)} ids, and the context of the backbone is "
            f"{capabilities.context}; leave the line out, or name the backbone that made it"
        )
    emitted = entry.get("emitted", [])
    whole = isinstance(emitted, list) and all(type(count) is int and count > 0 for count in emitted)
    if not whole or (emitted and sum(emitted) < len(output)):
        raise UsageError(
            f"{where}: emitted is {emitted!r:.60}; give the tokens of each decode step, at least 1 each and "
            f"{len(output)} together, or leave it out"
        )
    return FileOutput(prompt, output, emitted)


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number of JSON")


def _ids(where: str, key: str, ids: Any, vocabulary: int) -> list[int]:
    if not isinstance(ids, list) or not ids:
        raise UsageError(f"{where}: {key} is {ids!r:.60}; give a list of at least one token id")
    for index, token in enumerate(ids):
        if isinstance(token, bool) or not isinstance(token, int):
            raise UsageError(f"{where}: {key}[{index}] is {token!r:.60}; give whole numbers")
        if not 0 <= token < vocabulary:
            raise UsageError(
                f"{where}: {key}[{index}] is {token}, outside the vocabulary of {vocabulary}; name the backbone whose "
                f"tokens these are"
            )
    return ids
