"""Reads tokens of any sampler: a JSON object a line, with the ids of a prompt and of its output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.errors import UsageError

KEYS = ("prompt_ids", "output_ids")


def read_outputs(path: Path, capabilities: Capabilities) -> list[tuple[list[int], list[int]]]:
    """Prompt and output ids of each line; empty lines and other keys are left out.

    Raises:
        UsageError: the file cannot be read or holds no line, or a line is no such object, lacks an id, or has one
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


def _output(where: str, line: str, capabilities: Capabilities) -> tuple[list[int], list[int]]:
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
    return prompt, output


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


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
