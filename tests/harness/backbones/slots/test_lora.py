"""Rows with and without an adapter in one pass, against peft's own forward and against two passes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from stridebench.harness import discover
from stridebench.harness.backbones.checkpoints import transformers_models
from stridebench.harness.backbones.slots import lora
from stridebench.harness.backbones.slots.lora import LowRank
from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.core.cache import Window
from stridebench.harness.core.draft import Draft
from stridebench.harness.core.session import Session
from stridebench.harness.discover import find_component
from stridebench.harness.errors import UsageError, WeightsError, WeightsWarning
from stridebench.methods.cross_regression import CrossRegression
from tests.support import peft_adapter
from tests.support.caches import session as open_session
from tests.support.decodes import decoded
from tests.support.peft_adapter import write_adapter
from tests.support.tiny_text import SIZES, tiny

peft = pytest.importorskip("peft")
CONTEXT = {"max_position_embeddings": 96}
FIELDS = {"model_type": "llama", "config": {**SIZES, **CONTEXT}, "seed": 1}
TOKENS = (3, 14, 15, 9, 26, 5, 35, 8)
PEFT = 1e-5
"""Transformers computes norms in fp32, whatever the type of the weights."""
FORWARDS = ("fused", "transformers")


def load(forward: str = "fused", seed: int = 1) -> HFCausal:
    return tiny(forward=forward, config=CONTEXT, seed=seed)


def adapted(**settings: Any) -> Any:
    model = transformers_models.make_random("tiny", FIELDS, "sdpa").double().eval()
    return peft_adapter.adapted(model, **{"target_modules": "all-linear", **settings})


@pytest.fixture(scope="module")
def peft_model() -> Any:
    return adapted()


@pytest.fixture(scope="module")
def folder(peft_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter"), peft_model, load().fingerprint)


@torch.no_grad()
def peft_rows(model: Any, tokens: tuple[int, ...] = TOKENS) -> Tensor:
    rows: Tensor = model(input_ids=torch.tensor([tokens]), position_ids=torch.arange(len(tokens))[None]).logits[0]
    return rows


def rows(model: HFCausal, gate: list[bool] | None, adapter: Any, taps: tuple[int, ...] = ()) -> Any:
    marks = None if gate is None else torch.tensor(gate)
    ids, count = torch.tensor(TOKENS), len(TOKENS)
    return model.cache().extend(Window(ids, torch.arange(count), 0, None, count, taps, gate=marks, adapter=adapter))


@pytest.mark.parametrize("forward", FORWARDS)
class TestRows:
    def test_rows_with_the_gate_are_pefts_own(self, forward: str, peft_model: Any, folder: Path) -> None:
        model = load(forward)
        logits = rows(model, [True] * 8, model.adapter(folder)).logits
        torch.testing.assert_close(logits, peft_rows(peft_model), atol=PEFT, rtol=0)
        assert (logits - rows(model, None, None).logits).abs().max() > 0.1, "the adapter changes something"

    def test_a_folder_of_peft_is_read(self, forward: str, peft_model: Any, folder: Path, tmp_path: Path) -> None:
        """It says nothing of the target's weights, so its layers alone are held against the model."""
        peft_model.save_pretrained(tmp_path)
        assert not (tmp_path / "config.json").exists() and find_component(str(tmp_path)) == tmp_path
        model = load(forward)
        own, tied = (rows(model, [True] * 8, model.adapter(place)).logits for place in (tmp_path, folder))
        assert torch.equal(own, tied)

    def test_rows_without_the_gate_equal_the_base_bit_for_bit(self, forward: str, folder: Path) -> None:
        model = load(forward)
        logits = rows(model, [False] * 8, model.adapter(folder)).logits
        assert torch.equal(logits, rows(model, None, None).logits)

    @pytest.mark.parametrize("first", [1, 4, 7])
    def test_a_gate_after_a_prefix_leaves_the_prefix_unchanged(self, forward: str, folder: Path, first: int) -> None:
        """Gated rows attend to the base's keys and values, as in two passes."""
        model = load(forward)
        adapter = model.adapter(folder)
        joint = rows(model, [place >= first for place in range(8)], adapter).logits
        cache, ids, places = model.cache(), torch.tensor(TOKENS), torch.arange(8)
        base = cache.extend(Window(ids[:first], places[:first], 0, None, first)).logits
        gate = torch.ones(8 - first, dtype=torch.bool)
        more = Window(ids[first:], places[first:], first, None, 8 - first, gate=gate, adapter=adapter)
        torch.testing.assert_close(joint, torch.cat([base, cache.extend(more).logits]), atol=1e-9, rtol=0)

    def test_hidden_rows_are_gated_too(self, forward: str, folder: Path) -> None:
        model = load(forward)
        gate = [place >= 5 for place in range(8)]
        hidden, plain = rows(model, gate, model.adapter(folder), (2,)).hidden, rows(model, None, None, (2,)).hidden
        torch.testing.assert_close(hidden[:5], plain[:5], atol=1e-12, rtol=0)
        assert (hidden[5:] - plain[5:]).abs().amax((1, 2, 3)).min() > 1e-3

    @pytest.mark.parametrize(
        "how",
        [
            {"target_modules": ["q_proj", "v_proj"]},
            {"target_modules": ["up_proj", "o_proj"], "use_rslora": True},
            {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [1, 2], "r": 2},
        ],
        ids=str,
    )
    def test_an_adapter_may_change_some_layers_only(self, forward: str, how: dict[str, Any], tmp_path: Path) -> None:
        peft_model, model = adapted(**how), load(forward)
        logits = rows(model, [True] * 8, model.adapter(write_adapter(tmp_path, peft_model, model.fingerprint))).logits
        torch.testing.assert_close(logits, peft_rows(peft_model), atol=PEFT, rtol=0)


