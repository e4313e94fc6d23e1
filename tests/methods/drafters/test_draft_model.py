"""Policies of the length of a draft: where each ends it, by hand, and that none of them moves the output."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_model

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core import draft as outcomes
from stridebench.harness.core.batch import Batch, Slot
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import decode
from stridebench.harness.core.models import Models
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import WeightsError
from stridebench.harness.proof.cases import BATCH_CASES, CASES
from stridebench.harness.proof.distance import toy_drafter
from stridebench.harness.proof.mutants import try_mutant
from stridebench.harness.proof.prove import prove
from stridebench.methods.drafters.draft_model import (
    DROPPED_FOR_ANOTHER,
    DROPPED_FOR_ITS_DOUBT,
    DROPPED_FOR_ITS_PROBABILITY,
    AcceptanceHead,
    DraftLength,
    acceptance_head,
)
from stridebench.methods.eagle1 import Eagle1
from stridebench.methods.prompt_lookup import PromptLookup
from stridebench.methods.speculative import Speculative
from tests.support import toys
from tests.support.feature_toys import run_on

MODEL = Tabular("tabular", {"vocabulary": 5})
LAW = torch.tensor([[0.5, 0.3, 0.2, 0.0]], dtype=torch.float64)  # 1.0297 nats: 1 - sqrt(0.2 H) = 0.5462


def opened(temperature: float = 1.0) -> Run:
    return toys.opened(Sampling(temperature), 60, (0, 1, 2), model=MODEL)


def in_slot(slot: Slot | None) -> Run:
    models = Models(MODEL, toy_drafter(MODEL), (0, 1), slot=slot)
    return Run.of(models, Sampling(1.0), 20, SeededDraws(0, "t", "p", 0))


def length(policy: str, most: int = 8) -> DraftLength:
    return DraftLength.of("speculative", policy, most)


def accepted(count: int) -> outcomes.Acceptance:
    path = outcomes.Path(torch.arange(count), torch.tensor(count), torch.zeros(()))
    return outcomes.Acceptance(path, torch.tensor(0))


@pytest.mark.parametrize(
    ("policy", "before", "behind"),
    [
        ("", False, [False, False, False]),
        ("conf:0.5", False, [False, False, False]),
        ("conf:0.51", True, [False, False, False]),
        ("p_min:0.51", True, [False, False, False]),
        ("keep:0.3", False, [False, False, True]),
        ("keep:0.31", False, [False, True, True]),
        ("entropy:0.546", False, [False, False, False]),
        ("entropy:0.547", True, [False, False, False]),
    ],
)
def test_where_a_draft_ends_by_hand(policy: str, before: bool, behind: list[bool]) -> None:
    one = length(policy)
    assert one.ends_before(LAW) is before
    assert [one.ends_behind(LAW, torch.tensor([x])) for x in range(3)] == behind


def test_by_a_head_a_draft_ends_behind_a_token_if_those_before_are_doubted() -> None:
    one = DraftLength.of("speculative", "head:0.4", 8, of_model=True)
    assert [one.ends_behind(LAW, torch.tensor([0]), kept) for kept in (1.0, 0.61, 0.59)] == [False, False, True]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_head_reads_the_row_of_each_draft_but_the_last(temperature: float) -> None:
    """The rows come from a session that has read the draft in one pass."""
    limit, lengths = 0.6, set()
    for number in range(12):
        tokens = [number % 5, number % 3, number % 4]
        run = toys.opened(Sampling(temperature), 60, tokens, number, model=MODEL)
        method = Speculative("toy", 6, policy=f"head:{limit}", head="toy")
        state = method.start(run)
        draft = state.propose(run).tokens
        session = Models(toy_drafter(MODEL)("toy"), toy_drafter(MODEL), [*tokens, *draft.tolist()]).target()
        session.tap((-1,))
        session.forward()
        head = AcceptanceHead.open(run, "toy", session)
        rows = session.hidden[len(tokens) :, 0, 0]  # of all drafts but the last
        doubts = [1 - float(torch.stack([head(row) for row in rows[:count]]).prod()) for count in range(1, len(draft))]
        assert len(draft) >= 2 and all(doubt <= limit for doubt in doubts[:-1])
        assert len(draft) == 6 or doubts[-1] > limit
        lengths.add(len(draft))
    assert len(lengths) > 2


class Released(torch.nn.Module):
    """The layout of SpecDec++'s class: blocks that are one object, and a last product, in a list."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        block = torch.nn.ModuleDict({"linear": torch.nn.Linear(width, width)})
        self.model = torch.nn.ModuleList([*[block] * layers, torch.nn.Linear(width, 2)])


