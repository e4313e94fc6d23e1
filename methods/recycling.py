"""Token Recycling: a tree of the tokens that the target found most probable after each token, the last time it read it.

Source: Luo et al. 2024, arXiv:2408.08696, section 3; the released tree ``2.2.2`` of 80 nodes.
Symbols: A the adjacency matrix: row v has the w best next tokens behind v, w its width, K nodes, p the target's
distributions. Nodes are point masses. The released code is greedy; here a path is accepted as any tree of point masses.
The matrix is that of one prompt, so the order of prompts does not matter. The paper keeps it over prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.tree_shapes import TreeShape, branching, published
from stridebench.methods.verifiers.tree import NGRAMS, REPEATED_SIBLING_TESTED_AGAIN, verify_delta

WIDTH, DEEPEST = 8, 64
"""Tokens that are kept behind each token, as published; most levels of a tree."""


@dataclass
class RecyclingDrafter:
    """The adjacency matrix of one prompt, on the host, and the form of the trees that are read from it.

    Args:
        shape: of a tree.
        width: w.
        matrix: rows of the tokens that were read; a row that is not there has zeros.
    """

    shape: TreeShape
    width: int
    matrix: dict[int, list[int]] = field(default_factory=dict)

    def propose(self, run: Run) -> Draft:
        """Return the tree: the child of rank r of a node with token v is A[v, r]. Siblings may be alike."""
        shape = self.shape.cut(run.room - 1, run.space)
        tokens: list[int] = []
        repeated: list[bool] = []
        paths, unread = set[tuple[int, int]](), [0] * self.width
        for parent, rank in zip(shape.parents.tolist(), shape.ranks.tolist(), strict=True):
            above = tokens[parent] if parent >= 0 else run.target.tokens[-1]
            token = self.matrix.get(above, unread)[rank]
            repeated.append((parent, token) in paths or (parent >= 0 and repeated[parent]))
            paths.add((parent, token))
            tokens.append(token)
        if not tokens:
            return run.nothing
        ids, marks = torch.tensor(tokens), torch.tensor(repeated)
        device = run.target.device
        return Draft(ids.to(device), parents=shape.parents.to(device), repeats=marks.to(device))

    def learn(self, run: Run, draft: Draft, logits: Float[Tensor, "R V"]) -> None:
        """Keep the best tokens of every row, also of refused nodes; of two rows behind one token the later one."""
        fed = [run.target.tokens[-1], *draft.tokens.tolist()]
        self.matrix.update(zip(fed, logits.topk(self.width).indices.tolist(), strict=True))


@METHODS.register("recycling")
@dataclass(frozen=True)
class Recycling(Method[RecyclingDrafter]):
    """Grow a tree from the tokens that were most probable behind each token before; learn from every row of the pass.

    Args:
        tree: by name. recycling_80 is the published one; eagle_8 and eagle_25 are cheaper on a CPU.
        widths: children of each node level by level, instead of a tree by name.
    """

    tree: str = "recycling_80"
    widths: tuple[int, ...] = ()

    claim = Claim.SAME_LAW
    source = "arXiv:2408.08696, section 3"
    requirements = frozenset({Requirement.TREE_MASK})
    mutants = (*NGRAMS, REPEATED_SIBLING_TESTED_AGAIN)

    def __post_init__(self) -> None:
        if any(not 1 <= width <= WIDTH for width in self.widths):
            raise UsageError(f"recycling: widths are {self.widths}; give each level 1 to {WIDTH} children a node")

    def start(self, run: Run) -> RecyclingDrafter:
        vocabulary = run.capabilities.vocabulary
        width = min(WIDTH, vocabulary)
        if max(self.widths, default=0) > width:
            raise UsageError(f"recycling: {max(self.widths)} siblings and a vocabulary of {vocabulary}; give fewer")
        shape = branching(self.widths) if self.widths else published(self.tree, DEEPEST, WIDTH, vocabulary)
        return RecyclingDrafter(shape, width)

    def step(self, run: Run, state: RecyclingDrafter) -> Acceptance:
        draft = state.propose(run)
        logits = run.target.forward(draft)
        state.learn(run, draft, logits)
        return verify_delta(draft, run.probs(logits), run.draws)

    @classmethod
    def variants(cls) -> Sequence[Recycling]:
        return (cls(widths=(2, 1)), cls(widths=(2, 2)))
