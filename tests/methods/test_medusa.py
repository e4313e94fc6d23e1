"""Medusa: its output distribution under each acceptance, the drafts of its tree, and the heads that it refuses."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.loop import start
from stridebench.harness.core.method import Method
from stridebench.harness.core.run import Run
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.task import Prompt
from stridebench.harness.discover import component, shipped
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.plan import presets
from stridebench.harness.proof.cases import CASES
from stridebench.harness.proof.distance import distance
from stridebench.harness.proof.prove import EXACT
from stridebench.harness.synthetic.code import programs
from stridebench.harness.train.recipe import save_bf16
from stridebench.methods.autoregressive import Autoregressive
from stridebench.methods.drafters.heads.drafter import HeadDrafter, toy_heads
from stridebench.methods.drafters.heads.net import Heads, read_config
from stridebench.methods.drafters.tree_shapes import TreeShape, branching
from stridebench.methods.medusa import Medusa
from tests.support.toys import decoded, opened

CODE = shipped("medusa-embedded-code")
needs_heads = pytest.mark.skipif(not (CODE / "model.safetensors").is_file(), reason="no heads are shipped here")
SMALL = Medusa(nodes=6, levels=3)
GREEDY = [case for case in CASES if case.sampling.temperature == 0]


@pytest.mark.usefixtures("unchecked")
class TestOutputDistribution:
    @pytest.mark.parametrize("acceptance", ["typical", "nucleus"])
    def test_biased_rules_are_exact_at_t_0(self, acceptance: Any) -> None:
        method = Medusa(nodes=3, levels=2, acceptance=acceptance)
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
    run = opened(Sampling(1.0), budget, **{"vocabulary": 50, **params})
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
        steps = decoded(SMALL, Sampling(0.0), 6, prompt=(1,), vocabulary=3).steps
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
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"levels": 5}, "5 levels are asked for and the drafter has 4 heads"),
            ({"tree": "mc_sim_7b_63"}, "takes the 10 best tokens, and the drafter has 4 levels of 3 candidates"),
            ({"tree": "vicuna"}, "vicuna"),
        ],
    )
    def test_more_than_the_heads_have_is_refused(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            decoded(Medusa(**changes), Sampling(1.0))

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
            start(method, opened(Sampling(0.0), 4, (1, 2), model=code))
        picture = presets.load("embedded-image-8x8", "fp32")
        assert picture.capabilities.branches == 2
        with pytest.raises(UsageError, match="embedded-image-8x8 is guided and its drafter was trained without"):
            start(method, opened(Sampling(1.0), 4, Prompt("p", ""), model=picture))


def texts(count: int) -> list[Prompt]:
    """Programs that no training saw."""
    unseen = islice(programs(np.random.default_rng(5), held_out=True), count)
    return [Prompt(str(number), program.head) for number, program in enumerate(unseen)]


def tokens_per_step(method: Method[Any], model: Backbone, count: int, tokens: int) -> float:
    """Mean of greedy decodes whose output is that of autoregressive decoding."""
    total = steps = 0
    for prompt in texts(count):
        autoregressive, medusa = (
            decoded(one, Sampling(0.0), tokens, prompt=prompt, model=model) for one in (Autoregressive(), method)
        )
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
