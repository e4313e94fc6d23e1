"""Lookahead: the window against a reference that reads each cell alone; counts, exactness, and bad settings."""

from __future__ import annotations

import pytest
import torch

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.clock import CpuClock, Stopwatch
from stridebench.harness.core.loop import advance, decode, start
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.session import Session
from stridebench.harness.proof.cases import GRID_CASES, Case
from stridebench.harness.proof.distance import QUICK, distance, measure
from stridebench.methods.lookahead import Lookahead
from tests.support import toys

MODEL = Tabular("tabular", {"vocabulary": 3, "seed": 5, "context": 400})
METHOD = Lookahead(ngram=4, window=3, guesses=2)


def opened(sampling: Sampling) -> Run:
    return toys.opened(sampling, 60, (0, 1, 2, 1), model=MODEL)


def greedy(tokens: list[int]) -> int:
    session = Session(MODEL.cache(), MODEL.capabilities, tokens, stopwatch=Stopwatch(CpuClock()))
    return int(session.forward()[0].argmax())


class Reference:
    """The window by its definition: each cell ends a path of ids after the last token, and is read alone."""

    def __init__(self, row: list[int]) -> None:
        self.rows = [row]
        self.pool: dict[int, list[tuple[int, ...]]] = {}

    def cell(self, r: int, c: int) -> list[int]:
        """Ids from the last token's successor down to cell (r, c); (0, c) is the c-th id of row 0, from 1."""
        return self.rows[0][:c] + [row[c] for row in self.rows[1 : r + 1]]

    def step(self, tokens: list[int]) -> None:
        last = len(self.rows) - 1
        if last == 0:
            predictions = [greedy([*tokens, *self.rows[0][: c + 1]]) for c in range(len(self.rows[0]))]
            self.rows = [self.rows[0][1:], predictions]
        elif last < METHOD.ngram - 2:
            predictions = [greedy([*tokens, *self.cell(last, c)]) for c in range(len(self.rows[last]))]
            self.rows = [*(row[1:] for row in self.rows), predictions[1:]]
        else:
            predictions = [greedy([*tokens, *self.cell(last, c)]) for c in range(METHOD.window)]
            for c, key in enumerate([tokens[-1], *self.rows[0]]):
                guess = (*(row[c] for row in self.rows[1:]), predictions[c])
                older = [other for other in self.pool.get(key, []) if other != guess]
                self.pool[key] = [*older, guess][-METHOD.guesses :]
            self.rows = [self.rows[1][1:], *self.rows[2:], predictions]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_window_and_its_ngrams_are_those_of_the_definition(temperature: float) -> None:
    run = opened(Sampling(temperature))
    state = start(METHOD, run)
    expected = Reference(list(state.rows[0]))
    assert len(state.rows[0]) == METHOD.window + METHOD.ngram - 3
    for step in range(14):
        tokens = list(run.target.tokens)
        advance(METHOD, run, state)
        expected.step(tokens)
        assert state.rows == expected.rows, f"step {step}"
        assert state.pool == expected.pool
    assert [len(row) for row in state.rows] == [2, 3, 3]
    assert state.pool


def test_counts_of_a_step() -> None:
    """The first N - 2 passes fill the window; then (N - 1) W - 1 probes, and guesses of N - 1 ids."""
    steps = decode(METHOD, opened(Sampling(0.0))).steps
    assert [step.rows for step in steps[:2]] == [1 + 4, 1 + 3 + 4]
    for step in steps[2:]:
        assert step.nfe == 1
        assert step.rows in {9, 9 + 3, 9 + 6}
        assert step.drafted <= 6
        assert step.accepted <= 3
    assert max(step.accepted for step in steps) == 3, "a guess accepted in full is followed by a bonus token"


@pytest.mark.usefixtures("unchecked")
def test_a_longer_window_is_exact() -> None:
    assert distance(Lookahead(ngram=3, window=3, guesses=2), Case(3, 4, 15, Sampling(1.0, top_k=2))) < 1e-12


def test_an_end_of_text_in_the_window_becomes_an_id_of_the_prompt() -> None:
    model = Tabular("tabular", {"vocabulary": 3, "seed": 5, "context": 400, "eos": (0,)})
    run = toys.opened(Sampling(0.0), 8, (1, 2, 1), model=model)
    state = start(METHOD, run)
    for _ in range(6):
        advance(METHOD, run, state)
        assert 0 not in {token for row in state.rows for token in row}


def test_probes_come_after_the_guesses() -> None:
    run = opened(Sampling(0.0))
    state = start(METHOD, run)
    state.pool = {1: [(0, 1, 2), (0, 1, 1)]}
    draft = state.propose(run)
    assert (draft.proposed, draft.probes) == (6, 4)
    assert draft.explicit_parents.tolist() == [-1, -1, 0, 0, 2, 2, -1, 6, 7, 8]
    assert draft.repeats is not None
    assert draft.repeats.tolist() == [False, True, False, True, False, False, *[False] * 4]
    assert torch.equal(draft.tokens[:6], torch.tensor([0, 0, 1, 1, 2, 1]))


@pytest.mark.usefixtures("unchecked")
def test_the_default_size_is_proved_from_fixed_starts() -> None:
    """All starts of 9 ids are 19,683 outcomes; guesses of 4 tokens are tested from the fifth step on."""
    assert measure(Lookahead(), GRID_CASES[0], QUICK).total_variation < 1e-12
