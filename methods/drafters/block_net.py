"""The net of a block drafter: its sizes, its layers, its cache, and its files, which have the published layout.

J layers of the target are fused into one vector a token, which every layer of the drafter reads as a key and a value.
The queries are the rows of the block: the last emitted token, the anchor, and masks behind it. They see the context
and each other in both directions. Keys and values of the block are thrown away; those of the context stay.
Symbols: B rows of a block, M entries of the context, P new ones, J tapped layers, E width, H heads, D their width, V
vocabulary, r rank of the Markov head, n rows of any kind.
Sources: z-lab/dflash, ``model.py`` (DFlashDraftModel); deepseek-ai/DeepSpec, ``modeling/dspark/qwen3``
(Qwen3DSparkModel, with and without a Markov head).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.cache import Cache, Rows, Window
from stridebench.harness.core.capabilities import Capabilities
from stridebench.harness.errors import ContractError, WeightsError, check_usual, warn_unread
from stridebench.harness.kernels.packed_linear import Product, product
from stridebench.methods.drafters import checkpoint
from stridebench.methods.drafters.eagle.net import FIRST, Packed, RootMeanSquareNorm, rotate


@dataclass(frozen=True)
class BlockDrafterShape:
    """Sizes of a block drafter, and how its rows are read.

    Args:
        width: E, of the target's rows too.
        depth: its decoder layers.
        layers: the J layers of the target that it reads, as taps.
        block: B, the most rows.
        mask: the id whose embedding stands for masks.
        ahead: row i predicts the position behind it, so the anchor's row drafts too (DSpark); else its own (DFlash).
        rank: r of the Markov head; 0: none.
        confidence: what the confidence head reads: the hidden row alone, or the token before too; "": there is none.
        rates, sharpness: of rotations, an angle a position for each pair.
        backbone, fingerprint: of the target that it was trained for; a published net names none.
        branches: of any target: of two, the branch with the condition is read.
    """

    width: int
    heads: int
    kv_heads: int
    head_width: int
    inner: int
    depth: int
    layers: tuple[int, ...]
    block: int
    mask: int
    vocabulary: int
    ahead: bool = False
    rank: int = 0
    confidence: Literal["", "hidden", "markov"] = ""
    theta: float = 10000.0
    eps: float = 1e-6
    rates: tuple[float, ...] = ()
    sharpness: float = 1.0
    backbone: str = ""
    fingerprint: str = ""
    branches: int = 2

    @property
    def angles(self) -> tuple[float, ...]:
        """Return the rotation a position of each pair."""
        half = self.head_width // 2
        return self.rates or tuple(self.theta ** (-pair / half) for pair in range(half))

    def write(self, folder: Path) -> None:
        """Write ``config.json`` in the published layout, with the target's name and fingerprint."""
        stated: dict[str, object] = {
            "architectures": ["Qwen3DSparkModel" if self.ahead else "DFlashDraftModel"],
            "model_type": "qwen3",
            "hidden_size": self.width,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_width,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.depth,
            "vocab_size": self.vocabulary,
            "rms_norm_eps": self.eps,
            "rope_theta": self.theta,
            "block_size": self.block,
            "backbone": self.backbone,
            "fingerprint": self.fingerprint,
        }
        ids = {"target_layer_ids": [layer - 1 for layer in self.layers], "mask_token_id": self.mask}
        heads: dict[str, object] = {"markov_rank": self.rank, "markov_head_type": "vanilla"}
        heads |= {"enable_confidence_head": bool(self.confidence)}
        heads |= {"confidence_head_with_markov": self.confidence == "markov"}
        stated |= {**ids, **heads} if self.ahead else {"dflash_config": ids}
        (folder / "config.json").write_text(json.dumps(stated, indent=1) + "\n", encoding="utf-8")


READ = """architectures backbone block_size confidence_head_with_markov dflash_config enable_confidence_head fingerprint
head_dim hidden_size intermediate_size markov_head_type markov_rank mask_token_id max_position_embeddings
num_attention_heads num_hidden_layers num_key_value_heads rms_norm_eps rope_parameters rope_scaling rope_theta
target_layer_ids vocab_size"""
"""Keys of a configuration that are read."""
USUAL: Mapping[str, Any] = {
    "attention_bias": False,
    "final_logit_softcapping": 0.0,
    "hidden_act": "silu",
    "input_embedding_scale": 1.0,
    "is_causal": False,
    "markov_head_type": "vanilla",
    "output_multiplier": 1.0,
    "use_sliding_window": False,
}
"""Keys that change the computation, with the one value that is computed."""
WITHOUT_EFFECT = """_attn_implementation attention_dropout auto_map bos_token_id dtype eos_token_id initializer_range
layer_types max_window_layers model_type num_anchors num_target_layers pad_token_id sliding_window tie_word_embeddings
torch_dtype transformers_version use_cache"""
"""Keys that change nothing: ids and types, settings of training, and settings that the tensors show."""
OF_TARGET = ("embed_tokens.weight", "lm_head.weight")
"""Tensors of a DSpark file that are copies of the target's, which are read from the target."""


