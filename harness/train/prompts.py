"""Prompts for a teacher to continue: beginnings of text, heads of programs, and captions of scenes and digits.

No prompt of a benchmark is among them. Scenes and programs are of the split for training. Texts are functions and prose
of Python's standard library. A scene of either split may have the same caption, so `benchmark_captions` lists the
captions whose passages are dropped. Digits have ten captions, which both sides share.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from stridebench.harness.errors import UsageError
from stridebench.harness.synthetic import digits, emoji
from stridebench.harness.synthetic.code import program, programs

Source = Literal["text", "code", "scenes", "digits"]
Side = Literal["train", "development"]
SIDES: tuple[Side, Side] = ("train", "development")

DEVELOPMENT_SHARE = 8
"""One of this many prompts is of the development side."""
LONGEST = 600
"""Characters of a prompt."""
DRAWN = 20_000
"""Programs and scenes that prompts are taken from."""
BENCHMARK_SEED, BENCHMARK_SCENES = 1000, 512
"""The default seed and number of scenes of the task emoji_scenes."""

SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__", "idle_test"}
"""Folders of the standard library that are not read."""
LARGEST = 150_000
"""Bytes of the largest source file that is read."""
HELD_OUT = 12
"""One of this many prefixes is held out from `stridebench.harness.train.passages.texts_of`."""


def side_of(text: str) -> Side:
    """The side of a prompt, which its text alone decides."""
    return "development" if hashlib.sha256(text.encode()).digest()[2] % DEVELOPMENT_SHARE == 0 else "train"


def held_out(prefix: str) -> bool:
    """Whether a prefix is for evaluation only, which its text alone decides."""
    return hashlib.sha256(prefix.encode()).digest()[1] % HELD_OUT == 0


@lru_cache(maxsize=4)
def prompts(source: Source, seed: int, side: Side, count: int) -> tuple[str, ...]:
    """The first texts of one side in the order of a seed; all different, except those of digits.

    Raises:
        UsageError: the source has fewer prompts.
    """
    if source == "digits":
        return tuple(digits.caption(index % digits.CLASSES) for index in range(count))
    texts: dict[str, None] = {}
    for text in _drawn(source, seed):
        if side_of(text) == side:
            texts[text] = None
        if len(texts) == count:
            return tuple(texts)
    raise UsageError(
        f"the source {source!r} has {len(texts)} {side} prompts and {count} are asked for; plan fewer batches"
    )


@lru_cache(maxsize=1)
def benchmark_captions() -> frozenset[str]:
    """The captions of the task emoji_scenes."""
    return frozenset(emoji.caption(scene) for scene in emoji.scenes(BENCHMARK_SEED, "held-out", BENCHMARK_SCENES))


def prefixes(seed: int, procedural: int) -> list[str]:
    """Beginnings of texts, shuffled: all of the standard library, and ``procedural`` heads of synthetic programs."""
    random = np.random.default_rng(seed)
    heads = [program(random).head for _ in range(procedural)]
    texts = sorted({*library(), *heads})
    return [texts[index] for index in random.permutation(len(texts))]


def library() -> Iterator[str]:
    """Beginnings of the standard library's texts, in the order of its files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if SKIPPED & set(path.relative_to(root).parts) or path.stat().st_size > LARGEST:
            continue
        try:
            yield from of_source(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue  # templates and files of other encodings


def of_source(source: str) -> Iterator[str]:
    """Heads of documented functions and prose of long docstrings, of one module's source."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            continue
        docstring = ast.get_docstring(node)
        if not docstring:
            continue
        if isinstance(node, ast.FunctionDef):
            end = node.body[0].end_lineno or node.lineno
            yield textwrap.dedent("".join(lines[node.lineno - 1 : end])).rstrip()
        elif len(docstring) > 300:
            yield " ".join(islice(docstring.split(), 40))


def _drawn(source: Source, seed: int) -> Iterator[str]:
    random = np.random.default_rng(seed)
    if source == "text":
        return (text[:LONGEST] for text in prefixes(seed, procedural=1000))
    if source == "code":
        return (drawn.head for drawn in islice(programs(random, held_out=False), DRAWN))
    return (emoji.caption(emoji.scene(random, "train")) for _ in range(DRAWN))
