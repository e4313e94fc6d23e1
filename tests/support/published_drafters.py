"""Drafters as their authors publish them, written here on transformers' layers: what an importer is compared with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import ChameleonConfig, LlamaConfig, Qwen3Config
from transformers.models.chameleon import modeling_chameleon as chameleon
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3 import modeling_qwen3 as qwen3

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
CONFIG = {**SIZES, "num_hidden_layers": 1, "vocab_size": 61, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
FAMILIES = {
    "llama": (LlamaConfig, llama.LlamaDecoderLayer, llama.LlamaRotaryEmbedding, llama.LlamaRMSNorm),
    "qwen3": (Qwen3Config, qwen3.Qwen3DecoderLayer, qwen3.Qwen3RotaryEmbedding, qwen3.Qwen3RMSNorm),
    "chameleon": (
        ChameleonConfig, chameleon.ChameleonDecoderLayer, chameleon.ChameleonRotaryEmbedding, chameleon.ChameleonRMSNorm
    ),
}  # fmt: skip

MTP = {
    "mtp_layers.0": ("input_proj", "token_layernorm", "hidden_layernorm", "final_layernorm"),
    "mtp": ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"),
    "model.layers.61": ("eh_proj", "enorm", "hnorm", "shared_head.norm"),
}
"""Names beside the layer: the join, norms of token and feature, and the last norm."""


class Published(nn.Module):
    """A feature drafter of random weights: EAGLE-1 with `kept` 0, else EAGLE-3 with K ids.

    Args:
        family: of its layer.
        name: of the layer among the keys; those of `MTP`: one for multi-token prediction.
        own: it has an embedding of its own.
        changes: of the configuration, those of speculators among them; an id of masks makes it P-EAGLE's, whose layers
            behind the first one are ordinary.
    """

    def __init__(self, family: str, kept: int = 0, name: str = "layers.0", own: bool = False, **changes: Any) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.config: dict[str, Any] = {**CONFIG, **changes}
        kind, layer, rotary, norm = FAMILIES[family]
        plain = {key: value for key, value in self.config.items() if key in kind().to_dict() or key == "rope_theta"}
        if scaling := self.config.get("rope_scaling"):
            plain["rope_parameters"] = {**scaling, "rope_theta": self.config["rope_theta"]}
        settings: Any = kind(**plain)
        settings._attn_implementation = "eager"
        width, eps, self.kept, self.name = settings.hidden_size, settings.rms_norm_eps, kept, name
        target = self.config.get("target_hidden_size", width)
        self.layer, self.rotary = layer(settings, 0), rotary(settings)
        self.fc = nn.Linear(3 * target if kept else 2 * width, width, bias=not kept)
        self.embed = nn.Embedding(self.config["vocab_size"], width)
        self.own = own
        if kept:
            attention = self.layer.self_attn
            for part in ("q_proj", "k_proj", "v_proj"):
                out = getattr(attention, part).out_features
                setattr(attention, part, nn.Linear(2 * width, out, bias=bool(settings.attention_bias)))
            self.hidden_norm, self.norm = norm(width, eps), norm(width, eps)
            self.input_norm = self.layer.input_layernorm
            self.lm_head = nn.Linear(width, kept, bias=False)
            self.d2t = torch.arange(kept) * (kept < self.config["vocab_size"])  # id 2 k in the place k, or all ids
            self.config["draft_vocab_size"] = kept
            self.taps = nn.ModuleList(norm(target, eps) for _ in range(3 if self.config.get("fc_norm") else 0))
            self.before = norm(3 * target, eps) if self.config.get("norm_before_fc") else None
            self.behind = nn.ModuleList(layer(settings, n) for n in range(1, self.config["num_hidden_layers"]))
            if {"ptd_token_id", "mask_token_id"} & set(self.config):
                self.mask_hidden = nn.Parameter(torch.zeros(1, 1, 3 * target))
            self.layer.input_layernorm = nn.Identity()
        elif name in MTP:
            self.token_norm, self.hidden_norm, self.final = (norm(width, eps) for _ in range(3))
            self.fc = nn.Linear(2 * width, width, bias=False)
        elif family != "chameleon":
            self.layer.input_layernorm = nn.Identity()  # EAGLE's first layer has none
        for weight in self.parameters():
            weight.data = torch.randn_like(weight) * 0.3 + (weight.ndim == 1)
        self.eval().requires_grad_(False)

    def state(self) -> dict[str, Tensor]:
        """Tensors under the published names."""
        state = {f"{self.name}.{key}": value for key, value in self.layer.state_dict().items()}
        if self.name in MTP:
            names = MTP[self.name]
            state = {key.replace("mtp.", "mtp.layers.0."): value for key, value in state.items()}
            modules = (self.fc, self.token_norm, self.hidden_norm, self.final)
            state |= {f"{self.name}.{key}.weight": part.weight for key, part in zip(names, modules, strict=True)}
            if (
                "layers" in self.name and "mtp" not in self.name
            ):  # beside the target's own layers, with copies of its ends
                state |= {"model.layers.0.self_attn.q_proj.weight": self.fc.weight, "lm_head.weight": self.embed.weight}
                state |= {
                    f"{self.name}.{key}.weight": self.embed.weight for key in ("embed_tokens", "shared_head.head")
                }
            more = "model." if self.config.get("model_type") == "mimo" else ""
            return {more + key: value.clone() for key, value in state.items()}
        state |= {f"fc.{key}": value for key, value in self.fc.state_dict().items()}
        if self.own:
            state["embed_tokens.weight"] = self.embed.weight
        if self.kept:
            state[f"{self.name}.hidden_norm.weight"] = self.hidden_norm.weight
            state[f"{self.name}.input_layernorm.weight"] = self.input_norm.weight
            state |= {"norm.weight": self.norm.weight, "lm_head.weight": self.lm_head.weight, "d2t": self.d2t}
            marks = torch.zeros(self.config["vocab_size"], dtype=torch.bool)
            state["t2d"] = marks.index_fill(0, self.d2t + torch.arange(self.kept), True)
            state |= {f"fc_norm.{j}.weight": norm.weight for j, norm in enumerate(self.taps)}
            if self.before is not None:
                state["input_norm.weight"] = self.before.weight
            own = {key: value for key, value in self.state_dict().items() if key.startswith(("behind.", "mask_hidden"))}
            state |= {
                key if "." not in key else f"layers.{int(key.split('.')[1]) + 1}.{key.split('.', 2)[2]}": value
                for key, value in own.items()
            }
        return {key: value.clone() for key, value in state.items()}

    def save(self, folder: Path, nested: bool = False, **changes: Tensor | None) -> Path:
        """The folder, with some tensors changed or left out."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {**self.state(), **changes}
        save_file({key: value for key, value in state.items() if value is not None}, folder / "model.safetensors")
        inner = {key: self.config[key] for key in CONFIG}
        rest = {key: value for key, value in self.config.items() if key not in CONFIG}
        body = {**rest, "transformer_layer_config": inner} if nested else self.config
        (folder / "config.json").write_text(json.dumps(body))
        return folder

    def forward(self, vectors: Tensor, rows: Tensor, fused: bool = False) -> Tensor:
        """What comes out of the layer for N entries: token vectors [N, E] and rows [N, J E], or its own (`fused`)."""
        count, feature = len(vectors), rows
        if self.name in MTP:
            pair = [self.token_norm(vectors), self.hidden_norm(rows)]
            feature = self.fc(torch.cat(pair[:: -1 if self.config.get("model_type") == "mimo" else 1], -1))
        elif not self.kept:
            feature = self.fc(torch.cat([vectors, rows], -1))
        elif not fused:
            if self.before is not None:
                rows = self.before(rows)
            for j, norm in enumerate(self.taps):
                size = rows.shape[1] // 3
                rows = torch.cat(
                    [rows[:, : j * size], norm(rows[:, j * size : (j + 1) * size]), rows[:, (j + 1) * size :]], 1
                )
            feature = self.fc(rows)
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        places = torch.arange(count)[None]
        more = {"attention_mask": mask, "position_ids": places}
        if not self.kept:
            out = self.layer(feature[None], position_embeddings=self.rotary(feature[None], places), **more)
            out = (out[0] if isinstance(out, tuple) else out)[0]
            return self.final(out) if self.name in MTP else out
        normed = self.hidden_norm(feature)
        read = torch.cat([self.input_norm(vectors), normed], -1)[None]
        angles = self.rotary(feature[None], places)
        attended = self.layer.self_attn(read, position_embeddings=angles, **more)[0][0]
        x = (normed if self.config.get("norm_before_residual") else feature) + attended
        x = x + self.layer.mlp(self.layer.post_attention_layernorm(x))
        for layer in self.behind:
            out = layer(x[None], position_embeddings=angles, **more)
            x = (out[0] if isinstance(out, tuple) else out)[0]
        return self.norm(x) if self.config.get("norm_output") else x

    def logits(self, out: Tensor) -> Tensor:
        """Of the K ids of EAGLE-3."""
        return self.lm_head(out if self.config.get("norm_output") else self.norm(out))


