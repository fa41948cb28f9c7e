"""Makes up rows that a model is likely to accept, from the types and shapes of its inputs."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from stoker.isolation.companions import ROWS, SENTENCES, Companions, Row, text_array
from stoker.system.resources import require_memory
from stoker.tensors import TensorInfo

_FREE_SIZES: Final = (8, 32, 64, 1, 128, 224)
"""Sizes tried for free axes: some models accept only multiples of 32, some only the sizes they were trained with."""


def made_up_rows(inputs: Sequence[TensorInfo]) -> Iterator[Companions]:
    """Yield several ways to make up rows, the most plausible first; a model may refuse some of them.

    Raises:
        MemoryError: There is no memory for the rows and their batches.
    """
    _check_memory(inputs)
    sizes = _FREE_SIZES if any(-1 in info.shape[1:] for info in inputs) else _FREE_SIZES[:1]
    has_texts = any(info.dtype == "string" for info in inputs)
    for size in sizes:
        for texts in (SENTENCES, ()) if has_texts else ((),):
            yield Companions([_made_up(inputs, size, seed, texts[seed : seed + 1]) for seed in range(ROWS)])
    if has_texts:
        pictures = [_png(seed) for seed in range(ROWS)]
        for contents in (pictures, [b""] * ROWS):
            yield Companions(
                [_made_up(inputs, sizes[0], seed, contents[seed : seed + 1]) for seed in range(ROWS)]
            )


def _check_memory(inputs: Sequence[TensorInfo]) -> None:
    """Check that there is memory for such rows, their batches, and one more row of 8-byte numbers."""
    elements = {info.name: math.prod(abs(size) for size in info.shape[1:]) for info in inputs}
    needed = sum(elements[info.name] * (2 * ROWS * _item_bytes(info.dtype) + 8) for info in inputs)
    named = ", ".join(f"{name} ({count:,} numbers)" for name, count in elements.items())
    require_memory(needed, f"trying {ROWS} rows of {named}")


def _item_bytes(dtype: str) -> int:
    return np.dtype(object if dtype == "string" else dtype).itemsize


def sample_feeds(inputs: Sequence[TensorInfo], rows: int) -> dict[str, np.ndarray]:
    """Make plausible inputs with up to three different rows; deterministic. Free sizes other than the batch are 8.

    Raises:
        MemoryError: There is no memory for the inputs.
    """
    _check_memory(inputs)
    made = [_made_up(inputs, _FREE_SIZES[0], seed) for seed in range(rows)]
    return {info.name: np.concatenate([row[info.name] for row in made]) for info in inputs}


def _made_up(inputs: Sequence[TensorInfo], free_size: int, seed: int, texts: Sequence[bytes] = ()) -> Row:
    """Make one plausible row, deterministic for a seed.

    Args:
        texts: The content of string inputs; by default words.
    """
    random = np.random.default_rng((20260721, seed))
    row = {}
    for info in inputs:
        free_sizes = (1, *[free_size] * len(info.shape))
        shape = tuple(free if size < 0 else size for free, size in zip(free_sizes, info.shape, strict=False))
        if info.dtype == "string":
            row[info.name] = text_array(shape, texts or [f"word{seed}".encode()])
        elif info.kind == "f":
            row[info.name] = random.random(shape).astype(info.dtype)
        else:
            # Small enough to be a valid index into any table that the model looks up.
            row[info.name] = random.integers(0, 2, shape).astype(info.dtype)
    return row


def _png(seed: int) -> bytes:
    """Return an encoded image of 8 × 8 pixels of one colour, for models that take encoded images."""
    colour = bytes((40 + 60 * seed, 120, 200 - 50 * seed))
    pixels = zlib.compress((b"\0" + colour * 8) * 8)
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks
    )
