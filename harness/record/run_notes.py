"""What a run keeps beside its records: outputs, conditions, sounds, marks, times of passes, and logs of workers.

`stridebench.harness.record.store` lists the files. All are written completely or not at all.
"""

from __future__ import annotations

import errno
import io
import wave
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from stridebench.harness.errors import RunIncomplete
from stridebench.harness.record.columns import Sample
from stridebench.harness.record.entries import Entries, Mark
from stridebench.harness.record.files import SCHEMA, DamagedError, drop, encode, load, make, put
from stridebench.harness.record.outputs import Output, file_name, save

_CODES = "ENOSPC EDQUOT EFBIG EACCES EPERM EROFS EIO EMFILE ENFILE ENOMEM ESTALE"
_NO_ROOM = {getattr(errno, code) for code in _CODES.split()}
Body = TypeVar("Body", bound=Entries)

SOUNDS = 32
"""Prompts of a cell whose sound is kept."""


@contextmanager
def room(run: Path) -> Iterator[None]:
    """Raise RunIncomplete if the disk refuses a write, or the run was removed."""
    refuse_removed(run)
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            refuse_removed(run)
            raise
        raise RunIncomplete(
            f"{run} cannot be written: {error}. All that was finished before is kept there. "
            f"Put that right (room, permissions or open files) and run again with --resume."
        ) from error


def refuse_removed(run: Path) -> None:
    """Raise RunIncomplete if the run or its manifest was removed while it decoded."""
    if not (run / "manifest.json").is_file():
        raise RunIncomplete(
            f"{run} holds no run any more: it or its manifest.json was removed while the run decoded. Start "
            f"the run again, and leave its folder alone."
        )


def read_entries(kind: type[Body], path: Path, remedy: str) -> Body:
    """Return the entries of a file of the store; raise DamagedError if they are not of their types."""
    try:
        return kind.read(load(path, remedy))
    except ValueError as problem:
        raise DamagedError(f"{path} {problem}. {remedy}") from None


@dataclass(frozen=True)
class RunNotes:
    """The files of a run beside its records."""

    path: Path

    def keep_output(self, cell: str, sample: Sample, output: Output) -> str:
        """Write a picture or mesh below ``outputs/CELL`` and return its path from the run folder; "" for a text."""
        with room(self.path):
            stem = self.path / "outputs" / cell / file_name(sample.prompt, sample.repetition)
            path = save(output, stem)
        return "" if path is None else path.relative_to(self.path).as_posix()

    def keep_condition(self, cell: str, prompt: str, condition: npt.NDArray[Any]) -> None:
        """Write a prompt's condition to ``condition_file``; reports show it with the output."""
        path = condition_file(self.path, cell, prompt)
        data = io.BytesIO()
        np.save(data, condition, allow_pickle=False)
        with room(self.path):
            if not path.exists():
                make(path.parent)
                put(path, data.getvalue())

    def keep_sound(self, cell: str, prompt: str, samples: npt.NDArray[np.floating[Any]], rate: int, words: str) -> None:
        """Write the sound that a speech model heard to ``sound_file``, with the words that were spoken.

        Nothing is written for further prompts once ``SOUNDS`` are there: a corpus would fill the disk.

        Args:
            samples: between -1 and 1, [n]; they are stored in 16 bits.

        Raises:
            RunIncomplete: the disk is full or read-only.
        """
        path = sound_file(self.path, cell, prompt)
        if path.exists() or len(list(path.parent.glob("*.wav"))) >= SOUNDS:
            return
        data = io.BytesIO()
        with wave.open(data, "wb") as file:
            file.setparams((1, 2, rate, 0, "NONE", ""))
            file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
        with room(self.path):
            make(path.parent)
            put(path.with_suffix(".txt"), words.encode("utf-8", "backslashreplace"))
            put(path, data.getvalue())

    def mark_started(self, cell: str, reason: str, runs: int | None = None) -> None:
        """Record, durably, that a decode of the cell was begun. Its seal unmarks it too.

        Args:
            runs: how many runs will have ended in the cell if this one does, or None if the cell itself has failed.

        Raises:
            RunIncomplete: the disk is full or read-only.
        """
        path = self._mark(cell)
        entry = {"reason": reason} if runs is None else {"reason": reason, "runs": runs}
        with room(self.path):
            make(path.parent)
            put(path, encode({"schema": SCHEMA, **entry}))

    def unmark_started(self, cell: str) -> None:
        """Record that the started decode is finished."""
        drop(self._mark(cell))

    def started(self, cell: str) -> Mark | None:
        """Return the cell's mark, or None if it has none; raise StoreError if it is damaged."""
        path = self._mark(cell)
        if not path.exists():
            return None
        return read_entries(Mark, path, "Remove it to start the cell again.")

    def keep_passes(self, backbone: str, dtype: str, body: Mapping[str, Any]) -> None:
        """Keep the times of a backbone's passes (`harness.core.costs.Passes`), for the cells that follow."""
        path = self._passes(backbone, dtype)
        with room(self.path):
            make(path.parent)
            put(path, encode({"schema": SCHEMA, "passes": dict(body)}))

    def passes(self, backbone: str, dtype: str) -> object:
        """Return the kept times as JSON, which `Passes.of` reads, or None if there are none."""
        path = self._passes(backbone, dtype)
        if not path.exists():
            return None
        return load(path, "Remove it; --resume then goes on with all threads.")["passes"]

    def _passes(self, backbone: str, dtype: str) -> Path:
        return self.path / "passes" / f"{quote(backbone, safe='')[:160]}-{dtype}.json"

    def log_of_worker(self, backbone: str, dtype: str) -> Path:
        """Create an empty file for the output of a worker process."""
        folder, stem = self.path / "workers", f"{quote(backbone, safe='')[:160]}-{dtype}"
        with room(self.path):
            make(folder)
            number = 1
            while (path := folder / f"{stem}-{number}.log").exists():
                number += 1
            path.touch()
        return path

    def _mark(self, cell: str) -> Path:
        return self.path / "started" / f"{cell}.json"


def condition_file(run: Path, cell: str, prompt: str) -> Path:
    """Return the file of the points that a mesh was made from. The baseline's cell holds it for all of its pairs."""
    return run / "conditions" / cell / f"{file_name(prompt, 0)}.npy"


def sound_file(run: Path, cell: str, prompt: str) -> Path:
    """Return the file of the sound that a speech model heard; a .txt of the same name has the words."""
    return condition_file(run, cell, prompt).with_suffix(".wav")