def stored_head(folder: Path, width: int = 4, layers: int = 3, form: str = "safetensors") -> Released:
    torch.manual_seed(0)
    released = Released(width, layers)
    (folder / "config.json").write_text(json.dumps({"hidden_size": width, "num_layers": layers}))
    if form == "bin":
        torch.save(released.state_dict(), folder / "pytorch_model.bin")
    else:
        save_model(released, str(folder / "model.safetensors"))  # shared tensors once, as huggingface_hub does
    return released


@pytest.mark.parametrize(("form", "layers"), [("safetensors", 3), ("bin", 3), ("bin", 0)])
def test_a_released_head_is_read(form: str, layers: int, tmp_path: Path) -> None:
    released, row = stored_head(tmp_path, 4, layers, form), torch.tensor([0.5, -1.0, 2.0, 0.25])
    *blocks, last = released.model
    expected = row
    for block in blocks:
        linear = block["linear"]
        inside = linear.weight @ expected + linear.bias
        expected = expected + inside * torch.sigmoid(inside)
    logits = last.weight @ expected + last.bias
    probability = torch.sigmoid(logits[1] - logits[0])
    assert float(AcceptanceHead.load(tmp_path)(row)) == pytest.approx(float(probability.detach()), abs=1e-6)


def test_a_wrong_head_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"config\.json is not that of an acceptance head .* put config.json with"):
        AcceptanceHead.load(tmp_path)
    stored_head(tmp_path, layers=2, form="bin")
    (tmp_path / "config.json").write_text('{"hidden_size": 4, "num_layers": 3}')
    with pytest.raises(WeightsError, match=r"lacks model\.2\.linear.*; has, and .* read, model\.2\.weight"):
        AcceptanceHead.load(tmp_path)
    stored_head(tmp_path, width=6, form="bin")
    with pytest.raises(WeightsError, match="rows of width 6, and those of the drafter have 4: take the head that was"):
        acceptance_head(tmp_path, 4, torch.device("cpu"))


def test_a_dropped_draft_that_the_head_doubts_is_found() -> None:
    """To drop the last token would be exact, since the head has not read it."""
    method = Speculative("toy", 3, policy="head:0.6", head="toy")
    assert try_mutant(method, DROPPED_FOR_ITS_DOUBT, CASES[:4], {}).total_variation > 1e-2
    assert try_mutant(method, DROPPED_FOR_ITS_PROBABILITY, CASES[:4], {}).total_variation < 1e-12
    assert prove(method, CASES[:4], mutants=False).verdict == "exact"


def test_ema_drafts_one_token_more_than_was_accepted_lately() -> None:
    one, limits = length("ema:0.5"), []
    for count in (0, 0, 0, 1, 2, 3):
        limits.append(one.limit(opened(), 8))
        one.follow(8, accepted(count))
    assert limits == [8, 5, 3, 2, 2, 3]  # means of 8, 4, 2, 1, 1 and 1.5, which is rounded to 2
    assert one.limit(opened(), 8) == 3


def test_entropy_follows_the_rate_of_acceptance() -> None:
    one = length("entropy:0.5")
    one.follow(4, accepted(4))
    assert (one.rate, one.threshold) == pytest.approx((0.95, 0.499))  # above the rate that it aims at
    one.follow(4, accepted(0))
    assert (one.rate, one.threshold) == pytest.approx((0.475, 0.5))
    one.follow(0, accepted(0))
    assert (one.rate, one.threshold) == pytest.approx((0.475, 0.499))


@pytest.mark.parametrize(("running", "limit"), [(1, 6), (3, 6), (4, 2), (15, 2), (16, 0)])
def test_a_table_goes_by_the_decodes_in_the_batch(running: int, limit: int) -> None:
    slot = Slot(None)  # type: ignore[arg-type]  # no loop hands it a turn
    slot.served = running
    run = in_slot(slot)
    slot.over = True
    assert length("table:1=6,16=0,4=2").limit(run, 8) == limit
    assert length("table:2=6").limit(opened(), 8) == 8


