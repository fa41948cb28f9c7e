"""Memory that was freed and that the C library keeps: what large images leave behind."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache

__all__ = ["give_back"]


def give_back() -> None:
    """Give freed memory back to the system; takes milliseconds for each gigabyte, in which Python goes on.

    glibc keeps what threads have freed in blocks of less than its threshold for mapping, for ever.
    """
    _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    # Other C libraries keep less, and have no such function.
    return getattr(ctypes.CDLL(None), "malloc_trim", None) or (lambda _: None)
