"""Feature drafters as their authors publish them.

Sources: SafeAILab/EAGLE, ``model/cnets1.py`` (EAGLE-1 and 2) and ``cnets.py`` (EAGLE-3); sgl-project/SpecForge,
``draft/llama3_eagle.py``; vllm-project/speculators, ``models/eagle3`` and ``models/peagle`` (P-EAGLE); jadohu/LANTERN,
``models/drafters`` (Chameleon's layers with norms of queries and keys, and LlamaGen's with rows and columns that
rotate); vllm-project/vllm, ``mimo_mtp.py`` and ``qwen3_next_mtp.py``, and speculators, ``models/mtp`` (layers for
multi-token prediction).
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from stridebench.harness.errors import WeightsError, WeightsWarning, check_usual, warn_unread
from stridebench.methods.drafters import checkpoint

if TYPE_CHECKING:
    N = TypeVar("N", bound=nn.Module)
else:
    N = TypeVar("N")  # a verb that only lists things has no nn.Module


Kind = Literal["eagle1", "eagle3", "mtp", "p_eagle"]
"""What a method reads: a layer for multi-token prediction is a net of kind eagle1 with normed pairs, and P-EAGLE's
drafter one of kind eagle3 with a mask."""


@dataclass(frozen=True)
class FeatureNetShape:
    """Sizes and kind of a net. The fields from ``head_width`` on are those of published nets (see `published`).

    Args:
        kind: eagle1: the pair is joined, and the target's unembedding, or its rows of K ids, reads the output.
            eagle3: J taps are fused, the layer reads normed token and feature, and K ids have another head.
        width, heads, kv_heads, inner: of the layer.
        taps, kept: J and K; with ``kept`` 0 all ids are proposed.
        theta, eps: of rotations and norms.
        branches, backbone, fingerprint: of the target that it was trained for; a published net names none.
        head_width: D; 0: the width over the heads.
        target: E of the target's rows; 0: the width.
        vocabulary: of its embedding; 0 if the target's is used.
        layers: taps as numbers if its configuration names them, else ().
        joined: eagle1 reads the token too; else the feature alone, as the layer before Hydra's heads does.
        joined_bias, qkv_bias, out_bias: eagle1's join, and the layer's products, have a bias.
        pair_norm: eagle1's token and feature are normed before they are joined, as for multi-token prediction (MTP).
        entry_norm: eagle1's layer norms the joined pair, as Chameleon's layers do.
        head_norm: queries and keys are normed head by head: by root mean square (Qwen3) or whole (Chameleon).
        tap_norm: the taps are normed before they are fused, each by itself or all together.
        normed_residual: the layer adds to its normed feature.
        normed_output: the output is normed before it is read on.
        rates, sharpness: of scaled rotations; (): by theta alone.
        side: cells a side of a picture whose rows and columns rotate; 0: positions do.
        unconditional: the branch without the condition reads of the prompt its last token with a feature of zeros
            (last: drafters trained here), or what the target's branch reads, with its hidden rows (rows: LANTERN).
        deeper: layers of a LLaMA behind the first one, which read its output.
        mask: the id of rows that draft without a token and hidden rows of the target; -1: there are none.
    """

    kind: Kind
    width: int
    heads: int
    kv_heads: int
    inner: int
    taps: int = 1
    kept: int = 0
    branches: int = 1
    theta: float = 10000.0
    eps: float = 1e-5
    backbone: str = ""
    fingerprint: str = ""
    head_width: int = 0
    target: int = 0
    vocabulary: int = 0
    layers: tuple[int, ...] = ()
    joined: bool = True
    joined_bias: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    pair_norm: bool = False
    entry_norm: bool = False
    head_norm: Literal["", "rms", "whole"] = ""
    tap_norm: Literal["", "each", "all"] = ""
    normed_residual: bool = False
    normed_output: bool = False
    rates: tuple[float, ...] = ()
    sharpness: float = 1.0
    side: int = 0
    unconditional: Literal["last", "rows"] = "last"
    deeper: int = 0
    mask: int = -1

    @property
    def depth(self) -> int:
        """Return D, the width of a head."""
        return self.head_width or self.width // self.heads

    @property
    def serves(self) -> tuple[Kind, ...]:
        """Return the kinds of drafters that it is."""
        if self.mask >= 0:
            return ("p_eagle",)
        return (self.kind, "mtp") if self.pair_norm else (self.kind,)

    @property
    def behind(self) -> FeatureNetShape:
        """Return the shape of each layer behind the first one."""
        bare = replace(self, kind="eagle1", kept=0, vocabulary=0, deeper=0, mask=-1, joined=False, entry_norm=True)
        return replace(bare, pair_norm=False, tap_norm="", normed_output=False)

    @property
    def target_width(self) -> int:
        """Return E of the target's rows."""
        return self.target or self.width

    def write(self, folder: Path) -> None:
        """Write ``config.json``, from which `FeatureNet.load` builds the net."""
        (folder / "config.json").write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


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
DEEPSEEK = re.compile(r"(model\.layers\.\d+\.)eh_proj\.weight$")
"""A layer behind the last one of DeepSeek's and GLM's models."""
MTP_NAMES = {
    "mtp_layers.0": {
        "input_proj": "fc",
        "token_layernorm": "norm_token",
        "hidden_layernorm": "norm_feature",
        "final_layernorm": "norm",
    },
    "eh_proj": {"eh_proj": "fc", "enorm": "norm_token", "hnorm": "norm_feature", "shared_head.norm": "norm"},
    "mtp": {"fc": "fc", "pre_fc_norm_embedding": "norm_token", "pre_fc_norm_hidden": "norm_feature", "norm": "norm"},
}
"""Modules outside the layer, by the prefix of the keys."""
OUTSIDE = {
    "norm_token": "norm_token",
    "norm_feature": "norm_feature",
    "fc": "join",
    "norm": "norm",
    "lm_head": "unembed",
}
UNREAD = re.compile(r"t2d$|verifier_(norm|lm_head)\.|.*rotary_emb\.|.*\.inv_freq$|head\.|lm_head_init")
"""Other tensors that a file may hold: parts of the target, tables, marks of proposed ids."""


