"""Work that takes milliseconds and nobody else has to wait for: on two threads beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final, TypeVar

__all__ = ["beside_the_loop"]

_THREADS: Final = 2
_Result = TypeVar("_Result")


async def beside_the_loop(work: Callable[..., _Result], *arguments: object) -> _Result:
    """Return what a function gives that touches nothing of the loop's."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), work, *arguments)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="side-work")
