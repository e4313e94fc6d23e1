"""Structure of trees against plain loops: tries, children, paths and repeats."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st

from stridebench.methods.verifiers.tree import children, paths, repeats, trie
from tests.support.tree_paths import path_to, token_paths


@given(st.lists(st.lists(st.integers(0, 2), min_size=3, max_size=3), min_size=1, max_size=6))
def test_a_trie_merges_equal_prefixes(continuations: list[list[int]]) -> None:
    count = len(continuations)
    tree = trie(torch.tensor(continuations).T)
    walks = token_paths([row[level] for level in range(3) for row in continuations], tree.parents.tolist())
    for level, j in itertools.product(range(3), range(count)):
        node, prefix = level * count + j, tuple(continuations[j][: level + 1])
        assert walks[node] == prefix
        same = [i for i in range(count) if tuple(continuations[i][: level + 1]) == prefix]
        assert tree.first[node] == level * count + same[0]
    merged = tree.first == torch.arange(3 * count)
    assert len({walks[node] for node in merged.nonzero()[:, 0].tolist()}) == int(merged.sum()) == len(set(walks))


@given(st.data())
def test_children_paths_and_repeats_against_loops(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 9))
    parents = [data.draw(st.integers(-1, k - 1)) for k in range(size)]
    tokens = [data.draw(st.integers(0, 1)) for _ in range(size)]
    walks, on = token_paths(tokens, parents), torch.tensor(parents)
    table = children(on, size + 1, size).tolist()
    assert [[k for k in row if k >= 0] for row in table] == [
        [k for k in range(size) if parents[k] == row - 1] for row in range(size + 1)
    ]
    assert [tuple(k for k in row if k >= 0) for row in paths(on, size).tolist()] == [
        path_to(parents, node) for node in range(size)
    ]
    repeated: list[bool] = []
    for node in range(size):
        equal_sibling = any(parents[k] == parents[node] and tokens[k] == tokens[node] for k in range(node))
        repeated.append(equal_sibling or (parents[node] >= 0 and repeated[parents[node]]))
    assert repeats(torch.tensor(tokens), on).tolist() == repeated
    assert len({walks[k] for k in range(size) if not repeated[k]}) == repeated.count(False)
