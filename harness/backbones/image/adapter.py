"""Decoders of pictures in raster order, conditioned on a caption: a Llama over a slot cache, guided, one id a cell.

The folder of such a model is one of transformers whose config.json has an entry ``picture`` (see `_layout`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch

from harness.backbones.checkpoints import digests, sources, transformers_models
from harness.backbones.image.layout import Layout, Palette
from harness.backbones.image.vq import VQ
from harness.backbones.slots.cache import Masks, SlotCache
from harness.backbones.slots.fused_llama import FusedLlama, incompatibility
from harness.backbones.slots.guided import Grammar, GridGrammar, GuidedCache
from harness.backbones.slots.net import Net, Tapped
from harness.backbones.slots.transformers_net import TransformersNet
from harness.backbones.text.hf_causal import TYPES, spread
from harness.core.backbone import Backbone, EncodedPrompt, TiedEmbeddings
from harness.core.capabilities import Capabilities, Requirement
from harness.core.task import Prompt
from harness.errors import UsageError, WeightsError
from harness.record.outputs import Picture
from harness.registry import BACKBONES

PARAMS = ("source", "pixels", "guidance")


@BACKBONES.register("image")
@final
class ImageModel(Backbone):
    """A model of pictures from captions of a closed vocabulary, one token a word.

    Args (of ``params``):
        source: of the decoder: shipped, folder or random. pixels: of the VQ tokenizer, in the same form; without it the
            codes are levels of grey. guidance: scale s of z_u + s (z_c - z_u); 1, the default, is none.

    What its offers have as codebook is a vector of the VQ for each code, or a grey from 0 to 1.
    """

    def __init__(self, name: str, dtype: str, device: str, net: Net, parts: Parts) -> None:
        self.name, self.dtype, self.device = name, dtype, device
        self.fingerprint, self.capabilities = parts.fingerprint, parts.capabilities
        self._net, self._parts = net, parts
        self._masks = Masks(self.capabilities.context, TYPES[dtype], torch.device(device))

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> ImageModel:
        """Read weights that are there already."""
        scale = _check(name, params, dtype)
        model, mark = _model(name, params, dtype)
        model = model.to(device=device, dtype=TYPES[dtype]).eval().requires_grad_(False)
        layout = Layout.read(name, model.config)
        palette = _palette(name, params, layout)
        grid = layout.grid
        context = int(model.config.max_position_embeddings)
        vectors = palette.codebook.to(device)
        sizes = {"layers": int(model.config.num_hidden_layers), "width": int(model.config.hidden_size)}
        capabilities = Capabilities(layout.vocabulary, context, frozenset(), cls.meets(params), grid, vectors, **sizes)
        capabilities = replace(capabilities, branches=_branches(scale), guidance=scale)
        allowed = torch.arange(layout.vocabulary, device=device) < layout.codes
        fingerprint = _mark(f"{mark} {palette.mark} guidance={scale!r}")
        parts = Parts(capabilities, fingerprint, layout, palette, scale, GridGrammar(grid, allowed))
        return cls(
            name, dtype, device, FusedLlama(model) if incompatibility(model) is None else TransformersNet(model), parts
        )

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        """Trees, drafters of its own vocabulary, hidden rows, a grid with its codebook, positions in any order."""
        return frozenset(
            {
                Requirement.TREE_MASK,
                Requirement.DRAFTER,
                Requirement.HIDDEN,
                Requirement.GRID,
                Requirement.CODEBOOK,
                Requirement.ANY_ORDER,
            }
        )

    @classmethod
    def modality(cls, params: Mapping[str, Any]) -> str:
        """Pictures."""
        return "image"

    def cache(self) -> GuidedCache:
        """For the empty caption, which has nothing to be guided away from; its prompt is two tokens."""
        return self._cache(len(self.encode("")), 1.0)

    def open(self, prompt: Prompt) -> EncodedPrompt:
        """The caption's words and the begin of a picture; where the prompt has ids, these as they are.

        Raises:
            UsageError: a word or an id outside the vocabulary, a condition, or a caption that leaves a picture no room.
        """
        if prompt.condition is not None:
            raise UsageError(f"the backbone {self.name!r} reads captions; prompt {prompt.id!r} has another condition")
        ids = self.encode(prompt.text or "") if prompt.tokens is None else list(prompt.tokens)
        if not ids or not all(0 <= token < self.capabilities.vocabulary for token in ids):
            raise UsageError(
                f"prompt {prompt.id!r} has ids {ids}; {self.name!r} reads one or more from 0 to "
                f"{self.capabilities.vocabulary - 1}"
            )
        length = self._parts.layout.grid.length
        if len(ids) + length > self.capabilities.context:
            raise UsageError(
                f"prompt {prompt.id!r} has {len(ids)} tokens; with {length} of a picture they would pass the context "
                f"of {self.capabilities.context}: shorten the caption"
            )
        return EncodedPrompt(tuple(ids), lambda: self._cache(len(ids), self._parts.scale))

    def _cache(self, prompt: int, scale: float) -> GuidedCache:
        return GuidedCache(
            self._slots(),
            prompt,
            scale=scale,
            unconditional=None if scale == 1.0 else self._slots(),
            negative=self.encode(""),
            grammar=self._parts.grammar,
        )

    def _slots(self) -> SlotCache:
        return SlotCache(self._net, self.capabilities.context, self._masks)

    def tied_embeddings(self) -> TiedEmbeddings:
        """Those of its net."""
        return self._net.tied_embeddings() if isinstance(self._net, Tapped) else super().tied_embeddings()

    def encode(self, text: str) -> list[int]:
        """Words, then the begin of a picture; a blank text is the empty caption.

        Raises:
            UsageError: a word that the model was not trained on.
        """
        return self._parts.layout.prompt(self.name, text)

    def decode(self, tokens: Sequence[int]) -> Picture:
        """The picture of a whole grid of codes.

        Raises:
            OutputError: too few or too many tokens, or one that is no code.
        """
        return self._parts.palette.paint(self.name, self._parts.layout, tokens)

    def variant(self, params: Mapping[str, str]) -> ImageModel:
        """``layers``: how many are kept, as in `hf_causal`; ``guidance``: another scale.

        Raises:
            UsageError: another parameter, or a value out of range.
        """
        if unknown := sorted(set(params) - {"layers", "guidance"}):
            raise UsageError(
                f"the backbone {self.name!r} has no variant with {', '.join(unknown)}; it has layers=N, guidance=S"
            )
        if not params:
            return self
        net = self._net
        scale = _scale(self.name, params.get("guidance", self._parts.scale))
        if "layers" in params:
            net = net.pick(spread(net.layers, params["layers"], self.name))
        said = ",".join(f"{key}={params[key]}" for key in sorted(params))
        mark = _mark(f"{self.fingerprint} {said}")
        capabilities = replace(self.capabilities, layers=net.layers, branches=_branches(scale), guidance=scale)
        parts = replace(self._parts, fingerprint=mark, scale=scale, capabilities=capabilities)
        return ImageModel(f"{self.name}/{said}", self.dtype, self.device, net, parts)


@dataclass(frozen=True, eq=False)
class Parts:
    """What a backbone has beside its net."""

    capabilities: Capabilities
    fingerprint: str
    layout: Layout
    palette: Palette
    scale: float
    grammar: Grammar


def _check(name: str, params: Mapping[str, Any], dtype: str) -> float:
    """The scale of guidance, once the other parameters are found right."""
    if unknown := sorted(set(params) - set(PARAMS)):
        raise UsageError(f"{name}: image has no parameter {unknown[0]!r}; it has {', '.join(PARAMS)}")
    if "source" not in params:
        raise UsageError(f"{name}: image needs a source of weights; name a preset such as embedded-image")
    if dtype not in TYPES:
        raise UsageError(f"{name}: there is no dtype {dtype!r}; choose one of {', '.join(TYPES)}")
    return _scale(name, params.get("guidance", 1.0))


def _scale(name: str, given: Any) -> float:
    try:
        scale = float(given)
    except (TypeError, ValueError):
        scale = float("nan")
    if not 0 <= scale < float("inf"):
        raise UsageError(f"{name}: guidance is {given!r}; give a number from 0 (1: none, 2 to 5 are usual)")
    return scale


def _branches(scale: float) -> int:
    """At scale 1 the branch without the caption does not run."""
    return 1 if scale == 1.0 else 2


def _model(name: str, params: Mapping[str, Any], dtype: str) -> tuple[Any, str]:
    """The decoder as transformers has it, and a digest of its weights and configuration."""
    source = sources.parse(name, params["source"])
    if source.kind == "random":
        model = transformers_models.make_random(name, source.fields, "sdpa")
        return model, digests.of_tensors(model)
    folder = sources.locate(name, source)
    config = transformers_models.read_config(name, folder)
    return transformers_models.read_model(name, folder, config, "sdpa", TYPES[dtype]), sources.digest(folder)


def _palette(name: str, params: Mapping[str, Any], layout: Layout) -> Palette:
    if "pixels" not in params:
        return Palette(layout.codes)
    source = sources.parse(name, params["pixels"])
    if source.kind != "folder":
        raise UsageError(f"{name}: pixels is a source {source.kind}; give shipped: NAME or folder: PATH")
    folder = Path(source.fields["path"]).expanduser()
    vq = VQ.load(folder)
    if len(vq.codebook) != layout.codes:
        raise WeightsError(f"{name}: {layout.codes} codes, and the tokenizer in {folder} has {len(vq.codebook)}")
    return Palette(layout.codes, vq, digests.of_file(folder / "model.safetensors"))


def _mark(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
