"""Callers whose every answer is kept with its time, for what is rare: failures, and what follows them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import uvloop

from stoker_bench.generators.http_caller import HttpCaller, is_success
from stoker_bench.generators.kept_connection import keep_connected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

__all__ = ["NO_ANSWER", "NO_CONNECTION", "Answer", "TimedLoad", "told", "wait_for"]

NO_ANSWER = "connection ended"
NO_CONNECTION = "connection refused"
AFTER_FAILURE_S = 0.01
"""Callers that fail at once would otherwise do nothing but fail."""
ERROR_CODE = b"x-stoker-error-code"

Parts = tuple["bytes | memoryview", ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request; times are readings of `time.monotonic`.

    Attributes:
        began_s: When it was sent.
        ended_s: When its answer was whole, or its connection ended.
        status: The HTTP status; 0 without an answer.
        what: The status with the error's code, or how the connection failed.
    """

    began_s: float
    ended_s: float
    status: int
    what: str

    @property
    def succeeded(self) -> bool:
        """Whether the status is one of 2xx."""
        return is_success(self.status)


def told(answers: Sequence[Answer]) -> dict[str, int]:
    """Count what callers were told, the most frequent first."""
    return dict(Counter(answer.what for answer in answers).most_common())


@dataclass
class _State:
    """What the callers share."""

    next_request: Callable[[], Parts]
    answers: list[Answer] = field(default_factory=list)
    closing: bool = False


class _TimedCaller(HttpCaller):
    """One caller: sends the next request as soon as it has its answer, or a moment after a failure."""

    def __init__(self, state: _State) -> None:
        super().__init__()
        self._state = state
        self._code = ""

    def opened(self) -> None:
        self._ask()

    def _ask(self) -> None:
        if self._state.closing or self.lost.done():
            return
        self._code = ""
        self._began_s = time.monotonic()
        self.send_parts(self._state.next_request())

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == ERROR_CODE:
            self._code = value.decode("latin-1")

    def answered(self, status: int, kept: bool) -> None:
        self._note(status, f"{status} {self._code}".strip())
        if not kept:
            return
        if is_success(status):
            self._ask()
        else:
            asyncio.get_running_loop().call_later(AFTER_FAILURE_S, self._ask)

    def dropped(self) -> None:
        self._note(0, NO_ANSWER)

    def _note(self, status: int, what: str) -> None:
        if not self._state.closing:
            self._state.answers.append(Answer(self._began_s, time.monotonic(), status, what))


class TimedLoad:
    """Closed-loop load from a thread of this process; a context manager.

    Args:
        host: Where the server listens.
        port: Where the server listens.
        next_request: Gives the bytes of each request, in parts; called from the thread.
        callers: How many there are.
    """

    def __init__(self, host: str, port: int, next_request: Callable[[], Parts], callers: int) -> None:
        self._address = (host, port)
        self._callers = callers
        self._state = _State(next_request)
        self._loop: Any = uvloop.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def answers(self) -> list[Answer]:
        """What has been answered so far, in order."""
        return list(self._state.answers)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._load())
        finally:
            self._loop.close()

    async def _load(self) -> None:
        tasks = [asyncio.create_task(self._keep_calling()) for _ in range(self._callers)]
        await self._stop.wait()
        self._state.closing = True
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep_calling(self) -> None:
        def refused(tried_s: float) -> None:
            self._state.answers.append(Answer(tried_s, time.monotonic(), 0, NO_CONNECTION))

        await keep_connected(*self._address, lambda: _TimedCaller(self._state), refused)


def wait_for(condition: Callable[[], bool], timeout_s: float, poll_s: float = 0.02) -> bool:
    """Wait until a condition holds; tell whether it did in time."""
    give_up_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > give_up_s:
            return False
        time.sleep(poll_s)
    return True
