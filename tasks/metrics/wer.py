"""Word error rate of transcripts as Whisper's authors count it: both texts are normalised, and jiwer aligns the words.

Source: Radford et al. 2022, arXiv:2212.04356, appendix C; the normaliser is transformers' copy of theirs. It needs
their table of British and American spellings, which transformers does not contain. So there are two rates:

- ``wer``: with the table, from the package ``whisper-normalizer`` (extra ``speech``), checked by its hash. Without the
  package this rate is missing.
- ``wer_no_spelling``: without the table, so that "colour" for "color" is an error. It always exists.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from stridebench.harness.core.task import SetScore
from stridebench.harness.errors import OutputError, UsageError
from stridebench.harness.machine.extras import install_command
from stridebench.harness.record import stats
from stridebench.tasks.metrics.features import by_prompt, with_interval

METRICS = ("wer", "wer_no_spelling")
SET_METRICS = tuple(f"corpus_{name}" for name in METRICS)
TABLE_SHA256 = "6607f948be9824d2e1b2fa2223cd94c06c45afa4e05ea0e3d5e1f2bdffde2465"
"""Of whisper/normalizers/english.json in github.com/openai/whisper at c0d2f62: 1739 spellings."""


class Transcript(NamedTuple):
    """The spoken words (``reference``) and the transcript (``heard``) of a prompt."""

    id: str
    reference: str
    heard: str


class Count(NamedTuple):
    """Inserted, deleted and substituted words, and the words of the reference."""

    errors: int
    words: int


def count(transcript: Transcript, metric: str) -> Count:
    """Count errors under a metric of ``METRICS``. In an empty transcript every word is deleted."""
    import jiwer

    normalise = _normaliser(metric == "wer")
    reference, heard = (" ".join(normalise(text).split()) for text in (transcript.reference, transcript.heard))
    if not reference:
        raise OutputError(
            f"the reference {transcript.reference!r} of {transcript.id} has no words after normalisation, so no "
            f"word error rate is defined"
        )
    words = len(reference.split())
    if not heard:
        return Count(words, words)
    alignment = jiwer.process_words(reference, heard)
    return Count(alignment.substitutions + alignment.deletions + alignment.insertions, words)


def scores(transcript: Transcript) -> dict[str, float]:
    """Return errors over words of one utterance; insertions can bring it above 1. ``wer`` needs the table."""
    counts = {name: count(transcript, name) for name in METRICS if name != "wer" or table() is not None}
    return {name: total.errors / total.words for name, total in counts.items()}


def corpus(transcripts: Sequence[Transcript]) -> dict[str, SetScore]:
    """Return errors over words of all utterances; the 95 % interval resamples prompts with all their repetitions.

    A transcript whose reference is empty counts as a failure.

    Raises:
        UsageError: another table of spellings than Whisper's is installed.
    """
    missing = f"Whisper's table of spellings is not installed: {install_command('speech')}"
    return {
        f"corpus_{name}": SetScore(None, len(transcripts), reason=missing)
        if name == "wer" and table() is None
        else _total(transcripts, name)
        for name in METRICS
    }


def _total(transcripts: Sequence[Transcript], metric: str) -> SetScore:
    counts: list[Count] = []
    ids: list[str] = []
    for transcript in transcripts:
        try:
            counts.append(count(transcript, metric))
            ids.append(transcript.id)
        except OutputError:
            continue
    failures = len(transcripts) - len(ids)
    if not ids:
        return SetScore(None, 0, failures, reason="no utterance to score")
    errors, words = (by_prompt(ids, column) for column in zip(*counts, strict=True))
    sums = errors.to_frame("errors").assign(words=words)
    return with_interval(stats.ratio(sums, "errors", "words"), len(ids), failures)


@lru_cache(maxsize=1)
def table() -> Mapping[str, str] | None:
    """Return Whisper's spellings, British to American, or None if the package is not installed."""
    spec = importlib.util.find_spec("whisper_normalizer")
    if spec is None or not spec.submodule_search_locations:
        return None
    return read_table(Path(spec.submodule_search_locations[0]) / "normalizers" / "english.json")


def read_table(path: Path) -> Mapping[str, str]:
    """Read the table of a file, or raise UsageError if the file is missing, or is not Whisper's table."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error}). Reinstall it: pip install whisper-normalizer") from error
    digest = hashlib.sha256(raw).hexdigest()
    if digest != TABLE_SHA256:
        raise UsageError(
            f"{path} has sha256 {digest} and Whisper's table of spellings has {TABLE_SHA256}: figures would not "
            f"compare. Install another release of whisper-normalizer, or remove it"
        )
    spellings: Mapping[str, str] = json.loads(raw)
    return spellings


@lru_cache(maxsize=2)
def _normaliser(spelling: bool) -> Any:
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    return EnglishTextNormalizer(dict(table() or {}) if spelling else {})
