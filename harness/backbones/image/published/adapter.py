"""Published autoregressive picture models: Chameleon's family, Emu3, Janus, LlamaGen, SimpleAR and Tar.

One adapter runs them all: guidance over two branches, forced tokens, the ids that a cell may take, and a picture from
the model's own tokenizer. What differs between them is a `Family`.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from stridebench.harness.backbones.base import TYPES, Identity, LayeredAdapter, check_dtype
from stridebench.harness.backbones.checkpoints import components
from stridebench.harness.backbones.image.adapter import MEETS, cells
from stridebench.harness.backbones.image.published.family import Family, Model, PictureRequest
from stridebench.harness.backbones.image.vq import PictureTokenizer
from stridebench.harness.backbones.slots.cache import SlotCache
from stridebench.harness.backbones.slots.guided import GridGrammar, GuidedCache
from stridebench.harness.core.backbone import EncodedPrompt, TiedEmbeddings
from stridebench.harness.core.cache import Cache
from stridebench.harness.core.capabilities import Capabilities, Requirement
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import OutputError, UnknownNameError, UsageError, check_parameters
from stridebench.harness.record.outputs import Picture
from stridebench.harness.registry import BACKBONES

# The families of picture models by name, and the check of a preset.


FAMILIES = {
    "anole": "chameleon.ANOLE",
    "lumina": "chameleon.LUMINA",
    "emu3": "emu3.EMU3",
    "janus": "janus.JANUS",
    "llamagen_c2i": "llamagen.C2I",
    "llamagen_t2i": "llamagen.T2I",
    "simplear": "simplear.SIMPLEAR",
    "tar": "tar.TAR",
}
"""The module and constant of each family. Modules are imported at use, because transformers' classes take seconds."""


def family_of(kind: str) -> Family:
    """A family by name. UnknownNameError: there is none of that name."""
    if kind not in FAMILIES:
        raise UnknownNameError("family of picture models", kind, FAMILIES)
    module, _, constant = FAMILIES[kind].partition(".")
    family: Family = getattr(importlib.import_module(f"{__package__}.{module}"), constant)
    return family


@dataclass(frozen=True)
class Checked:
    """Parameters of a preset, settings with their defaults."""

    family: Family
    files: Mapping[str, components.Component]
    settings: Mapping[str, Any]


def check(name: str, params: Mapping[str, Any], dtype: str) -> Checked:
    """The parameters of a preset, checked before anything is read.

    Raises:
        UsageError: one is missing, unknown or of the wrong kind.
    """
    kind = str(params.get("family"))
    family = family_of(kind)
    rest = {key: value for key, value in params.items() if key not in ("family", "parts", "guidance")}
    check_parameters(f"{name}: the family {kind}", params, ["family", "parts", "guidance", *sorted(family.settings)])
    scale = params.get("guidance", 1.0)
    if not isinstance(scale, int | float) or isinstance(scale, bool) or scale < 0:
        raise UsageError(f"{name}: guidance is {scale!r}; give a number of at least 0")
    check_dtype(name, dtype)
    checked = components.check(name, params.get("parts"), family.components, family.optional)
    return Checked(family, checked, {**family.settings, **rest})


