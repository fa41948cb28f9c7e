"""Numbers of JSON lists as simdjson flattens them, and the proof from the brackets of what lists they were in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

__all__ = ["BUFFERS", "KEPT_BYTES", "holds_structure", "pattern", "structure"]

BUFFERS: Final[dict[str, tuple[str, type[Any]]]] = {
    "f": ("d", np.float64),
    "i": ("i", np.int64),
    "u": ("u", np.uint64),
}
"""How simdjson names the buffer of a kind of numpy dtype, and the dtype of that."""

KEPT_BYTES: Final = 8 << 20
"""A parser keeps the memory of its largest document, many times the document's; behind longer ones it is replaced."""

_STRUCTURE: Final = b"[],"
"""What tells lists from each other; where names hold it, nothing can be proved."""

_NOT_STRUCTURE: Final = bytes(byte for byte in range(256) if byte not in _STRUCTURE)


def holds_structure(name: str) -> bool:
    """Whether what stands in a name would be taken for a list's brackets and commas."""
    return not set(_STRUCTURE).isdisjoint(name.encode())


def structure(body: bytes) -> bytes:
    """Return nothing but the brackets and commas of a JSON text."""
    return body.translate(None, _NOT_STRUCTURE)


def pattern(shape: Sequence[int]) -> bytes:
    """Return the brackets and commas of a nested list of this shape."""
    text = b""
    for size in reversed(shape):
        text = b"[" + ((text + b",") * size)[:-1] + b"]"
    return text
