"""LibriSpeech, or any recordings in its folders: SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt, and beside it the sound.

Source: Panayotov et al. 2015, "LibriSpeech: an ASR corpus based on public domain audio books"; openslr.org/12.
"""

from __future__ import annotations

import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from jaxtyping import Float

from harness.errors import UsageError
from harness.registry import TASKS
from harness.task import Prompt
from tasks._prompt_files import lines, locate, missing
from tasks._speech import SpeechTask

RATE = 16_000
KINDS = (".flac", ".wav")
NAME, ORIGIN = "a part of LibriSpeech", "openslr.org/12 (test-clean.tar.gz and others, unpacked)"


@TASKS.register("librispeech")
@dataclass(frozen=True)
class LibriSpeech(SpeechTask):
    """Transcribe read English; the categories are the speakers.

    Args:
        folder: a part such as test-clean, with folders of speakers in it; "" is LibriSpeech/test-clean in the data
            folder. count: utterances, evenly spread over the part; 0 for all (test-clean: 1.2 GB of samples).
    """

    folder: str = ""
    count: int = 100

    source = "Panayotov et al. 2015; openslr.org/12, CC BY 4.0"

    def __post_init__(self) -> None:
        """Check the parameter.

        Raises:
            UsageError: a negative count.
        """
        if self.count < 0:
            raise UsageError(f"the task librispeech was given count={self.count}; take 0 for all, or more")

    def prompts(self) -> Sequence[Prompt]:
        """Utterances by speaker, chapter and number.

        Raises:
            UsageError: the folder or a recording is missing, a line is malformed, or sound is not mono at 16 kHz.
        """
        root = locate(self.folder, "LibriSpeech/test-clean")
        found = _utterances(root)
        chosen = min(self.count or len(found), len(found))
        picked = [found[len(found) * k // chosen] for k in range(chosen)]
        return tuple(
            Prompt(f"librispeech/{each.id}", None, None, read_sound(each.path), each.speaker, {"reference": each.text})
            for each in picked
        )


class Utterance(NamedTuple):
    """A line of a transcript and its recording."""

    id: str
    speaker: str
    text: str
    path: Path


def _utterances(root: Path) -> list[Utterance]:
    if not root.is_dir():
        raise missing(root, NAME, ORIGIN)
    files = sorted(root.glob("*/*/*.trans.txt"))
    if not files:
        raise UsageError(f"{root} has no SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt below it; give {NAME} from {ORIGIN}")
    return [utterance for file in files for utterance in _chapter(file)]


def _chapter(file: Path) -> list[Utterance]:
    found = []
    for where, line in lines(file, "a transcript", ORIGIN):
        name, _, text = line.partition(" ")
        if not text or name.rpartition("-")[0] != file.name.removesuffix(".trans.txt"):
            raise where.fault(f"a line is SPEAKER-CHAPTER-NUMBER and the words; found {line[:60]!r}")
        sounds = [path for kind in KINDS if (path := file.with_name(name + kind)).is_file()]
        if not sounds:
            raise where.fault(f"there is no {name}{KINDS[0]} or {KINDS[1]} beside it")
        found.append(Utterance(name, name.split("-")[0], text, sounds[0]))
    return found


def read_sound(path: Path) -> Float[np.ndarray, " samples"]:
    """Samples of a mono recording at 16 kHz, float32 between -1 and 1: 16-bit WAV, or FLAC through soundfile.

    Raises:
        UsageError: it is damaged, of another rate or has several channels; or soundfile is not installed.
    """
    try:
        samples, rate = _read_wav(path) if path.suffix == ".wav" else _read_flac(path)
    except (OSError, EOFError, RuntimeError, wave.Error) as error:
        raise UsageError(f"{path} cannot be read ({error}). Unpack it again") from error
    if rate != RATE or samples.ndim != 1:
        channels = 1 if samples.ndim == 1 else samples.shape[1]
        raise UsageError(f"{path} has {channels} channels at {rate} Hz; convert it to mono at {RATE} Hz")
    return samples


def _read_wav(path: Path) -> tuple[npt.NDArray[np.float32], int]:
    with wave.open(str(path), "rb") as file:
        if file.getsampwidth() != 2:
            raise wave.Error(f"it has {8 * file.getsampwidth()} bits a sample, and 16 are read")
        raw = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / np.float32(32768)
        return raw if file.getnchannels() == 1 else raw.reshape(-1, file.getnchannels()), file.getframerate()


def _read_flac(path: Path) -> tuple[npt.NDArray[np.float32], int]:
    try:
        import soundfile
    except ImportError as error:
        raise UsageError(
            f"{path.name} is FLAC, which needs the package soundfile ({error}). Install it: "
            f"pip install 'stridebench[speech]'"
        ) from error
    samples, rate = soundfile.read(path, dtype="float32")
    return samples, rate
