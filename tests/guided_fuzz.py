"""Fuzz guided by coverage: `python -m tests.guided_fuzz TARGET [--seconds 60] [--seed 1]`. It needs atheris.

A target is a reader of files that come from elsewhere. A file is read, or refused with one `StrideError`; any other
exception ends the fuzz with exit code 77 and a file of the bytes that raised it. atheris sees which lines of the reader
a file reaches and goes on from files that reach new ones, so it passes checks that random bytes never pass.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INSTRUMENTED = ("harness", "tasks", "reports", "json", "csv", "wave", "yaml")
MAX_BYTES = 200_000
DEEP, LONG_NUMBER = "[" * 100_000, "9" * 5_000
"""What the JSON of Python's standard library refuses with errors of its own."""


@dataclass(frozen=True)
class Target:
    """A reader, the ending of its files, and examples from which the fuzz starts."""

    reader: str
    suffix: str
    examples: tuple[str | bytes, ...]

    def write(self, folder: Path) -> None:
        for number, example in enumerate(self.examples):
            data = example.encode() if isinstance(example, str) else example
            (folder / f"example{number}").write_bytes(data)


JSON_PROMPTS = (
    '{"prompt": "a", "id": "x", "reference": "b", "category": "c"}\n',
    '{"messages": [{"role": "user", "content": "a"}]}\n{"prompt": "b"}\n',
    DEEP,
    LONG_NUMBER,
)
SUITE = "methods: [sjd]\nbackbones: [tabular]\ntasks: [{name: tabular, limit: 1}]\ntemperature: [0, 1.0]\n"
PLY = (
    "ply\nformat ascii 1.0\nelement vertex 3\nproperty float x\nproperty float y\nproperty float z\n"
    "element face 1\nproperty list uchar int vertex_indices\nend_header\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n"
)
WAV = (
    b"RIFF\x2c\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80>\0\0\0}\0\0\x02\0\x10\0"
    b"data\x08\0\0\0\0\x01\x02\x03\x04\x05\x06\x07"
)
TARGETS = {
    "prompts.jsonl": Target("prompts", ".jsonl", JSON_PROMPTS),
    "prompts.csv": Target("prompts", ".csv", ('id,prompt,reference\n1,"a, b",c\n', "prompt\n" + "a" * 150_000)),
    "prompts.txt": Target("prompts", ".txt", ("a\nb\n",)),
    "suite": Target("suite", ".yaml", (SUITE, SUITE + "beside: &a {sjd: [1]}\nname: x\n")),
    "tokens": Target("tokens", ".jsonl", ('{"prompt_ids": [1, 2], "output_ids": [3]}\n', DEEP, LONG_NUMBER)),
    "history": Target(
        "history", ".jsonl", ('{"cell": "a", "created": "2026-01-01T00:00:00Z", "tau": 1.5}\n', DEEP, LONG_NUMBER)
    ),
    "baseline": Target("baseline", ".json", ('{"schema": 3, "sha256": "0", "cells": []}', DEEP, LONG_NUMBER)),
    "entry": Target("entry", ".json", ('{"schema": 3, "sha256": "0"}', DEEP, LONG_NUMBER)),
    "mesh": Target("output", ".ply", (PLY,)),
    "recording": Target("recording", ".wav", (WAV,)),
    "geneval": Target("geneval", ".jsonl", ('{"tag": "colors", "correct": true, "metadata": "{}"}\n',)),
}


def readers() -> dict[str, Callable[[Path], object]]:
    """The readers by name. Their modules are imported here, when atheris can see them."""
    from stridebench.gating import read_baseline
    from stridebench.harness.audit.output import read_outputs
    from stridebench.harness.core.capabilities import Capabilities
    from stridebench.harness.plan import resolve
    from stridebench.harness.plan.expand import expand
    from stridebench.harness.record import files, outputs
    from stridebench.harness.synthetic.speech import read_sound
    from stridebench.reports.gate.baseline import check_content
    from stridebench.reports.history import series
    from stridebench.tasks.metrics.geneval import read_results
    from stridebench.tasks.prompts import Prompts

    return {
        "prompts": lambda path: Prompts(str(path)).prompts(),
        "suite": lambda path: expand(resolve.load(str(path))).manifest(),
        "tokens": lambda path: read_outputs(path, Capabilities(64, 128)),
        "history": series.read,
        "baseline": lambda path: check_content(read_baseline(path)),
        "entry": lambda path: files.load(path, "Run again."),
        "output": outputs.load,
        "recording": read_sound,
        "geneval": read_results,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    import atheris

    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        known = readers()
    from stridebench.harness.errors import StrideError

    warnings.simplefilter("ignore")
    target = TARGETS[arguments.target]
    read = known[target.reader]
    with tempfile.TemporaryDirectory(prefix="stride-fuzz-") as name:
        folder = Path(name)
        corpus, file = folder / "corpus", folder / f"file{target.suffix}"
        corpus.mkdir()
        target.write(corpus)

        def examine(data: bytes) -> Any:
            file.write_bytes(data)
            try:
                read(file)
            except StrideError as error:
                if not str(error):
                    raise AssertionError("an error without a message") from error

        kept = f"-artifact_prefix={tempfile.gettempdir()}/stride-fuzz-"
        words = [kept, f"-max_total_time={arguments.seconds}", f"-seed={arguments.seed}", f"-max_len={MAX_BYTES}"]
        atheris.Setup([sys.argv[0], *words, "-verbosity=0", str(corpus)], examine)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
