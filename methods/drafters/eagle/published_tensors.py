"""Names of tensors in published feature drafters, and own_names; see `published` for their sources."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from stridebench.methods.drafters.eagle.shape import Shape

FUSED = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
}
LAYER = {
    "out": "self_attn.o_proj",
    "down": "mlp.down_proj",
    "norm_inner": "post_attention_layernorm",
    "norm_feature": "hidden_norm",
    "norm_q": "self_attn.q_norm",
    "norm_k": "self_attn.k_norm",
}
"""Our modules of the layer, and the published ones."""
MTP = re.compile(r"(?:model\.)?(mtp_layers\.0|mtp)\.")
MTP_NAMES = {
    "mtp_layers.0": {
        "input_proj": "fc",
        "token_layernorm": "norm_token",
        "hidden_layernorm": "norm_feature",
        "final_layernorm": "norm",
    },
    "mtp": {"fc": "fc", "pre_fc_norm_embedding": "norm_token", "pre_fc_norm_hidden": "norm_feature", "norm": "norm"},
}
"""Modules beside the layer, by the prefix of the keys."""
OUTSIDE = {
    "norm_token": "norm_token",
    "norm_feature": "norm_feature",
    "fc": "join",
    "norm": "norm",
    "lm_head": "unembed",
}
UNREAD = re.compile(r"t2d$|verifier_(norm|lm_head)\.|.*rotary_emb\.|.*\.inv_freq$|head\.|lm_head_init")
"""What a file may hold beside the drafter: parts of the target, tables, marks of proposed ids."""


def renamed_mtp(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of the first such layer, named as EAGLE-1's."""
    named: dict[str, Tensor] = {}
    for key, value in published.items():
        if match := MTP.match(key):
            rest = key[match.end() :].removeprefix("layers.0.")
            module, _, leaf = rest.rpartition(".")
            outside = MTP_NAMES[match[1]] if rest == key[match.end() :] else {}
            named[f"{outside[module]}.{leaf}" if module in outside else f"layers.0.{rest}"] = value
    return named


def renamed(published: Mapping[str, Tensor], shape: Shape) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors under our names, and the published names behind own_names; an unknown one keeps its name."""
    layer = next((p for p in ("midlayer.", "layers.0.") if any(key.startswith(p) for key in published)), "midlayer.")
    entry = "norm_token" if shape.kind == "eagle3" else "norm_entry"
    own_names = {f"{layer}{there}": here for here, there in {**LAYER, entry: "input_layernorm"}.items()} | OUTSIDE
    own_names |= {"input_norm": "norm_taps.0", **{f"fc_norm.{j}": f"norm_taps.{j}" for j in range(shape.taps)}}
    left, state, names = dict(published), dict[str, Tensor](), dict[str, str]()
    for here, parts in FUSED.items():
        for leaf in ("weight", "bias"):
            keys = [f"{layer}{part}.{leaf}" for part in parts]
            values = {key: left.pop(key) for key in keys if key in left}
            names[f"{here}.{leaf}"] = ", ".join([key for key in keys if key not in values] or keys)
            if len(values) == len(keys):
                odd = [value for value in values.values() if value.shape[1:] != values[keys[0]].shape[1:]]
                state[f"{here}.{leaf}"] = odd[0] if odd else torch.cat(list(values.values()))
    for key, value in left.items():
        module, _, leaf = key.rpartition(".")
        name = f"{own_names[module]}.{leaf}" if module in own_names else {"embed_tokens.weight": "embed"}.get(key, key)
        names[name] = key
        if name in ("norm_q.weight", "norm_k.weight", "norm_q.bias", "norm_k.bias"):
            count = 1 if value.ndim == 1 else shape.heads if "q" in name else shape.kv_heads
            rows = value.view(-1, 1, value.shape[-1])
            value = rows.repeat_interleave(max(1, count // len(rows)), 0)
        state[name] = value
    names |= {f"{here}.{leaf}": f"{there}.{leaf}" for there, here in own_names.items() for leaf in ("weight", "bias")}
    if shape.kind == "eagle3":
        shift = state.pop("d2t", torch.zeros(shape.kept, dtype=torch.long))
        state["ids"] = torch.arange(len(shift)) + shift.long()
    else:
        state["ids"] = torch.zeros(0, dtype=torch.long)
    return state, names | {"ids": "d2t", "embed": "embed_tokens.weight"}
