"""The only source of randomness. Every call names its stream.

`SeededDraws` is keyed by (seed, task, prompt, repetition) and stream, never by method, dtype, device or batch,
so that cells pair; it is counter-based and generated on the CPU, so equal distributions give equal draws anywhere.
`stridebench.harness.proof.enumerate.EnumeratingDraws` answers the same calls with every outcome and its weight.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from stridebench.harness.core.draft import Path
from stridebench.harness.errors import ContractError

Stream = Literal["init", "draft", "accept", "resid", "noise"]
BLOCK = 256
"""Numbers of a stream that are made at once, because a call of the generator costs as much as many numbers."""
FEW, LONG = 16_384, 64
"""Entries of probabilities that numpy sums on the host; a row of more than ``LONG`` is thinned first."""
LIVE_CLOCKS = 512
"""Exponential clocks stored at once; older keys are computed again from their counter."""


class Draws(ABC):
    """Everything random that a method may ask for.

    Attributes:
        emitted: leading positions that are emitted or of the prompt; the loop sets it before each step.
        end: the position behind the last one of the output; set as ``emitted``.
    """

    emitted: int = 0
    end: float = math.inf

    @abstractmethod
    def integers(self, n: int, high: int, stream: Stream) -> Int[Tensor, " n"]:
        """Draw n uniform ids in [0, high)."""

    @abstractmethod
    def categorical(self, probs: Float[Tensor, "N V"], stream: Stream) -> Int[Tensor, " N"]:
        """Draw N independent tokens, one from each row."""

    @abstractmethod
    def distinct(self, probs: Float[Tensor, "M V"], k: int, stream: Stream) -> Int[Tensor, "M k"]:
        """Draw k ordered tokens without replacement from each row: each from the tokens that the ones before it left.

        A row of fewer than k possible tokens goes on with those of probability 0, by id.

        Raises:
            ContractError: k is larger than V.
        """

    @abstractmethod
    def path(self, accept: Float[Tensor, " K"], parents: Int[Tensor, " K"] | None = None) -> Path:
        """Draw a path: node k is accepted with accept[k] once its parent is reached and earlier siblings are rejected.

        Args:
            accept: in [0, 1].
            parents: as in a `Draft`, or None if it is a chain.
        """

    @abstractmethod
    def couple(self, x: Int[Tensor, " N"], q: Float[Tensor, "N V"], p: Float[Tensor, "N V"]) -> Int[Tensor, " N"]:
        """Draw from each row of p so that it equals x ~ q as often as can be: kept with min(1, p/q), else residual."""

    @abstractmethod
    def race(self, probs: Float[Tensor, "N V"], keys: Sequence[int]) -> Int[Tensor, " N"]:
        """Return argmin over tokens of clock / probability, with one exponential clock per (key, token) in a decode.

        A key is an absolute position. Rows with equal keys share their noise (Gumbel noise in common).

        Raises:
            ContractError: a key is a position that is emitted already. Its noise chose a token that the target has read
                since, so a second race on it would not be independent of the distribution. Or it is not a
                position of the output; otherwise reused noise could not be detected.
        """

    def race_keys(self, keys: Sequence[int]) -> list[int]:
        """Return the keys of a race as plain ints: positions that are still to be emitted.

        Raises:
            ContractError: a key is not a whole number, or not such a position.
        """
        try:
            positions = [operator.index(key) for key in keys]
        except TypeError:
            raise ContractError(f"a race has the keys {list(keys)}; give absolute positions, whole numbers") from None
        if spent := [position for position in positions if position < self.emitted]:
            raise ContractError(
                f"a race uses the noise of position {spent[0]}, and the first {self.emitted} positions are emitted "
                f"already, so their noise is not fresh; use absolute positions from {self.emitted} on as keys"
            )
        if beyond := [position for position in positions if position >= self.end]:
            raise ContractError(
                f"a race uses the noise of position {beyond[0]}, and the output ends before position {self.end}, so "
                f"that noise could be used again unnoticed; use absolute positions below it as keys"
            )
        return positions


class SeededDraws(Draws):
    """Reproducible draws of one decode."""

    def __init__(self, seed: int, task: str, prompt: str, repetition: int, device: str = "cpu") -> None:
        self._root = _root(seed, task, prompt, repetition)
        self._device = torch.device(device)
        self._streams: dict[str, _Stream] = {}
        self._clocks: dict[int, Tensor] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> SeededDraws:
        """Draws that go on as these would. Clocks are computed again from their counter when they are asked for."""
        twin = copy.copy(self)
        memo[id(self)] = twin
        twin._streams, twin._clocks = copy.deepcopy(self._streams, memo), {}
        return twin

    def uniforms(self, n: int, stream: str) -> Float[Tensor, " n"]:
        """Return n numbers in [0, 1) with 53 bits, in fp64, on the draws' device."""
        if stream not in self._streams:
            self._streams[stream] = _Stream(_philox(f"{self._root}|{stream}"))
        host = torch.from_numpy(self._streams[stream].take(n))
        if self._device.type != "cuda":
            return host
        return host.pin_memory().to(self._device, non_blocking=True)  # pageable memory would wait for the forward

    def integers(self, n: int, high: int, stream: Stream) -> Int[Tensor, " n"]:
        return (self.uniforms(n, stream) * high).long().clamp_max(high - 1)

    def categorical(self, probs: Float[Tensor, "N V"], stream: Stream) -> Int[Tensor, " N"]:
        return inverse_cdf(probs, self.uniforms(probs.shape[0], stream))

    def distinct(self, probs: Float[Tensor, "M V"], k: int, stream: Stream) -> Int[Tensor, "M k"]:
        check_distinct(k, probs.shape[1])
        left, drawn_before = probs.clone(), torch.zeros_like(probs, dtype=torch.bool)
        tokens = []
        for u in self.uniforms(k * len(probs), stream).view(k, -1):
            drawn = inverse_cdf(left, u)
            token = torch.where((left > 0).any(-1), drawn, drawn_before.long().argmin(-1))[:, None]
            left, drawn_before = left.scatter(1, token, 0.0), drawn_before.scatter(1, token, True)
            tokens.append(token)
        return torch.cat(tokens, 1) if tokens else drawn_before.new_zeros(len(probs), 0, dtype=torch.long)

    def path(self, accept: Float[Tensor, " K"], parents: Int[Tensor, " K"] | None = None) -> Path:
        coins = self.uniforms(accept.shape[0], "accept") < accept
        return chain_path(coins, accept) if parents is None else tree_path(coins, accept, parents)

    def couple(self, x: Int[Tensor, " N"], q: Float[Tensor, "N V"], p: Float[Tensor, "N V"]) -> Int[Tensor, " N"]:
        u, v = self.uniforms(2 * x.shape[0], "draft").reshape(2, -1)
        keep = u * q.gather(1, x[:, None])[:, 0] < p.gather(1, x[:, None])[:, 0]
        left = (p - q).clamp_min(0)  # all zero only where p = q, and there x is always kept
        return torch.where(keep, x, inverse_cdf(left, v))

    def race(self, probs: Float[Tensor, "N V"], keys: Sequence[int]) -> Int[Tensor, " N"]:
        clocks = torch.stack([self._clock(key, probs.shape[1]) for key in self.race_keys(keys)])
        return (clocks / probs).argmin(-1)

    def _clock(self, key: int, vocabulary: int) -> Float[Tensor, " V"]:
        if key not in self._clocks:
            unit = _unit(_philox(f"{self._root}|noise|{key}"), vocabulary)
            if len(self._clocks) >= LIVE_CLOCKS:
                self._clocks.pop(next(iter(self._clocks)))
            self._clocks[key] = torch.from_numpy(-np.log1p(-unit)).float().clamp_min(1e-30).to(self._device)
        return self._clocks[key]