def renamed_mtp(published: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of the first such layer, named as EAGLE-1's; none if there is none.

    The embedding and the head of DeepSeek's layer are copies of the target's.
    """
    layer = next((match[1] for key in published if (match := DEEPSEEK.match(key))), None)
    named: dict[str, Tensor] = {}
    for key, value in published.items():
        if layer and key.startswith(layer):
            rest, outside = key[len(layer) :], MTP_NAMES["eh_proj"]
        elif not layer and (match := MTP.match(key)):
            rest = key[match.end() :].removeprefix("layers.0.")
            outside = MTP_NAMES[match[1]] if rest == key[match.end() :] else {}
        else:
            continue
        module, _, leaf = rest.rpartition(".")
        if module not in ("embed_tokens", "shared_head.head"):
            named[f"{outside[module]}.{leaf}" if module in outside else f"layers.0.{rest}"] = value
    return named


def renamed(
    published: Mapping[str, Tensor], shape: FeatureNetShape, layer: str = ""
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors under our names, and the published names behind ours; an unknown one keeps its name.

    Args:
        layer: what the keys of the first layer begin with; "": as they are found.
    """
    first = (prefix for prefix in ("midlayer.", "layers.0.") if any(key.startswith(prefix) for key in published))
    layer = layer or next(first, "midlayer.")
    entry = "norm_token" if shape.kind == "eagle3" else "norm_entry"
    own_names = {f"{layer}{there}": here for here, there in {**LAYER, entry: "input_layernorm"}.items()} | OUTSIDE
    own_names |= {"input_norm": "norm_taps.0", **{f"fc_norm.{j}": f"norm_taps.{j}" for j in range(shape.taps)}}
    left, state, names = dict(published), dict[str, Tensor](), dict[str, str]()
    for number in range(shape.deeper):
        here, there = f"deeper.{number}.", f"layers.{number + 1}."
        weights, own = renamed({key: left.pop(key) for key in published if key.startswith(there)}, shape.behind, there)
        state |= {here + name: value for name, value in weights.items()}
        names |= {here + name: key for name, key in own.items()}
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
        if name == "mask_hidden" and value.numel() == shape.taps * shape.target_width:
            value = value.view(shape.taps, -1)
        if name in ("norm_q.weight", "norm_k.weight", "norm_q.bias", "norm_k.bias"):
            count = 1 if value.ndim == 1 else shape.heads if "q" in name else shape.kv_heads
            rows = value.view(-1, 1, value.shape[-1])
            value = rows.repeat_interleave(max(1, count // len(rows)), 0)
        state[name] = value
    usual = {f"{here}.{leaf}": f"{there}.{leaf}" for there, here in own_names.items() for leaf in ("weight", "bias")}
    if shape.kind == "eagle3":
        shift = state.pop("d2t", torch.zeros(shape.kept, dtype=torch.long))
        state["ids"] = torch.arange(len(shift)) + shift.long()
    else:
        state["ids"] = torch.zeros(0, dtype=torch.long)
    return state, usual | names | {"ids": "d2t", "embed": "embed_tokens.weight"}


GRIDS = {"c2i": 24, "t2i": 16, "t2i2": 32}
"""Cells a side of LANTERN's LlamaGen models, by ``input_type``."""
MASK_IDS = ("ptd_token_id", "mask_token_id", "pard_token")
"""Keys of the id of P-EAGLE's masks."""
READ = f"""{checkpoint.LAYER_IDS} draft_vocab_size eagle_config head_dim hidden_first hidden_size input_type
intermediate_size joined mask_token_id max_position_embeddings model_type mtp norm_before_residual norm_output
num_attention_heads num_hidden_layers num_key_value_heads pard_token ptd_token_id rms_norm_eps rope_parameters
rope_scaling rope_theta speculators_model_type target_hidden_size transformer_layer_config vocab_size"""
"""Keys of a configuration that are read."""
USUAL: Mapping[str, Any] = {
    "additional_fc": False,
    "hidden_act": "silu",
    "layer_types": ["full_attention"],
    "parallel_draft_step": 1,
    "partial_rotary_factor": 1.0,
    "swin_norm": False,
    "use_aux_hidden_state": True,
    "use_last_layernorm": True,
    "use_mrope": False,
    "use_mtp_layernorm": False,
    "use_sliding_window": False,
}
"""Keys that change the computation, with the one value that is computed."""
WITHOUT_EFFECT = """_name_or_path architectures attention_bias attention_dropout auto_map bos_token_id down_sample_ratio
down_sample_ratio_min dtype embed_requires_grad eos_token_id experts_per_token fc_norm has_no_defaults_at_init
initializer_range is_decoder max_window_layers mlp_bias next_layer_regular norm_before_fc num_depths num_local_experts
num_nextn_predict_layers pad_token_id parallel_draft_heads_num_layers parallel_drafting pretraining_tp
reuse_target_lm_head sliding_window speculators_config speculators_version target_model_type tie_word_embeddings
torch_dtype transformers_version use_cache use_input_layernorm_in_first_layer vocabulary_map vq_config"""
"""Keys that change nothing: ids and types, settings of training, and settings that the tensors show."""


def check_keys(folder: Path, config: Mapping[str, Any], mtp: bool) -> None:
    """Refuse values that change the computation in a way that is not computed, and warn of keys that are not known.

    Raises:
        WeightsError: a key of ``USUAL`` has another value.
    """
    stated = {**config, **(config.get("transformer_layer_config") or {}), **(config.get("eagle_config") or {})}
    ropes = [stated.get(key) or {} for key in ("rope_scaling", "rope_parameters")]
    stated |= {share: rope[share] for rope in ropes if (share := "partial_rotary_factor") in rope}
    stated = {key: value for key, value in stated.items() if value is not None}
    kinds, count = stated.get("layer_types", USUAL["layer_types"]), int(stated.get("num_hidden_layers", 1))
    # a whole model may name the kind of its MTP layer behind those of its layers; else it is that of the last one
    stated |= {"layer_types": kinds[: count + 1][-1:] if mtp else sorted(set(kinds[:count]))}
    check_usual(folder / "config.json", stated, USUAL, "drafters")
    warn_unread(folder / "config.json", stated, f"{READ} {WITHOUT_EFFECT} {' '.join(USUAL)}")


def shape_of(folder: Path, config: Mapping[str, Any], state: Mapping[str, Tensor], eagle3: bool) -> FeatureNetShape:
    """Return the shape that a published configuration and its tensors state.

    Raises:
        WeightsError: the drafter has several layers, or a head without a norm.
    """
    ids = [int(config[key]) for key in MASK_IDS if config.get(key) is not None] if eagle3 else []
    if "mask_hidden" in state and not ids:
        raise WeightsError(f"{folder} has mask_hidden, and its config.json no {' or '.join(MASK_IDS)}")
    deeper = int(config.get("num_hidden_layers", 1)) - 1
    if deeper and not ids:
        raise WeightsError(f"{folder} has {deeper + 1} layers; drafters of one layer are read, or several of P-EAGLE")
    if config.get("norm_output") is False and "speculators_model_type" not in config:
        raise WeightsError(f"{folder} has norm_output: false, whose head reads rows without a norm; none is read")
    width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    norm = next((value for key, value in state.items() if key.endswith("q_norm.weight")), None)
    layers = checkpoint.layers_of(config)
    rates, sharpness = checkpoint.rope_rates(config, width, heads)
    theta = (config.get("rope_parameters") or {}).get("rope_theta", config.get("rope_theta", 10000.0))
    embed = state.get("embed_tokens.weight")
    return FeatureNetShape(
        "eagle3" if eagle3 else "eagle1",
        width,
        heads,
        int(config.get("num_key_value_heads") or heads),
        int(config["intermediate_size"]),
        taps=(len(layers) or 3) if eagle3 else 1,
        kept=int(config.get("draft_vocab_size") or config["vocab_size"]) if eagle3 else 0,
        branches=2,
        theta=float(theta),
        eps=float(config.get("rms_norm_eps", 1e-6)),
        head_width=int(config.get("head_dim") or 0),
        target=int(config.get("target_hidden_size") or 0),
        vocabulary=0 if embed is None else len(embed),
        layers=layers,
        joined=bool(config.get("joined", True)),
        joined_bias="fc.bias" in state,
        qkv_bias=any(key.endswith("q_proj.bias") for key in state),
        out_bias=any(key.endswith("o_proj.bias") for key in state),
        entry_norm=not eagle3 and any(key.endswith("input_layernorm.weight") for key in state),
        head_norm="" if norm is None else "rms" if norm.ndim == 1 else "whole",
        tap_norm="each" if "fc_norm.0.weight" in state else "all" if "input_norm.weight" in state else "",
        normed_residual=bool(config.get("norm_before_residual", False)),
        pair_norm="mtp" in config,
        normed_output="mtp" in config
        or "joined" in config
        or ("speculators_model_type" in config and bool(config.get("norm_output", False))),
        rates=rates,
        sharpness=sharpness,
        side=GRIDS[config["input_type"]] if "input_type" in config else 0,
        unconditional="rows",
        deeper=deeper,
        mask=ids[0] if ids else -1,
    )


def read(folder: Path, config: Mapping[str, Any], make: Callable[[FeatureNetShape], N]) -> N:
    """Return the net of a published folder."""
    published = checkpoint.tensors(folder, part="mtp")
    settings = {**config, **(config.get("transformer_layer_config") or {})}
    check_keys(folder, config, bool(layer := renamed_mtp(published)))
    if layer:
        if sum(key.endswith(("eh_proj.weight", "input_proj.weight")) for key in published) > 1:
            warnings.warn(f"{folder} has several MTP layers; the first one drafts at every depth", WeightsWarning, 2)
        settings |= {"num_hidden_layers": 1, "mtp": True, "hidden_first": settings.get("model_type") == "mimo"}
        return _filled(folder, layer, settings, False, make)
    published = {key: value for key, value in published.items() if not UNREAD.match(key)}
    eagle3 = any(key.startswith(("midlayer.", "norm.", "d2t")) for key in published)
    if not eagle3:
        published.pop("lm_head.weight", None)  # the target's
    return _filled(folder, published, settings, eagle3, make)


def read_layer(
    folder: Path,
    config: Mapping[str, Any],
    state: Mapping[str, Tensor],
    head_width: int,
    make: Callable[[FeatureNetShape], N],
) -> N:
    """Return a layer of a LLaMA with the norm behind it, which reads features alone.

    Args:
        head_width: D, unless the configuration has ``head_dim``.

    Raises:
        WeightsError: a key is missing, unknown or misshapen.
    """
    try:
        shapes = [tuple(state[f"layers.0.{part}.weight"].shape) for part in (*FUSED["qkv"][:2], FUSED["gate_up"][0])]
        width = int(config.get("head_dim") or head_width)
        sizes = {"hidden_size": shapes[0][1], "intermediate_size": shapes[2][0], "head_dim": width}
        heads = {"num_attention_heads": shapes[0][0] // width, "num_key_value_heads": shapes[1][0] // width}
    except (KeyError, IndexError) as error:
        raise WeightsError(f"{folder} lacks tensors of its layer ({error}); fetch it again") from error
    return _filled(folder, state, {**config, **sizes, **heads, "vocab_size": 0, "joined": False}, False, make)


def _filled(
    folder: Path,
    published: Mapping[str, Tensor],
    settings: Mapping[str, Any],
    eagle3: bool,
    make: Callable[[FeatureNetShape], N],
) -> N:
    try:
        shape = shape_of(folder, settings, published, eagle3)
        if shape.kept == int(settings["vocab_size"]):  # as in the release, which drops the table then
            published = {key: value for key, value in published.items() if key != "d2t"}
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{folder}/config.json is of no published feature drafter: {error!r}") from error
    net = make(shape)
    state, names = renamed(published, shape)
    if settings.get("hidden_first") and "join.weight" in state:
        state["join.weight"] = state["join.weight"].roll(shape.width, 1)
    checkpoint.fill(folder, net, state, names)
    return net
