"""A causal language model that learns further, alone or together with the heads that read its hidden rows.

Axes: B texts of N tokens, V vocabulary, E width.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.backbones.slots.transformers_net import TransformersNet
from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.errors import UsageError
from stridebench.harness.plan import presets
from stridebench.harness.platform.quiet import quiet
from stridebench.harness.train.finetuning import Tuning, merged, with_low_rank

TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
"""Files of the base model that an exported model copies."""


class TextPass(NamedTuple):
    """Result of a pass over whole texts: hidden rows after the last norm, as heads read them, and logits."""

    rows: Float[Tensor, "B N E"]
    logits: Float[Tensor, "B N V"]


class FinetunedText(nn.Module):
    """A backbone that learns, and the base model, which is not part of the state.

    Args:
        name: of a backbone of the adapter hf_causal.
        tuning: how it learns.

    Raises:
        UsageError: the backbone is of another adapter, or peft is needed and not installed.
        WeightsError: its weights cannot be had.
    """

    def __init__(self, name: str, tuning: Tuning) -> None:
        super().__init__()
        presets.fetch(name)
        spec = presets.resolve(name)
        if spec.adapter != "hf_causal":
            raise UsageError(f"{name} is a backbone of {spec.adapter}; this tuning is of those of hf_causal")
        self.backbone = HFCausal.load(name, {**spec.params, "forward": "transformers"}, "fp32", "cpu")
        net = self.backbone._net
        assert isinstance(net, TransformersNet), "what forward: transformers asks for"
        self.tuning = tuning
        self._base = (net.model,)  # in a tuple, so that torch does not register it as a submodule
        twin = copy.deepcopy(net.model)
        self.model: Any = with_low_rank(twin, tuning, "all-linear") if tuning.rank else twin.requires_grad_(True)
        source = sources.parse(name, spec.params["source"])
        self._folder = None if source.kind == "random" else sources.locate(name, source)

    def forward(
        self,
        tokens: Int[Tensor, "B N"],
        places: Int[Tensor, "B N"] | None = None,
        mask: Float[Tensor, "B one N N"] | None = None,
    ) -> TextPass:
        """One pass, with gradients.

        Args:
            tokens: the texts.
            places: positions; None: 0 to N - 1.
            mask: added to the attention scores; None: causal.
        """
        return _pass(self.model, tokens, places, mask)

    @torch.no_grad()
    def base(self, tokens: Int[Tensor, "B N"]) -> Float[Tensor, "B N V"]:
        """Logits of the base model."""
        return _pass(self._base[0], tokens).logits

    def export(self, folder: Path) -> None:
        """Write the merged model in bf16 as a folder of transformers, with the tokenizer of the base model."""
        folder.mkdir(parents=True, exist_ok=True)
        with quiet():
            merged(self.model, self.tuning).to(torch.bfloat16).save_pretrained(folder)
        for path in folder.glob("*.safetensors"):
            path.chmod(0o644)  # safetensors writes for the owner alone, and a package is for all
        for name in TOKENIZER:
            if self._folder is not None and (self._folder / name).is_file():
                shutil.copyfile(self._folder / name, folder / name)


def load_backbone(name: str, folder: Path) -> HFCausal:
    """An exported folder, loaded as a run loads it."""
    return HFCausal.load(name, {"source": {"folder": str(folder)}}, "fp32", "cpu")


def _pass(
    model: Callable[..., Any], tokens: Tensor, places: Tensor | None = None, mask: Tensor | None = None
) -> TextPass:
    out = model(input_ids=tokens, position_ids=places, attention_mask=mask, use_cache=False, output_hidden_states=True)
    return TextPass(out.hidden_states[-1], out.logits)
