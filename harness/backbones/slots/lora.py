"""Low-rank adapters as peft writes them, tied to the weights that they were trained on.

Source: Hu et al. 2021, LoRA, arXiv:2106.09685. Axes: r rank, I in, O out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.core.backbone import Backbone
from stridebench.harness.errors import WeightsError, warn_unread
from stridebench.harness.kernels import int8
from stridebench.harness.kernels.packed_linear import Product

PREFIX = "base_model.model."
"""Of peft's names."""
SETTINGS = "adapter_config.json"
TENSORS = "adapter_model.safetensors"
PLAIN = {"use_dora": False, "bias": "none", "fan_in_fan_out": False, "rank_pattern": {}, "alpha_pattern": {}} | {
    **dict.fromkeys(("lora_bias", "use_qalora"), False),
    **dict.fromkeys(("layer_replication", "target_parameters", "trainable_token_indices", "alora_invocation_tokens")),
}
"""Settings that an adapter must have or omit."""
KNOWN = """arrow_config auto_mapping base_model_name_or_path corda_config ensure_weight_tying eva_config exclude_modules
inference_mode init_lora_weights layers_pattern layers_to_transform loftq_config lora_alpha lora_dropout megatron_config
megatron_core modules_to_save peft_type peft_version qalora_group_size r revision runtime_config target_modules
task_type use_rslora"""
"""Other settings of peft, which are read or change no product."""


@dataclass(frozen=True, eq=False)
class LowRank:
    """The addition to a linear layer: ``up down x``, where ``up`` includes the scale."""

    down: Float[Tensor, "r I"]
    up: Float[Tensor, "O r"]


Adapter = Mapping[str, LowRank]
"""By the names of the model's linear layers."""


def read(folder: Path, backbone: Backbone, dtype: torch.dtype) -> dict[str, LowRank]:
    """Read an adapter of peft, and its tie to weights in config.json, which folders of other projects lack.

    Raises WeightsError if it is damaged, was made for other weights, or is not plain LoRA.
    """
    stored = _Stored.read(folder, backbone.device)
    if stored.fingerprint not in ("", backbone.fingerprint):
        raise WeightsError(
            f"the adapter was trained for {stored.base} ({stored.fingerprint[:12]}), and the target is {backbone.name} "
            f"({backbone.fingerprint[:12]}): train one for it with `stride train adapter`"
        )
    return stored.layers(dtype)


def is_tuned(folder: Path) -> bool:
    """Return whether a backbone's folder holds an adapter of another folder's weights."""
    return (folder / SETTINGS).is_file()


def base(folder: Path, shipped: Path) -> Path:
    """Return the folder of the weights of an adapter: a path, or a name in ``shipped``; or raise WeightsError."""
    stored = _Stored.read(folder)
    weights = shipped / stored.base  # an absolute path stays as it is
    if not (weights / "config.json").is_file():
        raise WeightsError(
            f"{folder} is added to the weights in {weights}, which are not there; put them there or train it again"
        )
    return weights


