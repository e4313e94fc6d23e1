"""Windows beside a text in one pass: what their rows see, as a dense mask and block by block.

Rows of the text see earlier rows of the text. Rows of a window see the text before its root, and earlier rows of the
same window. Most pairs see nothing of each other, so attention block by block multiplies 3 to 8 times less than a dense
mask where windows tile the text, and holds the mask of one block.

Axes: N tokens of a text, n windows, W rows of a window; R = N + n W rows; H, H_kv heads, D width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "stride_windows"
"""Of the attention, among those of transformers."""
BLOCK = 128
"""Rows of windows that are multiplied at once."""


class Windows(NamedTuple):
    """Windows of a text.

    Args:
        text: N.
        roots: position of the first token of each window.
        width: W.
    """

    text: int
    roots: Int[Tensor, " n"]
    width: int

    def visible(self) -> Bool[Tensor, "R R"]:
        """Which rows each row sees."""
        row = torch.arange(self.text + len(self.roots) * self.width, device=self.roots.device)
        window = (row - self.text).div(self.width, rounding_mode="floor")
        gate, root = row >= self.text, self.roots[window.clamp_min(0)]
        causal = row[:, None] >= row[None, :]
        visible = causal & ~gate[:, None] & ~gate[None, :]
        visible |= gate[:, None] & ~gate[None, :] & (row[None, :] < root[:, None])
        return visible | (gate[:, None] & (window[:, None] == window[None, :]) & causal)

    def blocks(self) -> Iterator[tuple[Int[Tensor, " b"], int, Bool[Tensor, "B T"]]]:
        """Some windows, the rows of the text that any of them sees, and what their B = b W rows see of these and of
        themselves: T = rows + B."""
        order = self.roots.argsort()
        size = max(1, BLOCK // self.width)
        for some in torch.split(order, size):
            roots = self.roots[some].repeat_interleave(self.width)
            seen = int(roots.max())
            text = torch.arange(seen, device=roots.device)[None] < roots[:, None]
            own = torch.arange(len(some), device=roots.device).repeat_interleave(self.width)
            row = torch.arange(len(roots), device=roots.device)
            inside = (own[:, None] == own[None, :]) & (row[:, None] >= row[None, :])
            yield some, seen, torch.cat([text, inside], 1)


_READ: ContextVar[Windows | None] = ContextVar("windows", default=None)


@contextmanager
def read(windows: Windows) -> Iterator[None]:
    """While inside, prepared models read a text and its windows."""
    token = _READ.set(windows)
    try:
        yield
    finally:
        _READ.reset(token)


def attend(
    module: Any,
    query: Float[Tensor, "one H R D"],
    keys: Float[Tensor, "one K R D"],
    values: Float[Tensor, "one K R D"],
    mask: Tensor | None,
    **more: Any,
) -> tuple[Float[Tensor, "one R H D"], None]:
    """Scaled products of transformers; of a text and its windows block by block."""
    windows = _READ.get()
    if windows is None:
        attended: tuple[Tensor, None] = sdpa_attention_forward(module, query, keys, values, mask, **more)
        return attended
    count, width, scale = windows.text, windows.width, more.get("scaling")
    text = functional.scaled_dot_product_attention(
        query[:, :, :count], keys[:, :, :count], values[:, :, :count], is_causal=True, scale=scale, enable_gqa=True
    )
    parts, places = [text], [torch.arange(count, device=query.device)]
    for some, seen, visible in windows.blocks():
        rows = (count + some[:, None] * width + torch.arange(width, device=some.device)).flatten()
        own_keys, own_values = (torch.cat([half[:, :, :seen], half[:, :, rows]], 2) for half in (keys, values))
        parts.append(
            functional.scaled_dot_product_attention(
                query[:, :, rows], own_keys, own_values, visible, scale=scale, enable_gqa=True
            )
        )
        places.append(rows)
    out = torch.cat(parts, 2)[:, :, torch.cat(places).argsort()]
    return out.transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(NAME, attend)


def prepare(model: Any) -> bool:
    """Let the attention of a decoder of transformers read windows block by block; whether it can."""
    config = model.config.get_text_config()
    if config._attn_implementation != "sdpa" or getattr(config, "attn_logit_softcapping", None):
        return False
    layers = [module for module in model.modules() if hasattr(module, "layer_idx") and hasattr(module, "config")]
    for module in layers:
        module.config = copy.copy(module.config)
        module.config._attn_implementation = NAME
    return bool(layers)
