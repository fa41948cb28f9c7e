"""Runs several requests at once on threads, and gathers their calls to one model into batches."""

from __future__ import annotations

import contextvars
import logging
import sys
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Final

from stoker.scripts.exits import contain
from stoker.scripts.handle_calls import HandleCall, call_together
from stoker.scripts.interception import Interception, redirect_calls
from stoker.scripts.invocation import ScriptCalls
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest

logger = logging.getLogger(__name__)


MAX_THREADS: Final = 64
"""The most requests at the same time. Each has a thread, and Python runs one thread at a time."""
_WAIT_S: Final = 0.002
"""Batches fill while the model computes: in measurements a longer wait only let the model stand idle."""


class GatheredCalls:
    """Calls a script for several requests at once. Belongs to the thread that makes the object."""

    def __init__(
        self, calls: ScriptCalls, *, max_rows: int, max_threads: int = MAX_THREADS, wait_s: float = _WAIT_S
    ) -> None:
        """Gather calls to models.

        Args:
            max_rows: Most rows of a gathered call.
            max_threads: Most requests at the same time.
            wait_s: How long a call waits for calls of other threads.
        """
        self.wait_s = wait_s
        self.largest_batch = 0
        """The most calls that have been made as one."""
        self._calls = calls
        self._max_rows = max_rows
        self._max_threads = max_threads
        self._interception = Interception()
        self._queue = _CallQueue(max_rows, self._may_gather)
        self._threads: ThreadPoolExecutor | None = None
        self._kinds: dict[Hashable, HandleCall] | None = None

    @property
    def gathered(self) -> list[HandleCall]:
        """A call of each kind that is gathered."""
        return list((self._kinds or {}).values())

    def gather_only(self, examples: Sequence[HandleCall]) -> None:
        """Gather calls of the kinds of these examples only; make all others one by one."""
        # A kind names its model by its address: the examples keep their models alive.
        self._kinds = {example.kind: example for example in examples}

    def answers(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        """Score requests, at most `max_threads` at a time. Never raises exceptions of the script."""
        if len(requests) == 1:
            return [self._calls.answer(requests[0])]
        answers: list[ScriptAnswer] = []
        for start in range(0, len(requests), self._max_threads):
            answers += self._run(requests[start : start + self._max_threads], self._make)
        return answers

    def record_calls(self, request: ScriptRequest) -> tuple[ScriptAnswer, list[HandleCall]]:
        """Score one request with each call made alone; also return the calls that could have been gathered."""
        seen: list[HandleCall] = []

        def make(calls: Sequence[HandleCall]) -> None:
            for call in calls:
                if call.kind is not None:
                    seen.append(call)
                _make_alone(call)

        (answer,) = self._run([request], make)
        return answer, seen

    def close(self) -> None:
        """End the threads and leave the libraries as they were."""
        self._interception.remove()
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def _run(
        self, requests: Sequence[ScriptRequest], make: Callable[[Sequence[HandleCall]], None]
    ) -> list[ScriptAnswer]:
        # The first requests may have imported further libraries.
        self._interception.refresh()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                self._max_threads, thread_name_prefix="request", initializer=_share_graph()
            )
        self._queue.expect(len(requests))
        answers = [
            self._threads.submit(contextvars.copy_context().run, self._answer, request)
            for request in requests
        ]
        while calls := self._queue.collect(self.wait_s):
            make(calls)
        return [answer.result() for answer in answers]

    def _answer(self, request: ScriptRequest) -> ScriptAnswer:
        try:
            with redirect_calls(self._queue):
                return self._calls.answer(request)
        finally:
            self._queue.finish_request()

    def _make(self, calls: Sequence[HandleCall]) -> None:
        alike: dict[Hashable, list[HandleCall]] = {}
        for call in calls:
            if self._may_gather(call):
                alike.setdefault((call.kind, call.row_shapes), []).append(call)
            else:
                _make_alone(call)
        for company in alike.values():
            self._make_batches(company)

    def _may_gather(self, call: HandleCall) -> bool:
        return call.kind is not None and (self._kinds is None or call.kind in self._kinds)

    def _make_batches(self, calls: Sequence[HandleCall]) -> None:
        batch: list[HandleCall] = []
        rows = 0
        for call in calls:
            if batch and rows + call.rows > self._max_rows:
                self._make_together(batch)
                batch, rows = [], 0
            batch.append(call)
            rows += call.rows
        self._make_together(batch)

    def _make_together(self, calls: Sequence[HandleCall]) -> None:
        if len(calls) == 1:
            _make_alone(calls[0])
            return
        try:
            results = contain(lambda: call_together(calls), "a gathered call")
        except Exception as error:  # noqa: BLE001  # the halves show which calls fail
            logger.debug("a gathered call for %d requests failed: %r", len(calls), error)
        else:
            self.largest_batch = max(self.largest_batch, len(calls))
            for call, result in zip(calls, results, strict=True):
                call.succeed(result)
            return
        middle = len(calls) // 2
        self._make_together(calls[:middle])
        self._make_together(calls[middle:])


