"""Recordings in LibriSpeech's folders, and which of them belong to a benchmark, so that no training uses them.

A folder holds SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt with the recordings next to it.

Source: Panayotov et al. 2015, "LibriSpeech: an ASR corpus based on public domain audio books"; openslr.org/12.
"""

from __future__ import annotations

import hashlib
import os
import re
import wave
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from stridebench.harness.errors import DataMissing, UsageError
from stridebench.harness.machine.extras import install_command

if TYPE_CHECKING:
    from jaxtyping import Float


# Digests of the sentences in the test split of the task utterances; see `harness.synthetic.speech.digest`.


DIGESTS = """
005532a2f5 02b787b2a3 06d506a046 094454fa4c 09c0548e84 0ab0ada259 0ababfb7d6 0cf028f04d 10f9fcd4e5 1346a33d1e
183f970fdf 1c6ddafb2a 1e29aef4b5 1e62ecc695 1ed7b6d176 20ba88445f 22409f101a 26aa4be903 2b2121ca6d 2d62aae6cd
2d94537246 2f49405f43 37a89ab3f7 3b09397016 3b18c2f4e4 3fd7da7850 40575fd766 42f23cccff 43b0f8472b 4484ce24a3
49414c4f10 497ed352fc 4b477dc2d6 4ee51f8599 53e4883397 584be91814 598b6e5086 59c94af6df 5a81e89ef9 5d02bd8273
628834a482 62a24b4e67 6473b848d2 64984c969e 6523cba818 692d3bab18 6a2ca5dfe2 6c20ff56f9 6d36cacd5e 6f2673b797
727817cfe3 76c63e27e0 7a1f8348d9 7d9338ba5a 8198c5f292 8572d81164 887448a353 8c19217523 8c3a25828a 90877d7d48
96e92f2200 9877320805 9d757bac9a 9ec6163357 a09a540e89 a0cb19ef61 a1afc56246 a6d5e02f75 a708a6c7bd a7a8908447
a7ce7f6f1a a911b1e28b afdfaf5145 b3d0130193 b422847736 b51cd169d4 ba3ccb6533 c1533c8fa4 c4caa118a1 c4f59dcd8b
c500fab584 c577f09cbf c64bf10e69 cc99c43f63 cede2d6ab6 d292006b02 d451a22cf5 d4e8c7669c d6cf75bc5d dc94756ae0
e0cfa82e8b e0f1bef71f e3da8a4700 e6f91839ab e89d636fe4 ea6ea00d89 efe82bd286 f1d9502356 f317bc22a7 f3cb8d42a6
f7d6e07be6 fad98a115e fbff430ad5 fd679be2f3
"""
SENTENCES = frozenset(DIGESTS.split())


RATE = 16_000
KINDS = (".flac", ".wav")
ORIGIN = "openslr.org/12"
VOICES = frozenset({"slt", "rms"})
"""Voices of the test split of the task utterances."""
TEST_CLEAN = """
61 121 237 260 672 908 1089 1188 1221 1284 1320 1580 1995 2094 2300 2830 2961 3570 3575 3729 4077 4446 4507 4970
4992 5105 5142 5639 5683 6829 6930 7021 7127 7176 7729 8224 8230 8455 8463 8555
"""
READERS = frozenset(TEST_CLEAN.split())
"""Speakers of LibriSpeech's test-clean."""


NAMED = "STRIDE_RECORDINGS"
PART = "LibriSpeech/train-clean-100"


class Utterance(NamedTuple):
    """A line of a transcript and its recording."""

    id: str
    speaker: str
    text: str
    path: Path


def utterances(root: Path) -> list[Utterance]:
    """Return all utterances, by speaker, chapter and number."""
    files = sorted(root.glob("*/*/*.trans.txt"))
    if not files:
        raise UsageError(
            f"{root} has no SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt below it; give a part of LibriSpeech from "
            f"{ORIGIN}, unpacked, or recordings in such folders"
        )
    return [utterance for file in files for utterance in _chapter(file)]


def _chapter(file: Path) -> list[Utterance]:
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read ({error}). Unpack it again from {ORIGIN}") from error
    utterances = []
    for number, line in enumerate(lines, 1):
        name, _, text = line.strip().partition(" ")
        if not name:
            continue
        if not text or name.rpartition("-")[0] != file.name.removesuffix(".trans.txt"):
            raise _fault(file, number, f"a line is SPEAKER-CHAPTER-NUMBER and the words; found {line.strip()[:60]!r}")
        sounds = [path for kind in KINDS if (path := file.with_name(name + kind)).is_file()]
        if not sounds:
            raise _fault(file, number, f"there is no {name}{KINDS[0]} or {KINDS[1]} next to it")
        utterances.append(Utterance(name, name.split("-")[0], text, sounds[0]))
    if not utterances:
        raise UsageError(f"{file} is empty. It should be a transcript, from {ORIGIN}")
    return utterances


def _fault(file: Path, number: int, what: str) -> UsageError:
    return UsageError(f"{file}:{number}: {what}. Replace the file by the published one, or mend that line")


def recordings_folder() -> Path:
    """Return the recordings to train on.

    They are in $STRIDE_RECORDINGS, else in LibriSpeech/train-clean-100 in the data folder.
    """
    cache = os.environ.get("STRIDE_CACHE") or Path.home() / ".cache" / "stridebench"
    folder = os.environ.get(NAMED)
    root = Path(folder).expanduser() if folder else Path(cache) / "data" / PART
    if not root.is_dir():
        raise DataMissing(
            f"recordings to train on: {root} is not there. Put a part of LibriSpeech such as train-clean-100 there "
            f"(from {ORIGIN}, unpacked), or name a folder in ${NAMED} that holds SPEAKER/CHAPTER/SPEAKER-CHAPTER"
            f".trans.txt, each line SPEAKER-CHAPTER-NUMBER and the words, and next to it "
            f"SPEAKER-CHAPTER-NUMBER.flac or .wav, mono at {RATE} Hz"
        )
    return root


def in_benchmark(speaker: str, text: str) -> bool:
    """Whether the test split of the task utterances, or LibriSpeech's test-clean, has the voice or the sentence."""
    return speaker in VOICES | READERS or digest(text) in SENTENCES


def digest(text: str) -> str:
    """A digest that ignores case, punctuation and spaces."""
    return hashlib.sha256(" ".join(re.findall(r"[a-z0-9']+", text.lower())).encode()).hexdigest()[:10]


def read_sound(path: Path) -> Float[np.ndarray, " samples"]:
    """Samples of a mono recording at 16 kHz, float32 between -1 and 1: 16-bit WAV, or FLAC through soundfile."""
    try:
        samples, rate = _read_wav(path) if path.suffix == ".wav" else _read_flac(path)
    except (OSError, EOFError, RuntimeError, ValueError, wave.Error) as error:
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
            f"{path.name} is FLAC, which needs the package soundfile ({error}). Install it: {install_command('speech')}"
        ) from error
    samples, rate = soundfile.read(path, dtype="float32")
    return samples, rate
