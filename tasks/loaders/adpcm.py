"""Reads WAV files of IMA ADPCM, four bits a sample, without a further package.

Source: Interactive Multimedia Association, "Recommended Practices for Enhancing Digital Audio Compatibility in
Multimedia Systems", revision 3.00 (1992), section 6; blocks as in WAVE format 0x11. A block starts with a whole sample
and a step, so all blocks of all files are decoded in parallel.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stridebench.harness.errors import UsageError

if TYPE_CHECKING:
    from jaxtyping import Float, Int16, UInt8

FORMAT = 0x11
BLOCK = 512
"""Bytes a block, four of which are the header. Every other byte holds two samples, the low half first."""
RATE = 16_000
CHANGE = np.array([-1, -1, -1, -1, 2, 4, 6, 8])
"""Change of the step's index after each code."""
# fmt: off
STEPS = np.array([
    7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 19, 21, 23, 25, 28, 31, 34, 37, 41, 45, 50, 55, 60, 66, 73, 80, 88, 97, 107,
    118, 130, 143, 157, 173, 190, 209, 230, 253, 279, 307, 337, 371, 408, 449, 494, 544, 598, 658, 724, 796, 876, 963,
    1060, 1166, 1282, 1411, 1552, 1707, 1878, 2066, 2272, 2499, 2749, 3024, 3327, 3660, 4026, 4428, 4871, 5358, 5894,
    6484, 7132, 7845, 8630, 9493, 10442, 11487, 12635, 13899, 15289, 16818, 18500, 20350, 22385, 24623, 27086, 29794,
    32767,
])
# fmt: on
"""Sizes of steps."""


def read(paths: Sequence[Path]) -> list[Float[np.ndarray, " samples"]]:
    """Read waveforms of mono files at 16 kHz, float32 between -1 and 1; each ends with its last whole block.

    Raises:
        UsageError: a file is missing, damaged or of another format.
    """
    if not paths:
        return []
    blocks = [_blocks(path) for path in paths]
    samples = decode(np.concatenate(blocks)).astype(np.float32) / 32768
    last_blocks = np.cumsum([len(part) for part in blocks])
    return [waveform.reshape(-1) for waveform in np.split(samples, last_blocks[:-1])]


def decode(blocks: UInt8[np.ndarray, "blocks bytes"]) -> Int16[np.ndarray, "blocks samples"]:
    """Decode the samples of each block: the sample in its header, then two a byte."""
    code = np.arange(16)
    moves = ((STEPS[:, None] >> 3) + sum((STEPS[:, None] >> (2 - bit)) * (code >> bit & 1) for bit in range(3))) * (
        1 - 2 * (code >> 3)
    )
    after = np.clip(np.arange(len(STEPS))[:, None] + CHANGE[code & 7], 0, len(STEPS) - 1)
    codes = np.stack([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 2).reshape(len(blocks), -1)
    value = blocks[:, :2].copy().view("<i2")[:, 0].astype(np.int64)
    step = np.minimum(blocks[:, 2], len(STEPS) - 1)
    samples = np.empty((len(blocks), codes.shape[1] + 1), np.int16)
    samples[:, 0] = value
    for k, column in enumerate(codes.T):
        value = np.clip(value + moves[step, column], -32768, 32767)
        step = after[step, column]
        samples[:, k + 1] = value
    return samples


def _blocks(path: Path) -> UInt8[np.ndarray, "blocks bytes"]:
    try:
        raw = path.read_bytes()
        chunks = _chunks(raw)
        kind, channels, rate, _, align = struct.unpack_from("<HHIIH", chunks[b"fmt "])
    except (OSError, KeyError, struct.error) as error:
        raise UsageError(f"{path} cannot be read as a WAV file ({error!r}). Reinstall the package it is of") from error
    if (kind, channels, rate, align) != (FORMAT, 1, RATE, BLOCK):
        raise UsageError(
            f"{path} is WAV format {kind:#x}, {channels} channels at {rate} Hz in blocks of {align} bytes; it must be "
            f"IMA ADPCM ({FORMAT:#x}), mono at {RATE} Hz in blocks of {BLOCK}"
        )
    data = chunks.get(b"data", b"")
    if not data or len(data) % BLOCK:
        raise UsageError(f"{path} holds {len(data)} bytes of sound, no whole blocks of {BLOCK}: it was cut off")
    return np.frombuffer(data, np.uint8).reshape(-1, BLOCK)


def _chunks(raw: bytes) -> dict[bytes, bytes]:
    """Return the chunks of a RIFF file by name."""
    chunks: dict[bytes, bytes] = {}
    at = 12
    while at + 8 <= len(raw):
        size = struct.unpack_from("<I", raw, at + 4)[0]
        chunks[raw[at : at + 4]] = raw[at + 8 : at + 8 + size]
        at += 8 + size + size % 2
    return chunks
