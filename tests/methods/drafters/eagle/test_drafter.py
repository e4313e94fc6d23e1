"""The feature drafter: its inputs, its cache against a drafter without one, and refused drafters."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from stridebench.harness.backbones.toy import Tabular
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.loop import advance, decode
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.core.session import Session
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.plan import presets
from stridebench.methods.autoregressive import Autoregressive
from stridebench.methods.drafters.eagle import drafter as drafters
from stridebench.methods.drafters.eagle.net import FeatureDrafterNet, rotate
from stridebench.methods.eagle1 import Eagle1
from stridebench.methods.eagle2 import Eagle2
from stridebench.methods.eagle3 import Eagle3
from tests.support.feature_toys import PROMPT, folder_for, run_on, started, tiny, with_oracle

EAGLE3_SHAPE = {"kind": "eagle3", "taps": 3, "kept": 30}


class TestADrafterThatIsTheTarget:
    @pytest.mark.parametrize("method", [Eagle2(depth=2, width=2, nodes=8), Eagle3(depth=3), Eagle1(widths=(2, 1, 1))])
    def test_has_its_whole_path_accepted_at_t_0(self, method: Eagle1 | Eagle2 | Eagle3) -> None:
        steps = with_oracle(method, Sampling(0.0)).steps[1:]
        assert sum(step.accepted for step in steps) == sum(step.tested for step in steps) > 20

    def test_has_a_sampled_chain_accepted_at_t_1(self) -> None:
        """q is p at each node, so every draft is accepted."""
        steps = with_oracle(Eagle1(widths=(1, 1, 1)), Sampling(1.0)).steps
        assert sum(step.accepted for step in steps) == sum(step.drafted for step in steps) > 20


def cached_and_uncached_drafts(
    method: Eagle2 | Eagle3, model: Backbone, prompt: tuple[int, ...], steps: int
) -> tuple[Draft, Draft]:
    """The next draft after some steps, and the draft of a new drafter on the same tokens."""
    old, new = (run_on(model, Sampling(1.0), 40, prompt) for _ in range(2))
    state = started(method, old)
    for _ in range(steps):
        advance(method, old, state)
    fresh = started(method, new)
    new.target.sync(old.target.tokens)
    new.target.prefill()
    first, second = (
        drafters.grow_dynamic(run, opened.drafter, 4, 3, 10).draft for run, opened in ((old, state), (new, fresh))
    )
    return first, second


class TestItsCache:
    @pytest.mark.parametrize("steps", [0, 6])
    @pytest.mark.parametrize(("method", "changes"), [(Eagle2, {}), (Eagle3, EAGLE3_SHAPE)])
    def test_drafts_are_those_of_an_uncached_drafter(
        self, method: type[Eagle2], changes: dict[str, object], steps: int, tmp_path: Path
    ) -> None:
        model = tiny()
        folder = folder_for(model, tmp_path, **changes)
        cached, uncached = cached_and_uncached_drafts(
            method(features=folder, depth=2, width=3, nodes=9), model, PROMPT, steps
        )
        assert cached.tokens.tolist() == uncached.tokens.tolist()
        assert cached.explicit_parents.tolist() == uncached.explicit_parents.tolist()

    def test_drafts_are_those_of_an_uncached_drafter_under_guidance(self, tmp_path: Path) -> None:
        model = presets.load("embedded-image-8x8", "fp32").variant({"guidance": "3"})
        folder = folder_for(model, tmp_path)
        prompt = (*model.encode("")[:1] * 3, *model.encode(""))
        cached, uncached = cached_and_uncached_drafts(
            Eagle2(features=folder, depth=2, width=3, nodes=9), model, prompt, 5
        )
        assert cached.tokens.tolist() == uncached.tokens.tolist()

    def test_a_second_tree_from_the_same_state_is_the_same(self, tmp_path: Path) -> None:
        model = tiny()
        run = run_on(model, Sampling(1.0), 40)
        drafter = started(Eagle2(features=folder_for(model, tmp_path)), run).drafter
        first, second = (drafters.grow_dynamic(run, drafter, 3, 3, 9).draft for _ in range(2))
        assert first.tokens.tolist() == second.tokens.tolist()
        assert run.opened[drafter.name].tokens == run.target.tokens[1:]


class TestWhatItReads:
    def test_each_node_reads_its_parents_own_feature(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = Tabular("tabular", {"vocabulary": 5})
        run = run_on(model, Sampling(1.0), 20, (0, 1, 2))
        drafter = started(Eagle2(), run).drafter
        inputs: list[tuple[Tensor, Tensor]] = []
        grow = Session.grow

        def recorded(self: Session, draft: Draft, features: Tensor | None = None) -> Tensor:
            assert features is not None
            inputs.append((draft.explicit_parents, features))
            return grow(self, draft, features)

        monkeypatch.setattr(Session, "grow", recorded)
        reader = drafter.root(run)
        assert reader is not None
        session = run.opened["eagle1"]
        root = session.newest
        reader.read(Draft(torch.tensor([1, 3]), parents=torch.tensor([-1, -1])))
        level = session.newest
        reader.read(Draft(torch.tensor([0, 4, 2]), parents=torch.tensor([1, 0, 1])))
        assert torch.equal(inputs[0][1], root.expand(2, -1, -1, -1))
        assert torch.equal(inputs[1][1], level[[1, 0, 1]])

    def test_a_prompt_of_one_token_has_no_pair_before_the_first_step(self) -> None:
        model = Tabular("tabular", {"vocabulary": 4})
        steps = decode(Eagle2(depth=1, width=2, nodes=3), run_on(model, Sampling(1.0), 12, (1,))).steps
        assert [step.drafted for step in steps[:2]] == [0, 3]

    def test_ends_of_rows_are_drafted_where_they_are_forced(self) -> None:
        model = Tabular("tabular", {"vocabulary": 4, "grid": (3, 2, 3)})
        steps = decode(Eagle2(depth=2, width=1, nodes=3), run_on(model, Sampling(1.0), 9, (0, 1))).steps
        assert sum(step.forced_drafted for step in steps) > 0

    @pytest.mark.parametrize("room", [1, 3, 40])
    def test_a_tree_is_as_deep_as_the_remaining_room(self, room: int) -> None:
        model = Tabular("tabular", {"vocabulary": 4})
        step = decode(Eagle2(depth=5, width=2, nodes=50), run_on(model, Sampling(1.0), room, (0, 1))).steps[0]
        assert step.levels == min(6, room - 1)

    def test_a_tree_has_at_most_all_candidates(self) -> None:
        """width + (levels - 1) width^2 candidates."""
        model = Tabular("tabular", {"vocabulary": 4})
        step = decode(Eagle2(depth=2, width=3, nodes=60), run_on(model, Sampling(1.0), 40, (0, 1))).steps[0]
        assert step.drafted == 3 + 2 * 9


class TestRealNets:
    @pytest.mark.parametrize(("method", "changes"), [(Eagle1, {}), (Eagle3, EAGLE3_SHAPE)])
    def test_greedy_output_is_the_targets(
        self, method: type[Eagle1], changes: dict[str, object], tmp_path: Path
    ) -> None:
        model = tiny("fp32")
        eagle = decode(method(features=folder_for(model, tmp_path, **changes)), run_on(model, Sampling(0.0), 40))
        autoregressive = decode(Autoregressive(), run_on(model, Sampling(0.0), 40))
        assert eagle.tokens == autoregressive.tokens
        assert all(step.nfe == 1 for step in eagle.steps)

    def test_ids_without_a_row_of_the_head_are_never_drafted(self, tmp_path: Path) -> None:
        model = tiny()
        run = run_on(model, Sampling(1.0), 40)
        drafter = started(Eagle3(features=folder_for(model, tmp_path, **EAGLE3_SHAPE)), run).drafter
        tokens = drafters.grow_dynamic(run, drafter, 3, 4, 30).draft.tokens
        assert len(tokens) == 30
        assert bool((tokens % 2 == 0).all())


class TestRefused:
    def test_a_drafter_of_another_backbone_is_refused(self, tmp_path: Path) -> None:
        folder = folder_for(tiny(), tmp_path)
        with pytest.raises(WeightsError, match=r"the drafter was trained for tiny .* and the target is"):
            decode(Eagle2(features=folder), run_on(tiny(seed=2), Sampling(0.0), 8))

    def test_a_drafter_without_guidance_is_refused_for_a_guided_target(self, tmp_path: Path) -> None:
        model = presets.load("embedded-image-8x8", "fp32")
        folder, prompt = folder_for(model, tmp_path, branches=1), model.encode("")
        with pytest.raises(UsageError, match="is guided and its drafter was trained without guidance"):
            decode(Eagle2(features=folder), run_on(model, Sampling(0.0), 8, prompt))

    def test_a_drafter_that_is_not_shipped_is_refused(self) -> None:
        with pytest.raises(WeightsError, match="stride train drafter"):
            decode(Eagle2(features="no-such"), run_on(tiny(), Sampling(0.0), 8))


def test_rotations_are_those_of_llama() -> None:
    x = torch.randn(1, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    turned = rotate(x, torch.tensor([0, 1, 5]), torch.tensor([1.0, 0.01]))
    torch.testing.assert_close(turned[0, 0, 0], x[0, 0, 0])
    angle = torch.tensor(5.0)
    expected = x[0, 0, 2, 0] * angle.cos() - x[0, 0, 2, 2] * angle.sin()
    torch.testing.assert_close(turned[0, 0, 2, 0], expected)


@pytest.mark.parametrize("text", ["{}", "nonsense", '{"kind": "eagle1", "width": 8}'])
def test_a_folder_without_a_drafter_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(WeightsError, match="holds no feature drafter"):
        FeatureDrafterNet.load(tmp_path)


def test_weights_of_another_shape_or_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    folder_for(tiny(), tmp_path)
    shape = FeatureDrafterNet.load(tmp_path).shape
    replace(shape, inner=8).write(tmp_path)
    with pytest.raises(WeightsError, match="holds no feature drafter"):
        FeatureDrafterNet.load(tmp_path)
    shape.write(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = next(key for key, weight in weights.items() if weight.is_floating_point())
    weights[name].view(-1)[0] = float("inf")
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=f"{name} holds NaN or infinite numbers"):
        FeatureDrafterNet.load(tmp_path)
