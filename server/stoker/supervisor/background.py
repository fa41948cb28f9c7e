"""The background tasks of a supervisor: delayed restarts, periodic checks, and blocking calls in threads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from msgspec import Struct, field

from stoker.metrics.memory import MetricPage
from stoker.supervisor.backoff import Backoff
from stoker.supervisor.children import Child
from stoker.supervisor.trace_settings import TraceSettings

logger = logging.getLogger(__name__)


class Changes:
    """A condition variable of the supervisor: code that changes state calls `notify`, and waiters check again."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake all waiters, to check again."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until `condition` returns a true value; it is called again after each change."""
        while not condition():
            future = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)


_T = TypeVar("_T")


class Background:
    """The tasks of a supervisor; none is started after `stop`."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def stopping(self) -> bool:
        """Whether the server is stopping: a process that ends now is not restarted."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Start no further tasks."""
        self._stop.set()

    async def stopped(self) -> None:
        """Wait until `stop` is called."""
        await self._stop.wait()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def repeat(self, task: str, period_s: float, action: Callable[[], Awaitable[bool]]) -> None:
        """Call `action` periodically, in a task of its own, until it returns False; it goes on after an exception."""
        self.spawn(self._repeat(task, period_s, action))

    def later(self, delay_s: float, start: Callable[[], Awaitable[None]]) -> None:
        """Call `start` after a delay, unless the server stops before."""
        self.spawn(self._start_later(delay_s, start))

    def restart(
        self,
        process: str,
        child: Child[Any, Any],
        backoff: Backoff,
        start: Callable[[], Awaitable[None]],
        reason: str = "",
    ) -> None:
        """Restart a process that has ended, with growing delays; repeated while the system has no resources for it.

        Args:
            start: Starts it; an OSError means that the system lacks resources, and the start is tried again.
        """
        delay_s = backoff.delay_s(child.lived_s)
        shown = f" ({reason})" if reason else ""
        logger.error("%s %s%s; starting it again in %g s", process, child.describe_exit(), shown, delay_s)
        self.later(delay_s, lambda: self._start_again(process, backoff, start))

    def start_later(self, process: str, backoff: Backoff, start: Callable[[], Awaitable[None]]) -> None:
        """Start a process after the first delay; repeated as in `restart`."""
        self.later(backoff.delay_s(0.0), lambda: self._start_again(process, backoff, start))

    def cancel(self) -> None:
        """Cancel all tasks."""
        self.stop()
        for task in list(self._tasks):
            task.cancel()

    async def _repeat(self, task: str, period_s: float, action: Callable[[], Awaitable[bool]]) -> None:
        trouble, again = "", True
        while again:
            try:
                again = await action()
                trouble = ""
            except Exception as error:
                # Of an error that repeats itself, one traceback is enough.
                if repr(error) != trouble:
                    logger.exception("%s failed; it is tried again every %g s", task, period_s)
                trouble = repr(error)
            await asyncio.sleep(period_s)

    async def _start_later(self, delay_s: float, start: Callable[[], Awaitable[None]]) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), delay_s)
        if not self.stopping:
            await start()

    async def _start_again(
        self, process: str, backoff: Backoff, start: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await start()
        except OSError as error:
            delay_s = backoff.delay_s(0.0)
            logger.error("%s cannot be started: %s; trying again in %g s", process, error, delay_s)  # noqa: TRY400
            self.later(delay_s, lambda: self._start_again(process, backoff, start))


async def in_thread(function: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function that may block for long, on a thread of its own.

    The end of this process does not wait for it, as it would for an executor's threads: a disk or a driver may
    never answer.
    """
    outcome: Future[_T] = Future()
    # From now on it cannot be cancelled: a caller that stops waiting leaves the thread running.
    outcome.set_running_or_notify_cancel()

    def work() -> None:
        try:
            result = function(*arguments)
        except BaseException as error:  # noqa: BLE001  # it is raised where it is waited for
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    threading.Thread(target=work, name=getattr(function, "__name__", "call"), daemon=True).start()
    return await asyncio.wrap_future(outcome)


class Supervision(Struct, frozen=True):
    """Shared by the supervision of frontends and of device processes."""

    metrics_fd: int
    page: MetricPage
    traces: TraceSettings | None = None
    background: Background = field(default_factory=Background)
    changes: Changes = field(default_factory=Changes)
    # Device processes set its size: only they know its layout.
    turns_fd: int = field(default_factory=lambda: os.memfd_create("stoker-turns", os.MFD_CLOEXEC))
    # Frontends do the same here; it takes no memory before.
    regions_fd: int = field(default_factory=lambda: os.memfd_create("stoker-regions", os.MFD_CLOEXEC))