def check_distinct(k: int, vocabulary: int) -> None:
    """Refuse to draw more tokens than there are."""
    if k > vocabulary:
        raise ContractError(f"{k} distinct tokens were asked of a vocabulary of {vocabulary}; ask for {vocabulary}")


def inverse_cdf(probs: Float[Tensor, "N V"], u: Float[Tensor, " N"]) -> Int[Tensor, " N"]:
    """Return the token at which each row's running sum passes u times its total; never one of probability 0."""
    if probs.device.type == "cpu" and probs.shape[1] and (len(probs) == 1 or probs.numel() <= FEW):
        exact = probs.double() if probs.dtype == torch.bfloat16 else probs  # numpy has no bf16
        return torch.from_numpy(_inverse_cdf(exact.numpy(), u.numpy()))
    running = probs.cumsum(-1, dtype=torch.float64)
    total = running[:, -1]
    below = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(running, below[:, None], right=True)[:, 0].clamp_max(probs.shape[-1] - 1)


def _inverse_cdf(probs: NDArray[Any], u: NDArray[np.float64]) -> NDArray[np.int64]:
    """Compute `inverse_cdf` on the host: the same sums in the same order, in fewer calls.

    A single long row is summed over its possible tokens alone, since zeros change no sum.
    """
    possible: NDArray[np.int64] | None = None
    if len(probs) == 1 and probs.shape[1] > LONG:
        possible = (probs[0] > 0).nonzero()[0]
    if possible is not None and len(possible) == 1:  # as any greedy row
        return possible
    running = np.cumsum(probs if possible is None else probs[:, possible], axis=1, dtype=np.float64)
    if possible is not None and not len(possible):
        return np.full(1, probs.shape[1] - 1)
    total = running[:, -1]
    below = np.minimum(u * total, np.nextafter(total, 0.0))
    places = (running <= below[:, None]).sum(1).clip(max=running.shape[1] - 1)
    tokens: NDArray[np.int64] = places if possible is None else possible[places]
    return tokens


