"""Checks that every key-value cache must pass: windows, trees and histories against an empty cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from hypothesis import strategies as st
from torch import Tensor

from stridebench.harness.core.cache import Cache, Window
from stridebench.harness.core.capabilities import Capabilities, Tap
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.draft import Acceptance, Draft, Path
from stridebench.harness.core.session import Session

Fresh = Callable[[Sequence[int]], Tensor]
"""Logits of all rows of a text, from an empty cache."""


def feed(cache: Cache, tokens: Sequence[int], base: int, rows: int | None = None) -> Tensor:
    """Logits of the last rows of a causal window at ``base``; all rows by default."""
    ids = torch.tensor(tokens)
    window = Window(ids, torch.arange(base, base + len(ids)), base, None, len(ids) if rows is None else rows)
    return cache.extend(window).logits


def feed_windows(cache: Cache, tokens: Sequence[int], cuts: Sequence[int]) -> Tensor:
    """Logits of all rows, read in windows that begin at the cuts."""
    return torch.cat([feed(cache, tokens[begin:end], begin) for begin, end in pairwise([*cuts, len(tokens)])])


def session(
    cache: Cache, capabilities: Capabilities, tokens: Sequence[int], taps: Sequence[Tap] = (), kind: str = "target"
) -> Session:
    target = Session(cache, capabilities, tokens, stopwatch=Stopwatch(CpuClock()), kind=kind)
    target.tap(taps)
    return target


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Chains and trees of up to six of four tokens."""
    size = draw(st.integers(0, 6))
    tokens = torch.tensor([draw(st.integers(0, 3)) for _ in range(size)], dtype=torch.long)
    if draw(st.booleans()):
        return Draft(tokens)
    return Draft(tokens, parents=torch.tensor([draw(st.integers(-1, k - 1)) for k in range(size)], dtype=torch.long))


def acceptance(nodes: Sequence[int], size: int, token: int) -> Acceptance:
    """Accept a path of a draft of ``size`` nodes, then a token."""
    padded = torch.tensor([*nodes, *[-1] * (size - len(nodes))], dtype=torch.long)
    stop = torch.tensor(nodes[-1] + 1 if nodes else 0)
    return Acceptance(Path(padded, stop, torch.zeros(())), torch.tensor(token))


def chains(parents: Sequence[int]) -> list[list[int]]:
    """Nodes from the root's child down to each node."""
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    return paths


def chains_of(draft: Draft) -> list[list[int]]:
    return chains(range(-1, len(draft) - 1) if draft.parents is None else draft.parents.tolist())


def check_tree(
    cache: Cache,
    fresh: Fresh,
    tree: tuple[Sequence[int], Sequence[int], Sequence[int]],
    path: Sequence[int],
    following: Sequence[int],
    atol: float,
) -> None:
    """Each node of a tree has the logits of its own chain; an accepted path is continued as a chain.

    Args:
        tree: tokens before the tree, its tokens, its parents.
        path: the accepted nodes.
        following: tokens read after the accepted path.
    """
    prefix, nodes, parents = tree
    base, size = len(prefix) - 1, len(nodes) + 1
    feed(cache, prefix[:-1], 0, rows=0)
    sees = torch.eye(size, dtype=torch.bool)
    sees[:, 0] = True
    for node, chain in enumerate(chains(parents)):
        sees[node + 1, [above + 1 for above in chain]] = True
    positions = base + torch.tensor([0, *map(len, chains(parents))])
    logits = cache.extend(Window(torch.tensor([prefix[-1], *nodes]), positions, base, sees, size)).logits
    for node, chain in enumerate(chains(parents)):
        expected = fresh([*prefix, *(nodes[k] for k in chain)])[-1]
        torch.testing.assert_close(logits[node + 1], expected, rtol=0, atol=atol)
    cache.keep(len(prefix), tuple(path))
    last = feed(cache, following, len(prefix) + len(path))
    expected = fresh([*prefix, *(nodes[k] for k in path), *following])[-len(following) :]
    torch.testing.assert_close(last, expected, rtol=0, atol=atol)


def check_history(data: st.DataObject, cache: Cache, fresh: Fresh, vocabulary: int, context: int, atol: float) -> None:
    """After windows of any size and rollbacks, a row equals that of an empty cache over the same tokens."""
    tokens: list[int] = []
    for _ in range(data.draw(st.integers(1, 6))):
        new = data.draw(st.lists(st.integers(0, vocabulary - 1), min_size=1, max_size=7))
        if len(tokens) + len(new) >= context:
            break
        feed(cache, new, len(tokens), rows=data.draw(st.integers(0, len(new))))
        tokens += new
        length = data.draw(st.integers(max(0, len(tokens) - len(new) - 4), len(tokens)))
        if data.draw(st.booleans()):
            cache.keep(length)
            tokens = tokens[:length]
        else:
            more = data.draw(st.integers(0, len(tokens) - length))
            cache.keep(length, tuple(range(more)))
            tokens = tokens[: length + more]
    last = feed(cache, [7], len(tokens))[-1]
    torch.testing.assert_close(last, fresh([*tokens, 7])[-1], rtol=0, atol=atol)
