"""Hashed n-grams: copy token by token what last followed the same n tokens, from a table that knows them by hash.

Source: llama.cpp's `ngram-mod` (`common/ngram-mod.cpp`), with its sizes. There all requests share the table; here it is
that of one prompt, so the order of prompts does not matter, or it knows the outputs of earlier prompts too.
Symbols: x copied tokens, p the target's distributions. Copies are point masses, so they are accepted with p(x). Two
n-grams of one hash share an entry, which costs acceptance and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

import torch

from stridebench.harness.core.draft import Acceptance, Draft
from stridebench.harness.core.method import Claim, Memory, Method
from stridebench.harness.core.run import END, Run
from stridebench.harness.errors import UsageError, one_of
from stridebench.harness.registry import METHODS
from stridebench.methods.verifiers.rejection import CORRECTION_FROM_TARGET, verify_chain

ENTRIES = 4 * 2**20
FACTOR = 6364136223846793005
"""Of the polynomial whose values, modulo 2^64 and then the number of entries, place the n-grams."""


def entry(gram: Sequence[int]) -> int:
    """Return the place of an n-gram in the table."""
    value = 0
    for token in gram:
        value = (value * FACTOR + token) % 2**64
    return value % ENTRIES


@dataclass
class HashedNgrams:
    """The token that last followed each n-gram.

    Args:
        ngram: n.
        length: most tokens of a draft.
        shortest: fewer tokens are no draft.
        table: the entries that are filled.
        read: n-grams of the text whose next token was read so far.
    """

    ngram: int
    length: int
    shortest: int
    table: dict[int, int] = field(default_factory=dict)
    read: int = 0

    def learn(self, tokens: Sequence[int], first: int = 0) -> int:
        """Fill the entries of the n-grams from ``first`` on; return the first one that nothing follows yet."""
        end = max(first, len(tokens) - self.ngram)
        for begin in range(first, end):
            behind = begin + self.ngram
            if END not in tokens[begin : behind + 1]:
                self.table[entry(tokens[begin:behind])] = tokens[behind]
        return end

    def propose(self, run: Run) -> Draft:
        """Return point masses; none if an entry is empty too early, or no room is left."""
        tokens, n = run.target.tokens, self.ngram
        self.read = self.learn(tokens, self.read)
        text = tokens[-n:]
        for _ in range(min(self.length, run.room - 1) if len(text) == n else 0):
            copied = self.table.get(entry(text[-n:]))
            if copied is None:
                break
            text.append(copied)
        if len(text) - n < max(self.shortest, 1):
            return run.nothing
        return Draft(torch.tensor(text[n:], dtype=torch.long, device=run.target.device))


@METHODS.register("ngram_mod")
@dataclass(frozen=True)
class NgramMod(Method[HashedNgrams]):
    """Copy what last followed the same ``ngram`` tokens, one token after the other, while there is something to copy.

    Args:
        ngram: tokens that are looked up.
        length: most tokens of a draft.
        shortest: fewer tokens are not worth a draft. The default serves copies of whole files.
        memory: ``prompt`` copies from a prompt and its output. ``run`` copies from the outputs of earlier prompts
            of the run too, so the speed depends on their order; the output's distribution does not.
    """

    ngram: int = 24
    length: int = 64
    shortest: int = 48
    memory: Memory = "prompt"

    claim = Claim.SAME_LAW
    source = "github.com/ggml-org/llama.cpp, common/ngram-mod.cpp"
    mutants = (CORRECTION_FROM_TARGET,)

    def __post_init__(self) -> None:
        if self.ngram < 1 or not 1 <= self.shortest <= self.length:
            raise UsageError(
                f"ngram_mod: ngram {self.ngram}, length {self.length}, shortest {self.shortest}; ngram and shortest "
                f"start at 1, and length at shortest"
            )
        one_of("ngram_mod", "memory", self.memory, get_args(Memory))

    def start(self, run: Run) -> HashedNgrams:
        state = HashedNgrams(self.ngram, self.length, self.shortest)
        state.learn(run.remembered)
        return state

    def step(self, run: Run, state: HashedNgrams) -> Acceptance:
        draft = state.propose(run)
        p = run.probs(run.target.forward(draft))
        return verify_chain(draft.tokens, None, p, run.draws)

    @classmethod
    def variants(cls) -> Sequence[NgramMod]:
        return (cls(1, 4, 1), cls(2, 3, 2), cls(2, 3, 1, "run"))
