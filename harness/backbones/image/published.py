"""Published autoregressive picture models: Chameleon's family, Emu3, Janus, LlamaGen, SimpleAR and Tar.

One adapter runs them all: guidance over two branches, forced tokens, the ids that a cell may take, and a picture from
the tokenizer of the model. The differences between them are in a `Family`.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from stridebench.harness.backbones.base import TYPES, Identity, LayeredAdapter, check_dtype
from stridebench.harness.backbones.checkpoints import components, transformers_models
from stridebench.harness.backbones.image.adapter import MEETS, cells
from stridebench.harness.backbones.image.vq import PictureTokenizer, to_bytes
from stridebench.harness.backbones.slots import cache, transformers_net
from stridebench.harness.backbones.slots.cache import PackedWindow, SlotCache
from stridebench.harness.backbones.slots.guided import GridGrammar, GuidedCache
from stridebench.harness.backbones.slots.net import Net, SlotInputs, Tapped
from stridebench.harness.backbones.slots.transformers_net import PassArguments, pass_arguments
from stridebench.harness.core.backbone import EncodedPrompt, TiedEmbeddings
from stridebench.harness.core.cache import Cache, Rows
from stridebench.harness.core.capabilities import Capabilities, Grid, Requirement
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import OutputError, UnknownNameError, UsageError, WeightsError, check_parameters
from stridebench.harness.record.outputs import Picture
from stridebench.harness.registry import BACKBONES


@dataclass(frozen=True, eq=False)
class Reading:
    """A prompt as a model reads it: P ids, and U ids of the branch without the condition, which ``other`` reads."""

    tokens: tuple[int, ...]
    negative: tuple[int, ...]
    net: Net
    other: Net


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model.

    Args:
        codes: the picture code of each id, or -1.
        read: reads a prompt with a net that may lack layers of ``net``.
        paint: codes to pixels of about -1 to 1.
        codebook: the vector of each code.
        width: E of its hidden rows.
        tokenizer: reads the tokenizer of pictures, or None if only its decoder is published or known.
    """

    net: Tapped
    context: int
    grid: Grid
    codes: Int[Tensor, " V"]
    read: Callable[[Net, Prompt], Reading]
    paint: Callable[[Int[Tensor, "h w"]], Float[Tensor, "3 H W"]]
    codebook: Float[Tensor, "K C"]
    width: int
    tokenizer: Callable[[], PictureTokenizer] | None = None


@dataclass(frozen=True)
class PictureRequest:
    """The input of a family: paths by component, the preset's settings, and the type and device of the model."""

    name: str
    components: Mapping[str, Path]
    settings: Mapping[str, Any]
    dtype: torch.dtype
    device: str


@dataclass(frozen=True)
class Family:
    """A kind of model: its loader, the components that it or some prompts need, and settings with their defaults."""

    load: Callable[[PictureRequest], Model]
    components: tuple[str, ...]
    optional: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def text_of(name: str, prompt: Prompt) -> str:
    """Return the prompt's text, or raise UsageError if it has none."""
    if prompt.text is None:
        raise UsageError(f"{name}: prompt {prompt.id!r} has no text, and this model draws what a text says")
    return prompt.text


def shared_net(net: Net, tokens: Sequence[int], negative: Sequence[int]) -> Reading:
    """Return a reading in which one net serves both branches."""
    return Reading(tuple(tokens), tuple(negative), net, net)


def cells_a_side(name: str, pixels: Any, factor: int) -> int:
    """Return the cells a side of a square picture, or raise UsageError if pixels are not a multiple of ``factor``."""
    if not isinstance(pixels, int) or pixels < factor or pixels % factor:
        raise UsageError(f"{name}: pixels is {pixels!r}; give a whole multiple of {factor}")
    return pixels // factor


def code_table(vocabulary: int, codes: Mapping[int, int], device: str) -> Int[Tensor, " V"]:
    """Return the code of each id, or -1 if it has none, from a map of ids to codes."""
    table = torch.full((vocabulary,), -1)
    table[list(codes)] = torch.tensor(list(codes.values()))
    return table.to(device)


def token_ids(name: str, tokenizer: Any, words: Sequence[str]) -> list[int]:
    """Return the ids of special tokens, or raise WeightsError if the tokenizer is missing or does not know one."""
    if tokenizer is None:
        raise WeightsError(f"{name}: its folder lacks a tokenizer; fetch the whole folder")
    vocabulary = tokenizer.get_vocab()
    unknown = [word for word in words if word not in vocabulary]
    if unknown:
        raise WeightsError(f"{name}: its tokenizer has no token {unknown[0]!r}; it is another model's")
    return [int(vocabulary[word]) for word in words]


