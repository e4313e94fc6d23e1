"""Medusa: its output distribution under each acceptance, the drafts of its tree, and the heads that it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.draws import SeededDraws
from stridebench.harness.core.loop import Decode, decode, start
from stridebench.harness.core.method import Claim, Method
from stridebench.harness.core.run import Run, open_run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import component, shipped
from stridebench.harness.errors import UnknownNameError, UsageError, WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.proof.cases import CASES
from stridebench.harness.proof.distance import distance
from stridebench.harness.proof.prove import EXACT
from stridebench.harness.registry import METHODS
from stridebench.harness.synthetic.code import programs
from stridebench.harness.train.recipe import save_bf16
from stridebench.methods.drafters.heads.drafter import HeadDrafter, toy_heads
from stridebench.methods.drafters.heads.net import Heads, read_config
from stridebench.methods.drafters.tree_shapes import TreeShape, branching
from stridebench.methods.medusa import Medusa

CODE = shipped("medusa-embedded-code")
needs_heads = pytest.mark.skipif(not (CODE / "model.safetensors").is_file(), reason="no heads are shipped here")
SMALL = Medusa(nodes=6, levels=3)
GREEDY = [case for case in CASES if case.sampling.temperature == 0]


def opened(model: Backbone, prompt: Prompt | Sequence[int], sampling: Sampling, budget: int) -> Run:
    return open_run(model, lambda name: model, prompt, sampling, budget, SeededDraws(0, "t", "p", 0))


def decoded(method: Method[Any], sampling: Sampling, budget: int = 30, **params: Any) -> Decode:
    return decode(method, opened(Tabular("tabular", params), (0, 1), sampling, budget))


@pytest.mark.usefixtures("unchecked")
class TestOutputDistribution:
    def test_exact_acceptance_accepts_drafts_on_these_models(self) -> None:
        for vocabulary, seed in ((2, 10), (3, 18)):
            steps = decoded(SMALL, Sampling(1.0), vocabulary=vocabulary, seed=seed).steps
            assert sum(step.accepted for step in steps) > 5 and max(step.accepted for step in steps) > 1

    @pytest.mark.parametrize("acceptance", ["typical", "nucleus"])
    def test_biased_rules_change_it_at_t_1_alone(self, acceptance: Any) -> None:
        """At V = 2, length 3, T = 1; nothing at T = 0."""
        method = Medusa(nodes=3, levels=2, acceptance=acceptance)
        assert method.claim is Claim.APPROXIMATE
        assert distance(method, CASES[0]) > 0.05
        assert all(distance(method, case) < EXACT for case in GREEDY)

    def test_drawing_the_next_token_is_nearer_than_taking_the_likeliest(self) -> None:
        typical = Medusa(nodes=3, levels=2, acceptance="typical")
        assert distance(replace(typical, greedy=False), CASES[0]) < distance(typical, CASES[0]) - 0.05


class Fixed(Heads):
    """Head d ranks the ids 10 d, 10 d + 1, ... first, whatever it reads."""

    def __init__(self, vocabulary: int) -> None:
        toy = toy_heads(vocabulary, 4)
        super().__init__(toy.config, toy.shared)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        ids = torch.arange(len(self.ids))
        return torch.stack([-((ids - 10 * (head + 1)) % len(ids)).double() for head in range(4)])[:, None]


def tree(shape: TreeShape, run: Run) -> Any:
    run.target.prefill()
    return HeadDrafter(Fixed(50), shape).propose(run)


def tapped(budget: int = 20, **params: Any) -> Run:
    run = opened(Tabular("tabular", {"vocabulary": 50, **params}), (0, 1), Sampling(1.0), budget)
    run.target.tap((-1,))
    return run


class TestDrafts:
    def test_a_node_is_the_candidate_of_its_rank_from_the_head_of_its_level(self) -> None:
        draft = tree(branching((2, 2)), tapped())
        assert draft.tokens.tolist() == [10, 11, 20, 21, 20, 21]
        assert draft.explicit_parents.tolist() == [-1, -1, 0, 0, 1, 1] and draft.probs is None

    def test_levels_are_cut_to_the_room_and_the_context(self) -> None:
        assert len(tree(branching((2, 2)), tapped(budget=2))) == 2
        assert len(tree(branching((2, 2)), tapped(budget=1))) == 0
        assert len(tree(branching((2, 2)), tapped(context=7))) == 2

    def test_the_end_of_a_row_is_drafted_first_where_it_is_forced(self) -> None:
        """Two tokens of prompt, a picture of two columns: the third token from here is the end of a row."""
        run = tapped(grid=(4, 2, 49))
        assert tree(branching((1, 1, 1, 1)), run).tokens.tolist() == [10, 20, 49, 40]

    def test_a_prompt_of_one_token_has_no_row_to_read_yet(self) -> None:
        run = opened(Tabular("tabular", {"vocabulary": 3}), (1,), Sampling(0.0), 6)
        steps = decode(SMALL, run).steps
        assert steps[0].drafted == 0 and steps[1].drafted == 6

    def test_counts_of_a_step(self) -> None:
        for step in decoded(SMALL, Sampling(1.0), vocabulary=5).steps[:-3]:
            assert (step.nfe, step.draft_nfe, step.drafted, step.rows, step.levels) == (1, 0, 6, 7, 3)

    def test_a_published_tree_is_chosen_by_name(self) -> None:
        steps = decoded(Medusa(tree="mc_sim_7b_63"), Sampling(1.0), vocabulary=40, context=200).steps
        assert steps[0].drafted == 63 and steps[0].levels == 4
        cut = decoded(Medusa(tree="mc_sim_7b_63", levels=1), Sampling(1.0), vocabulary=40, context=200).steps
        assert cut[0].drafted == 10


class TestRefused:
    def test_more_levels_or_candidates_than_the_heads_have_are_refused(self) -> None:
        with pytest.raises(UsageError, match="5 levels are asked for and the drafter has 4 heads"):
            decoded(Medusa(levels=5), Sampling(1.0))
        with pytest.raises(UsageError, match="takes the 10 best tokens, and the drafter has 4 levels of 3 candidates"):
            decoded(Medusa(tree="mc_sim_7b_63"), Sampling(1.0))
        with pytest.raises(UnknownNameError, match="vicuna"):
            decoded(Medusa(tree="vicuna"), Sampling(1.0))

    def test_missing_heads_are_refused(self) -> None:
        with pytest.raises(WeightsError, match=r"package for embedded-code, .*no recipe of `stride train drafter`"):
            component("drafter", "nowhere", "embedded-code")

    @needs_heads
    def test_heads_of_another_backbone_or_without_guidance_are_refused(self, tmp_path: Path) -> None:
        shutil.copytree(CODE, tmp_path / "heads")
        config = replace(read_config(CODE), fingerprint="0123456789abcdef")
        config.write(tmp_path / "heads")
        code = presets.load("embedded-code", "fp32")
        method = Medusa(heads=str(tmp_path / "heads"))
        with pytest.raises(WeightsError, match=r"trained for embedded-code \(0123456789ab\), and the target is"):
            start(method, opened(code, (1, 2), Sampling(0.0), 4))
        picture = presets.load("embedded-image-8x8", "fp32")
        assert picture.capabilities.branches == 2
        with pytest.raises(UsageError, match="embedded-image-8x8 is guided and its drafter was trained without"):
            start(method, opened(picture, Prompt("p", ""), Sampling(1.0), 4))


def texts(count: int) -> list[Prompt]:
    """Programs that no training saw."""
    unseen = islice(programs(np.random.default_rng(5), held_out=True), count)
    return [Prompt(str(number), program.head) for number, program in enumerate(unseen)]


def tokens_per_step(method: Method[Any], model: Backbone, count: int, tokens: int) -> float:
    """Mean of greedy decodes whose output is that of autoregressive decoding."""
    total = steps = 0
    for prompt in texts(count):
        autoregressive = decode(METHODS.get("autoregressive")(), opened(model, prompt, Sampling(0.0), tokens))
        medusa = decode(method, opened(model, prompt, Sampling(0.0), tokens))
        assert medusa.tokens == autoregressive.tokens
        total, steps = total + len(medusa.tokens), steps + len(medusa.steps)
    return total / steps


@needs_heads
@pytest.mark.slow
def test_trained_heads_emit_the_models_own_text_in_about_half_the_steps(tmp_path: Path) -> None:
    """Heads whose levels are shifted by one have 1.2 tokens a step or less."""
    model = presets.load("embedded-code", "fp32")
    assert tokens_per_step(Medusa(), model, 3, 48) > 1.9
    shifted = Heads.load(CODE, model.tied_embeddings)
    order = torch.tensor([1, 2, 3, 0])
    shifted.load_state_dict({key: value[order] for key, value in shifted.state_dict().items()})
    shutil.copytree(CODE, tmp_path / "shifted")
    save_bf16(shifted, tmp_path / "shifted")
    assert tokens_per_step(Medusa(heads=str(tmp_path / "shifted")), model, 3, 48) < 1.4