MODELS = {forward: load(forward) for forward in FORWARDS}


@settings(max_examples=40)
@given(
    forward=st.sampled_from(FORWARDS),
    prefix=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    carried=st.lists(st.integers(0, 60), max_size=4),
    stream_ids=st.lists(st.integers(0, 60), max_size=4),
)
def test_one_joint_pass_equals_two_sequential_ones(
    folder: Path, forward: str, prefix: list[int], carried: list[int], stream_ids: list[int]
) -> None:
    model = MODELS[forward]

    def session() -> Session:
        target = open_session(model.cache(), model.capabilities, prefix)
        target.adapter = model.adapter(folder)
        target.prefill()
        return target

    stream = torch.tensor([prefix[-1], *stream_ids])
    beside = torch.arange(-1, len(stream_ids))
    beside[0] = -2
    alone = session().forward(Draft(stream, parents=beside, gate=torch.ones_like(stream, dtype=torch.bool)))
    text = session().forward(Draft(torch.tensor(carried, dtype=torch.long)))
    root = len(carried)
    at = torch.arange(root + len(stream))
    joint = session().forward(
        Draft(
            torch.cat([torch.tensor(carried, dtype=torch.long), stream]),
            parents=torch.where(at == root, -2, at - 1),
            gate=at >= root,
            probes=len(stream),
        )
    )
    torch.testing.assert_close(joint[: root + 1], text, atol=1e-9, rtol=0)
    torch.testing.assert_close(joint[root + 1 :], alone[1:], atol=1e-9, rtol=0)


class TestRefusals:
    def test_an_adapter_of_other_weights_is_refused(self, folder: Path) -> None:
        message = r"was trained for tiny \(.*train one for it with `stride train adapter`"
        with pytest.raises(WeightsError, match=message):
            load(seed=7).adapter(folder)

    def test_an_absent_adapter_is_named(self) -> None:
        with pytest.raises(WeightsError, match="no recipe of `stride train adapter` is for it"):
            decoded(CrossRegression(adapter="nowhere"), load(), TOKENS, 30)
        assert not discover.shipped("nowhere-tiny").exists()

    @pytest.mark.parametrize("forward", FORWARDS)
    def test_absent_layers_and_a_damaged_file_are_named(self, forward: str, folder: Path, tmp_path: Path) -> None:
        model, adapter_folder = load(forward), Path(shutil.copytree(folder, tmp_path / "adapter"))
        path = adapter_folder / "adapter_model.safetensors"
        save_file({name.replace("layers.1.", "layers.9."): t for name, t in load_file(path).items()}, path)
        with pytest.raises(WeightsError, match=r"changes model\.layers\.9\.\S+ by .*made for another model"):
            model.adapter(adapter_folder)
        path.write_bytes(b"not tensors")
        with pytest.raises(WeightsError, match="no adapter can be read there"):
            model.adapter(adapter_folder)

    def test_a_backbone_without_gates_refuses_an_adapter(self) -> None:
        from stridebench.harness.backbones.masked_toy import MaskedTabular

        with pytest.raises(UsageError, match="gates no rows; take one that meets GATE"):
            MaskedTabular("masked", {}).adapter(None)


