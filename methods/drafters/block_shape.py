"""The sizes of a block drafter and how it computes, from its ``config.json`` in the published layouts.

Sources: z-lab/dflash, ``model.py`` (DFlashDraftModel and DFlash2DraftModel, whose layers are Qwen3's);
deepseek-ai/DeepSpec, ``modeling/dspark/qwen3`` (Qwen3DSparkModel, with and without a Markov head).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stridebench.harness.errors import WeightsError, check_usual
from stridebench.methods.drafters import checkpoint


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
        confidence: inputs of the confidence head: the hidden row alone, or the token before too; "": there is none.
        rates, sharpness: of rotations, an angle a position for each pair.
        windows: of each layer, the distance from which on a row sees nothing; 0 or (): it sees everything.
        causal: of each layer, whether rows see no later ones of their block; (): they see all.
        convolved: rows that a convolution of DFlash2 reads, this one and those before it; 0: there is none.
        grouped: neighbouring numbers that share a kernel of it.
        selector: rank of DFlash2's candidate selector; 0: none.
        candidates: tokens that it chooses among.
        scaling: factor of the embeddings, and of the logits.
        cap: logits are ``cap * tanh(logits / cap)``; 0: as they are.
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
    windows: tuple[int, ...] = ()
    causal: tuple[bool, ...] = ()
    convolved: int = 0
    grouped: int = 1
    selector: int = 0
    candidates: int = 16
    scaling: tuple[float, float] = (1.0, 1.0)
    cap: float = 0.0
    backbone: str = ""
    fingerprint: str = ""
    branches: int = 2

    @property
    def angles(self) -> tuple[float, ...]:
        """Return the rotation a position of each pair."""
        half = self.head_width // 2
        return self.rates or tuple(self.theta ** (-pair / half) for pair in range(half))

    def write(self, folder: Path) -> None:
        """Write ``config.json`` of a trained net in the published layout, with the target's name and fingerprint."""
        name = "Qwen3DSparkModel" if self.ahead else "DFlash2DraftModel" if self.selector else "DFlashDraftModel"
        stated: dict[str, object] = {
            "architectures": [name],
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
        ids: dict[str, object] = {"target_layer_ids": [layer - 1 for layer in self.layers], "mask_token_id": self.mask}
        if self.selector:
            ids |= {"selector_rank": self.selector, "selector_top_k": self.candidates}
            ids |= {"conv_kernel_size": self.convolved, "conv_group_size": self.grouped}
        heads: dict[str, object] = {"markov_rank": self.rank, "markov_head_type": "vanilla"}
        heads |= {"enable_confidence_head": bool(self.confidence)}
        heads |= {"confidence_head_with_markov": self.confidence == "markov"}
        stated |= {**ids, **heads} if self.ahead else {"dflash_config": ids}
        (folder / "config.json").write_text(json.dumps(stated, indent=1) + "\n", encoding="utf-8")


READ = """architectures backbone block_size confidence_head_with_markov conv_group_size conv_kernel_size dflash_config
enable_confidence_head final_logit_softcapping fingerprint head_dim hidden_size input_embedding_scale intermediate_size
is_causal layer_types markov_head_type markov_rank mask_token_id max_position_embeddings max_window_layers
num_attention_heads num_hidden_layers num_key_value_heads output_multiplier rms_norm_eps rope_parameters rope_scaling
rope_theta selector_rank selector_top_k sliding_window target_layer_ids use_sliding_window vocab_size"""
"""Keys of a configuration that are read."""
USUAL: Mapping[str, Any] = {
    "attention_bias": False,
    "causal": False,
    "hidden_act": "silu",
    "markov_head_type": "vanilla",
    "use_swa": False,
}
"""Keys that change the computation, with the one value that is computed."""
WITHOUT_EFFECT = """_attn_implementation attention_dropout auto_map bos_token_id dtype eos_token_id initializer_range
model_type num_anchors num_target_layers pad_token_id tie_word_embeddings torch_dtype transformers_version use_cache"""
"""Keys that change nothing: ids and types, settings of training, and settings that the tensors show."""


def stated_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a configuration; those in ``dflash_config`` go first, as z-lab reads them."""
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
        stated, architecture = stated_in(config), "".join(config.get("architectures") or ())
        ahead = "DSpark" in architecture or ("DFlash" not in architecture and "dflash_config" not in config)
        check_usual(path, stated, USUAL, "block drafters")
        width, heads = _whole(stated, "hidden_size"), _whole(stated, "num_attention_heads")
        grouped, vocabulary = _whole(stated, "conv_group_size", 1), _whole(stated, "vocab_size")
        if width % grouped:
            raise ValueError(f"conv_group_size is {grouped}, which does not divide hidden_size, {width}")
        rates, sharpness = checkpoint.rope_rates(config, width, heads)
        with_markov = bool(config.get("confidence_head_with_markov"))
        depth = _whole(stated, "num_hidden_layers")
        windows, causal = _attention({**config, **(config.get("dflash_config") or {})}, depth)
        return BlockDrafterShape(
            width=width,
            heads=heads,
            kv_heads=_whole(stated, "num_key_value_heads", heads),
            head_width=_whole(stated, "head_dim", width // heads),
            inner=_whole(stated, "intermediate_size"),
            depth=depth,
            layers=tuple(int(layer) + 1 for layer in stated["target_layer_ids"]),
            block=_whole(stated, "block_size", None if ahead else 16, least=2 - ahead),  # 16: as in z-lab's code
            mask=_whole(stated, "mask_token_id", least=0, most=vocabulary - 1),
            vocabulary=vocabulary,
            ahead=ahead,
            rank=_whole(stated, "markov_rank", 0, least=0),
            confidence=("markov" if with_markov else "hidden") if config.get("enable_confidence_head") else "",
            theta=float((config.get("rope_parameters") or config).get("rope_theta", 10000.0)),
            eps=float(config.get("rms_norm_eps", 1e-6)),
            rates=rates,
            sharpness=sharpness,
            windows=windows,
            causal=causal,
            convolved=_whole(stated, "conv_kernel_size", 0, least=0),
            grouped=grouped,
            selector=_whole(stated, "selector_rank", 0, least=0),
            candidates=_whole(stated, "selector_top_k", 16),
            scaling=(float(stated.get("input_embedding_scale", 1.0)), float(stated.get("output_multiplier", 1.0))),
            cap=max(0.0, float(stated.get("final_logit_softcapping", 0.0))),
            backbone=str(config.get("backbone", "")),
            fingerprint=str(config.get("fingerprint", "")),
        )
    except (OSError, KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise WeightsError(
            f"{folder} holds no block drafter ({error!r} in config.json). Make one: `stride train drafter` lists the "
            f"recipes"
        ) from error


def _whole(stated: Mapping[str, Any], key: str, usual: int | None = None, least: int = 1, most: int = 2**31) -> int:
    value = stated.get(key, usual)
    if value is None:
        raise KeyError(key)
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{key} is {value!r}, and not a whole number from {least} to {most}")
    return value


def _attention(config: Mapping[str, Any], depth: int) -> tuple[tuple[int, ...], tuple[bool, ...]]:
    """Return each layer's window and whether its rows are causal, as Qwen3 and z-lab do; () if all see everything.

    A layer type counts without ``use_sliding_window`` too: rows of a sliding layer are causal unless ``is_causal`` says
    otherwise.
    """
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    first = int(config.get("max_window_layers", 28)) if window is not None else depth
    usual = ["full_attention" if number < first else "sliding_attention" for number in range(depth)]
    kinds, causal = config.get("layer_types") or usual, config.get("is_causal")
    if len(kinds) < depth or not {"full_attention", "sliding_attention"}.issuperset(kinds):
        raise ValueError(f"layer_types is {kinds!r}, and not full_attention or sliding_attention for {depth} layers")
    if causal not in (None, True, False) or (window is not None and window < 1):
        raise ValueError(f"is_causal is {causal!r} and sliding_window {window!r}")
    sliding = [kind == "sliding_attention" for kind in kinds[:depth]]
    windows = tuple(int(window or 0) if slides else 0 for slides in sliding)
    seen = tuple(slides if causal is None else causal for slides in sliding)
    return (windows if any(windows) else ()), (seen if any(seen) else ())