@BACKBONES.register("real_image")
@final
class RealImage(LayeredAdapter):
    """A published picture model.

    Args (of ``params``):
        family: a name of `families.FAMILIES`.
        parts: the files or folders that it is published in (see `components`).
        guidance: scale s, 1 for none.
        Others: settings of the family, such as pixels.

    Attributes:
        codes: the picture code of each id, -1 where it has none.
        codebook: the vector of each code.
    """

    default_dtype: ClassVar[str] = "bf16"
    kind = "real_image"

    def __init__(self, identity: Identity, model: Model) -> None:
        super().__init__(identity)
        self._model = model
        self._grammar = GridGrammar(model.grid, model.codes >= 0)

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> RealImage:
        """Read files that are on this machine."""
        checked = check(name, params, dtype)
        paths = components.locate(name, checked.files)
        scale = float(params.get("guidance", 1.0))
        model = checked.family.load(PictureRequest(name, paths, checked.settings, TYPES[dtype], device))
        weights_digest = components.digest(paths)
        settings = f"{sorted(checked.settings.items())} guidance={scale!r}"
        fingerprint = hashlib.sha256(f"{weights_digest} {settings}".encode()).hexdigest()
        return cls(Identity(name, dtype, device, capabilities(model, cls.meets(params), scale), fingerprint), model)

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        """Trees, drafters of its own vocabulary, hidden rows, a grid with its codebook, and positions in any order."""
        return MEETS

    @classmethod
    def modality(cls, params: Mapping[str, Any]) -> str:
        """Pictures."""
        return "image"

    @property
    def codes(self) -> Int[Tensor, " V"]:
        """The picture code of each id, -1 where it has none."""
        return self._model.codes

    @property
    def codebook(self) -> Float[Tensor, "K C"]:
        """The vector of each code."""
        return self._model.codebook

    def cache(self) -> Cache:
        """Refuse: a cache needs a prompt."""
        raise UsageError(f"{self.name} draws what a prompt says, so it has no cache without one; open a prompt")

    def open(self, prompt: Prompt) -> EncodedPrompt:
        """Read a prompt. The text encoder or language model of the family runs here, once."""
        model, reading = self._model, self._model.read(self._model.net, prompt)
        count, scale = len(reading.tokens), self.capabilities.guidance
        room = model.context + max(0, len(reading.negative) - count)
        if count + model.grid.length > model.context:
            raise UsageError(
                f"{self.name}: prompt {prompt.id!r} has {count} tokens; with the {model.grid.length} of a picture they "
                f"would pass the context of {model.context}. Shorten it"
            )

        def cache() -> Cache:
            return GuidedCache(
                self._slots(reading.net),
                count,
                scale=scale,
                unconditional=SlotCache(reading.other, room, self._masks),
                negative=reading.negative,
                grammar=self._grammar,
            )

        return EncodedPrompt(reading.tokens, cache)

    def tokenizer(self) -> PictureTokenizer:
        """Its tokenizer of pictures in both directions, frozen.

        Raises:
            UsageError: the family has the decoder alone. WeightsError: its file has no encoder.
        """
        if self._model.tokenizer is None:
            raise UsageError(f"{self.name} comes without an encoder of pictures, so pictures cannot be its data")
        return self._model.tokenizer()

    def picture_ids(self) -> Int[Tensor, " K"]:
        """The id of each code of its tokenizer, on the CPU."""
        codes = self._model.codes.cpu()
        ids = (codes >= 0).nonzero()[:, 0]
        table = torch.zeros(len(self._model.codebook), dtype=torch.long)
        table[codes[ids]] = ids
        return table

    def tied_embeddings(self) -> TiedEmbeddings:
        """Those of its net. Vectors of a caption are none of an id; drafters read zeros there."""
        return self._model.net.tied_embeddings()

    def decode(self, tokens: Sequence[int]) -> Picture:
        """The picture of a whole grid of ids.

        Raises:
            OutputError: their number or a forced id is wrong, or a cell holds no picture code.
        """
        grid, codes = self._model.grid, self._model.codes
        ids = torch.tensor(cells(self.name, grid, tokens), device=codes.device)
        if int(ids.min()) < 0 or int(ids.max()) >= len(codes) or int(codes[ids].min()) < 0:
            raise OutputError(f"a cell of a picture of {self.name} holds an id that is no picture code")
        pixels = self._model.paint(codes[ids].view(grid.rows, grid.columns)).float().permute(1, 2, 0)
        return Picture(((pixels + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).cpu().numpy())

    def _layer_count(self) -> int:
        return self._model.net.layers

    def _keep_layers(self, layers: Sequence[int], identity: Identity) -> RealImage:
        return RealImage(identity, replace(self._model, net=self._model.net.pick(layers)))


def capabilities(model: Model, meets: frozenset[Requirement], guidance: float) -> Capabilities:
    """Capabilities of a published model; a cell of its grid may take every id that has a code."""
    ids = (model.codes >= 0).nonzero()[:, 0]
    grid, vectors = replace(model.grid, ids=tuple(ids.tolist())), model.codebook[model.codes[ids]]
    return Capabilities(
        model.vocabulary,
        model.context,
        meets=meets,
        grid=grid,
        codebook=vectors,
        layers=model.net.layers,
        width=model.width,
        branches=1 if guidance == 1.0 else 2,
        guidance=guidance,
    )
