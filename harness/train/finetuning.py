"""How a backbone learns further: by low-rank matrices, or by all of its weights.

Source: Hu et al. 2021, LoRA, arXiv:2106.09685. The product of the matrices is scaled by alpha / rank, as in the paper's
own library.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from stridebench.harness.backbones.checkpoints import sources
from stridebench.harness.backbones.mesh.bpt import BPT
from stridebench.harness.backbones.mesh.fused_mesh import MeshBackbone, read
from stridebench.harness.backbones.mesh.network import MeshModel
from stridebench.harness.backbones.mesh.published import PointMesh
from stridebench.harness.backbones.slots import lora
from stridebench.harness.backbones.slots.lora import LowRank
from stridebench.harness.backbones.slots.transformers_net import TransformersNet
from stridebench.harness.backbones.text.hf_causal import HFCausal
from stridebench.harness.backbones.text.masked import HEAD, LLADA_SIZES, PLAIN, llada_name
from stridebench.harness.core.backbone import Backbone
from stridebench.harness.errors import PackageMissing, UsageError
from stridebench.harness.kernels import int8
from stridebench.harness.machine.extras import install_command
from stridebench.harness.machine.surroundings import quiet
from stridebench.harness.plan import presets
from stridebench.harness.train.recipe import save_bf16


@dataclass(frozen=True)
class Tuning:
    """Rank and scale of the matrices. Rank 0: no matrices; all weights learn."""

    rank: int = 16
    alpha: int = 32


def with_low_rank(model: Any, tuning: Tuning, target_modules: str) -> Any:
    """A model whose weights are frozen and whose target modules have low-rank matrices."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise PackageMissing(f"low-rank training needs peft: {install_command('train')}") from error
    config = LoraConfig(r=tuning.rank, lora_alpha=tuning.alpha, target_modules=target_modules)
    return get_peft_model(model, config)


def low_rank_of(model: nn.Module) -> dict[str, LowRank]:
    """The matrices of a model of `with_low_rank`, by the names of its linear layers; not scaled."""
    return {
        name: LowRank(layer.lora_A["default"].weight, layer.lora_B["default"].weight)
        for name, layer in model.named_modules()
        if hasattr(layer, "lora_A")
    }


def merged(model: Any, tuning: Tuning) -> Any:
    """A copy of a model, with the products of its matrices added to its weights."""
    twin = copy.deepcopy(model)
    return twin.merge_and_unload() if tuning.rank else twin


# A mesh model whose decoder learns further, together with the heads that read its hidden rows.
# Source: Chen et al., XSpecMesh, section 4.3. The paper writes W + AB for the tuned weights; see
# `stridebench.harness.train.finetuning` for the scale of the product.


LINEARS = r"layers\.\d+\.(qkv|out|cross_q|cross_kv|cross_out|mlp\.gate_up|mlp\.down)"
"""The linear layers of the decoder. Names of the encoder's layers start differently."""


class FinetunedMesh(nn.Module):
    """The model of a recipe's folder. Its encoder stays frozen, so that heads attend to the same latents.

    So do the rows of coordinates that an encoder shares with the decoder.

    Raises:
        WeightsError: the folder holds no mesh model.
        UsageError: peft is needed and not installed.
    """

    def __init__(self, folder: Path, tuning: Tuning) -> None:
        super().__init__()
        self.folder = folder
        base = read(folder.name, folder)
        self.sizes = base.sizes
        self.tuning = tuning
        self.model: nn.Module = with_low_rank(base, tuning, LINEARS) if tuning.rank else base
        base.encoder.requires_grad_(False)
        if base.sizes.shared_coordinates:
            base.codes.blocks.requires_grad_(False)
            base.codes.steps.requires_grad_(False)

    @property
    def _mesh(self) -> MeshModel:
        mesh = self.model.get_base_model() if self.tuning.rank else self.model  # type: ignore[operator]  # of peft
        assert isinstance(mesh, MeshModel)
        return mesh

    def table(self) -> Float[Tensor, "V E"]:
        """The matrix that turns rows into logits."""
        table: Tensor = self._mesh.codes()
        return table

    def forward(
        self, tokens: Int[Tensor, " N"], points: Float[Tensor, "n 6"], table: Float[Tensor, "V E"]
    ) -> Float[Tensor, "N E"]:
        """Hidden rows of a sequence after the last norm, as the heads read them."""
        return self._mesh.states(tokens[None], points[None], table)[0]

    def logits(self, rows: Float[Tensor, "N E"], table: Float[Tensor, "V E"]) -> Float[Tensor, "N V"]:
        """Logits of hidden rows."""
        return functional.linear(rows, table)

    def merged(self, name: str, folder: Path) -> Backbone:
        """What `export` wrote, loaded as a run loads it."""
        return load_backbone(name, folder)

    def export(self, folder: Path) -> None:
        """A backbone's folder: its matrices and the name of the base model, or all weights where all learned."""
        if self.tuning.rank:
            place, shipped = self.folder.resolve(), sources.SHIPPED.resolve()
            name = str(place.relative_to(shipped)) if place.is_relative_to(shipped) else str(place)
            tie = {"backbone": name, "fingerprint": sources.digest(self.folder)}
            lora.write(folder, low_rank_of(self._mesh), self.tuning.alpha, "FEATURE_EXTRACTION", tie)
            return
        folder.mkdir(parents=True, exist_ok=True)
        save_bf16(self.model, folder)
        (folder / "config.json").write_text(json.dumps(asdict(self.sizes), indent=1) + "\n", encoding="utf-8")


