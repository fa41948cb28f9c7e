"""What a supervisor does beside its loop's callbacks, until it stops: restarts after a delay, and other tasks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stoker.changes import Changes
from stoker.metrics import MetricPage

__all__ = ["Background", "Supervision", "in_thread"]

_T = TypeVar("_T")


class Background:
    """Tasks of a supervisor; none begins any more once it stops."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def stopping(self) -> bool:
        """Whether the server stops: what ends now ends for good."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Start nothing any more."""
        self._stop.set()

    async def stopped(self) -> None:
        """Wait until `stop` is called."""
        await self._stop.wait()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in a task of its own."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def later(self, delay_s: float, start: Callable[[], Awaitable[None]]) -> None:
        """Start something after a while, unless the server stops before."""
        self.spawn(self._start_later(delay_s, start))

    def cancel(self) -> None:
        """Give all tasks up."""
        self.stop()
        for task in list(self._tasks):
            task.cancel()

    async def _start_later(self, delay_s: float, start: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), delay_s)
        if not self.stopping:
            await start()


async def in_thread(function: Callable[..., _T], *arguments: Any) -> _T:
    """Call what may block for long beside the event loop."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


@dataclass(frozen=True, slots=True)
class Supervision:
    """What the processes of both kinds share with their supervisor.

    Attributes:
        metrics_fd: The memory of the metrics.
        page: The supervisor's page in it.
        background: Starts processes again.
        changes: Is told when something has changed with a process.
    """

    metrics_fd: int
    page: MetricPage
    background: Background = field(default_factory=Background)
    changes: Changes = field(default_factory=Changes)
