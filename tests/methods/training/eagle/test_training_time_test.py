"""The training-time test: its features are those of decoding."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch

from stridebench.harness.core.draft import Draft
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.plan import presets
from stridebench.harness.train.teacher import Passage, Teacher
from stridebench.methods.drafters.eagle.drafter import FeatureDrafter
from stridebench.methods.drafters.eagle.net import FeatureDrafterNet
from stridebench.methods.eagle2 import Eagle2
from stridebench.methods.eagle3 import Eagle3
from stridebench.methods.p_eagle import ParallelEagle
from stridebench.methods.training.eagle.student import Example, collate, unroll
from tests.support.feature_toys import folder_for, run_on, started, tiny

TOKENS = (5, 9, 22, 31, 7, 40, 11, 3, 3, 58)
EAGLE3_SHAPE = {"kind": "eagle3", "taps": 3, "kept": 30}


class TestAgainstDecoding:
    @pytest.mark.parametrize(("method", "changes"), [(Eagle2, {}), (Eagle3, EAGLE3_SHAPE)])
    def test_rounds_are_the_features_of_a_chain_of_drafts(
        self, method: type[Eagle2], changes: dict[str, object], tmp_path: Path
    ) -> None:
        """Entry 4, then tokens of the passage as drafts: the features of rounds 0, 1 and 2 at entry 4."""
        model = tiny()
        folder = folder_for(model, tmp_path, **changes)
        run = run_on(model, Sampling(1.0), 40, TOKENS[:6])
        drafter = cast(FeatureDrafter, started(method(features=folder), run).drafter)
        reader = drafter.root(run)
        assert reader is not None
        session = run.opened[folder]
        decoded = [session.newest[0, 0, 0]]
        for depth, token in enumerate(TOKENS[6:8]):
            reader.read(Draft(torch.tensor([token]), parents=torch.tensor([depth - 1])))
            decoded.append(session.newest[0, 0, 0])
        teacher = Teacher(model)
        taps = method().taps if changes else ()
        hidden = teacher.read(Passage(TOKENS, 3), (*taps, -1)).hidden
        assert hidden is not None
        example = Example(torch.tensor(TOKENS), hidden, torch.zeros(len(TOKENS), dtype=torch.long), 3)
        batch = collate([example], [0], teacher)
        net = FeatureDrafterNet.load(tmp_path).double()
        rounds = unroll(net, model.tied_embeddings().embed[batch.tokens], batch.features.double(), batch.visible, 3)
        for trained, drafted in zip(rounds, decoded, strict=True):
            torch.testing.assert_close(trained[0, 4], drafted, rtol=0, atol=1e-5)

    def test_rounds_are_the_rows_of_one_pass_over_masks(self, tmp_path: Path) -> None:
        """P-EAGLE with two layers: rounds 0, 1 and 2 at entry 4, and the pass of a decode that stands there."""
        model = tiny()
        folder = folder_for(model, tmp_path, **EAGLE3_SHAPE, mask=60, deeper=1)
        run = run_on(model, Sampling(1.0), 40, TOKENS[:6])
        drafter = cast(FeatureDrafter, started(ParallelEagle(features=folder, depth=3), run).drafter)
        assert drafter.masks == (60, 60)
        assert drafter.root(run) is not None
        hidden = Teacher(model).read(Passage(TOKENS, 3), (*ParallelEagle().taps, -1)).hidden
        assert hidden is not None
        batch = collate(
            [Example(torch.tensor(TOKENS), hidden, torch.zeros(10, dtype=torch.long), 3)], [0], Teacher(model)
        )
        net, embed = FeatureDrafterNet.load(tmp_path).double(), model.tied_embeddings().embed
        rounds = unroll(net, embed[batch.tokens], batch.features.double(), batch.visible, 3, embed[60])
        trained = torch.stack([out[0, 4] for out in rounds])
        torch.testing.assert_close(trained, run.opened[folder].newest[:, 0, 0], rtol=0, atol=1e-5)

    def test_both_branches_of_guidance_read_as_in_decoding(self, tmp_path: Path) -> None:
        model = presets.load("embedded-image-8x8", "fp32")
        folder, prompt = folder_for(model, tmp_path), (*model.encode("")[:1] * 3, *model.encode(""))
        tokens = (*prompt, 7, 300, 12, 12, 9)
        run = run_on(model, Sampling(1.0), 40, prompt)
        drafter = cast(FeatureDrafter, started(Eagle2(features=folder), run).drafter)
        run.target.sync(tokens)
        run.target.prefill()
        assert drafter.root(run) is not None
        teacher = Teacher(model)
        hidden = teacher.read(Passage(tokens, len(prompt)), (-1,)).hidden
        assert hidden is not None
        example = Example(torch.tensor(tokens), hidden, torch.zeros(len(tokens), dtype=torch.long), len(prompt))
        batch = collate([example] * 2, [0, 1], teacher)
        (features,) = unroll(
            FeatureDrafterNet.load(tmp_path),
            model.tied_embeddings().embed[batch.tokens],
            batch.features,
            batch.visible,
            1,
        )
        torch.testing.assert_close(features[:, -1], run.opened[folder].newest[0, :, 0], rtol=0, atol=1e-4)
