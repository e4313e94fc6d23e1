"""Every error a user can meet, with the exit code of the command that ends in it.

Exit codes of every verb: 0 done or pass, 1 fail, 2 usage or error, 3 run incomplete, 4 inconclusive.
"""

from __future__ import annotations

import difflib
import math
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


class StrideError(Exception):
    """Base of all errors raised on purpose. The message names the problem, its place, and the remedy."""

    exit_code = 2


class UsageError(StrideError):
    """The request cannot be carried out as it was written."""


class PackageMissing(UsageError):
    """An optional package is not installed; says how to install it."""


class DataMissing(UsageError):
    """A file of prompts is not there; says where to get it and where to put it.

    A malformed file is another error.
    """


class UnknownNameError(UsageError):
    """A name that no registry holds."""

    def __init__(self, kind: str, name: str, choices: Iterable[str]) -> None:
        names = sorted(choices)
        super().__init__(
            f"there is no {kind} {name!r}{did_you_mean(name, names) or '.'} Known: {', '.join(names) or 'none'}."
        )


class ContractError(StrideError):
    """A method, backbone, task or plugin broke the contract of DESIGN: a bug in it, not in the request."""


class PluginError(ContractError):
    """A plugin cannot be imported, or its entry point names something else. Only commands that name it fail."""


class WeightsWarning(UserWarning):
    """A file of weights holds more than its model reads, or no kernel multiplies the format of weights."""


class GraphWarning(UserWarning):
    """A pass cannot be captured, so the plain path takes it."""


class PluginWarning(UserWarning):
    """A plugin that cannot be used is left out."""


class WeightsError(StrideError):
    """Weights are missing, of the wrong hash, or of an architecture that cannot be served."""


class StoreError(StrideError):
    """A run folder is corrupted, truncated, of another version or of another run."""


class RunIncomplete(StrideError):
    """A run stopped early; the finished part is kept and `--resume` goes on from there."""

    exit_code = 3


class OutputError(StrideError):
    """Tokens without an output, or an output that cannot be scored: a failed sample with this reason."""


class EnumerationLimit(StrideError):
    """An exact output distribution has more outcomes than the limits allow; names the draw that branches most."""


LONGEST = 2000
"""Characters that are kept of a foreign error's message."""


def said_by(error: BaseException) -> str:
    """Class and message of an error that a plugin or a library raised: its message may be huge, or raise itself."""
    try:
        message = str(error)
    except Exception as second:
        message = f"(its message cannot be read: it raises {type(second).__name__})"
    if len(message) > LONGEST:
        message = f"{message[:LONGEST]} ... ({len(message):,} characters)"
    return f"{type(error).__name__}: {message}"


def printable(text: str) -> str:
    """The text with control characters, ANSI sequences and lone surrogates as escapes; new lines and tabs stay.

    Whatever comes from a prompt, a model or an exception passes through here before a terminal or a file of a report
    shows it.
    """
    if text.replace("\n", "").replace("\t", "").isprintable():  # what Python calls printable is shown as it is
        return text
    return "".join(character if _shows(character) else ascii(character)[1:-1] for character in text)


def printable_line(text: str) -> str:
    """``printable`` text in one line, whose line breaks and tabs are escapes too."""
    return printable(text).replace("\n", r"\n").replace("\t", r"\t")


def number_of(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 prompt" or "1,200 prompts"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _shows(character: str) -> bool:
    """Whether a character can be shown; of those of no width only the joiners of scripts and emoji are kept."""
    kind, code = unicodedata.category(character), ord(character)
    noncharacter = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF  # XML has no such character
    return character in "\n\t\u200c\u200d" or (kind not in ("Cc", "Cf", "Cs", "Zl", "Zp") and not noncharacter)


NAMED = 10
"""Keys that an error names."""


def listed(keys: Sequence[str]) -> str:
    """The first ten keys, and how many more there are."""
    more = f" and {len(keys) - NAMED} more" if len(keys) > NAMED else ""
    return ", ".join(keys[:NAMED]) + more


def check_usual(path: Path, stated: Mapping[str, Any], usual: Mapping[str, Any], what: str) -> None:
    """Refuse a configuration that asks for a computation that is not done here.

    Args:
        usual: keys with the one value that is computed.

    Raises:
        WeightsError: a key has another value.
    """
    for key, value in usual.items():
        if stated.get(key, value) != value:
            raise WeightsError(f"{path} has {key}: {stated[key]!r}, and only {what} with {value!r} are computed here")


def warn_unread(file: Path, keys: Iterable[str], known: str) -> None:
    """Warn of the keys of a published configuration that its importer does not know.

    Args:
        known: those that are read or change nothing, separated by spaces.
    """
    if unknown := sorted(set(keys) - set(known.split())):
        warnings.warn(
            f"{file} has keys that are not read: {listed(unknown)}. If one of them changes the output of these "
            f"weights, they draft worse here than they should",
            WeightsWarning,
            stacklevel=2,
        )


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """``; did you mean 'x'?`` for the closest choice, or nothing."""
    close = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_parameters(what: str, params: Iterable[str], allowed: Sequence[str]) -> None:
    """Refuse a parameter that ``what`` does not have."""
    unknown = sorted(set(params) - set(allowed))
    if unknown:
        raise UsageError(f"{what} has no parameter {unknown[0]!r}; it has {', '.join(allowed)}")


def one_of(owner: str, parameter: str, value: str, choices: Iterable[str]) -> None:
    """Check a parameter that is one of some words; the command line does so for Literals, and Python does not."""
    words = tuple(choices)
    if value not in words:
        choice = ", ".join(word or repr(word) for word in words)
        raise UsageError(f"{owner}: {parameter} is {value!r}; choose one of {choice}")


def within(owner: str, least: float, most: float = math.inf, **values: float) -> None:
    """Check parameters that are numbers from ``least`` to ``most``."""
    for name, value in values.items():
        if not least <= value <= most:
            bounds = f"{least} or more" if most == math.inf else f"from {least} to {most}"
            raise UsageError(f"{owner} was given {name}={value}; it must be {bounds}")
