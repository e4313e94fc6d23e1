"""The laws of every backbone's cache: windows, trees and histories against an empty cache, refusals, fewer layers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stridebench.harness.backbones.base import Adapter, spread
from stridebench.harness.core.cache import Window
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import ContractError, UsageError
from stridebench.harness.registry import BACKBONES
from tests.support.caches import check_history, check_tree, feed, feed_windows
from tests.support.tiny_mesh import BACKBONES as MESHES
from tests.support.tiny_mesh import points, tiny_point_mesh
from tests.support.tiny_text import tiny
from tests.support.tiny_whisper import load, sound, tiny_whisper

POINTS = np.random.default_rng(4).normal(size=(40, 6)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Case:
    """A backbone with an encoded prompt, and the ids that are fed to it."""

    backbone: Any
    prompt: Prompt
    vocabulary: int
    near: float

    @property
    def tokens(self) -> list[int]:
        return np.random.default_rng(3).integers(0, self.vocabulary, 60).tolist()

    @cached_property
    def encoded(self) -> Any:
        return self.backbone.open(self.prompt)

    def cache(self) -> Any:
        return self.encoded.cache()

    def fresh(self, tokens: Sequence[int]) -> Tensor:
        """Token by token, so that windows are compared with single steps."""
        empty = self.cache()
        return torch.cat([feed(empty, [token], at) for at, token in enumerate(tokens)])


def whisper(folder: Path) -> Case:
    tiny_whisper().save_pretrained(folder)
    return Case(load(folder), Prompt("p", condition=sound()), 97, 1e-4)


CASES: dict[str, Callable[[Path], Case]] = {
    "fused": lambda _: Case(tiny(), Prompt("p", tokens=(1,)), 61, 1e-5),
    "transformers": lambda _: Case(tiny(forward="transformers"), Prompt("p", tokens=(1,)), 61, 1e-5),
    "whisper": whisper,
    "mesh": lambda _: Case(MESHES[0], Prompt("p", condition=points(1).numpy()), 5120, 1e-4),
    "mesh, window": lambda _: Case(MESHES[6], Prompt("p", condition=points(1).numpy()), 5120, 1e-4),
    "bpt": lambda _: Case(tiny_point_mesh("bpt"), Prompt("p", condition=POINTS), 4600, 1e-4),
    "deepmesh": lambda _: Case(tiny_point_mesh("deepmesh"), Prompt("p", condition=POINTS), 4600, 1e-4),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return CASES[request.param](tmp_path_factory.mktemp("weights"))


@pytest.mark.parametrize("cuts", [[0], [0, 1, 8, 9, 31], [0, 2, 4, 7, 11]])
def test_windows_give_the_logits_of_single_steps(case: Case, cuts: list[int]) -> None:
    tokens = case.tokens[:40]
    assert len(set(tokens)) >= 16
    windowed = feed_windows(case.cache(), tokens, cuts)
    torch.testing.assert_close(windowed, case.fresh(tokens), rtol=0, atol=case.near)


def test_a_tree_gives_each_node_the_logits_of_its_own_chain(case: Case) -> None:
    """Eight levels deep on two branches, so that depths have all remainders by 3 and 9 (DeepMesh)."""
    tokens = case.tokens
    tree = (tokens[:11], tokens[20:30], [-1, -1, 0, 1, 2, 3, 4, 5, 6, 7])
    check_tree(case.cache(), case.fresh, tree, (1, 3, 5, 7), tokens[30:35], case.near)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_after_any_history_the_cache_equals_a_fresh_one(case: Case, data: st.DataObject) -> None:
    context = case.backbone.capabilities.context
    check_history(data, case.cache(), case.fresh, case.vocabulary, context, case.near)


def test_windows_past_the_context_and_absent_entries_are_refused_and_leave_the_cache(case: Case) -> None:
    cache, context = case.cache(), case.backbone.capabilities.context
    feed(cache, case.tokens[:10], 0)
    message = f"10 entries are held and {context} more would pass the context of {context}"
    with pytest.raises(ContractError, match=message):
        feed(cache, [1] * context, 10)
    for length, entries in ((11, ()), (-1, ()), (8, (2,)), (8, (0, 1, 1)), (9, (-1,))):
        with pytest.raises(ContractError, match="names entries that are not among the 10 held"):
            cache.keep(length, entries)
    for base in (12, -1):
        with pytest.raises(ContractError, match=f"base {base} and the cache holds 10"):
            cache.extend(Window(torch.tensor([1]), torch.tensor([10]), base, None, 1))
    rows = feed(cache, case.tokens[10:12], 10)
    torch.testing.assert_close(rows, case.fresh(case.tokens[:12])[-2:], rtol=0, atol=case.near)


def test_caches_of_one_prompt_do_not_touch_each_other(case: Case) -> None:
    one, two = case.cache(), case.cache()
    feed(one, case.tokens[:6], 0)
    feed(two, case.tokens[20:26], 0)
    expected = case.fresh([*case.tokens[:6], 4])[-1:]
    torch.testing.assert_close(feed(one, [4], 6), expected, rtol=0, atol=case.near)


def test_a_variant_skips_layers_and_leaves_the_original_as_it_was(case: Case) -> None:
    model = case.backbone
    if case.prompt.condition is not None and not model._layer_count():
        with pytest.raises(UsageError, match="it has none"):
            model.variant({"layers": "2"})
        return
    before = case.fresh(case.tokens[:9])
    small = Case(model.variant({"layers": "2"}), case.prompt, case.vocabulary, case.near)
    assert small.backbone.name == f"{model.name}/layers=2" and small.backbone.fingerprint != model.fingerprint
    rows = small.fresh(case.tokens[:9])
    assert (rows - before)[~before.isinf()].abs().max() > case.near
    torch.testing.assert_close(feed_windows(small.cache(), case.tokens[:9], [0, 5]), rows, rtol=0, atol=case.near)
    assert torch.equal(case.fresh(case.tokens[:9]), before) and model.variant({}) is model
    for text in ("0", "1", "4", "-2", "two", "", "2.5"):
        with pytest.raises(UsageError, match="keep a whole number from 2 to 3"):
            model.variant({"layers": text})
    with pytest.raises(UsageError, match="has no variant with width"):
        model.variant({"width": "2"})


# Parameters of adapters, layers of a variant, and imports.


ADAPTERS = [BACKBONES.get(name) for name in ("hf_causal", "image", "masked", "mesh", "whisper")]
SOURCE = {"source": {"folder": "x"}}


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.kind)
@pytest.mark.parametrize(
    ("params", "dtype", "says"),
    [
        ({}, "fp32", "{} needs a source of weights"),
        ({**SOURCE, "beam": 5}, "fp32", "{} has no parameter 'beam'; it has {}"),
        (SOURCE, "int5", "there is no dtype 'int5'"),
    ],
)
def test_parameters_are_checked(adapter: type[Adapter], params: dict[str, Any], dtype: str, says: str) -> None:
    with pytest.raises(UsageError, match=says.format(adapter.kind, ", ".join(adapter.parameters))):
        adapter.load("x", params, dtype, "cpu")


@pytest.mark.parametrize("count", [2, 3, 15, 26, 30])
def test_spread_keeps_the_ends_and_the_requested_number(count: int) -> None:
    layers = spread(30, str(count), "x")
    assert len(set(layers)) == count
    assert layers[0] == 0 and layers[-1] == 29
    assert list(layers) == sorted(layers)


FIRST = """
import sys
from stridebench.harness.machine import extras
extras.prepare = lambda: print("transformers" in sys.modules)
import stridebench.harness.backbones.slots.net
"""


@pytest.mark.slow
def test_torchvision_is_prepared_before_transformers_is_imported_by_any_module() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
