"""Set block decoding: its law by hand, how many passes it takes, and the order in which masks are filled."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.cache import Window
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.proof.cases import Case
from stridebench.harness.proof.distance import method_law
from stridebench.methods.drafters import blocks
from stridebench.methods.sbd import SetBlockDecoding
from tests.support.toys import decoded

MODEL = Tabular("tabular", {"vocabulary": 3, "seed": 7})
CASE = Case(3, 2, 7, Sampling(1.0), prompt=(0, 1))


def law_of(tokens: list[int], mutual: bool) -> Tensor:
    """The last row's distribution of a new cache; ``mutual``: of one more mask, which the last token sees."""
    window = Window(torch.tensor(tokens), torch.arange(len(tokens)), 0, None, 1)
    if mutual:
        sees = torch.ones(len(tokens) + 1, len(tokens) + 1, dtype=torch.bool).tril()
        sees[-2:, -2:] = True
        window = Window(torch.tensor([*tokens, 0]), torch.arange(len(tokens) + 1), 0, sees, 1)
    return MODEL.cache().extend(window).logits[0].softmax(0)


def test_the_law_of_a_block_is_that_of_its_mask_and_then_that_of_the_causal_row() -> None:
    """One mask: x is drawn from the row that sees both sides, and the token behind it given x."""
    law = method_law(SetBlockDecoding(block=2), CASE)
    first = law_of([0, 1], mutual=True)
    for x in range(3):
        second = law_of([0, 1, x], mutual=False)
        for y in range(3):
            assert law[x, y] == pytest.approx(float(first[x] * second[y]), abs=1e-12)


@pytest.mark.parametrize(("rule", "passes"), [("static:1", 4), ("static:2", 3), ("threshold:0", 2), ("entropy:9", 2)])
def test_a_block_takes_the_passes_of_its_rule_and_one_that_closes_it(rule: str, passes: int) -> None:
    steps = decoded(SetBlockDecoding(block=4, rule=rule), Sampling(1.0), 12, model=MODEL).steps
    assert [(step.nfe, step.emitted) for step in steps] == [(passes, 4)] * 3
    assert all(step.rows == 4 * passes for step in steps)


@pytest.mark.parametrize("rule", ["entropy:0", "threshold:1.1"])
def test_the_most_certain_mask_is_filled_first(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At T = 0 a token is the most probable one, and entropies are those of T = 1."""
    seen: list[tuple[dict[int, int], Tensor]] = []
    read = blocks.read_masks

    def watched(run: Run, masks: int, filled: Mapping[int, int]) -> Tensor:
        logits = read(run, masks, filled)
        seen.append((dict(filled), logits))
        return logits

    monkeypatch.setattr(blocks, "read_masks", watched)
    decoded(SetBlockDecoding(block=4, rule=rule), Sampling(0.0), 4, model=MODEL)
    p = seen[0][1].softmax(1)
    sure = -torch.special.entr(p).sum(1) if rule == "entropy:0" else p.max(1).values
    best = int(sure.argmax())
    assert [len(filled) for filled, _ in seen] == [0, 1, 2]
    assert seen[1][0] == {best: int(p[best].argmax())}