def chain_path(coins: Tensor, accept: Float[Tensor, " K"]) -> Path:
    """Return the path down a chain: the leading run of coins that show True."""
    if accept.device.type == "cpu" and accept.dtype != torch.bfloat16:  # numpy has no bf16
        return _host_chain(coins.numpy(), accept.numpy())
    index = torch.arange(accept.shape[0], device=accept.device)
    stop = coins.long().cumprod(0).sum()
    return Path(torch.where(index < stop, index, -1), stop, accept.cumprod(0).sum())


def _host_chain(coins: NDArray[np.bool_], accept: NDArray[Any]) -> Path:
    """Compute `chain_path` on the host, in fewer calls."""
    stop = len(coins) if coins.all() else int(coins.argmin())
    nodes = np.arange(len(coins))
    nodes[stop:] = -1
    expected = np.cumprod(accept, dtype=np.float64).sum().astype(accept.dtype)
    return Path(torch.from_numpy(nodes), torch.tensor(stop), torch.from_numpy(expected.reshape(1))[0])


def tree_path(coins: Tensor, accept: Float[Tensor, " K"], parents: Int[Tensor, " K"]) -> Path:
    """Return the path down a tree, without a loop over nodes: pointers to ancestors double each round.

    Node k is chosen when its coin shows True and no earlier sibling's does; it is kept when all its ancestors
    are chosen too. ``expected`` sums the products of choice probabilities along each node's ancestors.
    """
    size = accept.shape[0]
    index = torch.arange(size, device=accept.device)
    earlier = (parents[:, None] == parents[None, :]) & (index[None, :] < index[:, None])
    chosen = coins & ~(earlier & coins[None, :]).any(1)
    rejected = torch.where(earlier, (1 - accept)[None, :], torch.ones_like(accept)[None, :]).prod(1)
    survives, reach, up = chosen.clone(), accept * rejected, parents.clone()
    for _ in range(max(1, size.bit_length())):
        has = up >= 0
        parent = up.clamp_min(0)
        survives = survives & torch.where(has, survives[parent], True)
        reach = reach * torch.where(has, reach[parent], torch.ones_like(reach))
        up = torch.where(has, up[parent], up)
    nodes = torch.where(survives, index, size).sort().values  # parents come first, so the order is the path's
    last = torch.where(survives, index + 1, 0).max() if size else index.sum()
    return Path(torch.where(nodes < size, nodes, -1), last, reach.sum())


def _root(seed: int, task: str, prompt: str, repetition: int) -> str:
    """Return a text that no other decode has. Ids that hold the separator are quoted."""
    if "|" in task or "|" in prompt:
        return json.dumps([seed, task, prompt, repetition])
    return f"{seed}|{task}|{prompt}|{repetition}"


def _philox(key: str) -> np.random.Philox:
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    return np.random.Philox(key=np.frombuffer(digest, dtype=np.uint64))


class _Stream:
    """Numbers in [0, 1) in the order of a generator, which makes them in blocks."""

    def __init__(self, generator: np.random.Philox) -> None:
        self._generator = generator
        self._block = np.zeros(0)
        self._taken = 0

    def take(self, n: int) -> NDArray[np.float64]:
        """Return the next n."""
        if self._taken + n > len(self._block):
            left = self._block[self._taken :]
            self._block = np.concatenate([left, _unit(self._generator, max(BLOCK, n))])
            self._taken = 0
        self._taken += n
        return self._block[self._taken - n : self._taken]


def _unit(generator: np.random.Philox, n: int) -> NDArray[np.float64]:
    raw = generator.random_raw(n) if n else np.zeros(0, dtype=np.uint64)
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
