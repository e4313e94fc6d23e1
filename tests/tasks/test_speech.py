"""The shipped utterances, their compressed sound, and folders of LibriSpeech."""

from __future__ import annotations

import io
import json
import lzma
import os
import re
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stridebench.harness.core.task import Scored
from stridebench.harness.errors import OutputError, UsageError
from stridebench.harness.machine.extras import install_command
from stridebench.harness.record.outputs import Picture
from stridebench.harness.run.scoring import checked_scores
from stridebench.harness.synthetic import speech
from stridebench.harness.synthetic.speech import read_sound
from stridebench.tasks import utterances
from stridebench.tasks.librispeech import LibriSpeech
from stridebench.tasks.metrics import wer
from stridebench.tasks.utterances import SHIPPED, Utterances

RATE = 16_000
WAV = lzma.decompress((SHIPPED / "audio" / "000-slt.wav.xz").read_bytes())


def test_the_splits_share_neither_sentence_nor_voice() -> None:
    test, train = Utterances().prompts(), Utterances("train").prompts()
    assert (len(test), len(train)) == (104, 28)
    assert len({prompt.id for prompt in (*test, *train)}) == 132
    texts = [{prompt.data["reference"] for prompt in split} for split in (test, train)]
    assert (len(texts[0]), len(texts[1])) == (104, 28) and not texts[0] & texts[1]
    assert {prompt.category for prompt in test} == {"slt", "rms"}
    assert {prompt.category for prompt in train} == {"awb", "kal16"}
    assert [prompt.category for prompt in test[:4]] == ["slt", "rms", "slt", "rms"]


@pytest.mark.parametrize("split", utterances.SPLITS)
def test_every_utterance_is_a_waveform_of_a_few_seconds(split: str) -> None:
    for prompt in Utterances(split).prompts():
        sound = prompt.condition
        assert prompt.text is None and prompt.tokens is None and set(prompt.data) == {"reference"}
        assert sound is not None and sound.dtype == np.float32 and sound.ndim == 1
        assert 1.5 < len(sound) / RATE < 5
        assert 0.1 < np.abs(sound).max() <= 1 and 0.01 < sound.std() < 0.3
        assert re.fullmatch(r"[A-Z][A-Za-z' ,]+\.", prompt.data["reference"])


def test_what_is_shipped_is_listed_and_no_more_than_seven_megabytes() -> None:
    listed = {json.loads(line)["file"] for line in (SHIPPED / "utterances.jsonl").read_text().splitlines()}
    assert listed == {str(path.relative_to(SHIPPED)) for path in SHIPPED.rglob("*.wav.xz")}
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*")) < 7_000_000
    assert "Carnegie Mellon University" in (SHIPPED / "README.md").read_text()


def test_a_file_is_read_as_the_sound_file_library_does() -> None:
    soundfile = pytest.importorskip("soundfile")
    path = SHIPPED / "audio" / "131-kal16.wav.xz"
    expected, rate = soundfile.read(io.BytesIO(lzma.decompress(path.read_bytes())), dtype="float32")
    assert rate == RATE and np.array_equal(utterances._waveform(path), expected)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lzma.compress(WAV)[:-100], r"x\.wav cannot be read as a WAV file"),
        (lzma.compress(b"RIFF"), r"x\.wav cannot be read as a WAV file"),
        (lzma.compress(WAV[:-100]), r"and \d+ bytes; it must have"),
        (lzma.compress(WAV.replace(b"\x80\x3e\0\0", b"\x40\x1f\0\0", 1)), r"8000\) and"),
    ],
    ids=["cut file", "cut head", "cut", "8 kHz"],
)
def test_sound_of_another_kind_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "x.wav"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says):
        utterances._waveform(path)


def test_damaged_data_says_where(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"utterances\.jsonl is not there"):
        utterances._prompts(tmp_path, "test")
    (tmp_path / "utterances.jsonl").write_text('{"id": "1", "split": "test"}\n')
    with pytest.raises(UsageError, match=r"utterances\.jsonl:1: an utterance has the texts id, split"):
        utterances._prompts(tmp_path, "test")