class Pretrained(NamedTuple):
    """A model of transformers and its tokenizer, or None if the folder lacks one."""

    model: Any
    tokenizer: Any


def read_pretrained(request: PictureRequest, kind: Any, unused: tuple[str, ...] = ()) -> Pretrained:
    """Read the component ``model`` as a class of transformers, in evaluation mode, or raise WeightsError."""
    folder, expected = request.components["model"], kind.config_class
    with transformers_models.one_error(request.name, folder, f"lacks a configuration of {expected.model_type}"):
        config = expected.from_pretrained(folder, local_files_only=True)
    tokenizer = transformers_models.read_tokenizer(folder)
    if tokenizer is not None and getattr(config, "vocabulary_map", "") is None:
        config.vocabulary_map = tokenizer.get_vocab()
    model = transformers_models.read_whole(request.name, folder, kind, unused, config=config, dtype=request.dtype)
    return Pretrained(model.to(request.device).eval().requires_grad_(False), tokenizer)


@final
class DecoderNet:
    """A decoder of transformers between another embedding and head, over the slot cache.

    ``head`` is a faster way to the logits of ``tied``. Its attention is changed (see `transformers_net.prepare`).
    """

    kind = "transformers"

    def __init__(self, decoder: Any, tied: TiedEmbeddings, head: Callable[[Tensor], Tensor] | None = None) -> None:
        transformers_net.prepare(decoder)
        self.decoder, self._tied, self._head = decoder, tied, head or tied.logits
        self.layers = int(decoder.config.get_text_config().num_hidden_layers)

    def checked(self, request: PictureRequest) -> DecoderNet:
        """Return this net, or raise WeightsError if it ignores masks, so that it cannot verify a tree in one pass."""
        if not transformers_net.honours_masks(self, torch.device(request.device), request.dtype):
            raise WeightsError(
                f"{request.name}: {type(self.decoder).__name__} of this transformers ignores masks; use another version"
            )
        return self

    def __call__(self, inputs: SlotInputs, rows: int) -> Float[Tensor, "R V"]:
        return self.tapped(inputs, rows, ()).logits

    def tied_embeddings(self) -> TiedEmbeddings:
        return self._tied

    def tapped(self, inputs: SlotInputs, rows: int, taps: Sequence[int]) -> Rows:
        count = len(inputs.tokens)
        return self._read(inputs.tokens, pass_arguments(inputs), slice(count - rows, None), taps)

    def joins(self, other: Net) -> bool:
        return other is self

    def packed(self, tokens: Int[Tensor, " N"], positions: Int[Tensor, " N"], parts: Sequence[PackedWindow]) -> Rows:
        arguments = transformers_net.packed_arguments(positions, cache.layers(parts, 1))
        return self._read(tokens, arguments, cache.last_rows(parts), parts[0].window.taps)

    def _read(self, tokens: Tensor, arguments: PassArguments, rows: slice | list[int], taps: Sequence[int]) -> Rows:
        embedded = functional.embedding(tokens, self._tied.embed)[None]
        out = self.decoder(inputs_embeds=embedded, output_hidden_states=bool(taps), **arguments)
        hidden = torch.stack([out.hidden_states[tap][0] for tap in taps], 1)[:, None] if taps else None
        return Rows(self._head(out.last_hidden_state[0, rows]), hidden)

    def pick(self, layers: Sequence[int]) -> DecoderNet:
        return DecoderNet(transformers_net.pick_layers(self.decoder, layers), self._tied, self._head)


FAMILIES = {
    "anole": "multimodal.ANOLE",
    "lumina": "multimodal.LUMINA",
    "emu3": "multimodal.EMU3",
    "janus": "multimodal.JANUS",
    "llamagen_c2i": "llamagen.C2I",
    "llamagen_t2i": "llamagen.T2I",
    "simplear": "multimodal.SIMPLEAR",
    "tar": "tar.TAR",
}
"""The module and constant of each family. Modules are imported at use, because transformers' classes take seconds."""


def family_of(kind: str) -> Family:
    """Return a family by name, or raise UnknownNameError."""
    if kind not in FAMILIES:
        raise UnknownNameError("family of picture models", kind, FAMILIES)
    module, _, constant = FAMILIES[kind].partition(".")
    family: Family = getattr(importlib.import_module(f"{__package__}.{module}"), constant)
    return family