SECOND: dict[str, Any] = {
    "block_size": 4,
    "conv_group_size": 8,
    "conv_kernel_size": 2,
    "final_logit_softcapping": 20.0,
    "output_multiplier": 0.2,
    "selector_rank": 6,
    "selector_top_k": 5,
}
"""What the configuration of a published DFlash2 adds, with smaller numbers."""


class Convolution(nn.Module):
    """Kernels of DFlash2: two rows, groups of 8 numbers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base_kernel = nn.Parameter(torch.empty(2, 2, width))
        self.kernel_projection = nn.Linear(width, 2 * 2 * width // 8, bias=False)

    def kernels(self, rows: Tensor) -> Tensor:
        """Both kernels [2, B, 2, E] of the rows [1, B, E]."""
        added = self.kernel_projection(rows)[0].view(-1, 2, 2, rows.shape[-1] // 8)
        return torch.stack([self.base_kernel[side] + added[:, side].repeat_interleave(8, -1) for side in range(2)])


def convolved(rows: Tensor, kernel: Tensor) -> Tensor:
    """Each row by its kernel, and the one before it by the second half of that."""
    out = rows[0] * kernel[:, 0]
    out[1:] += rows[0, :-1] * kernel[1:, 1]
    return out[None]


class PublishedBlocks(nn.Module):
    """A block drafter of random weights: DFlash, or DSpark with a Markov head of rank ``rank`` and a confidence head.

    Args:
        second: DFlash2, with convolutions, a candidate selector, and scaled and capped logits.
        changes: of the configuration.
    """

    def __init__(self, rank: int = 0, second: bool = False, **changes: Any) -> None:
        super().__init__()
        torch.manual_seed(3)
        layers: dict[str, Any] = {"target_layer_ids": [0, 2], "mask_token_id": 60}
        if second:
            layers |= SECOND
            changes = {"architectures": ["DFlash2DraftModel"], **changes}
        heads = {"markov_rank": rank, "markov_head_type": "vanilla", "enable_confidence_head": True}
        more = {**layers, **heads, "confidence_head_with_markov": True} if rank else {"dflash_config": layers}
        self.config = {**CONFIG, "head_dim": 8, "num_hidden_layers": 2, "block_size": 4, **more, **changes}
        kind, layer, rotary, norm = FAMILIES["qwen3"]
        settings: Any = kind(**{key: self.config[key] for key in (*CONFIG, "head_dim")})
        width, eps, vocabulary = settings.hidden_size, settings.rms_norm_eps, settings.vocab_size
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.hidden_norm, self.norm, self.rotary = norm(width, eps), norm(width, eps), rotary(settings)
        self.layers = nn.ModuleList(layer(settings, number) for number in range(2))
        if rank:
            self.markov_head = nn.ModuleDict(
                {"markov_w1": nn.Embedding(vocabulary, rank), "markov_w2": nn.Linear(rank, vocabulary, bias=False)}
            )
            self.confidence_head = nn.ModuleDict({"proj": nn.Linear(width + rank, 1)})
        if second:
            for layer in self.layers:
                layer.attention_conv, layer.mlp_conv = Convolution(width), Convolution(width)
            self.candidate_selector = nn.Module()
            for side in ("predecessor", "successor"):
                self.candidate_selector.register_parameter(f"{side}_codebook", nn.Parameter(torch.empty(vocabulary, 6)))
            self.candidate_selector.hidden_projection = nn.Linear(width, 6, bias=False)
        for weight in self.parameters():
            weight.data = torch.randn_like(weight) * 0.3 + (weight.ndim == 1)
        self.eval().requires_grad_(False)

    def save(self, folder: Path, **changes: Tensor | None) -> Path:
        """The folder, with some tensors changed or left out; DSpark's holds copies of the target's embeddings."""
        folder.mkdir(parents=True, exist_ok=True)
        copies = {} if "dflash_config" in self.config else {"embed_tokens.weight": torch.zeros(61, 32)}
        state = {**self.state_dict(), **copies, **changes}
        save_file(
            {key: value.clone() for key, value in state.items() if value is not None}, folder / "model.safetensors"
        )
        (folder / "config.json").write_text(json.dumps(self.config))
        return folder

    def forward(self, features: Tensor, vectors: Tensor) -> Tensor:
        """Rows [B, E] of a block at positions M, M + 1, ... behind M entries of features [M, J E]."""
        context, x = self.hidden_norm(self.fc(features))[None], vectors[None]
        places = torch.arange(context.shape[1] + x.shape[1])[None]
        cos, sin = self.rotary(x, places)
        hidden = self._hidden_entries(context.shape[1], x.shape[1])
        for layer in self.layers:
            part, normed = layer.self_attn, layer.input_layernorm(x)
            own = getattr(layer, "attention_conv", None)
            kernels = None if own is None else own.kernels(normed)
            normed = normed if kernels is None else convolved(normed, kernels[0])
            read = torch.cat([context, normed], 1)
            query = part.q_norm(part.q_proj(normed).view(1, x.shape[1], -1, 8)).transpose(1, 2)
            keys = part.k_norm(part.k_proj(read).view(1, read.shape[1], -1, 8)).transpose(1, 2)
            values = part.v_proj(read).view(1, read.shape[1], -1, 8).transpose(1, 2)
            keys, _ = qwen3.apply_rotary_pos_emb(keys, keys, cos, sin)
            query, _ = qwen3.apply_rotary_pos_emb(query, query, cos[:, -x.shape[1] :], sin[:, -x.shape[1] :])
            share = query.shape[1] // keys.shape[1]
            keys, values = keys.repeat_interleave(share, 1), values.repeat_interleave(share, 1)
            weights = (query @ keys.transpose(2, 3) * 8**-0.5).masked_fill(hidden, -torch.inf).softmax(-1)
            out = part.o_proj((weights @ values).transpose(1, 2).flatten(2))
            x = x + (out if kernels is None else convolved(out, kernels[1]))
            normed, own = layer.post_attention_layernorm(x), getattr(layer, "mlp_conv", None)
            kernels = None if own is None else own.kernels(normed)
            out = layer.mlp(normed if kernels is None else convolved(normed, kernels[0]))
            x = x + (out if kernels is None else convolved(out, kernels[1]))
        return self.norm(x)[0]

    def _hidden_entries(self, entries: int, rows: int) -> Tensor:
        """What each row does not see; all layers are alike in these tests."""
        window = self.config.get("sliding_window") if self.config.get("use_sliding_window") else None
        usual = "sliding_attention" if window and not self.config.get("max_window_layers", 28) else ""
        slides = self.config.get("layer_types", [usual])[0] == "sliding_attention"
        causal = self.config.get("is_causal", slides)
        window = window if window and slides else 10**6
        return torch.tensor(
            [
                [(causal and key > place) or abs(place - key) >= window for key in range(entries + rows)]
                for place in range(entries, entries + rows)
            ]
        )

    def selected(self, logits: Tensor, hidden: Tensor, before: int) -> Tensor:
        """The candidate selector's scores of one row: [V], -inf where a token is not a candidate."""
        own, scores = self.candidate_selector, torch.full_like(logits, -torch.inf)
        expected = own.predecessor_codebook[before] * own.hidden_projection(hidden)
        for token in logits.argsort(descending=True)[: SECOND["selector_top_k"]].tolist():
            scores[token] = logits[token] + expected @ own.successor_codebook[token]
        return scores
