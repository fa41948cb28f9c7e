"""Two threads for work that takes milliseconds, so that the event loop does not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Final, TypeVar

_THREADS: Final = 2
_Result = TypeVar("_Result")


async def run_in_thread(work: Callable[..., _Result], *arguments: object) -> _Result:
    """Run a function on one of the threads and return its result; it must not touch objects of the loop."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), work, *arguments)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="side-work")