def test_the_confidence_at_t_0_is_that_of_temperature_1() -> None:
    run, logits = opened(0.0), torch.tensor([[2.0, 1.0, 0.0]])
    one_hot = run.probs(logits)
    assert float(length("conf").law(run, logits, one_hot).max()) == pytest.approx(0.6652, abs=1e-4)
    assert torch.equal(length("").law(run, logits, one_hot), one_hot)


def drafted(method: Any, temperature: float) -> list[int]:
    return [step.drafted for step in decode(method, opened(temperature)).steps]


@pytest.mark.parametrize(
    ("policy", "temperature"),
    [("conf:0.4", 0.0), ("conf:0.4", 1.0), ("keep:0.4", 1.0), ("p_min:0.4", 1.0), ("entropy:0.5", 0.0), ("ema", 1.0)],
)
def test_drafts_are_shorter_by_a_policy(policy: str, temperature: float) -> None:
    full, lengths = (drafted(Speculative("toy", 4, policy=one), temperature) for one in ("", policy))
    assert sum(lengths) / len(lengths) < sum(full) / len(full) and max(lengths) > 1


def test_the_greedy_drafts_of_p_min_are_point_masses() -> None:
    run = opened()
    state = Speculative("toy", 4, policy="p_min:0").start(run)
    draft = state.propose(run)
    state.session.sync(run.target.tokens)
    best = run.probs(state.session.forward()).argmax()
    assert draft.probs is None and len(draft) == 4 and int(draft.tokens[0]) == int(best)


@pytest.mark.parametrize(("policy", "verifier"), [("conf:0.6", "match"), ("keep:0.6", "coupled"), ("ema:0.5", "match")])
def test_no_policy_moves_the_output(policy: str, verifier: str) -> None:
    assert prove(Speculative("toy", 2, verifier, policy), CASES[:4], mutants=False).verdict == "exact"


def test_the_budget_of_a_batch_goes_to_the_drafts_that_most_likely_survive() -> None:
    """Three decodes, of which the last has no room for a draft."""
    one, kept = DraftLength.of("speculative", "budget:4", 8, of_model=True), dict[int, int]()
    survivals = [(0.9, 0.5, 0.5), (0.8, 0.6, 0.1), ()]

    def job(number: int, slot: Slot | None) -> None:
        kept[number] = one.in_budget(in_slot(slot), survivals[number])

    for size, expected in ((3, {0: 2, 1: 2, 2: 0}), (1, {0: 3, 1: 3, 2: 0})):
        results = Batch[None](size).run([partial(job, number) for number in range(3)])
        assert results == [None] * 3 and kept == expected


def test_a_budget_of_a_batch_is_exact_unless_it_looks_at_drawn_tokens() -> None:
    method = Speculative("toy", 2, policy="budget:1")
    assert prove(method, BATCH_CASES[:1], mutants=False).verdict == "exact"
    assert try_mutant(method, DROPPED_FOR_ANOTHER, BATCH_CASES[:1], {}).total_variation > 1e-2


def test_a_table_in_a_batch_is_exact() -> None:
    assert prove(Speculative("toy", 2, policy="table:1=2,2=1"), BATCH_CASES[1:], mutants=False).verdict == "exact"


@pytest.mark.parametrize("policy", ["conf:0.6", "ema:0.5"])
def test_chains_of_eagle_end_by_a_policy(policy: str) -> None:
    chain = Eagle1(widths=(1, 1), verifier="traversal", policy=policy)
    assert prove(chain, CASES[:3], mutants=False).verdict == "exact"
    steps = decode(Eagle1(widths=(1, 1, 1), policy=policy), run_on(MODEL, Sampling(1.0), 60, (0, 1))).steps
    assert len({step.drafted for step in steps[:-2]}) > 1


def test_copies_are_shorter_if_few_were_accepted() -> None:
    steps = decode(PromptLookup(length=8, max_ngram=1, policy="ema:0.5"), opened()).steps
    fixed = decode(PromptLookup(length=8, max_ngram=1), opened()).steps
    mean, full = (sum(step.drafted for step in some) / len(some) for some in (steps, fixed))
    assert mean < full / 2
