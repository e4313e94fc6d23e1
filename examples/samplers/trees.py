"""Rules for trees and for several rows of drafts."""

import numpy as np

from stridebench import sampler

TREE = (-1, -1, 0, 0)
ROWS = (-1, 0, -1, 2)


def children(parents, last):
    """Return the nodes behind a node, or behind the prompt (-1)."""
    return [node for node, parent in enumerate(parents) if parent == last]


def most_probable(tokens, q, draws):
    """Return the drafter's most probable token that no sibling has."""
    return q[-1].argmax()


@sampler(parents=TREE, distinct=True)
def eagle_tree(tokens, parents, q, p, draws):
    """EAGLE-1, recursive rejection of siblings that were sampled without replacement.

    Source: SafeAILab/EAGLE@08dc06cc, eagle/model/utils.py, evaluate_posterior. Claim: lossless.
    """
    emitted, last = [], -1
    while True:
        target = p[last + 1]
        for node in children(parents, last):
            if target[tokens[node]] > 0 and draws.coin(target[tokens[node]] / q[node, tokens[node]]):
                emitted.append(tokens[node])
                last = node
                break
            target = np.maximum(target - q[node], 0)
            target = target / target.sum()
        else:
            return [*emitted, draws.token(target)]


@sampler(parents=TREE, distinct=True)
def traversal(tokens, parents, q, p, draws):
    """Traversal verification: leaves are tested before the nodes above them, from the first leaf on.

    Source: arXiv:2505.12398, which has no code of its authors. Claim: lossless.
    """
    target, accept, refused = [row.copy() for row in p], {-1: 1.0}, set()
    while True:
        path = [-1]
        while left := [node for node in children(parents, path[-1]) if node not in refused]:
            node, above = left[0], path[-1]
            if node not in accept:
                accept[node] = min(1.0, accept[above] * target[above + 1][tokens[node]] / q[node, tokens[node]])
            path.append(node)
        if len(path) == 1 or draws.coin(accept[path[-1]]):
            return [*(tokens[node] for node in path[1:]), draws.token(target[path[-1] + 1])]
        leaf, above = path[-1], path[-2]
        refused.add(leaf)
        rest = np.maximum(accept[above] * target[above + 1] - q[leaf], 0)
        if rest.sum() > 0:
            accept[above] = rest.sum() / (rest.sum() + 1 - accept[above])
            target[above + 1] = rest / rest.sum()
        else:
            accept[above] = 0.0


def target_only(tokens, parents, p, draws, single):
    """Keep the nodes whose target probability a uniform number, summed over siblings, or a threshold accepts."""
    emitted, last = [], -1
    while True:
        coin, mass = draws.uniform(), 0.0
        rest = p[last + 1].copy()
        for node in children(parents, last):
            probability = p[last + 1, tokens[node]]
            mass += probability
            if coin <= mass or probability >= single:
                emitted.append(tokens[node])
                last = node
                break
            rest[tokens[node]] = 0
        else:
            return [*emitted, draws.token(rest)]


@sampler(parents=TREE, distinct=True, propose=most_probable)
def sglang_tree(tokens, parents, q, p, draws):
    """SGLang, target-only sampling of a tree of the drafter's most probable tokens, thresholds 1 and 1.

    Source: sgl-project/sglang@120affb9, sgl-kernel/csrc/speculative/speculative_sampling.cuh. Claim: lossless.
    """
    return target_only(tokens, parents, p, draws, single=1.0)


@sampler(parents=TREE, distinct=True, propose=most_probable)
def sglang_thresholds(tokens, parents, q, p, draws):
    """SGLang, the same sampling with `--speculative-accept-threshold-single 0.5`.

    Source: sgl-project/sglang@120affb9, sgl-kernel/csrc/speculative/speculative_sampling.cuh. Claim: lossy.
    """
    return target_only(tokens, parents, p, draws, single=0.5)


@sampler(parents=ROWS)
def sjd_pac_longest(tokens, parents, q, p, draws):
    """SJD-PAC, several rows with coins of their own, of which the longest accepted one is kept.

    Source: arXiv:2603.18599; KangJialiang/SJD-PAC@4fbc099f, scheduler/sjd_pac_iteration_lumina_mgpt.py.
    Claim: lossless.
    """
    rows = []
    for nodes in ((0, 1), (2, 3)):
        row, last = [], -1
        for node in nodes:
            if not draws.coin(p[last + 1, tokens[node]] / q[node, tokens[node]]):
                rows.append((row, np.maximum(p[last + 1] - q[node], 0)))
                break
            row, last = [*row, tokens[node]], node
        else:
            rows.append((row, p[last + 1]))
    row, left = max(rows, key=lambda item: len(item[0]))
    return [*row, draws.token(left)]