def load_backbone(name: str, folder: Path) -> MeshBackbone:
    """A recipe's folder, loaded as a run loads it."""
    return MeshBackbone.load(name, {"source": {"folder": str(folder)}}, "fp32", "cpu")


# Decoders of meshes that learn further by low-rank matrices: the shipped ones, and BPT in its published layout.
# Source: Chen et al., XSpecMesh, section 4.3.


POINT_LINEARS = r"decoder\.layers\.\d+\.1\.(to_q|to_k|to_v|to_out|ff\.0\.proj|ff\.2)"
"""The linear layers of BPT's decoder. The encoder's stand below ``conditioner``; ``to_logits`` stays."""


class FinetunedBPT(nn.Module):
    """The model of a preset of BPT, used as `FinetunedMesh` is. Its encoder of points stays frozen.

    Raises:
        WeightsError: its weights cannot be had.
        UsageError: the rank is 0, or peft is not installed.
    """

    def __init__(self, name: str, tuning: Tuning) -> None:
        super().__init__()
        if tuning.rank < 1:
            raise UsageError(f"{name} learns by low-rank matrices; found a rank of {tuning.rank}, give 1 or more")
        self.name, self.tuning = name, tuning
        backbone = PointMesh.load(name, presets.resolve(name).params, "fp32", "cpu")
        self.fingerprint = backbone.fingerprint
        self.model: nn.Module = with_low_rank(backbone._model, tuning, POINT_LINEARS)

    @property
    def _bpt(self) -> BPT:
        bpt = self.model.get_base_model()  # type: ignore[operator]  # of peft
        assert isinstance(bpt, BPT)
        return bpt

    def table(self) -> Float[Tensor, "V E"]:
        """The frozen embeddings."""
        return self._bpt.table()

    def forward(
        self, tokens: Int[Tensor, " N"], points: Float[Tensor, "n 6"], table: Float[Tensor, "V E"]
    ) -> Float[Tensor, "N E"]:
        """Hidden rows of a sequence after the last norm, as heads read them."""
        bpt = self._bpt
        with torch.no_grad():
            latents = bpt.conditioner(points)
        return bpt.weights().states(tokens, latents)

    def logits(self, rows: Float[Tensor, "N E"], table: Float[Tensor, "V E"]) -> Float[Tensor, "N K"]:
        """Logits of all ids but the start token, which is never drawn."""
        out: Tensor = self._bpt.to_logits(rows)
        return out

    def export(self, folder: Path) -> None:
        """Matrices, which `PointMesh` adds to the published weights if its parameter ``lora`` names the folder."""
        tie = {"backbone": self.name, "fingerprint": self.fingerprint}
        lora.write(folder, low_rank_of(self._bpt), self.tuning.alpha, "FEATURE_EXTRACTION", tie)

    def merged(self, name: str, folder: Path) -> Backbone:
        """The published weights with the matrices of a folder."""
        params = {**presets.resolve(self.name).params, "lora": str(folder)}
        return PointMesh.load(name, params, "fp32", str(self._bpt.to_logits.weight.device))


def finetuned(name: str, tuning: Tuning, device: str = "cpu") -> FinetunedMesh | FinetunedBPT:
    """The decoder of a backbone, ready to learn."""
    presets.fetch(name)
    spec = presets.resolve(name)
    if spec.adapter == "point_mesh" and spec.params["architecture"] == "bpt":
        return FinetunedBPT(name, tuning)
    if spec.adapter != "mesh":
        raise UsageError(
            f"{name} is a backbone of {spec.adapter}; the decoders that learn together with heads are BPT and those "
            f"that `stride train backbone` makes of meshes"
        )
    if device != "cpu":
        raise UsageError(f"{name} learns on the CPU; leave --device {device} out")
    return FinetunedMesh(sources.locate(name, sources.parse(name, spec.params["source"])), tuning)


