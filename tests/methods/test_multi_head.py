"""Multi-head decoding: its distribution by enumeration and by hand, its drafts, its rules, bad settings."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.backbone import Backbone, EncodedPrompt, TiedEmbeddings
from stridebench.harness.core.cache import Cache
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import start
from stridebench.harness.core.sampling import Sampling, warp
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.proof.cases import CASES, GRID_CASES, Case
from stridebench.harness.proof.distance import distance
from stridebench.harness.proof.prove import EXACT
from stridebench.harness.train.recipe import save_bf16
from stridebench.methods.drafters.heads.drafter import toy_heads
from stridebench.methods.drafters.heads.net import Config, CrossAttention, Heads
from stridebench.methods.multi_head import PRUNED, ConditionedHeads, MultiHead, independent, whole_path
from stridebench.methods.verifiers.typical import above, among_best, keep_passing
from tests.support.enumerated import enumerated
from tests.support.toys import decoded, opened

SMALL = MultiHead(levels=2)
GREEDY = [case for case in (*CASES, *GRID_CASES) if case.sampling.temperature == 0]
ONE = [Case(vocabulary, 2, seed, Sampling(1.0)) for vocabulary in (2, 3) for seed in range(5)]
"""Two tokens: the first step drafts one and the second none, so that the first token has all of the bias."""


def first_distributions(case: Case) -> tuple[Tensor, Tensor]:
    """The toy head's distribution q of the second token, and the target's p of it."""
    model = case.backbone()
    run = opened(case.sampling, 9, case.prompt, model=model)
    start(MultiHead(levels=1), run)
    drafter = ConditionedHeads.open(run, "any", 1)
    q = warp(drafter.heads(run.target.hidden[-1:, :, 0], drafter.look(run))[0], case.sampling)[0]
    return q, warp(run.target.forward(), case.sampling)[0]


@pytest.mark.usefixtures("unchecked")
class TestOutputDistribution:
    @pytest.mark.parametrize("delta", [0.1, 0.5])
    def test_the_bias_of_one_draft_is_the_derived_one(self, delta: float) -> None:
        """The output is q 1_A + (1 - q(A)) p. Where one token passes, the bias is q(A) (1 - p(A))."""
        costs = []
        for case in ONE:
            q, p = first_distributions(case)
            passes = p > delta
            out = torch.where(passes, q, 0.0) + (1 - q[passes].sum()) * p
            derived = 0.5 * float((out - p).abs().sum())
            if passes.sum() == 1:
                assert derived == pytest.approx(float(q[passes] * (1 - p[passes])), abs=1e-12)
            costs.append(distance(MultiHead(levels=1, delta=delta), case))
            assert costs[-1] == pytest.approx(derived, abs=1e-12)
        assert max(costs) > 0.02

    @pytest.mark.parametrize("law", ["warped", "raw"])
    @pytest.mark.parametrize(
        "changes",
        [{}, {"delta": 0.7}, {"acceptance": "top"}, {"drafts": "tree"}],
        ids=lambda changes: " ".join(changes) or "default",
    )
    def test_greedy_decoding_is_exact(self, changes: dict[str, Any], law: Any) -> None:
        method = replace(SMALL, law=law, **changes)
        assert all(distance(method, case) < EXACT for case in GREEDY)

    @pytest.mark.parametrize("changes", [{"delta": 0.1}, {"acceptance": "top", "accept_top": 2}])
    def test_below_a_half_only_the_raw_distribution_changes_greedy_output(self, changes: dict[str, Any]) -> None:
        method = replace(SMALL, **changes)
        assert all(distance(method, case) < EXACT for case in GREEDY)
        assert max(distance(replace(method, law="raw"), case) for case in GREEDY) > 0.5


P = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.4, 0.3, 0.3]]).double()


class TestRules:
    def test_above_is_strict(self) -> None:
        x = torch.tensor([0, 1])
        assert above(x, P, 0.5).tolist() == [0, 1] and above(x, P, 0.49).tolist() == [1, 1]

    def test_the_best_tokens_include_ties_and_no_impossible_ones(self) -> None:
        assert among_best(torch.tensor([1, 0]), P, 1).tolist() == [0, 0]
        assert among_best(torch.tensor([1, 0]), P, 2).tolist() == [1, 1]  # 0.1 twice: both are second
        greedy = torch.tensor([[0.0, 1.0, 0.0]] * 2).double()
        assert among_best(torch.tensor([0]), greedy, 3).tolist() == [0]

    def test_a_rejected_draft_is_drawn_again_from_p(self) -> None:
        """The distribution is p, the rejected token included; with both accepted it is the last row."""
        for passes, row in (([0.0, 1.0], 0), ([1.0, 0.0], 1), ([1.0, 1.0], 2)):
            weights, accept_probs = [0.0] * 3, torch.tensor(passes).double()
            for weight, acceptance in enumerated(partial(keep_passing, accept_probs, P)):
                assert len(acceptance.read().path) == row
                weights[acceptance.read().token] += weight
            assert weights == pytest.approx(P[row].tolist())


def paths(q: Tensor, best: int) -> dict[tuple[int, ...], float]:
    """Every path and its weight."""
    weights: dict[tuple[int, ...], float] = {}
    for weight, tokens in enumerated(partial(whole_path(best), q)):
        path = tuple(tokens.tolist())
        weights[path] = weights.get(path, 0.0) + weight
    return weights


class TestDrafts:
    def test_whole_paths_by_hand(self) -> None:
        """0.5 and 0.3 of the first level, 0.8 and one 0.1 of the second: 0.4, 0.05, 0.24, 0.03 of 0.72."""
        q = torch.tensor([[0.3, 0.5, 0.2], [0.8, 0.15, 0.05]]).double()
        total = 0.8 * 0.95
        expected = {(1, 0): 0.4, (1, 1): 0.075, (0, 0): 0.24, (0, 1): 0.045}
        assert paths(q, 2) == pytest.approx({path: weight / total for path, weight in expected.items()})

    def test_paths_of_small_weight_are_pruned_but_for_one(self) -> None:
        q = torch.tensor([[0.999, 0.001], [0.995, 0.005]]).double()
        assert PRUNED > 0.001 * 0.005
        assert set(paths(q, 2)) == {(0, 0), (0, 1), (1, 0)}
        flat = torch.full((2, 400), 1 / 400).double()
        flat[:, 7] += 1e-9
        assert set(paths(flat, 2)) == {(7, 7)}

    def test_independent_draws_are_of_each_level(self) -> None:
        q = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]).double()
        assert independent(q, SeededDraws(0, "t", "p", 0)).tolist() == [1, 2]

    def test_level_d_reads_head_d_on_the_row_that_gave_the_last_token(self) -> None:
        run = opened(Sampling(0.0), 9, (0, 1, 2), vocabulary=50)
        state = start(SMALL, run)
        heads = toy_heads(50, 4, 4)
        predicted = heads(run.target.hidden[1:2, :, 0], state)[:, 0].argmax(-1)
        assert ConditionedHeads(heads, 4).propose(run, state, independent).tokens.tolist() == predicted.tolist()
        assert len(set(predicted.tolist())) > 1

    def test_without_a_hidden_row_drafts_are_uniform_below_the_end_token(self) -> None:
        """Three drafts for each of 40 seeds: ids 0 to 4, and neither the end token nor an id behind it."""
        ids = set()
        for seed in range(40):
            run = opened(Sampling(1.0), 6, (8,), seed, vocabulary=9, eos=(5,))
            start(SMALL, run)
            drafts = ConditionedHeads(toy_heads(9, 4, 4), 3).propose(run, None, independent).tokens.tolist()
            assert len(drafts) == 3
            ids |= set(drafts)
        assert ids == {0, 1, 2, 3, 4}

    def test_drafts_are_cut_to_the_room_and_steps_are_counted(self) -> None:
        steps = decoded(MultiHead(), Sampling(1.0), vocabulary=4).steps
        for step in steps[:-4]:
            assert (step.nfe, step.draft_nfe, step.drafted, step.rows, step.levels) == (1, 0, 4, 5, 4)
            assert step.emitted == step.accepted + 1
        assert decoded(MultiHead(), Sampling(1.0), budget=1, vocabulary=4).steps[0].drafted == 0


class TestCondition:
    def test_predictions_depend_on_the_condition(self) -> None:
        heads, row = toy_heads(9, 4, 4), torch.ones(1, 1, 4).double()
        one, other = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0)).double()
        assert not torch.allclose(heads(row, heads.look(one)), heads(row, heads.look(other)), atol=1e-3)
        torch.testing.assert_close(heads(row, heads.look(one)), heads(row, heads.look(one.flip(0))))

    def test_attention_is_that_of_torch(self) -> None:
        torch.manual_seed(0)
        cross = CrossAttention(2, 8, 6, 4)
        cross.out.data = torch.randn(2, 8, 8)
        x, condition = torch.randn(2, 3, 8), torch.randn(5, 6)
        attended = cross(x, cross.look(condition))
        for head in range(2):
            exact = torch.nn.MultiheadAttention(8, 4, bias=False, kdim=6, vdim=6)
            exact.q_proj_weight.data, exact.k_proj_weight.data = cross.query.data[head].T, cross.key.data[head].T
            exact.v_proj_weight.data, exact.out_proj.weight.data = cross.value.data[head].T, cross.out.data[head].T
            normed = torch.nn.functional.layer_norm(x[head], (8,))
            expected = x[head] + exact(normed, condition, condition)[0]
            torch.testing.assert_close(attended[head], expected)

    def test_new_heads_have_the_targets_logits(self) -> None:
        unembed, rows = torch.randn(7, 4), torch.randn(5, 1, 4)
        heads = Heads(Config("toy", "", 4, layers=0, own=True, condition=6, attention=2), unembed)
        logits = heads(rows, heads.look(torch.randn(9, 6)))
        torch.testing.assert_close(logits, (rows[:, 0] @ unembed.T).expand(3, -1, -1))


class ConditionedToy(Backbone):
    """A toy whose components are loaded, as a real backbone's are.

    Args:
        width: C, of its condition.
    """

    name, dtype, device, fingerprint = "conditioned", "fp64", "cpu", "abcdef0123456789"

    def __init__(self, width: int = 4) -> None:
        self.inner = Tabular("tabular", {"vocabulary": 7})
        self.capabilities = replace(self.inner.capabilities, condition=width)
        self.width = width

    @classmethod
    def load(cls, name: str, params: Any, dtype: str, device: str) -> Backbone:
        return cls()

    @classmethod
    def meets(cls, params: Any) -> frozenset[Requirement]:
        return Tabular.meets(params)

    def cache(self) -> Cache:
        return self.inner.cache()

    def open(self, prompt: Prompt) -> EncodedPrompt:
        return replace(self.inner.open(prompt), condition=torch.ones(3, self.width).double())

    def tied_embeddings(self) -> TiedEmbeddings:
        return TiedEmbeddings(torch.ones(7, 4).double(), torch.ones(7, 4).double())


def heads_folder(path: Path, **how: Any) -> str:
    heads = Heads(Config("conditioned", "abcdef0123456789", 4, layers=0, **how), torch.ones(7, 4))
    save_bf16(heads, path)
    heads.config.write(path)
    return str(path)


class TestRefused:
    @pytest.mark.parametrize(
        ("method", "message"),
        [
            (MultiHead(accept_top=4), "accept_top is 4 and tabular has 3 tokens"),
            (MultiHead(levels=5), "5 levels are asked for and there are 4 heads"),
            (MultiHead(drafts="tree", draft_top=4), "the 4 best of 3 tokens at 4 levels are too many"),
        ],
    )
    def test_more_than_possible_is_refused(self, method: MultiHead, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            decoded(method, Sampling(1.0))

    def test_a_condition_of_another_width_is_refused(self, tmp_path: Path) -> None:
        method = MultiHead(heads=heads_folder(tmp_path, condition=6))
        with pytest.raises(UsageError, match="attend to a condition of width 6, and that of conditioned has 4"):
            start(method, opened(Sampling(1.0), 4, model=ConditionedToy()))
        assert start(method, opened(Sampling(1.0), 4, model=ConditionedToy(6))) is not None

    def test_heads_without_a_condition_need_none(self, tmp_path: Path) -> None:
        run = opened(Sampling(1.0), 9, model=ConditionedToy())
        method = MultiHead(heads=heads_folder(tmp_path))
        assert start(method, run) is None
        assert len(method.step(run, None).read().path) <= 3

    def test_the_error_about_missing_heads_says_that_no_recipe_trains_them(self) -> None:
        with pytest.raises(WeightsError, match="no recipe of `stride train heads` is for it"):
            start(MultiHead(heads="xspecmesh-nowhere"), opened(Sampling(1.0), 4, model=ConditionedToy()))