def _stated(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration states; fields in ``dflash_config`` go first, as z-lab reads them."""
    stated = {**config, **(config.get("dflash_config") or {})}
    return {key: value for key, value in stated.items() if value is not None}


def read_shape(folder: Path) -> BlockDrafterShape:
    """Return the shape that a folder's configuration states.

    Raises:
        WeightsError: it cannot be read, or states a computation that is not done here.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        stated, architecture = _stated(config), "".join(config.get("architectures") or ())
        ahead = "DSpark" in architecture or ("DFlash" not in architecture and "dflash_config" not in config)
        check_usual(path, stated, USUAL, "block drafters")
        if "sliding_attention" in (config.get("layer_types") or ()):
            raise WeightsError(f"{path} has layers with a sliding window, and only full attention is computed here")
        width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        rates, sharpness = checkpoint.rope_rates(config, width, heads)
        with_markov = bool(config.get("confidence_head_with_markov"))
        return BlockDrafterShape(
            width,
            heads,
            int(config.get("num_key_value_heads") or heads),
            int(config.get("head_dim") or width // heads),
            int(config["intermediate_size"]),
            int(config["num_hidden_layers"]),
            tuple(int(layer) + 1 for layer in stated["target_layer_ids"]),
            int(stated["block_size"] if ahead else stated.get("block_size", 16)),  # as in z-lab's code
            int(stated["mask_token_id"]),
            int(config["vocab_size"]),
            ahead,
            int(config.get("markov_rank") or 0),
            ("markov" if with_markov else "hidden") if config.get("enable_confidence_head") else "",
            float((config.get("rope_parameters") or config).get("rope_theta", 10000.0)),
            float(config.get("rms_norm_eps", 1e-6)),
            rates,
            sharpness,
            str(config.get("backbone", "")),
            str(config.get("fingerprint", "")),
        )
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise WeightsError(
            f"{folder} holds no block drafter ({error!r} in config.json). Make one: `stride train drafter` lists the "
            f"recipes"
        ) from error


@lru_cache(maxsize=16)
def _on(angles: tuple[float, ...], device: torch.device) -> Float[Tensor, " R"]:
    with torch.inference_mode(False):
        return torch.tensor(angles, device=device)


class BlockLayer(nn.Module):
    """A decoder layer whose queries are rows of blocks; its products have the published names."""

    def __init__(self, shape: BlockDrafterShape) -> None:
        super().__init__()
        width, depth, inner = shape.width, shape.head_width, shape.inner
        sizes = {"q_proj": shape.heads * depth, "k_proj": shape.kv_heads * depth, "v_proj": shape.kv_heads * depth}
        self.self_attn = nn.ModuleDict({name: nn.Linear(width, size, bias=False) for name, size in sizes.items()})
        self.self_attn["o_proj"] = nn.Linear(shape.heads * depth, width, bias=False)
        self.self_attn.update({f"{part}_norm": RootMeanSquareNorm(depth, shape.eps) for part in "qk"})
        self.mlp = nn.ModuleDict({name: nn.Linear(width, inner, bias=False) for name in ("gate_proj", "up_proj")})
        self.mlp["down_proj"] = nn.Linear(inner, width, bias=False)
        self.input_layernorm = RootMeanSquareNorm(width, shape.eps)
        self.post_attention_layernorm = RootMeanSquareNorm(width, shape.eps)
        self._depth, self._angles, self._sharpness = depth, shape.angles, shape.sharpness

    def keys_values(
        self, x: Float[Tensor, "G N E"], positions: Int[Tensor, " N"]
    ) -> tuple[Float[Tensor, "G H N D"], Float[Tensor, "G H N D"]]:
        """Return keys and values of entries, of the context or of normed rows of a block."""
        return self._heads("k", x, positions), self._split(self.self_attn["v_proj"](x))

    def forward(
        self,
        x: Float[Tensor, "G N E"],
        positions: Int[Tensor, " N"],
        keys: Float[Tensor, "G H M D"],
        values: Float[Tensor, "G H M D"],
        visible: Bool[Tensor, "N S"] | None = None,
    ) -> Float[Tensor, "G N E"]:
        """Return the rows of blocks behind this layer.

        Args:
            keys, values: of the context.
            visible: row n marks what it attends to, among the S = M + N entries of context and rows; None: all.
        """
        normed = self.input_layernorm(x)
        query, (own_keys, own_values) = self._heads("q", normed, positions), self.keys_values(normed, positions)
        keys, values = torch.cat([keys, own_keys], 2), torch.cat([values, own_values], 2)
        out = functional.scaled_dot_product_attention(query, keys, values, attn_mask=visible, enable_gqa=True)
        x = x + self.self_attn["o_proj"](out.transpose(1, 2).flatten(2))
        normed = self.post_attention_layernorm(x)
        gated = functional.silu(self.mlp["gate_proj"](normed)) * self.mlp["up_proj"](normed)
        return x + self.mlp["down_proj"](gated)  # type: ignore[no-any-return]  # a module's output

    def _heads(self, part: str, x: Tensor, positions: Tensor) -> Float[Tensor, "G H N D"]:
        normed = self.self_attn[f"{part}_norm"](self._split(self.self_attn[f"{part}_proj"](x)))
        return rotate(normed, positions, _on(self._angles, x.device), self._sharpness)

    def _split(self, x: Tensor) -> Float[Tensor, "G H N D"]:
        return x.view(*x.shape[:2], -1, self._depth).transpose(1, 2)


class BlockDrafterNet(nn.Module):
    """The weights, under their published names."""

    def __init__(self, shape: BlockDrafterShape) -> None:
        super().__init__()
        self.shape, width = shape, shape.width
        self._packed_unembedding: Product | None = None
        self.fc = nn.Linear(len(shape.layers) * width, width, bias=False)
        self.hidden_norm, self.norm = RootMeanSquareNorm(width, shape.eps), RootMeanSquareNorm(width, shape.eps)
        self.layers = nn.ModuleList(BlockLayer(shape) for _ in range(shape.depth))
        if shape.rank:
            self.markov_head = nn.ModuleDict({"markov_w1": nn.Embedding(shape.vocabulary, shape.rank)})
            self.markov_head["markov_w2"] = nn.Linear(shape.rank, shape.vocabulary, bias=False)
        if shape.confidence:
            read_by_it = width + (shape.rank if shape.confidence == "markov" else 0)
            self.confidence_head = nn.ModuleDict({"proj": nn.Linear(read_by_it, 1)})

    @classmethod
    def load(cls, folder: Path) -> BlockDrafterNet:
        """Return the net in a folder, in fp32.

        Raises:
            WeightsError: a file is missing or damaged, or a key is missing, unknown or misshapen.
        """
        net = cls(read_shape(folder))
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        warn_unread(folder / "config.json", _stated(config), f"{READ} {WITHOUT_EFFECT} {' '.join(USUAL)}")
        state = {key: value for key, value in checkpoint.tensors(folder).items() if key not in OF_TARGET}
        checkpoint.fill(folder, net, state, {})
        return net.eval().requires_grad_(False)

    def packed(self) -> BlockDrafterNet:
        """Return this net for inference, its products packed for a few rows. It keeps no weights to train or save."""
        parts = [self, *(part for layer in self.decoder for part in (layer.self_attn, layer.mlp))]
        for part in parts:
            for name, child in list(part.named_children()):
                if isinstance(child, nn.Linear):
                    part.add_module(name, Packed(child.weight.data))
        return self

    def context(self, features: Float[Tensor, "G M JF"]) -> Float[Tensor, "G M E"]:
        """Return the fused vectors of entries whose J rows lie one behind the other."""
        return self.hidden_norm(self.fc(features))  # type: ignore[no-any-return]

    @property
    def decoder(self) -> list[BlockLayer]:
        """Return its layers."""
        return [cast(BlockLayer, layer) for layer in self.layers]

    def head(self, tied: TiedEmbeddings) -> Product:
        """Return the target's unembedding, packed once for all prompts."""
        if self._packed_unembedding is None:
            self._packed_unembedding = product(tied.unembed)
        return self._packed_unembedding

    @property
    def markov(self) -> MarkovHead | None:
        """Return the head that corrects rows by the token before them, or None if it has none."""
        if not self.shape.rank:
            return None
        before = cast(nn.Embedding, self.markov_head["markov_w1"]).weight
        after = cast(nn.Linear, self.markov_head["markov_w2"]).weight
        if not self.shape.confidence:
            return MarkovHead(before, after)
        proj = cast(nn.Linear, self.confidence_head["proj"])
        return MarkovHead(before, after, proj.weight[0], proj.bias)


@dataclass(frozen=True)
class MarkovHead:
    """Corrects the logits of a row by the token before it, and says how likely its draft is to be accepted.

    Args:
        before, after: W1 and W2; the logits of a row behind token x are those of the row + W2 W1[x].
        weight, bias: of the confidence, a logistic function of the row's hidden vector (and of W1[x]); None: none.

    Source: DSpark, arXiv:2607.05147; the released ``VanillaMarkov`` and ``AcceptRatePredictor``.
    """

    before: Float[Tensor, "V r"]
    after: Float[Tensor, "V r"]
    weight: Float[Tensor, " C"] | None = None
    bias: Float[Tensor, " one"] | None = None

    def corrected(self, logits: Float[Tensor, "*n V"], x: Int[Tensor, "*n"]) -> Float[Tensor, "*n V"]:
        """Return the logits of rows behind the tokens ``x``."""
        return logits + functional.linear(self.before[x], self.after).to(logits.dtype)

    def confidence(self, hidden: Float[Tensor, "*n E"], x: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Return the logit of the acceptance of the draft of each row, which does not depend on that draft."""
        assert self.weight is not None and self.bias is not None, "opened with a confidence head"
        read_by_it = torch.cat([hidden, self.before[x].to(hidden.dtype)], -1)[..., : len(self.weight)]
        return functional.linear(read_by_it, self.weight.to(hidden.dtype)[None])[..., 0] + self.bias.to(hidden.dtype)


@final
class BlockCache(Cache):
    """The context of one sequence; entry i is row i of the target, at position i.

    A window is the new tokens with a row of the target for each, and the masks of a block. The last new token is the
    anchor, at the position behind its entry.

    Args:
        net: in the type of the embedding.
    """

    def __init__(self, net: BlockDrafterNet, tied: TiedEmbeddings, capabilities: Capabilities) -> None:
        self._net, self._tied, self._capabilities = net, tied, capabilities
        self._head, shape = net.head(tied), net.shape
        self._entries = tied.embed.new_empty(shape.depth, 2, 1, shape.kv_heads, 0, shape.head_width)
        self._length = 0

    @torch.inference_mode()
    def extend(self, window: Window) -> Rows:
        """Extend as the contract says; the window has features [N, G, J, E], of which masks have none that are read.

        Raises:
            ContractError: without features, or past the context.
        """
        masks = max(0, window.rows - 1)
        new = len(window.tokens) - masks
        if window.features is None or self._length + len(window.tokens) > self._capabilities.context:
            raise ContractError(
                f"a block drafter reads rows of the target with the tokens, and {self._capabilities.context} entries "
                f"at most; found {len(window.tokens)} tokens behind {self._length} entries"
            )
        features = window.features[None, :new, 0].flatten(2).to(self._entries.dtype)
        self._store(self._net.context(features), window.positions[:new])
        hidden = features.new_zeros(len(window.tokens), 1, 1, self._net.shape.width)
        if not window.rows:
            return Rows(features.new_empty(0, self._capabilities.vocabulary), hidden)
        x = functional.embedding(window.tokens[new - 1 :], self._tied.embed)[None]
        positions = window.positions[new - 1] + 1 + torch.arange(window.rows, device=x.device)
        for number, layer in enumerate(self._net.decoder):
            x = layer(x, positions, *self._entries[number, :, :, :, : self._length])
        hidden[new - 1 :, 0, 0] = out = self._net.norm(x)[0]
        return Rows(self._head(out if self._tied.lift is None else self._tied.lift(out)), hidden)

    def _store(self, context: Float[Tensor, "one P E"], positions: Int[Tensor, " P"]) -> None:
        end = self._length + context.shape[1]
        if end > self._entries.shape[4]:
            sizes = (*self._entries.shape[:4], max(FIRST, 2 * self._entries.shape[4], end), self._entries.shape[5])
            buffer = self._entries.new_zeros(sizes)
            buffer[:, :, :, :, : self._length] = self._entries[:, :, :, :, : self._length]
            self._entries = buffer
        for number, layer in enumerate(self._net.decoder):
            keys, values = layer.keys_values(context, positions)
            self._entries[number, 0, :, :, self._length : end] = keys
            self._entries[number, 1, :, :, self._length : end] = values
        self._length = end

    def keep(self, length: int, entries: Sequence[int] = ()) -> None:
        """Keep the first entries; no row of a block has one.

        Raises:
            ContractError: rows of a block were accepted as entries.
        """
        if entries:
            raise ContractError("a block drafter keeps entries of the target's rows alone; forward a block anew")
        self._length = min(self._length, length)