class _CallQueue:
    """A queue of calls to models; the threads of requests wait until their calls are made.

    The model's thread is woken when the first call comes, to start the wait, and again when calls can be made. Waking
    it for each call would cost more than many calls do.
    """

    def __init__(self, max_rows: int, may_gather: Callable[[HandleCall], bool]) -> None:
        self._max_rows = max_rows
        self._may_gather = may_gather
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._waiting: list[HandleCall] = []
        self._rows = 0
        self._open = 0

    def expect(self, requests: int) -> None:
        """Set the number of requests under way."""
        self._open = requests

    def submit(self, call: HandleCall) -> Any:
        """Wait until the call has been made."""
        with self._lock:
            self._waiting.append(call)
            # A call that is made alone need not wait for others.
            self._rows += call.rows if self._may_gather(call) else self._max_rows
            if len(self._waiting) == 1 or self._is_complete():
                self._news.set()
        return call.result()

    def finish_request(self) -> None:
        """Note that a request has its answer."""
        with self._lock:
            self._open -= 1
            if self._is_complete():
                self._news.set()

    def collect(self, wait_s: float) -> list[HandleCall]:
        """Wait for calls, at most `wait_s` after the first; return none if every request has its answer."""
        due_s: float | None = None
        while True:
            with self._lock:
                self._news.clear()
                now_s = time.monotonic()
                if due_s is None and self._waiting:
                    due_s = now_s + wait_s
                if self._is_complete() or (due_s is not None and now_s >= due_s):
                    calls, self._waiting, self._rows = self._waiting, [], 0
                    return calls
            self._news.wait(None if due_s is None else due_s - now_s)

    def _is_complete(self) -> bool:
        """Whether a longer wait would bring no more calls into the batch."""
        return len(self._waiting) >= self._open or self._rows >= self._max_rows


def _make_alone(call: HandleCall) -> None:
    try:
        call.succeed(call.make())
    except BaseException as error:  # noqa: BLE001  # raised again in the thread that made the call
        call.fail(error)


def _share_graph() -> Callable[[], None] | None:
    """Return a function that gives a thread the default graph and session of TensorFlow 1 of this thread."""
    context = sys.modules.get("tensorflow.python.eager.context")
    ops = sys.modules.get("tensorflow.python.framework.ops")
    if context is None or ops is None or context.executing_eagerly():
        return None
    graph, session = ops.get_default_graph(), ops.get_default_session()

    def enter() -> None:
        # Python would leave a context whose manager is no longer referenced.
        entered: list[AbstractContextManager[Any]] = [graph.as_default()]
        if session is not None:
            entered.append(session.as_default())
        for manager in entered:
            manager.__enter__()
        _entered.managers = entered

    return enter


_entered: Final = threading.local()
