"""Medusa's heads as published: keys, agreement with the modules of the release, and what does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.loop import decode
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import WeightsError, WeightsWarning
from stridebench.harness.train.recipe import save_bf16
from stridebench.methods.autoregressive import Autoregressive
from stridebench.methods.drafters.heads.net import Config, Heads
from stridebench.methods.medusa import Medusa
from tests.support.feature_toys import run_on, tiny
from tests.support.random_heads import random_heads

WIDTH, VOCABULARY = 48, 61


class ResBlock(nn.Module):
    """The block of the release."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.silu(self.linear(x))


def released(heads: int = 3, layers: int = 1) -> nn.ModuleList:
    """The module list of the release, whose blocks of one head are one module."""
    torch.manual_seed(0)
    return nn.ModuleList(
        nn.Sequential(*[ResBlock(WIDTH)] * layers, nn.Linear(WIDTH, VOCABULARY, bias=False)) for _ in range(heads)
    )


def save(folder: Path, modules: nn.Module, file: str = "medusa_lm_head.pt", **changes: Tensor | None) -> Path:
    state = {**{key: value.clone() for key, value in modules.state_dict().items()}, **changes}
    kept = {key: value for key, value in state.items() if value is not None}
    if file == "model.safetensors":  # Medusa-2: beside the tuned model
        kept = {f"medusa_head.{key}": value for key, value in kept.items()} | {"model.norm.weight": torch.ones(WIDTH)}
    if file.endswith("pt"):
        torch.save(kept, folder / file)
    else:
        save_file(kept, folder / file)
    # the published configurations say 2 heads where the files hold 5
    (folder / "config.json").write_text(json.dumps({"medusa_num_heads": 2, "medusa_num_layers": 1}))
    return folder


def tied(vocabulary: int = VOCABULARY, width: int = WIDTH) -> TiedEmbeddings:
    return TiedEmbeddings(torch.zeros(vocabulary, width), torch.zeros(vocabulary, width))


@pytest.mark.parametrize(
    ("file", "layers"), [("medusa_lm_head.pt", 1), ("medusa_lm_head.safetensors", 2), ("model.safetensors", 1)]
)
def test_one_pass_is_that_of_the_release(file: str, layers: int, tmp_path: Path) -> None:
    modules = released(5, layers)
    heads = Heads.load(save(tmp_path, modules, file), tied)
    rows = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1))
    expected = torch.stack([head(rows) for head in modules])
    torch.testing.assert_close(heads(rows[:, None]), expected, rtol=1e-5, atol=1e-6)


def test_a_key_of_the_configuration_that_nobody_reads_is_named(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    folder = save(tmp_path, released())
    Heads.load(folder, tied)
    assert not recwarn.list
    body = {"medusa_num_heads": 2, "base_model_name_or_path": "x", "residual_scale": 2}
    (folder / "config.json").write_text(json.dumps(body))
    with pytest.warns(WeightsWarning, match=r"keys that are not read: residual_scale\. If"):
        Heads.load(folder, tied)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"1.1.weight": None}, r"lacks 1\.1\.weight"),
        ({"1.0.linear.bias": None}, r"lacks 1\.0\.linear\.bias"),
        ({"base.weight": torch.ones(1)}, r"does not read, base\.weight"),
        ({f"{head}.0.linear.weight": torch.ones(WIDTH, 7) for head in range(3)}, r"not \(3, 48, 48\)"),
    ],
)
def test_keys_that_do_not_fit_are_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=message):
        Heads.load(save(tmp_path, released(), **changes), tied)


@pytest.mark.parametrize("sizes", [(60, WIDTH), (VOCABULARY, 32)])
def test_heads_of_another_target_are_refused(sizes: tuple[int, int], tmp_path: Path) -> None:
    message = f"vocabulary of 61 ids and rows of width 48, and the target of {sizes[0]} and {sizes[1]}"
    with pytest.raises(WeightsError, match=message):
        Heads.load(save(tmp_path, released()), lambda: tied(*sizes))


@pytest.mark.slow
def test_a_published_folder_drafts_for_medusa(tmp_path: Path) -> None:
    model, greedy, folder = tiny("fp32"), Sampling(0.0), str(save(tmp_path, released()))
    decoded = decode(Medusa(folder, nodes=6), run_on(model, greedy, 20))
    assert decoded.tokens == decode(Autoregressive(), run_on(model, greedy, 20)).tokens
    assert sum(step.drafted for step in decoded.steps) > 20


def saved(heads: Heads, folder: Path) -> Path:
    save_bf16(heads, folder)
    heads.config.write(folder)
    return folder


def tied_embeddings(heads: Heads) -> Callable[[], Any]:
    unembed = torch.zeros(7, 4).index_copy(0, heads.ids, heads.shared)
    return lambda: SimpleNamespace(unembed=unembed, lift=None)


class TestNets:
    def test_new_heads_have_the_targets_logits(self) -> None:
        unembed, rows = torch.randn(7, 4), torch.randn(5, 1, 4)
        for inner in (0, 6):
            logits = Heads(Config("toy", "", 4, heads=3, inner=inner), unembed)(rows)
            torch.testing.assert_close(logits, (rows[:, 0] @ unembed.T).expand(3, -1, -1))

    def test_a_head_is_the_residual_block_of_the_paper(self) -> None:
        heads, row = random_heads(heads=2), torch.randn(1, 1, 4)
        weight, bias = heads.blocks[0].last[1], heads.blocks[0].bias[1, 0]
        z = row[0, 0] @ weight.T + bias
        expected = heads.shared @ (row[0, 0] + z * z.sigmoid())
        torch.testing.assert_close(heads(row)[1, 0], expected)

    def test_logits_of_two_branches_are_guided_as_the_targets_are(self) -> None:
        heads = random_heads(guidance=3.0)
        rows = torch.randn(5, 2, 4)
        single = random_heads()
        cond, uncond = single(rows[:, :1]), single(rows[:, 1:])
        torch.testing.assert_close(heads(rows), uncond + 3 * (cond - uncond))

    @pytest.mark.parametrize("settings", [{"kept": 3}, {"own": True}, {"inner": 6, "layers": 2}])
    def test_loaded_heads_are_the_saved_ones(self, settings: dict[str, Any], tmp_path: Path) -> None:
        heads = random_heads(**settings)
        loaded = Heads.load(saved(heads, tmp_path), tied_embeddings(heads))
        rows = torch.randn(3, 1, 4)
        assert torch.equal(loaded(rows), heads(rows)) and torch.equal(loaded.ids, heads.ids)
        assert loaded.config == heads.config

    def test_missing_and_damaged_weights_are_named(self, tmp_path: Path) -> None:
        heads = random_heads()
        with pytest.raises(WeightsError, match=r"holds no heads.*config\.json.*stride train drafter"):
            Heads.load(tmp_path, tied_embeddings(heads))
        saved(random_heads(heads=2), tmp_path)
        heads.config.write(tmp_path)
        with pytest.raises(WeightsError, match="size mismatch"):
            Heads.load(tmp_path, tied_embeddings(heads))
        heads.blocks[0].bias.data[0, 0, 1] = float("nan")
        with pytest.raises(WeightsError, match=r"blocks\.0\.bias holds NaN or infinite numbers"):
            Heads.load(saved(heads, tmp_path), tied_embeddings(heads))
