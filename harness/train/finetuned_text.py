"""A causal language model that learns on, alone or beside heads that read it: low-rank matrices, or all weights.

Source: Hu et al. 2021, LoRA, arXiv:2106.09685; the product is scaled by alpha / rank, as in its library.
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

from harness.backbones.checkpoints import sources
from harness.backbones.slots.transformers_net import TransformersNet
from harness.backbones.text.hf_causal import HFCausal
from harness.errors import UsageError
from harness.plan import presets
from harness.platform.quiet import quiet
from harness.train.finetuned_mesh import Tuning

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


class TextPass(NamedTuple):
    """Of a pass over whole texts: normed rows, as heads read them, and logits."""

    rows: Float[Tensor, "B N E"]
    logits: Float[Tensor, "B N V"]


class FinetunedText(nn.Module):
    """A backbone that learns, and beside it the same one as it was, which is no part of the state.

    Args:
        name: of a backbone that hf_causal serves. how: it learns.

    Raises:
        UsageError: another kind of backbone, or peft is needed and not here. WeightsError: its weights cannot be had.
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
        self._base = (net.model,)  # in a tuple, which torch takes for no part of this module
        twin = copy.deepcopy(net.model)
        self.model: Any = _low_rank(twin, tuning) if tuning.rank else twin.requires_grad_(True)
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
            places: positions; None: in order. mask: added to the scores; None: each row sees those before it.
        """
        return _read(self.model, tokens, places, mask)

    @torch.no_grad()
    def base(self, tokens: Int[Tensor, "B N"]) -> Float[Tensor, "B N V"]:
        """Logits of the model as it was."""
        return _read(self._base[0], tokens).logits

    def merged(self) -> Any:
        """A copy with the products of its matrices added to its weights."""
        twin = copy.deepcopy(self.model)
        return twin.merge_and_unload() if self.tuning.rank else twin

    def export(self, folder: Path) -> None:
        """The merged model in bf16 as a folder of transformers, with the tokenizer of the one that it was."""
        folder.mkdir(parents=True, exist_ok=True)
        with quiet():
            self.merged().to(torch.bfloat16).save_pretrained(folder)
        for path in folder.glob("*.safetensors"):
            path.chmod(0o644)  # safetensors writes for the owner alone, and a package is for all
        for name in TOKENIZER:
            if self._folder is not None and (self._folder / name).is_file():
                shutil.copyfile(self._folder / name, folder / name)


def load_backbone(name: str, folder: Path) -> HFCausal:
    """An exported folder, as decodes load it."""
    return HFCausal.load(name, {"source": {"folder": str(folder)}}, "fp32", "cpu")


def _read(
    model: Callable[..., Any], tokens: Tensor, places: Tensor | None = None, mask: Tensor | None = None
) -> TextPass:
    out = model(input_ids=tokens, position_ids=places, attention_mask=mask, use_cache=False, output_hidden_states=True)
    return TextPass(out.hidden_states[-1], out.logits)


def _low_rank(model: Any, tuning: Tuning) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise UsageError("low-rank training needs peft: pip install 'stridebench[train]'") from error
    return get_peft_model(model, LoraConfig(r=tuning.rank, lora_alpha=tuning.alpha, target_modules="all-linear"))