def test_transcripts_are_scored_one_by_one_and_together() -> None:
    task = Utterances()
    prompts = task.prompts()[:5]
    right = [str(prompt.data["reference"]) for prompt in prompts]
    heard = [right[0], right[1].upper(), "", *right[3:]]
    scores = [task.score(prompt, text, ()) for prompt, text in zip(prompts, heard, strict=True)]
    assert [score["wer_no_spelling"] for score in scores] == [0, 0, 1, 0, 0]
    scored = [Scored(p, 0, text, score) for p, text, score in zip(prompts, heard, scores, strict=True)]
    rate = task.score_set(scored)["corpus_wer_no_spelling"]
    words = [len(text.split()) for text in right]
    assert rate.value == words[2] / sum(words) and rate.n == 5
    assert rate.low is None and rate.reason.startswith("5 prompts")


@pytest.mark.parametrize("table", [None, {"colour": "color"}])
def test_a_transcript_has_the_scores_that_can_be_had(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wer, "table", lambda: table)
    task = Utterances()
    scores = checked_scores(task, task.score(task.prompts()[0], "colour", ()))
    assert set(scores) == {"wer_no_spelling", *(["wer"] if table else [])}


@pytest.mark.slow
def test_the_base_install_runs_what_ships_and_only_the_rate_of_an_extra_is_missing(tmp_path: Path) -> None:
    """No optional package can be imported; `tox -e release` does the same in an environment without them."""
    code = "import sys, tests.support.extras; from stridebench.harness.cli.main import main; main()"
    words = ["run", "embedded", "--tiny", "--limit", "1", "--set", "prove=false", "--out", str(tmp_path / "run")]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "STRIDE_WITHOUT_EXTRA": "all", "STRIDE_CACHE": str(tmp_path), "PYTHONPATH": "."},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "corpus_wer not measured: Whisper's table of spellings is not installed" in said
    assert "cells done, 0 skipped, 0 failed samples" in said


def test_a_picture_is_no_transcript() -> None:
    task = Utterances()
    with pytest.raises(OutputError, match="is a Picture; a transcript is a text"):
        task.score(task.prompts()[0], Picture(np.zeros((2, 2, 3), np.uint8)), ())


def write_wav(path: Path, samples: Any, rate: int = RATE, channels: int = 1, width: int = 2) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(np.asarray(32767 * samples).astype("<i2").tobytes())


def tone(seed: int, length: int = 800) -> Any:
    return 0.3 * np.sin(np.arange(length) / (5 + seed))


@pytest.fixture()
def libri(tmp_path: Path) -> Path:
    """Two speakers, three chapters and six utterances in LibriSpeech's folders; the recordings are WAV files."""
    root = tmp_path / "test-clean"
    for speaker, chapter, count in (("1089", "134686", 3), ("1089", "134691", 1), ("61", "70968", 2)):
        place = root / speaker / chapter
        names = [f"{speaker}-{chapter}-{k:04d}" for k in range(count)]
        for k, name in enumerate(names):
            write_wav(place / f"{name}.wav", tone(k))
        text = "".join(f"{name} HE SAID WORD {k}\n" for k, name in enumerate(names))
        (place / f"{speaker}-{chapter}.trans.txt").write_text(text)
    return root


def test_a_part_of_librispeech_is_read_in_order(libri: Path) -> None:
    prompts = LibriSpeech(str(libri)).prompts()
    names = ("1089-134686-0000", "1089-134686-0001", "1089-134686-0002", "1089-134691-0000")
    names += ("61-70968-0000", "61-70968-0001")
    assert [prompt.id for prompt in prompts] == [f"librispeech/{name}" for name in names]
    assert [prompt.category for prompt in prompts] == ["1089"] * 4 + ["61"] * 2
    assert prompts[1].data["reference"] == "HE SAID WORD 1"
    sound = prompts[1].condition
    assert sound is not None and sound.dtype == np.float32
    np.testing.assert_allclose(sound, tone(1), atol=1e-4)
    assert LibriSpeech(str(libri)).score(prompts[1], "He said, word one.", ())["wer_no_spelling"] == 0


def test_fewer_utterances_are_spread_over_the_part(libri: Path) -> None:
    chosen = LibriSpeech(str(libri), limit=3).prompts()
    assert [prompt.id[12:] for prompt in chosen] == ["1089-134686-0000", "1089-134686-0002", "61-70968-0000"]
    assert len(LibriSpeech(str(libri), limit=0).prompts()) == 6


