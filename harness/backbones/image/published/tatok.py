"""TA-Tok's decoder: from Tar's semantic codes to the vectors that its de-tokenizer reads as a prompt.

Source: Han et al. 2025, arXiv:2506.18898; csuhan/Tar at 47da8e1, ``tok/ta_tok.py`` and ``tok/ar_dtok/bottleneck.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import Siglip2VisionConfig
from transformers.models.siglip2.modeling_siglip2 import Siglip2VisionModel

from stridebench.harness.backbones.checkpoints import components
from stridebench.harness.backbones.image.published.family import Request
from stridebench.harness.errors import WeightsError

HEADS = 12
"""Of its transformer: the default of transformers' configuration."""

Feel = Callable[[Int[Tensor, " n"]], Float[Tensor, "n C"]]


class Meanings(nn.Module):
    """TA-Tok's way from codes to vectors: a projected codebook, a linear map and three layers of SigLIP 2.

    Args:
        codes: K.
        width: of a code.
        hidden: E.
        layers: of the transformer.
        inner: inner width of the transformer.
    """

    def __init__(self, codes: int, width: int, hidden: int, layers: int, inner: int) -> None:
        super().__init__()
        self.embedding, self.embedding_proj = nn.Embedding(codes, width), nn.Linear(width, width)
        self.out_linear = nn.Linear(width, width)
        config = Siglip2VisionConfig(
            hidden_size=hidden,
            intermediate_size=inner,
            num_hidden_layers=layers,
            num_attention_heads=HEADS,
            num_channels=width,
            patch_size=1,
        )
        config.vision_use_head = False
        self.decoder = Siglip2VisionModel(config)
        self.task = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, hidden))

    @torch.inference_mode()
    def forward(self, codes: Int[Tensor, " n"], normalised: bool = True) -> Float[Tensor, "n E"]:
        """Vectors of a square of codes."""
        vectors = self.embedding_proj(self.embedding(codes))
        vectors = self.out_linear(functional.normalize(vectors, dim=-1) if normalised else vectors)
        edge = round(len(codes) ** 0.5)
        ones = torch.ones(1, len(codes), dtype=torch.int, device=codes.device)
        shapes = torch.tensor([[edge, edge]], device=codes.device)
        hidden = self.decoder(vectors[None], ones, shapes).last_hidden_state[0]
        vectors_of_codes: Tensor = self.task(hidden)
        return vectors_of_codes


def own_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """What `Meanings` needs of TA-Tok's file, under its names."""
    renamed = (
        ("bottleneck.regularizer.embedding.", "embedding."),
        ("bottleneck.regularizer.embedding_proj.", "embedding_proj."),
        ("bottleneck.out_linear.", "out_linear."),
        ("decoder.", "decoder."),
        ("decode_task_layer.", "task."),
    )
    renamed_state: dict[str, Tensor] = {}
    for there, here in renamed:
        renamed_state |= {here + key[len(there) :]: value for key, value in state.items() if key.startswith(there)}
    plain = {key.replace("decoder.vision_model.", "decoder."): value for key, value in renamed_state.items()}
    return {key: value for key, value in plain.items() if not key.startswith("decoder.head.")}


def meanings(request: Request, state: dict[str, Tensor]) -> Feel:
    """TA-Tok's decoder with the tensors of its file; sizes follow from the tensors.

    Raises:
        WeightsError: the file is not of TA-Tok.
    """
    own = own_names(state)
    try:
        codes, width = own["embedding.weight"].shape
        layers = 1 + max(int(key.split(".")[3]) for key in own if key.startswith("decoder.encoder.layers."))
        inner = int(own["decoder.encoder.layers.0.mlp.fc1.bias"].shape[0])
        module = Meanings(codes, width, own["task.0.bias"].shape[0], layers, inner)
    except (KeyError, ValueError) as error:
        raise WeightsError(
            f"{request.name}: {request.components['tok']} is no TA-Tok file; it lacks {error}"
        ) from error
    components.fill(request.name, request.components["tok"], module, own)
    normalised = bool(request.settings["normalised"])
    module = module.to(device=request.device, dtype=request.dtype).eval().requires_grad_(False)
    return lambda codes: module(codes, normalised)
