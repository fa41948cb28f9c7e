"""Returns memory to the system that was freed, but is kept by the C library: large images leave much of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

__all__ = ["give_back"]


def give_back() -> None:
    """Return freed memory to the system. Takes milliseconds for each gigabyte, without the interpreter lock.

    glibc keeps blocks that threads have freed below its mmap threshold for ever.
    """
    _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    # Other C libraries keep less, and have no such function.
    return getattr(ctypes.CDLL(None), "malloc_trim", None) or (lambda _: None)