def test_flac_is_read_where_soundfile_is_installed(libri: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soundfile = pytest.importorskip("soundfile")
    place = libri / "61" / "70968"
    (place / "61-70968-0001.wav").unlink()
    soundfile.write(place / "61-70968-0001.flac", tone(1), RATE)
    sound = LibriSpeech(str(libri)).prompts()[-1].condition
    assert sound is not None and sound.dtype == np.float32
    np.testing.assert_allclose(sound, tone(1), atol=1e-4)
    soundfile.write(place / "61-70968-0001.flac", tone(1), 8000)
    with pytest.raises(UsageError, match="1 channels at 8000 Hz"):
        LibriSpeech(str(libri)).prompts()
    (place / "61-70968-0001.flac").write_bytes(b"fLaC")
    with pytest.raises(UsageError, match="cannot be read"):
        LibriSpeech(str(libri)).prompts()
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(UsageError, match=re.escape(install_command("speech"))):
        LibriSpeech(str(libri)).prompts()


def test_a_missing_folder_says_where_the_data_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STRIDE_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match=r"data/LibriSpeech/test-clean is not there.*openslr\.org/12"):
        LibriSpeech().prompts()
    with pytest.raises(UsageError, match=r"has no SPEAKER/CHAPTER/SPEAKER-CHAPTER\.trans\.txt"):
        LibriSpeech(str(tmp_path)).prompts()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("61-70968-0002", r"trans\.txt:3: a line is SPEAKER-CHAPTER-NUMBER and the words"),
        ("1089-134686-0000 HE SAID", r"trans\.txt:3: a line is SPEAKER-CHAPTER-NUMBER and the words"),
        ("61-70968-0009 HE SAID", r"trans\.txt:3: there is no 61-70968-0009\.flac or \.wav next to it"),
    ],
)
def test_malformed_lines_and_missing_recordings_say_which(libri: Path, line: str, says: str) -> None:
    with open(libri / "61" / "70968" / "61-70968.trans.txt", "a") as file:
        file.write(line + "\n")
    with pytest.raises(UsageError, match=says):
        LibriSpeech(str(libri)).prompts()


ODD_FRAMES = b"RIFF\x2c\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\x01" + b"\0" * 8 + b"\x02\x20\x10\0data\x02" + b"\3" * 5
"""257 channels, and no whole frame of them."""


@pytest.mark.parametrize(
    ("sound", "says"),
    [
        ({"rate": 8000}, "1 channels at 8000 Hz; convert it to mono at 16000 Hz"),
        ({"channels": 2}, "2 channels at 16000 Hz"),
        ({"width": 1}, "8 bits a sample"),
        (b"RIFF", "cannot be read"),
        (ODD_FRAMES, "cannot be read"),
    ],
    ids=["rate", "channels", "bits", "header", "frames"],
)
def test_sound_of_another_shape_or_cut_off_is_refused(tmp_path: Path, sound: Any, says: str) -> None:
    if isinstance(sound, bytes):
        (tmp_path / "x.wav").write_bytes(sound)
    else:
        write_wav(tmp_path / "x.wav", tone(0), **sound)
    with pytest.raises(UsageError, match=says):
        read_sound(tmp_path / "x.wav")


def test_no_recording_of_a_benchmark_is_trained_on() -> None:
    """The digests are those of the shipped test split, which the harness must not read."""
    test, train = Utterances().prompts(), Utterances("train").prompts()
    assert {speech.digest(prompt.data["reference"]) for prompt in test} == speech.SENTENCES
    assert {prompt.category for prompt in test} == speech.VOICES and len(speech.READERS) == 40
    for prompt in test:
        assert speech.in_benchmark("awb", str(prompt.data["reference"]).upper().replace(".", ""))
        assert speech.in_benchmark(prompt.category, "Another sentence.")
    assert not any(speech.in_benchmark(prompt.category, prompt.data["reference"]) for prompt in train)
    assert speech.in_benchmark("1089", "HE HOPED THERE WOULD BE STEW FOR DINNER")
    assert not speech.in_benchmark("19", "CHAPTER ONE")