def test_a_layer_of_another_shape_is_refused_with_both_shapes() -> None:
    low = LowRank(torch.zeros(2, 6), torch.zeros(7, 2))
    lora.check({"a": low}, {"a": (7, 6), "b": (3, 5)})
    with pytest.raises(WeightsError, match="changes a by 7 x 6 numbers, that has 7 x 5"):
        lora.check({"a": low}, {"a": (7, 5)})
    with pytest.raises(WeightsError, match="changes a by 7 x 6 numbers, that has 3 x 6"):
        lora.check({"a": low}, {"a": (3, 6)})
    with pytest.raises(WeightsError, match="which is not a linear layer here"):
        lora.check({"a": low}, {"b": (7, 6)})


def test_an_adapter_is_written_into_a_new_folder_and_read_back(tmp_path: Path) -> None:
    model = tiny()
    layer = "model.layers.0.self_attn.o_proj"
    low = LowRank(torch.ones(2, 48), torch.full((48, 2), 0.5))
    tie = {"backbone": model.name, "fingerprint": model.fingerprint}
    folder = tmp_path / "a" / "b"
    lora.write(folder, {layer: low}, 6, None, tie)
    assert (folder / "config.json").read_text().endswith("}\n")
    read = lora.read(folder, model, torch.float64)
    assert list(read) == [layer]
    assert torch.equal(read[layer].down, torch.ones(2, 48).double())
    assert torch.equal(read[layer].up, torch.full((48, 2), 1.5).double())  # alpha / r = 3


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("residual_scale", 2, "residual_scale"),
        ("target_parameters", ["x"], ""),
        ("lora_bias", True, ""),
        ("use_dora", True, ""),
        ("bias", "all", ""),
        ("rank_pattern", {"q_proj": 2}, ""),
    ],
)
def test_a_setting_of_peft_that_is_not_read_is_named(key: str, value: object, what: str, tmp_path: Path) -> None:
    """A note if it is not known, an error if it changes the products."""
    low, tie = LowRank(torch.ones(2, 6), torch.ones(7, 2)), {"backbone": "x", "fingerprint": "f"}
    lora.write(tmp_path, {"a": low}, 4, None, tie)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "peft_version": "0.18", key: value}))
    if what:
        with pytest.warns(WeightsWarning, match=rf"keys that are not read: {what}\. If"):
            lora.merged(tmp_path, "f", {"a.weight": torch.ones(7, 6)})
    else:
        with pytest.raises(WeightsError, match=f"{key} is .*plain LoRA alone"):
            lora.merged(tmp_path, "f", {"a.weight": torch.ones(7, 6)})


def test_an_adapter_is_added_to_weights_of_its_own_shape(tmp_path: Path) -> None:
    low, tie = LowRank(torch.ones(2, 6), torch.ones(7, 2)), {"backbone": "x", "fingerprint": "f"}
    lora.write(tmp_path, {"a": low}, 4, None, tie)
    weights = {"a.weight": torch.ones(7, 6), "b": torch.zeros(1)}
    sums = lora.merged(tmp_path, "f", weights)
    assert torch.equal(sums["a.weight"], torch.full((7, 6), 5.0).bfloat16()) and torch.equal(sums["b"], weights["b"])
    for shape in ((6, 6), (8, 6), (7, 5), (7, 7)):
        with pytest.raises(WeightsError, match=r"are for a weight of shape \(7, 6\)"):
            lora.merged(tmp_path, "f", {"a.weight": torch.ones(*shape)})
    for fingerprint in ("e", "g"):
        with pytest.raises(WeightsError, match="was trained for other weights of x"):
            lora.merged(tmp_path, fingerprint, weights)
    with pytest.raises(WeightsError, match="has matrices for a, which x has not"):
        lora.merged(tmp_path, "f", {"b": torch.zeros(1)})
    assert lora.is_tuned(tmp_path) and not lora.is_tuned(tmp_path / "x")
    with pytest.raises(WeightsError, match="which are not there"):
        lora.base(tmp_path, tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "config.json").write_text("{}")
    assert lora.base(tmp_path, tmp_path) == tmp_path / "x"
