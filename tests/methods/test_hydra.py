"""Hydra: its output distribution, agreement with the release's modules written here, and folders that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel

from stridebench.harness.core.loop import decode
from stridebench.harness.core.sampling import Sampling
from stridebench.harness.errors import WeightsError, WeightsWarning
from stridebench.methods.autoregressive import Autoregressive
from stridebench.methods.drafters.hydra import HydraDrafter, HydraNet
from stridebench.methods.drafters.tree_shapes import branching
from stridebench.methods.hydra import Hydra
from tests.support.feature_toys import run_on, tiny

WIDTH, VOCABULARY, HEADS = 48, 61, 3


class ResBlock(nn.Module):
    """The block of the release."""

    def __init__(self, width: int, taken: int) -> None:
        super().__init__()
        self.linear = nn.Linear(taken, width)
        self.res_connection = nn.Linear(taken, width) if taken != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.res_connection(x) + nn.functional.silu(self.linear(x))
        return out


class Released(nn.Module):
    """The heads of the release, `prefix`: with the layer in front, and dropout between the modules."""

    def __init__(self, prefix: bool = False, layers: int = 2, width: int = WIDTH) -> None:
        super().__init__()
        torch.manual_seed(4)
        drop = [nn.Dropout(0.0)] if prefix else []
        self.hydra_mlp = nn.ModuleList()
        for head in range(HEADS):
            blocks = [*drop, ResBlock(width, (head + 2) * width), *[*drop, ResBlock(width, width)] * (layers - 1)]
            self.hydra_mlp.append(nn.Sequential(*blocks))
        ends = [nn.Linear(width, VOCABULARY) for _ in range(HEADS)]
        self.hydra_lm_head = nn.ModuleList([nn.Sequential(*drop, end) if prefix else end for end in ends])
        if prefix:
            sizes = {"hidden_size": width, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
            config = LlamaConfig(**sizes, vocab_size=VOCABULARY, rms_norm_eps=1e-6)
            self.prefix_embeding_layer = LlamaModel(config)
        for weight in self.parameters():
            weight.data = torch.randn_like(weight) * 0.2 + (weight.ndim == 1) * 0.5
        self.eval().requires_grad_(False)

    def save(self, folder: Path, changes: dict[str, Any] | None = None, **config: Any) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        state = {**{key: value.clone() for key, value in self.state_dict().items()}, **(changes or {})}
        save_file({k: v for k, v in state.items() if v is not None}, folder / "hydra_lm_head.safetensors")
        arch = "prefix-mlp" if hasattr(self, "prefix_embeding_layer") else "mlp"
        body = {"hydra_head_arch": arch, "grounded_heads": True, "head_dim": 12, **config}
        (folder / "config.json").write_text(json.dumps(body))
        return folder

    def tokens(self, rows: Tensor, last: int, embed: Tensor, width: int) -> list[int]:
        """A full tree, `width` children a node, level by level, as the release proposes it."""
        row = rows[-1]
        if hasattr(self, "prefix_embeding_layer"):
            row = self.prefix_embeding_layer(inputs_embeds=rows[None]).last_hidden_state[0, -1]
        paths, out = [torch.cat([row, embed[last]])], []
        for mlp, end in zip(self.hydra_mlp, self.hydra_lm_head, strict=True):
            below = []
            for path in paths:
                best = end(mlp(path[None]))[0].topk(width).indices.tolist()
                out += best
                below += [torch.cat([path, embed[token]]) for token in best]
            paths = below
        return out


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [False, True])
def test_a_released_folder_drafts_the_tokens_of_the_release(prefix: bool, tmp_path: Path) -> None:
    """The first tree of a prompt, then a whole decode at T = 0, whose tokens are the target's own."""
    released, model, greedy = Released(prefix), tiny("fp32"), Sampling(0.0)
    folder = str(released.save(tmp_path))
    run = run_on(model, greedy, 20)
    method = Hydra(folder)
    run.target.tap((-1,))
    run.target.forward()
    run.target.append(torch.tensor([9]))
    run.target.forward()
    drafter = HydraDrafter.open(run, folder, "", 12)
    drafter = HydraDrafter(folder, drafter.net, drafter.embed, branching((2, 2, 2)))
    drafter.read_prompt(run)
    rows = run.target.hidden[: len(run.target) - 1, 0, 0]
    expected = released.tokens(rows, int(run.target.tokens[-1]), drafter.embed, 2)
    assert drafter.propose(run).tokens.tolist() == expected
    decoded = decode(method, run_on(model, greedy, 20))
    assert decoded.tokens == decode(Autoregressive(), run_on(model, greedy, 20)).tokens
    assert sum(step.drafted for step in decoded.steps) > 20


@pytest.mark.parametrize(
    ("changes", "config", "message"),
    [
        ({"hydra_mlp.1.0.linear.bias": None}, {}, r"lacks hydra_mlp\.1\.0\.linear\.bias"),
        ({"hydra_lm_head.2.weight": torch.ones(61, 3)}, {}, r"has hydra_lm_head\.2\.weight in the shape \(61, 3\)"),
        ({"other": torch.ones(1)}, {}, "does not read, other"),
        ({}, {"hydra_head_arch": "eagle-attn"}, "hydra_head_arch is 'eagle-attn'"),
        ({}, {"hidden_state_offset": 1}, "hidden_state_offset is 1"),
    ],
)
def test_a_folder_that_does_not_fit_says_what(
    changes: dict[str, Any], config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match=message):
        HydraNet.load(Released().save(tmp_path, changes, **config))


def test_a_key_of_the_configuration_that_nobody_reads_is_named(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    HydraNet.load(Released().save(tmp_path, hydra_num_heads=3, dropout_rate=0.1))
    assert not recwarn.list
    with pytest.warns(WeightsWarning, match=r"keys that are not read: residual_scale\. If"):
        HydraNet.load(Released().save(tmp_path, residual_scale=2))


def test_heads_of_another_target_are_refused(tmp_path: Path) -> None:
    folder = str(Released(width=24).save(tmp_path))
    with pytest.raises(WeightsError, match="reads rows of width 24, and those of tiny have 48"):
        decode(Hydra(folder), run_on(tiny("fp32"), Sampling(0.0), 8))