@BACKBONES.register("real_image")
@final
class RealImage(LayeredAdapter):
    """A published picture model.

    Args (of ``params``):
        family: a name of ``FAMILIES``.
        parts: the files or folders that it is published in (see `components`).
        guidance: scale s, 1 for none.
        Others: settings of the family, such as pixels.
    """

    default_dtype: ClassVar[str] = "bf16"
    kind = "real_image"
    parameters = ("guidance",)

    def __init__(self, identity: Identity, model: Model) -> None:
        super().__init__(identity)
        self._model = model
        self.codes, self.codebook = model.codes, model.codebook
        self._grammar = GridGrammar(model.grid, model.codes >= 0)

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> RealImage:
        kind, scale = str(params.get("family")), params.get("guidance", 1.0)
        family, shared = family_of(kind), ("family", "parts", "guidance")
        check_parameters(f"{name}: the family {kind}", params, [*shared, *sorted(family.settings)])
        if not isinstance(scale, int | float) or isinstance(scale, bool) or scale < 0:
            raise UsageError(f"{name}: guidance is {scale!r}; give a number of at least 0")
        check_dtype(name, dtype)
        settings = {**family.settings, **{key: value for key, value in params.items() if key not in shared}}
        paths = components.locate(name, components.check(name, params.get("parts"), family.components, family.optional))
        model = family.load(PictureRequest(name, paths, settings, TYPES[dtype], device))
        stated = f"{components.digest(paths)} {sorted(settings.items())} guidance={float(scale)!r}"
        fingerprint = hashlib.sha256(stated.encode()).hexdigest()
        return cls(Identity(name, dtype, device, capabilities(model, float(scale)), fingerprint), model)

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        return MEETS

    @classmethod
    def modality(cls, params: Mapping[str, Any]) -> str:
        return "image"

    def cache(self) -> Cache:
        raise UsageError(f"{self.name} draws what a prompt says, so a cache needs one; open a prompt")

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

        return EncodedPrompt(reading.tokens, cache, negative=len(reading.negative) if scale != 1.0 else 0)

    def tokenizer(self) -> PictureTokenizer:
        """Return its frozen tokenizer of pictures, or raise UsageError or WeightsError without an encoder."""
        if self._model.tokenizer is None:
            raise UsageError(f"{self.name} comes without an encoder of pictures, so pictures cannot be its data")
        return self._model.tokenizer()

    def picture_ids(self) -> Int[Tensor, " K"]:
        """Return the id of each code of its tokenizer, on the CPU."""
        codes = self.codes.cpu()
        ids = (codes >= 0).nonzero()[:, 0]
        table = torch.zeros(len(self.codebook), dtype=torch.long)
        table[codes[ids]] = ids
        return table

    def tied_embeddings(self) -> TiedEmbeddings:
        """Return those of its net. The vectors of a caption lack ids; drafters read zeros there."""
        return self._model.net.tied_embeddings()

    def decode(self, tokens: Sequence[int]) -> Picture:
        grid, codes = self._model.grid, self.codes
        ids = torch.tensor(cells(self.name, grid, tokens), device=codes.device)
        if int(ids.min()) < 0 or int(ids.max()) >= len(codes) or int(codes[ids].min()) < 0:
            raise OutputError(f"a cell of a picture of {self.name} holds an id that is not a picture code")
        pixels = self._model.paint(codes[ids].view(grid.rows, grid.columns)).float()
        return Picture(to_bytes(pixels[None])[0].cpu().numpy())

    def _layer_count(self) -> int:
        return self._model.net.layers

    def _keep_layers(self, layers: Sequence[int], identity: Identity) -> RealImage:
        return RealImage(identity, replace(self._model, net=self._model.net.pick(layers)))


def capabilities(model: Model, guidance: float) -> Capabilities:
    """Return the capabilities of a published model; a cell of its grid may take every id that has a code."""
    ids = (model.codes >= 0).nonzero()[:, 0]
    return Capabilities(
        len(model.codes),
        model.context,
        meets=MEETS,
        grid=replace(model.grid, ids=tuple(ids.tolist())),
        codebook=model.codebook[model.codes[ids]],
        layers=model.net.layers,
        width=model.width,
        branches=1 if guidance == 1.0 else 2,
        guidance=guidance,
    )
