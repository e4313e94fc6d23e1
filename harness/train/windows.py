"""Windows next to a text in one pass: the rows that theirs attend to, as a dense mask and block by block.

Rows of the text see earlier rows of the text. Rows of a window see the text before its root, and earlier rows of the
same window. Most pairs see nothing of each other, so attention block by block multiplies 3 to 8 times less than a dense
mask where windows tile the text, and holds the mask of one block.

Axes: N tokens of a text, n windows, W rows of a window; R = N + n W rows; H, H_kv heads, D width.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import sysconfig
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from stridebench.harness.errors import UsageError
from stridebench.harness.synthetic import digits, emoji
from stridebench.harness.synthetic.code import program, programs

NAME = "stride_windows"
"""Of the attention, among those of transformers."""
BLOCK = 128
"""Rows of windows that are multiplied at once."""


class Windows(NamedTuple):
    """Windows of a text.

    Args:
        text: N.
        roots: position of the first token of each window.
        width: W.
    """

    text: int
    roots: Int[Tensor, " n"]
    width: int

    def visible(self) -> Bool[Tensor, "R R"]:
        """Which rows each row sees."""
        row = torch.arange(self.text + len(self.roots) * self.width, device=self.roots.device)
        window = (row - self.text).div(self.width, rounding_mode="floor")
        gate, root = row >= self.text, self.roots[window.clamp_min(0)]
        causal = row[:, None] >= row[None, :]
        visible = causal & ~gate[:, None] & ~gate[None, :]
        visible |= gate[:, None] & ~gate[None, :] & (row[None, :] < root[:, None])
        return visible | (gate[:, None] & (window[:, None] == window[None, :]) & causal)

    def blocks(self) -> Iterator[tuple[Int[Tensor, " b"], int, Bool[Tensor, "B T"]]]:
        """Some windows, the rows of the text that any of them sees, and what their B = b W rows see of these and of
        themselves: T = rows + B."""
        order = self.roots.argsort()
        size = max(1, BLOCK // self.width)
        for some in torch.split(order, size):
            roots = self.roots[some].repeat_interleave(self.width)
            seen = int(roots.max())
            text = torch.arange(seen, device=roots.device)[None] < roots[:, None]
            own = torch.arange(len(some), device=roots.device).repeat_interleave(self.width)
            row = torch.arange(len(roots), device=roots.device)
            inside = (own[:, None] == own[None, :]) & (row[:, None] >= row[None, :])
            yield some, seen, torch.cat([text, inside], 1)


_READ: ContextVar[Windows | None] = ContextVar("windows", default=None)


@contextmanager
def read(windows: Windows) -> Iterator[None]:
    """While inside, prepared models read a text and its windows."""
    token = _READ.set(windows)
    try:
        yield
    finally:
        _READ.reset(token)


def attend(
    module: Any,
    query: Float[Tensor, "one H R D"],
    keys: Float[Tensor, "one K R D"],
    values: Float[Tensor, "one K R D"],
    mask: Tensor | None,
    **more: Any,
) -> tuple[Float[Tensor, "one R H D"], None]:
    """Scaled products of transformers; of a text and its windows block by block."""
    windows = _READ.get()
    if windows is None:
        attended: tuple[Tensor, None] = sdpa_attention_forward(module, query, keys, values, mask, **more)
        return attended
    count, width, scale = windows.text, windows.width, more.get("scaling")
    text = functional.scaled_dot_product_attention(
        query[:, :, :count], keys[:, :, :count], values[:, :, :count], is_causal=True, scale=scale, enable_gqa=True
    )
    parts, places = [text], [torch.arange(count, device=query.device)]
    for some, seen, visible in windows.blocks():
        rows = (count + some[:, None] * width + torch.arange(width, device=some.device)).flatten()
        own_keys, own_values = (torch.cat([half[:, :, :seen], half[:, :, rows]], 2) for half in (keys, values))
        parts.append(
            functional.scaled_dot_product_attention(
                query[:, :, rows], own_keys, own_values, visible, scale=scale, enable_gqa=True
            )
        )
        places.append(rows)
    out = torch.cat(parts, 2)[:, :, torch.cat(places).argsort()]
    return out.transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)


def prepare(model: Any) -> bool:
    """Let the attention of a decoder of transformers read windows block by block; whether it can."""
    config = model.config.get_text_config()
    if config._attn_implementation != "sdpa" or getattr(config, "attn_logit_softcapping", None):
        return False
    layers = [module for module in model.modules() if hasattr(module, "layer_idx") and hasattr(module, "config")]
    for module in layers:
        module.config = copy.copy(module.config)
        module.config._attn_implementation = NAME
    return bool(layers)


# Prompts for a teacher to continue: beginnings of text, heads of programs, and captions of scenes and digits.
# No prompt of a benchmark is among them. Scenes and programs are of the split for training. Texts are functions and
# prose of Python's standard library. A scene of either split may have the same caption, so `benchmark_captions`
# lists the captions whose passages are dropped. Digits have ten captions, which both sides share.


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
    """The first texts of one side in the order of a seed; all different, except those of digits."""
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
