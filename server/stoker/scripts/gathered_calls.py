"""Requests on threads of their own, and the calls that they make to the model gathered into batches.

The thread that calls `GatheredCalls.answers` (the model's own, which called `init`) sits at a desk while other
threads run the script, one request each. When one of those calls the model, its call is taken to the desk, and the
thread waits for the result. Calls that are alike are made as one, on the model's thread, as soon as one of these is
true:

- no thread is away from the desk any more: each waits there or has its answer;
- as many rows wait as fit into a batch;
- the oldest has waited for `wait_s`.

Contract: each call gets the result that it would get alone, up to rounding. A gathered call that raises is made again
in halves, at last alone; so a call raises only what it raises alone. A model may see the same rows several times.
"""

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

from stoker.scripts.calls import ScriptCalls
from stoker.scripts.containment import contain
from stoker.scripts.handles import HandleCall, Interception, at_desk, together
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest

__all__ = ["MAX_THREADS", "GatheredCalls"]

logger = logging.getLogger(__name__)

MAX_THREADS: Final = 64
"""Requests that run at the same time. Each has a thread, and Python runs one of them at a time."""
_WAIT_S: Final = 0.002
"""Batches fill by themselves while the model computes: a longer wait only let it stand idle where it was measured."""


class GatheredCalls:
    """Calls a script for several requests at once. Belongs to the thread that makes it."""

    def __init__(
        self, calls: ScriptCalls, *, max_rows: int, max_threads: int = MAX_THREADS, wait_s: float = _WAIT_S
    ) -> None:
        """Gather from now on.

        Args:
            calls: The script.
            max_rows: Most rows in one call to the model.
            max_threads: Most requests that run at the same time.
            wait_s: How long a call waits for those of threads that are busy elsewhere.
        """
        self.wait_s = wait_s
        self.largest_company = 0
        """Most calls that have been made as one."""
        self._calls = calls
        self._max_rows = max_rows
        self._max_threads = max_threads
        self._interception = Interception()
        self._desk = _Desk(max_rows, self._may_gather)
        self._threads: ThreadPoolExecutor | None = None
        self._kinds: dict[Hashable, HandleCall] | None = None

    @property
    def gathered(self) -> list[HandleCall]:
        """Examples of what is gathered."""
        return list((self._kinds or {}).values())

    def gather_only(self, examples: Sequence[HandleCall]) -> None:
        """From now on gather calls that are like one of these, and make all others one by one."""
        # A kind names its model by its address: the examples keep their models alive.
        self._kinds = {example.kind: example for example in examples}

    def answers(self, requests: Sequence[ScriptRequest]) -> list[ScriptAnswer]:
        """Score requests, as many at a time as there may be threads. Never raises what the script raises."""
        if len(requests) == 1:
            return [self._calls.answer(requests[0])]
        answers: list[ScriptAnswer] = []
        for start in range(0, len(requests), self._max_threads):
            answers += self._run(requests[start : start + self._max_threads], self._make)
        return answers

    def watch(self, request: ScriptRequest) -> tuple[ScriptAnswer, list[HandleCall]]:
        """Score one request, each call made as it comes; return those that could have been gathered, too."""
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
        # What a script imports in its first requests counts from the next ones on.
        self._interception.refresh()
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                self._max_threads, thread_name_prefix="request", initializer=_share_graph()
            )
        self._desk.open(len(requests))
        answers = [
            self._threads.submit(contextvars.copy_context().run, self._answer, request)
            for request in requests
        ]
        while calls := self._desk.collect(self.wait_s):
            make(calls)
        return [answer.result() for answer in answers]

    def _answer(self, request: ScriptRequest) -> ScriptAnswer:
        try:
            with at_desk(self._desk):
                return self._calls.answer(request)
        finally:
            self._desk.leave()

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
            results = contain(lambda: together(calls), "a gathered call")
        except Exception as error:  # noqa: BLE001  # whoever is to blame is found below
            logger.debug("a gathered call for %d requests failed: %r", len(calls), error)
        else:
            self.largest_company = max(self.largest_company, len(calls))
            for call, result in zip(calls, results, strict=True):
                call.succeed(result)
            return
        middle = len(calls) // 2
        self._make_together(calls[:middle])
        self._make_together(calls[middle:])


class _Desk:
    """Where threads bring their calls, and wait until they have been made.

    The model's thread is woken when there is something to do, and once before, when the first call comes, to look
    after the time. Waking it for each call would cost more than many a call.
    """

    def __init__(self, max_rows: int, may_gather: Callable[[HandleCall], bool]) -> None:
        self._max_rows = max_rows
        self._may_gather = may_gather
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._waiting: list[HandleCall] = []
        self._rows = 0
        self._open = 0

    def open(self, requests: int) -> None:
        """Expect so many requests."""
        self._open = requests

    def take(self, call: HandleCall) -> Any:
        """Wait until the call has been made."""
        with self._lock:
            self._waiting.append(call)
            # One that stays alone has nobody to wait for.
            self._rows += call.rows if self._may_gather(call) else self._max_rows
            if len(self._waiting) == 1 or self._is_complete():
                self._news.set()
        return call.result()

    def leave(self) -> None:
        """Say that a request has its answer."""
        with self._lock:
            self._open -= 1
            if self._is_complete():
                self._news.set()

    def collect(self, wait_s: float) -> list[HandleCall]:
        """Wait for calls, the first of them at most `wait_s`; none if every request has its answer."""
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
        """Whether waiting for more calls is of no use."""
        return len(self._waiting) >= self._open or self._rows >= self._max_rows


def _make_alone(call: HandleCall) -> None:
    try:
        call.succeed(call.make())
    except BaseException as error:  # noqa: BLE001  # raised again in the thread that made the call
        call.fail(error)


def _share_graph() -> Callable[[], None] | None:
    """Let other threads see the default graph and session of TensorFlow 1 that this thread has."""
    context = sys.modules.get("tensorflow.python.eager.context")
    ops = sys.modules.get("tensorflow.python.framework.ops")
    if context is None or ops is None or context.executing_eagerly():
        return None
    graph, session = ops.get_default_graph(), ops.get_default_session()

    def enter() -> None:
        # They would be left again as soon as nothing held them.
        entered: list[AbstractContextManager[Any]] = [graph.as_default()]
        if session is not None:
            entered.append(session.as_default())
        for manager in entered:
            manager.__enter__()
        _held.managers = entered

    return enter


_held: Final = threading.local()