# A causal language model that learns further, alone or together with the heads that read its hidden rows.
# Axes: B texts of N tokens, V vocabulary, E width.


TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)
"""Files of the base model that an exported model copies."""


class TextPass(NamedTuple):
    """Result of a pass over whole texts: hidden rows after the last norm, as heads read them, and logits."""

    rows: Float[Tensor, "B N E"]
    logits: Float[Tensor, "B N V"]


class FinetunedText(nn.Module):
    """A backbone that learns, and the base model, which is not part of the state.

    Raises:
        UsageError: the backbone is of another adapter, or peft is needed and not installed.
        WeightsError: its weights cannot be had.
    """

    def __init__(self, name: str, tuning: Tuning) -> None:
        super().__init__()
        presets.fetch(name)
        spec = presets.resolve(name)
        if spec.adapter != "hf_causal":
            raise UsageError(f"{name} is a backbone of {spec.adapter}; this tuning is of those of hf_causal")
        self.backbone = HFCausal.load(name, {**spec.params, "forward": "transformers"}, "fp32", "cpu")
        net = self.backbone._net
        assert isinstance(net, TransformersNet), "what forward: transformers asks for"
        self.tuning = tuning
        self._base = (net.model,)  # in a tuple, so that torch does not register it as a submodule
        twin = copy.deepcopy(net.model)
        self.model: Any = with_low_rank(twin, tuning, "all-linear") if tuning.rank else twin.requires_grad_(True)
        source = sources.parse(name, spec.params["source"])
        self._folder = None if source.kind == "random" else sources.locate(name, source)

    def forward(
        self,
        tokens: Int[Tensor, "B N"],
        places: Int[Tensor, "B N"] | None = None,
        mask: Float[Tensor, "B one N N"] | None = None,
    ) -> TextPass:
        """One pass, with gradients.

        Args:
            places: positions; 0 to N - 1 if None.
            mask: added to the attention scores; causal if None.
        """
        return _pass(self.model, tokens, places, mask)

    @torch.no_grad()
    def base(self, tokens: Int[Tensor, "B N"]) -> Float[Tensor, "B N V"]:
        """Logits of the base model."""
        return _pass(self._base[0], tokens).logits

    def export(self, folder: Path) -> None:
        """Write the merged model in bf16 as a folder of transformers, with the tokenizer of the base model."""
        self.export_tokenizer(folder)
        with quiet():
            merged(self.model, self.tuning).to(torch.bfloat16).save_pretrained(folder)
        for path in folder.glob("*.safetensors"):
            path.chmod(0o644)  # safetensors writes for the owner alone, and a package is for all

    def export_tokenizer(self, folder: Path) -> None:
        """Copy the files of the base model's tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in TOKENIZER:
            if self._folder is not None and (self._folder / name).is_file():
                shutil.copyfile(self._folder / name, folder / name)


def load_text_backbone(name: str, folder: Path) -> HFCausal:
    """An exported folder, loaded as a run loads it."""
    return HFCausal.load(name, {"source": {"folder": str(folder)}}, "fp32", "cpu")


def _pass(
    model: Callable[..., Any], tokens: Tensor, places: Tensor | None = None, mask: Tensor | None = None
) -> TextPass:
    out = model(input_ids=tokens, position_ids=places, attention_mask=mask, use_cache=False, output_hidden_states=True)
    return TextPass(out.hidden_states[-1], out.logits)


def save_llada(model: nn.Module, folder: Path, eos: int, fields: Mapping[str, object], *, packed: bool = False) -> None:
    """Write a Llama in the layout of LLaDA's checkpoint, in bf16.

    Args:
        eos: the id that ends a text.
        fields: more of config.json, such as mask_token_id.
        packed: matrices have 8 bits, and ``model`` becomes what is stored.
    """
    config: Any = model.config
    file = folder / "model.safetensors"
    state = model.state_dict()
    names = {key: llada_name(key) for key in state if not (key == HEAD and config.tie_word_embeddings)}
    tensors = {name: state[key].detach() for key, name in names.items()}
    if packed:
        int8.write(file, tensors)
        stored = int8.read(file)
        model.load_state_dict({key: stored[name] for key, name in names.items()}, strict=False)
    else:
        int8.write_unpacked(file, {name: value.bfloat16() for name, value in tensors.items()})
    body = {
        "model_type": "llada",
        "architectures": ["LLaDAModelLM"],
        **PLAIN,
        "weight_tying": config.tie_word_embeddings,
        "vocab_size": config.vocab_size,
        "embedding_size": config.vocab_size,
        **{published: getattr(config, own) for own, published in LLADA_SIZES.items()},
        "n_kv_heads": config.num_key_value_heads,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_parameters["rope_theta"],
        "eos_token_id": eos,
        **fields,
    }
    (folder / "config.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
