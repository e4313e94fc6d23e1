"""Feature drafters as their authors publish them.

Sources: SafeAILab/EAGLE, ``model/cnets1.py`` (EAGLE-1 and 2) and ``cnets.py`` (EAGLE-3); sgl-project/SpecForge,
``draft/llama3_eagle.py``; vllm-project/speculators, ``models/eagle3``; jadohu/LANTERN, ``models/drafters`` (Chameleon's
layers with norms of queries and keys, and LlamaGen's with rows and columns that rotate); vllm-project/vllm,
``mimo_mtp.py`` and ``qwen3_next_mtp.py``, and speculators, ``models/mtp`` (layers for multi-token prediction).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn

from stridebench.harness.errors import WeightsError
from stridebench.methods.drafters import checkpoint
from stridebench.methods.drafters.eagle.published_shape import check_keys, shape_of
from stridebench.methods.drafters.eagle.published_tensors import FUSED, MTP, UNREAD, renamed, renamed_mtp
from stridebench.methods.drafters.eagle.shape import Shape

if TYPE_CHECKING:
    N = TypeVar("N", bound=nn.Module)
else:
    N = TypeVar("N")  # a verb that only lists things has no nn.Module


def read(folder: Path, config: Mapping[str, Any], make: Callable[[Shape], N]) -> N:
    """The net of a published folder.

    Raises:
        WeightsError: a key is missing, unknown or misshapen, or the configuration is of another architecture (see
            `published_shape.check_keys`).
    """
    published = checkpoint.tensors(folder, part="mtp")
    settings = {**config, **(config.get("transformer_layer_config") or {})}
    if any(MTP.match(key) for key in published):
        published = renamed_mtp(published)
        settings |= {"num_hidden_layers": 1, "mtp": True, "hidden_first": settings.get("model_type") == "mimo"}
        return _filled(folder, published, settings, False, make)
    check_keys(folder, config)
    published = {key: value for key, value in published.items() if not UNREAD.match(key)}
    eagle3 = any(key.startswith(("midlayer.", "norm.", "d2t")) for key in published)
    if not eagle3:
        published.pop("lm_head.weight", None)  # the target's
    return _filled(folder, published, settings, eagle3, make)


def read_layer(
    folder: Path, config: Mapping[str, Any], state: Mapping[str, Tensor], head_width: int, make: Callable[[Shape], N]
) -> N:
    """A layer of a LLaMA with the norm behind it, which reads features alone.

    Args:
        config: settings beyond what the tensors show.
        state: the tensors, as those of transformers' base model.
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
    folder: Path, published: Mapping[str, Tensor], settings: Mapping[str, Any], eagle3: bool, make: Callable[[Shape], N]
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
