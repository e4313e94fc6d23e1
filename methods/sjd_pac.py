"""SJD-PAC: speculative Jacobi decoding with alternatives of the next drafts, and drafts that outlive a rejection.

Source: arXiv:2603.18599, sections on proactive drafting and adaptive continuation. The released code tests every row by
coins of its own and keeps the longest, which is biased. Here the alternatives form a tree that is walked from its root,
so the first row that is accepted goes on.
Symbols: x drafts of the window, q the distribution each was drawn from, p the target's, D levels that have
alternatives, K siblings at each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from jaxtyping import Int
from torch import Tensor

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance, Draft, Path
from stridebench.harness.core.draws import Draws
from stridebench.harness.core.method import Claim, Method, Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError, one_of
from stridebench.harness.registry import METHODS
from stridebench.methods.drafters.jacobi_window import VERTICAL, Init, JacobiWindow, carry_over
from stridebench.methods.drafters.tree_shapes import branching, siblings
from stridebench.methods.verifiers.tree import EARLIER_SIBLINGS_FORGOTTEN, repeats, verify_multi_step


@dataclass(frozen=True)
class WindowTree:
    """The window as the main row of a tree.

    Args:
        draft: the tree.
        main: nodes of the window's drafts, in order.
        inner: rows of the root and of all nodes that may have children.
    """

    draft: Draft
    main: Int[Tensor, " L"]
    inner: int


def with_alternatives(window: Draft, depth: int, width: int, draws: Draws) -> WindowTree:
    """Return a tree whose nodes of the first ``depth`` levels have ``width`` children; behind them the window goes on.

    All nodes of a level have the same children: the window's draft, and others drawn without replacement from the
    distribution that the draft left. A walk from the root looks at one of these sets alone. So the drafts behind it are
    still draws of the distributions that are recorded for them.
    """
    assert window.probs is not None, "a window records its distributions"
    length, depth = len(window), min(depth, len(window))
    if width == 1 or depth == 0:
        return WindowTree(window, torch.arange(length, device=window.tokens.device), length + 1)
    x, q = window.tokens[:depth], window.probs[:depth]
    left = q.scatter(1, x[:, None], 0.0)
    mass = left.sum(1, keepdim=True)
    others = siblings(torch.where(mass > 0, left / mass, left), width - 1, draws, replacement=False)
    tokens, probs = torch.cat([x[:, None], others.tokens], 1), torch.cat([q[:, None], others.probs], 1)
    shape = branching([width] * depth).on(x.device)
    times = [width**level for level in range(depth)]
    firsts = [sum(shape.sizes[:level]) for level in range(depth)]
    chain = torch.arange(len(shape.parents), len(shape.parents) + length - depth, device=x.device)
    main = torch.cat([torch.tensor(firsts, dtype=torch.long, device=x.device), chain])
    draft = Draft(
        torch.cat([*(tokens[level].repeat(count) for level, count in enumerate(times)), window.tokens[depth:]]),
        torch.cat([*(probs[level].repeat(count, 1) for level, count in enumerate(times)), window.probs[depth:]]),
        torch.cat([shape.parents, main[depth - 1 : -1]]),
    )
    marks = repeats(draft.tokens, draft.explicit_parents)
    return WindowTree(Draft(draft.tokens, draft.probs, draft.parents, repeats=marks), main, len(draft) + 1)


@METHODS.register("sjd_pac")
@dataclass(frozen=True)
class SJDPAC(Method[JacobiWindow]):
    """SJD with siblings of its first drafts; drafts behind a rejection are kept as often as can be.

    Args:
        window, init, window_counts_refed: as SJD.
        depth: D, drafts that have alternatives.
        width: K, each draft's alternatives and itself. A width above V is V; 1 is SJD++ with reuse M.
    """

    window: int = 16
    init: Init = "uniform"
    window_counts_refed: bool = True
    depth: int = 2
    width: int = 3

    claim = Claim.SAME_LAW
    source = "arXiv:2603.18599, with the first accepted row instead of the longest"

    def __post_init__(self) -> None:
        if self.window - self.window_counts_refed < 1:
            raise UsageError(f"sjd_pac: window is {self.window}, which leaves no draft; use 2 or more")
        if self.depth < 1 or self.width < 1:
            raise UsageError(f"sjd_pac: depth {self.depth} and width {self.width}; both start at 1")
        one_of("sjd_pac", "init", self.init, get_args(Init))

    @property
    def requirements(self) -> frozenset[Requirement]:
        return frozenset({Requirement.TREE_MASK, *((Requirement.GRID,) if self.init in VERTICAL else ())})

    def start(self, run: Run) -> JacobiWindow:
        return JacobiWindow.empty(run, self.window - self.window_counts_refed, self.init)

    def step(self, run: Run, state: JacobiWindow) -> Acceptance:
        window = state.propose(run)
        if not len(window):
            p = run.probs(run.target.forward())
            return Acceptance(Path.root(p), run.draws.categorical(p, "resid")[0])
        width = min(self.width, run.capabilities.vocabulary)
        tree = with_alternatives(window, self.fitting_depth(len(window), width, run.space), width, run.draws)
        p = run.probs(run.target.forward(tree.draft))
        acceptance = verify_multi_step(tree.draft, p, run.draws, inner=tree.inner, width=width)
        row = torch.cat([p[:1], p[tree.main + 1]])
        state.advance(run, row, len(acceptance.read().path), carry_over(run.draws, "M", 0.0))
        return acceptance

    def fitting_depth(self, window: int, width: int, space: int) -> int:
        """Return how many levels can have alternatives without more nodes than the context has room for."""
        levels = range(min(self.depth, window) + 1)
        nodes = [window - depth + sum(width**level for level in range(1, depth + 1)) for depth in levels]
        return max(depth for depth in levels if nodes[depth] <= space)

    mutants = (
        EARLIER_SIBLINGS_FORGOTTEN,
        Mutant(
            f"{__name__}:SJDPAC.step",
            "verify_multi_step(tree.draft, p, run.draws, inner=tree.inner, width=width)",
            '__import__("stridebench.methods.verifiers.typical", fromlist=["_"]).verify_redrawn'
            "(tree.draft, p, run.draws, len(window))",
            "every row has coins of its own, and the longest is kept, as in the released code",
        ),
        Mutant(
            f"{__name__}:with_alternatives",
            "tokens, probs = torch.cat([x[:, None], others.tokens], 1), torch.cat([q[:, None], others.probs], 1)",
            "tokens, probs = torch.cat([x[:, None], others.tokens], 1), q[:, None].expand(-1, width, -1)",
            "alternatives are tested as draws of q with replacement",
        ),
    )

    @classmethod
    def variants(cls) -> Sequence[SJDPAC]:
        widths = [cls(window=3, depth=1, width=2), cls(window=3, width=2)]
        return (*widths, cls(window=3, init="h-sample", depth=1, width=2))
