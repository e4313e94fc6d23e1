"""CLLM and Jacobi Forcing: Jacobi decoding in blocks, on a model that was tuned to map a block to its fixed point.

Source: Kou et al. 2024, CLLMs: consistency large language models, arXiv:2403.00835, sections 3.1 and 3.3; with
``blocks`` and ``pool``: Jacobi Forcing, arXiv:2512.14681, multi-block decoding and rejection recycling.
Symbols: n tokens of a block, L guesses in flight, r the share of a block that is fixed when the next one begins, p the
target's distributions.
The tuned model is the target: `stride train backbone cllm-embedded-code` makes one. Decoding is exact with regard to
that tuned model, decoded autoregressively. Its card says how far it is from the model that it was tuned from.
Guesses are argmaxima of earlier passes or ids of the prompt, so above T = 0 they are point masses: one is kept with
p(guess), else the correction token is drawn from p without it. The released sampler of Jacobi Forcing draws that token
from p up to 16 times and, if all draws are the rejected one, takes the most probable other token: it is not exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draft import Acceptance, Draft, HostAcceptance
from stridebench.harness.core.method import Claim, Method, Mutant
from stridebench.harness.core.run import Run
from stridebench.harness.errors import UsageError
from stridebench.harness.registry import METHODS
from stridebench.methods.verifiers.rejection import (
    BONUS_AFTER_REJECTION,
    GUESS_ALWAYS_KEPT,
    GUESS_JUDGED_BY_NEXT_ROW,
    verify_chain,
)
from stridebench.methods.verifiers.tree import NGRAMS, verify_delta


@dataclass
class CLLMBlocks:
    """The guesses of one sequence, carried from pass to pass on the host.

    Args:
        size: n. The block's first token is the last emitted one, which the block before gave for free.
        prompt: its ids, from which new guesses are drawn at random.
        end: index of the token behind the current block; 0 if there was none yet.
        tokens: L guesses behind the last emitted token; those from ``end`` on are of the next block.
        chains: of the pass, the nodes of the guesses, then those of each candidate.
        pool: the emitted part of a block with the guesses behind it, as earlier passes had them; the newest last.
    """

    size: int
    prompt: tuple[int, ...]
    end: int = 0
    tokens: tuple[int, ...] = ()
    chains: tuple[tuple[int, ...], ...] = ()
    pool: tuple[tuple[int, ...], ...] = ()

    def remember(self, run: Run, count: int) -> None:
        """Add the current block to the pool, which keeps ``count`` texts."""
        if count and self.end:
            begin = self.end - self.size
            self.pool = (*self.pool, (*run.target.tokens[begin:], *self.tokens))[-count:]

    def grow(self, run: Run, blocks: int, ratio: float) -> None:
        """Begin a block if none is open, and the next one once enough of the current one is fixed.

        A next block begins with the guesses that are left of the current one, as released, and random ids.
        """
        position = len(run.target)
        while position > self.end:
            self.end = (self.end or position - 1) + self.size
        left = self.end - position
        begins = blocks > 1 and len(self.tokens) <= left and self.size - left >= math.ceil(ratio * self.size)
        self._fill(run, left)
        if begins:
            self.tokens += self.tokens
            self._fill(run, left + self.size)

    def _fill(self, run: Run, length: int) -> None:
        """Draw random guesses up to a length, or as many as there is room for; on a GPU this reads the device."""
        missing = min(length, run.room - 1) - len(self.tokens)
        if missing > 0:
            drawn = run.draws.integers(missing, len(self.prompt), "init").tolist()
            self.tokens += tuple(self.prompt[index] for index in drawn)
        self.tokens = self.tokens[: run.room - 1]

    def propose(self, run: Run) -> Draft:
        """Return the guesses as a chain, and as many candidates as the context has room for as branches of it."""
        nodes: dict[tuple[int, int], int] = {}  # by parent and token
        chains: list[tuple[int, ...]] = []
        for text in (self.tokens, *self._candidates(run)):
            if len(nodes) + len(text) > run.space:
                break
            chain = [-1]
            for token in text:
                chain.append(nodes.setdefault((chain[-1], token), len(nodes)))
            chains.append(tuple(chain[1:]))
        self.chains = tuple(chains)
        parents, ids = torch.tensor(list(nodes), dtype=torch.long, device=run.target.device).view(-1, 2).unbind(1)
        return Draft(ids, parents=parents if len(nodes) > len(self.tokens) else None)

    def _candidates(self, run: Run) -> list[tuple[int, ...]]:
        """Return what stood behind the last token in texts of the pool, up to the end of the block."""
        last, depth = run.target.tokens[-1], min(self.end - len(run.target), len(self.tokens))
        texts = [text[text.index(last) + 1 :][:depth] for text in reversed(self.pool) if last in text]
        return [text + self.tokens[len(text) : depth] for text in texts]

    def advance(self, read: HostAcceptance) -> None:
        """Predict the guesses behind the accepted ones and one more token anew.

        Args:
            read: its ``extra_ids`` are the most probable tokens of the rows: that of the row behind a node is the guess
                behind it. The row behind the last guess gives none: after a rejection it would follow a guess of the
                chain, and after the last acceptance it is the next token.
        """
        kept = len(read.path)
        chain = next(chain for chain in self.chains if chain[:kept] == read.path)
        chain += self.chains[0][len(chain) :]
        self.tokens = tuple(read.extra_ids[node + 1] for node in chain[kept:-1])


ARGMAX_FALLBACK = Mutant(
    "stridebench.methods.verifiers.rejection:judge",
    "residual(probs, rejected)",
    "(lambda left, hit: (1 - hit) * left + hit * torch.nn.functional.one_hot(left.argmax(1), left.shape[1]))"
    "(residual(probs, rejected), probs.gather(1, rejected[:, None]) ** 2)",
    "if two draws are the rejected token, the most probable other one is taken; Jacobi Forcing's rule, there after 16",
)


@METHODS.register("cllm")
@dataclass(frozen=True)
class Cllm(Method[CLLMBlocks]):
    """Read the rest of a block, commit the prefix that is stable and the token behind it, predict the others anew.

    A block at its fixed point gives the first token of the next one in the same pass. Unlike in `jacobi`, nothing is
    guessed behind it before that, unless ``blocks`` is 2. Jacobi Forcing is ``blocks=2 pool=4``.

    Args:
        block: n, rows of its first pass, the re-fed token included. Tokens a pass are n over its passes.
        blocks: 2: once enough of a block is fixed, the next one is guessed behind it. The released code verifies that
            one in a pass of its own; here verification goes on into it.
        ratio: r, published 0.85.
        pool: texts of earlier passes of which candidates are made, as branches of the pass; 0: none. A candidate is
            what followed the first place of the last token there, up to the end of the block. The released code has 4
            texts in which each second one is the guesses alone, and reads candidates as rows of a batch.
    """

    block: int = 16
    blocks: int = 1
    ratio: float = 0.85
    pool: int = 0

    claim = Claim.SAME_LAW
    source = "arXiv:2403.00835, sections 3.1 and 3.3; arXiv:2512.14681"
    pinned = frozenset({"init"})
    mutants = (GUESS_ALWAYS_KEPT, GUESS_JUDGED_BY_NEXT_ROW, BONUS_AFTER_REJECTION, ARGMAX_FALLBACK, *NGRAMS)

    def __post_init__(self) -> None:
        if self.block < 2:
            raise UsageError(f"cllm: block is {self.block}; it holds the re-fed token and at least one guess")
        if self.blocks not in (1, 2) or not 0 < self.ratio <= 1 or self.pool < 0:
            raise UsageError(
                f"cllm: blocks is {self.blocks}, ratio {self.ratio:g} and pool {self.pool}; give 1 or 2, a ratio above "
                f"0 and up to 1, and a pool of 0 or more"
            )

    @property
    def requirements(self) -> frozenset[Requirement]:
        return frozenset({Requirement.TREE_MASK} if self.pool else ())

    def start(self, run: Run) -> CLLMBlocks:
        return CLLMBlocks(self.block, tuple(run.target.tokens))

    def step(self, run: Run, state: CLLMBlocks) -> Acceptance:
        state.remember(run, self.pool)
        state.grow(run, self.blocks, self.ratio)
        draft = state.propose(run)
        p = run.probs(run.target.forward(draft))
        chain = draft.parents is None
        verified = verify_chain(draft.tokens, None, p, run.draws) if chain else verify_delta(draft, p, run.draws)
        verified.extra_ids = p.argmax(1)
        state.advance(verified.read())
        return verified

    @classmethod
    def variants(cls) -> Sequence[Cllm]:
        both = cls(block=3, blocks=2, ratio=0.3, pool=2)
        return (cls(block=3), both, cls(block=2), cls(block=3, blocks=2, ratio=0.3))
