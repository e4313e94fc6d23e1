"""Short English sentences with known words, spoken by a synthesiser: 104 to test on, 28 to train on. Both are shipped.

Test and training utterances share neither a sentence nor a voice. data/utterances/README.md says how they were made and
under which licence.
"""

from __future__ import annotations

import io
import lzma
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Float

from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, one_of
from stridebench.harness.registry import TASKS
from stridebench.tasks.librispeech import SpeechTask
from stridebench.tasks.loaders.files import json_lines

SHIPPED = Path(__file__).parent / "data" / "utterances"
SPLITS = ("test", "train")
FORMAT = (1, 2, 16_000)
"""Channels, bytes of a sample and samples of a second."""
FIELDS = ("id", "split", "voice", "file", "text")


@TASKS.register("utterances")
@dataclass(frozen=True)
class Utterances(SpeechTask):
    """Transcribe the shipped utterances; the categories are the voices.

    Args:
        split: test (voices slt and rms, in turn) or train (awb and kal16).
    """

    split: str = "test"

    source = "sentences of this project, voices of CMU Flite 2.2"

    def __post_init__(self) -> None:
        one_of("the task utterances", "split", self.split, SPLITS)

    def prompts(self) -> Sequence[Prompt]:
        """Return all utterances of the split."""
        return _prompts(SHIPPED, self.split)


@lru_cache(maxsize=4)
def _prompts(folder: Path, split: str) -> tuple[Prompt, ...]:
    rows = [row for row in _rows(folder) if row["split"] == split]
    return tuple(
        Prompt(
            f"utterances/{row['id']}",
            condition=_waveform(folder / row["file"]),
            category=row["voice"],
            data={"reference": row["text"]},
        )
        for row in rows
    )


def _waveform(path: Path) -> Float[np.ndarray, " samples"]:
    """Read a mono file at 16 kHz, compressed by xz, with the standard library: float32 between -1 and 1."""
    try:
        with lzma.open(path) as data, wave.open(io.BytesIO(data.read()), "rb") as file:
            found = (file.getnchannels(), file.getsampwidth(), file.getframerate())
            count, samples = file.getnframes(), file.readframes(file.getnframes())
    except (OSError, EOFError, lzma.LZMAError, wave.Error) as error:
        raise UsageError(f"{path} cannot be read as a WAV file ({error!r}). Reinstall stridebench") from error
    if found != FORMAT or not samples or len(samples) != 2 * count:
        raise UsageError(
            f"{path} has (channels, bytes a sample, samples a second) = {found} and {len(samples)} bytes; "
            f"it must have {FORMAT} and {2 * count} bytes. Reinstall stridebench"
        )
    return np.frombuffer(samples, "<i2").astype(np.float32) / 32768


def _rows(folder: Path) -> list[dict[str, str]]:
    rows = []
    for where, row in json_lines(folder / "utterances.jsonl", "the list of utterances", "the package stridebench"):
        if not all(isinstance(row.get(field), str) for field in FIELDS):
            raise where.fault(f"an utterance has the texts {', '.join(FIELDS)}")
        rows.append(dict(row))
    return rows