def merged(folder: Path, fingerprint: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights W, named ``LAYER.weight``, with an adapter's products added, rounded to bf16 as a whole export is.

    Raises WeightsError if the adapter is damaged, is not plain LoRA, or was made for other weights.
    """
    stored = _Stored.read(folder)
    if stored.fingerprint != fingerprint:
        raise WeightsError(
            f"{folder} was trained for other weights of {stored.base} ({stored.fingerprint[:12]}) than those here "
            f"({fingerprint[:12]}); train it again"
        )
    layers = stored.layers(torch.float32)
    if lost := [layer for layer in layers if f"{layer}.weight" not in weights]:
        raise WeightsError(f"{folder} has matrices for {lost[0]}, which {stored.base} has not; train it again")
    sums = dict(weights)
    for layer, pair in layers.items():
        weight, added = weights[f"{layer}.weight"], pair.up @ pair.down
        if weight.shape != added.shape:
            raise WeightsError(
                f"{folder}: the matrices of {layer} are for a weight of shape {tuple(added.shape)}, and it has "
                f"{tuple(weight.shape)}; train it again"
            )
        sums[f"{layer}.weight"] = (weight + added).bfloat16()
    return sums


def add(folder: Path, model: Any) -> str:
    """Add the adapter in a model's folder to its weights, as transformers does with peft; return a note of that."""
    try:
        pairs = _Stored.read(folder).layers(torch.float32)
        weights = {layer: model.get_submodule(layer).weight for layer in pairs}
        added = {layer: pair.up @ pair.down for layer, pair in pairs.items()}
        if wrong := [layer for layer, weight in weights.items() if weight.shape != added[layer].shape]:
            raise WeightsError(f"{folder}: {wrong[0]} has another shape in the model")
    except (WeightsError, AttributeError) as error:
        return f"the adapter in their folder ({SETTINGS}) is not applied to the weights: {error}"
    for layer, weight in weights.items():
        total = (weight.float() + added[layer].to(weight.device)).to(weight.dtype)
        model.get_submodule(layer).weight = nn.Parameter(total, requires_grad=False)  # an embedding tied to it stays
    return f"the adapter in their folder ({SETTINGS}) is added to the weights"


def write(folder: Path, layers: Mapping[str, LowRank], alpha: int, task: str | None, tie: Mapping[str, str]) -> None:
    """Write a folder that peft and `read` read; matrices in bf16, ``up`` not scaled.

    The scale is ``alpha`` / r; ``tie`` has the name of the backbone and the fingerprint of its weights.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"{PREFIX}{layer}.lora_{side}.weight": matrix.detach().bfloat16()
        for layer, pair in layers.items()
        for side, matrix in (("A", pair.down), ("B", pair.up))
    }
    int8.write_unpacked(folder / TENSORS, tensors)
    settings = {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": tie["backbone"],
        "r": len(next(iter(layers.values())).down),
        "lora_alpha": alpha,
        "bias": "none",
        "target_modules": sorted(layers),
    }
    for name, body in ((SETTINGS, settings), ("config.json", dict(tie))):
        (folder / name).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True, eq=False)
class _Stored:
    """The contents of a folder: the weights it belongs to, the scale of the products, and A and B of each layer."""

    base: str
    fingerprint: str
    scale: float
    pairs: Mapping[str, Mapping[str, Tensor]]

    @classmethod
    def read(cls, folder: Path, device: str = "cpu") -> _Stored:
        try:
            how = json.loads((folder / SETTINGS).read_text("utf-8"))
            tie = {"backbone": how.get("base_model_name_or_path") or "", "fingerprint": ""}
            if (folder / "config.json").is_file():
                written = json.loads((folder / "config.json").read_text("utf-8"))
                tie = tie if "architectures" in written else written  # of a model, which lies in the same folder
            tensors = int8.read(folder / TENSORS, device)
            name, fingerprint, rank, alpha = tie["backbone"], tie["fingerprint"], how["r"], how["lora_alpha"]
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise WeightsError(
                f"{folder}: no adapter can be read there ({error}); train it anew or copy it again"
            ) from error
        wrong = [key for key, value in PLAIN.items() if how.get(key) not in (value, None)]
        wrong += ["peft_type"] if how.get("peft_type") != "LORA" else []
        wrong += ["modules_to_save"] if how.get("modules_to_save") else []
        if wrong:
            raise WeightsError(
                f"{folder}: {wrong[0]} is {how.get(wrong[0])!r}; rows read plain LoRA alone: one rank, one alpha, no "
                f"biases, nothing saved whole"
            )
        stated = [key for key, value in how.items() if value]  # peft writes every kind that it knows, most as null
        warn_unread(folder / SETTINGS, stated, f"{KNOWN} {' '.join(PLAIN)}")
        pairs: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            layer, _, kind = key.removeprefix(PREFIX).rpartition(".lora_")
            pairs.setdefault(layer, {})[kind] = tensor
        if not all(set(pair) == {"A.weight", "B.weight"} for pair in pairs.values()):
            raise WeightsError(
                f"{folder}: its tensors are not pairs of lora_A and lora_B; export it with peft's save_pretrained"
            )
        for layer, pair in pairs.items():
            down, up = (tuple(pair[f"{side}.weight"].shape) for side in "AB")
            if len(down) != 2 or len(up) != 2 or down[0] != up[1]:
                raise WeightsError(
                    f"{folder}: {layer} has lora_A of shape {down} and lora_B of shape {up}, which share no "
                    f"rank; train it anew or copy it again"
                )
        return cls(name, fingerprint, alpha / (rank**0.5 if how.get("use_rslora") else rank), pairs)

    def layers(self, dtype: torch.dtype) -> dict[str, LowRank]:
        return {
            layer: LowRank(pair["A.weight"].to(dtype), pair["B.weight"].to(dtype) * self.scale)
            for layer, pair in self.pairs.items()
        }


def gated(product: Product, low: LowRank, gate: Float[Tensor, "N 1"]) -> Product:
    """Return the product, with the adapter's added in rows whose gate is 1.

    A row whose gate is 0 gets its low-rank product times 0, so it keeps the value of the base in the same pass.
    """

    def gated_product(x: Tensor) -> Tensor:
        return product(x).addmm_(functional.linear(x, low.down) * gate, low.up.T)

    return gated_product


def joined(parts: Sequence[LowRank]) -> LowRank:
    """Return the adapter of linears that read the same rows and whose outputs are joined in this order."""
    up: Tensor = torch.block_diag(*(part.up for part in parts))  # type: ignore[no-untyped-call]  # torch types it not
    return LowRank(torch.cat([part.down for part in parts]), up)


def nothing(out: int, into: int, like: Tensor) -> LowRank:
    """Return the adapter of a linear that it leaves unchanged."""
    return LowRank(like.new_empty(0, into), like.new_empty(out, 0))


def check(adapter: Adapter, shapes: Mapping[str, tuple[int, int]]) -> None:
    """Raise WeightsError if an adapter changes a layer that is not in ``shapes`` (O and I), or one of another shape."""
    for name, low in adapter.items():
        shape = (low.up.shape[0], low.down.shape[1])
        if name not in shapes or shapes[name] != shape:
            actual = (
                f"that has {shapes[name][0]} x {shapes[name][1]}"
                if name in shapes
                else "which is not a linear layer here"
            )
            raise WeightsError(
                f"the adapter changes {name} by {shape[0]} x {shape[1]} numbers, {actual}: it was made for another "
                f"model, or changes the output layer, which all rows share"
            )


def linears(model: Any) -> dict[str, nn.Linear]:
    """Return the linear layers of a model of transformers by name, except its output layer."""
    head = model.get_output_embeddings()
    return {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head
    }


def shapes_of(layers: Mapping[str, nn.Linear]) -> dict[str, tuple[int, int]]:
    """Return O and I of each."""
    return {name: (layer.out_features, layer.in_features) for name, layer in layers.items()}


@contextmanager
def hooked(pairs: Sequence[tuple[nn.Linear, LowRank]], gate: Float[Tensor, "N 1"]) -> Iterator[None]:
    """Use the adapter in rows whose gate is 1 while inside, in the layers' model."""
    with ExitStack() as stack:
        for layer, low in pairs:
            stack.enter_context(layer.register_forward_hook(partial(_add, low=low, gate=gate)))
        yield


def _add(module: nn.Module, args: tuple[Tensor], out: Tensor, low: LowRank, gate: Tensor) -> Tensor:
    return out + functional.linear(functional.linear(args[0], low.down) * gate, low.up)
