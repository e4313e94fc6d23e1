"""Picture models trained here: a Llama that writes one id a cell in raster order, guided by a caption.

The folder of such a model is one of transformers whose config.json has an entry ``picture`` (see `PictureLayout`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional

from stridebench.harness.backbones.base import TYPES, Adapter, Identity, spread
from stridebench.harness.backbones.checkpoints import files, sources, transformers_models
from stridebench.harness.backbones.image.vq import VQ, PictureTokenizer
from stridebench.harness.backbones.slots.fused_llama import forward_of
from stridebench.harness.backbones.slots.guided import GridGrammar, GuidedCache
from stridebench.harness.backbones.slots.net import Net, Tapped
from stridebench.harness.core.backbone import EncodedPrompt, TiedEmbeddings
from stridebench.harness.core.capabilities import Capabilities, Grid, Requirement
from stridebench.harness.core.task import Prompt
from stridebench.harness.errors import OutputError, UsageError, WeightsError, did_you_mean
from stridebench.harness.kernels.quantized_linear import Products
from stridebench.harness.record.outputs import Picture
from stridebench.harness.registry import BACKBONES

MEETS = frozenset(
    {
        Requirement.TREE_MASK,
        Requirement.DRAFTER,
        Requirement.HIDDEN,
        Requirement.GRID,
        Requirement.CODEBOOK,
        Requirement.ANY_ORDER,
    }
)
"""What every picture model of ours offers, published ones too."""
ORDER_FREE = frozenset({Requirement.GRID, Requirement.CODEBOOK, Requirement.ANY_ORDER, Requirement.QUERIES})
"""What one offers that was trained with queries."""


@dataclass(frozen=True)
class PictureLayout:
    """The entry ``picture`` of config.json. Ids: codes, words of captions, empty caption, begin of picture, end of row.

    Rows are ``closed`` by that forced token in Lumina-mGPT. It marks the column, which rotary positions hardly show.
    A model with ``queries`` has an id for each cell, behind all others, whose row gives the distribution of that cell.
    """

    rows: int
    columns: int
    codes: int
    words: tuple[str, ...]
    closed: bool = False
    queries: bool = False

    @property
    def empty(self) -> int:
        return self.codes + len(self.words)

    @property
    def begin(self) -> int:
        return self.empty + 1

    @property
    def query(self) -> int:
        return self.begin + 1 + self.closed

    @property
    def vocabulary(self) -> int:
        return self.query + self.queries * self.cells

    @property
    def grid(self) -> Grid:
        return Grid(self.rows, self.columns, self.begin + 1 if self.closed else None, ids=range(self.codes))

    @property
    def cells(self) -> int:
        return self.rows * self.columns

    def written(self, cells: Int[Tensor, "*b n"]) -> Int[Tensor, "*b N"]:
        """Return the tokens of pictures: their cells, and the ends of rows if there are any."""
        grid = self.grid
        if grid.eol is None:
            return cells
        rows = functional.pad(cells.reshape(*cells.shape[:-1], self.rows, self.columns), (0, 1), value=grid.eol)
        return rows.flatten(-2)

    def places(self) -> Int[Tensor, " n"]:
        """Return the places of the cells among the tokens of a picture."""
        grid = self.grid
        return torch.arange(grid.length).view(self.rows, grid.stride)[:, : self.columns].flatten()

    def config(self) -> Mapping[str, Any]:
        entry: dict[str, Any] = {"rows": self.rows, "columns": self.columns, "codes": self.codes}
        more = {name: True for name in ("closed", "queries") if getattr(self, name)}
        return {"picture": {**entry, "words": list(self.words), **more}}

    @staticmethod
    def read(name: str, config: Any) -> PictureLayout:
        """Read it from a configuration of transformers; WeightsError if it is missing or misfits the vocabulary."""
        entry: Any = getattr(config, "picture", None)
        try:
            sizes = (int(entry["rows"]), int(entry["columns"]), int(entry["codes"]))
            more = (bool(entry.get(key, False)) for key in ("closed", "queries"))
            layout = PictureLayout(*sizes, tuple(entry["words"]), *more)
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise WeightsError(
                f"{name}: config.json has no entry `picture` with rows, columns, codes and words ({entry!r}); this is "
                f"not a model of pictures"
            ) from error
        if min(layout.rows, layout.columns, layout.codes) < 1 or config.vocab_size != layout.vocabulary:
            raise WeightsError(
                f"{name}: {layout.codes} codes, {len(layout.words)} words and {layout.vocabulary - layout.empty} more "
                f"ids do not make up the vocabulary of {config.vocab_size} in config.json"
            )
        return layout

    def prompt(self, name: str, caption: str) -> list[int]:
        """Return the ids of a caption, ``begin`` included; UsageError for a word that the model was not trained on."""
        ids = []
        for word in caption.lower().split():
            if word not in self.words:
                raise UsageError(
                    f"the backbone {name!r} does not know the word {word!r}{did_you_mean(word, self.words) or '.'} "
                    f"It knows: {' '.join(self.words)}"
                )
            ids.append(self.codes + self.words.index(word))
        return [*(ids or [self.empty]), self.begin]


def cells(name: str, grid: Grid, tokens: Sequence[int]) -> list[int]:
    """Return the ids of a picture's cells, in raster order, without the forced tokens.

    Raises OutputError if there are fewer or more tokens than a picture has, or a forced one is another.
    """
    grid, ids = replace(grid, start=0), []
    if len(tokens) != grid.length:
        raise OutputError(
            f"a picture of {name!r} has {grid.length} tokens ({grid.rows} rows of {grid.stride}"
            f"{f' and {len(grid.tail)} more' if grid.tail else ''}) and {len(tokens)} were made: set max_new_tokens to "
            f"{grid.length}"
        )
    for place, token in enumerate(tokens):
        forced = grid.forced(place)
        if forced is None:
            ids.append(token)
        elif token != forced:
            raise OutputError(f"place {place} of a picture of {name!r} is id {forced}; found {token}")
    return ids


@BACKBONES.register("image")
@final
class ImageModel(Adapter):
    """A model of pictures from captions of a closed vocabulary, one token a word.

    Args (of ``params``):
        source: of the decoder: shipped, folder or random.
        pixels: of the VQ tokenizer, in the same form; without it the codes are levels of grey.
        guidance: scale s of z_u + s (z_c - z_u); 1, the default, is none.
        weights: full (default), int8 or int4 (see `quantized_linear`).
        queries: whether it is order-free, and its configuration names queries.

    The codebook of its capabilities has a vector of the VQ for each code, or a grey from 0 to 1.
    """

    kind = "image"
    parameters = ("source", "pixels", "guidance", "weights", "queries")
    advice = "name a preset such as embedded-image"

    def __init__(self, identity: Identity, net: Net, layout: PictureLayout, vq: VQ | None) -> None:
        super().__init__(identity)
        self._net, self._layout, self._vq = net, layout, vq
        allowed = torch.arange(layout.vocabulary, device=identity.device) < layout.codes
        self._grammar = GridGrammar(layout.grid, allowed)

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> ImageModel:
        cls.check(name, params, dtype)
        scale, products = _scale(name, params.get("guidance", 1.0)), Products(name, params.get("weights", "full"))
        model, weights_digest = _model(name, params, dtype)
        model = transformers_models.place(model, device, TYPES[dtype]).eval().requires_grad_(False)
        layout = PictureLayout.read(name, model.config)
        if layout.queries != bool(params.get("queries", False)):
            raise WeightsError(
                f"{name}: config.json says queries: {layout.queries}, and the preset the opposite; change the preset"
            )
        vq, painter = _read_vq(name, params, layout.codes)
        codebook = torch.linspace(0, 1, layout.codes)[:, None] if vq is None else vq.codebook
        capabilities = Capabilities(
            layout.vocabulary,
            int(model.config.max_position_embeddings),
            meets=cls.meets(params),
            grid=layout.grid,
            codebook=codebook.to(device),
            layers=int(model.config.num_hidden_layers),
            width=int(model.config.hidden_size),
            branches=1 if scale == 1.0 else 2,
            guidance=scale,
            queries=range(layout.query, layout.vocabulary),
        )
        fingerprint = hashlib.sha256(f"{weights_digest} {painter} guidance={scale!r}".encode()).hexdigest()
        identity = Identity(name, dtype, device, capabilities, fingerprint)
        loaded = cls(identity, forward_of(model, products), layout, vq)
        loaded.weights_form = products.weights
        return loaded

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        return ORDER_FREE if params.get("queries", False) else MEETS

    @classmethod
    def modality(cls, params: Mapping[str, Any]) -> str:
        return "image"

    def cache(self) -> GuidedCache:
        return self._cache(len(self.encode("")), 1.0)

    def open(self, prompt: Prompt) -> EncodedPrompt:
        """Read the caption's words and the begin of a picture, or the prompt's ids as they are."""
        if prompt.condition is not None:
            raise UsageError(f"the backbone {self.name!r} reads captions; prompt {prompt.id!r} has another condition")
        ids = self.encode(prompt.text or "") if prompt.tokens is None else list(prompt.tokens)
        if not ids or not all(0 <= token < self.capabilities.vocabulary for token in ids):
            raise UsageError(
                f"prompt {prompt.id!r} has ids {ids}; {self.name!r} reads one or more from 0 to "
                f"{self.capabilities.vocabulary - 1}"
            )
        length = self._layout.grid.length
        if len(ids) + length > self.capabilities.context:
            raise UsageError(
                f"prompt {prompt.id!r} has {len(ids)} tokens; with {length} of a picture they would pass the context "
                f"of {self.capabilities.context}: shorten the caption"
            )
        return EncodedPrompt(tuple(ids), lambda: self._cache(len(ids), self.capabilities.guidance))

    def _cache(self, prompt: int, scale: float) -> GuidedCache:
        return GuidedCache(
            self._slots(self._net, lasting=scale == 1.0),
            prompt,
            scale=scale,
            unconditional=None if scale == 1.0 else self._slots(self._net),
            negative=self.encode(""),
            grammar=self._grammar,
        )

    def tokenizer(self) -> PictureTokenizer:
        """Return its frozen tokenizer of pictures, or raise UsageError if its codes are shades of grey."""
        if self._vq is None:
            raise UsageError(
                f"{self.name} has shades of grey for codes and no tokenizer, so pictures cannot be its data"
            )
        return self._vq.to(self.device)

    def picture_ids(self) -> Int[Tensor, " K"]:
        return torch.arange(self._layout.codes)

    def tied_embeddings(self) -> TiedEmbeddings:
        return self._net.tied_embeddings() if isinstance(self._net, Tapped) else super().tied_embeddings()

    def encode(self, text: str) -> list[int]:
        return self._layout.prompt(self.name, text)

    def decode(self, tokens: Sequence[int]) -> Picture:
        layout = self._layout
        ids = torch.tensor(cells(self.name, layout.grid, tokens), dtype=torch.long)
        wrong = ids[(ids < 0) | (ids >= layout.codes)].tolist()
        if wrong:
            raise OutputError(
                f"token {wrong[0]} stands for no colour; the codes of {self.name!r} end at {layout.codes}"
            )
        grid = ids.view(layout.rows, layout.columns)
        if self._vq is not None:
            return Picture(self._vq.decode(grid[None])[0].numpy())
        grey = (torch.linspace(0, 1, layout.codes)[grid, None] * 255).round().to(torch.uint8).expand(-1, -1, 3)
        return Picture(np.ascontiguousarray(grey.numpy()))

    def variant(self, params: Mapping[str, str]) -> ImageModel:
        """Return a variant of ``layers`` layers, as in `hf_causal`, or of another ``guidance``."""
        if unknown := sorted(set(params) - {"layers", "guidance"}):
            raise UsageError(
                f"the backbone {self.name!r} has no variant with {', '.join(unknown)}; it has layers=N, guidance=S"
            )
        if not params:
            return self
        net = self._net
        scale = _scale(self.name, params.get("guidance", self.capabilities.guidance))
        if "layers" in params:
            net = net.pick(spread(net.layers, params["layers"], self.name))
        branches, changes = 1 if scale == 1.0 else 2, ",".join(f"{key}={params[key]}" for key in sorted(params))
        identity = replace(
            self._identity,
            name=f"{self.name}/{changes}",
            capabilities=replace(self.capabilities, layers=net.layers, branches=branches, guidance=scale),
            fingerprint=hashlib.sha256(f"{self.fingerprint} {changes}".encode()).hexdigest(),
        )
        return ImageModel(identity, net, self._layout, self._vq)


def _scale(name: str, value: Any) -> float:
    try:
        scale = float(value)
    except (TypeError, ValueError):
        scale = float("nan")
    if not 0 <= scale < float("inf"):
        raise UsageError(f"{name}: guidance is {value!r}; give a number from 0 (1: none, 2 to 5 are usual)")
    return scale


def _model(name: str, params: Mapping[str, Any], dtype: str) -> tuple[Any, str]:
    """Return the decoder as transformers has it, and a digest of its weights and configuration."""
    source = sources.parse(name, params["source"])
    if source.kind == "random":
        model = transformers_models.make_random(name, source.fields, "sdpa")
        return model, files.of_tensors(model)
    folder = sources.locate(name, source)
    config = transformers_models.read_config(name, folder)
    return transformers_models.read_model(name, folder, config, "sdpa", TYPES[dtype]), sources.digest(folder)


def _read_vq(name: str, params: Mapping[str, Any], codes: int) -> tuple[VQ | None, str]:
    """Return the VQ of a preset and the digest of its weights; without one, codes are levels of grey."""
    if "pixels" not in params:
        return None, "grey"
    source = sources.parse(name, params["pixels"])
    if source.kind != "folder":
        raise UsageError(f"{name}: pixels is a source {source.kind}; give shipped: NAME or folder: PATH")
    folder = Path(source.fields["path"]).expanduser()
    vq = VQ.load(folder).requires_grad_(False)
    if len(vq.codebook) != codes:
        raise WeightsError(f"{name}: {codes} codes, and the tokenizer in {folder} has {len(vq.codebook)}")
    return vq, files.of_file(folder / "model.safetensors")
