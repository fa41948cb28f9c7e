"""Traces: spans of requests as frontends record them, where they are kept, and which requests are traced."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from stoker.control.frontend_messages import Sampling
from stoker.metrics.history import Past, ProcessReading
from stoker.metrics.journal import TracedRequest
from stoker.metrics.layout import SUPERVISOR_PAGE
from stoker.metrics.memory import MetricMemory

MAX_LINKS: Final = 128
"""Most requests that a batch's span links to, as OpenTelemetry's own limit."""
_SERVER_FAULT: Final = 500
_ROUNDS: Final = 1
"""After this many further readings no more requests of a batch are expected."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span in the terms of OpenTelemetry.

    Attributes:
        trace_id, span_id: Its ids, in hexadecimal.
        begin_ns, end_ns: Its times, in nanoseconds since 1970.
        parent_id: The id of its parent; empty for none.
        of_caller: Whether the parent is a span of the caller, so that this one is of kind server.
    """

    name: str
    trace_id: str
    span_id: str
    begin_ns: int
    end_ns: int
    parent_id: str = ""
    of_caller: bool = False
    attributes: dict[str, Any] = field(default_factory=dict)
    links: tuple[tuple[str, str], ...] = ()
    failed: bool = False


@dataclass(slots=True)
class _Batch:
    model: str
    version: str
    trace_id: str
    span_id: str
    begin_ns: int
    end_ns: int
    requests: int = 0
    rows: int = 0
    rounds: int = 0
    links: list[tuple[str, str]] = field(default_factory=list)


class SpanMaker:
    """Makes spans of reported requests.

    Args:
        since_1970_ns: The offset from `time.monotonic_ns` to nanoseconds since 1970.
    """

    def __init__(
        self,
        random_bits: Callable[[int], int] = random.getrandbits,
        since_1970_ns: Callable[[], int] = lambda: time.time_ns() - time.monotonic_ns(),
    ) -> None:
        self._random_bits, self._since_1970_ns = random_bits, since_1970_ns
        self._batches: dict[tuple[str, str, int], _Batch] = {}

    def make(self, requests: Iterable[TracedRequest], *, last: bool = False) -> list[Span]:
        """Return the spans of requests, and of the batches of which no more requests are expected."""
        offset_ns = self._since_1970_ns()
        spans = [span for request in requests for span in self._of_request(request, offset_ns)]
        for key, batch in list(self._batches.items()):
            if last or batch.rounds >= _ROUNDS:
                spans.append(_of_batch(batch))
                del self._batches[key]
            batch.rounds += 1
        return spans

    def _of_request(self, request: TracedRequest, offset_ns: int) -> list[Span]:
        batch = self._join_batch(request, offset_ns)
        whole = Span(
            f"score {request.model}",
            request.trace_id,
            request.span_id,
            offset_ns + request.received_ns,
            offset_ns + request.answered_ns,
            request.parent_id,
            True,
            _attributes(request),
            () if batch is None else ((batch.trace_id, batch.span_id),),
            request.status >= _SERVER_FAULT,
        )
        if not request.finished_ns:
            return [whole]
        return [
            whole,
            *(
                Span(
                    name,
                    request.trace_id,
                    self._span_id(),
                    offset_ns + begin_ns,
                    offset_ns + end_ns,
                    request.span_id,
                )
                for name, begin_ns, end_ns in _stages(request)
            ),
        ]

    def _join_batch(self, request: TracedRequest, offset_ns: int) -> _Batch | None:
        """Return the batch of a request; None if it was not run."""
        if request.started_ns == request.finished_ns:
            return None
        key = request.model, request.version, request.started_ns
        batch = self._batches.get(key)
        if batch is None:
            trace_id = f"{self._random_bits(128):032x}"
            named = request.model, request.version, trace_id, self._span_id()
            begin_ns, end_ns = offset_ns + request.started_ns, offset_ns + request.finished_ns
            batch = self._batches[key] = _Batch(*named, begin_ns, end_ns)
        batch.requests += 1
        batch.rows += request.rows
        if len(batch.links) < MAX_LINKS:
            batch.links.append((request.trace_id, request.span_id))
        return batch

    def _span_id(self) -> str:
        return f"{self._random_bits(64):016x}"


def _stages(request: TracedRequest) -> Iterator[tuple[str, int, int]]:
    """The stages with their begin and end."""
    turn_since_ns = request.started_ns - request.turn_ns
    yield "parse", request.received_ns, request.enqueued_ns
    yield "queue", request.enqueued_ns, turn_since_ns
    if request.turn_ns:
        yield "turn", turn_since_ns, request.started_ns
    yield "compute", request.started_ns, request.finished_ns
    yield "answer", request.finished_ns, request.answered_ns


def _attributes(request: TracedRequest) -> dict[str, Any]:
    failed = str(request.status) if request.status >= _SERVER_FAULT else ""
    known = {
        "http.response.status_code": request.status,
        "error.type": request.code or failed,
        "stoker.model": request.model,
        "stoker.version": request.version,
        "stoker.request_id": request.request_id,
        "stoker.rows": request.rows,
        "stoker.caller": request.caller,
    }
    return {name: value for name, value in known.items() if value}


def _of_batch(batch: _Batch) -> Span:
    return Span(
        f"batch {batch.model}",
        batch.trace_id,
        batch.span_id,
        batch.begin_ns,
        batch.end_ns,
        attributes={
            "stoker.model": batch.model,
            "stoker.version": batch.version,
            "stoker.batch.traced_requests": batch.requests,
            "stoker.batch.traced_rows": batch.rows,
        },
        links=tuple(batch.links),
    )


_TICK_MS: Final = 1000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Counted from behind the program's name, which may contain spaces.
_USER_TICKS, _SYSTEM_TICKS, _RESIDENT_PAGES = 11, 12, 21


class Recorder:
    """Writes a step of the history whenever `record` is called."""

    def __init__(
        self,
        metrics_fd: int,
        pids: Callable[[], Mapping[int, int]],
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        """Create it with an empty history.

        Args:
            pids: Returns the running processes by their pages, without the supervisor.
            clock_s: The time in seconds since 1970.
        """
        self._memory, self._past = MetricMemory(metrics_fd), Past(metrics_fd)
        self._pids, self._clock_s = pids, clock_s

    async def record(self) -> bool:
        """Write a step; to be called once a second."""
        totals = self._memory.totals()
        restarts = totals.restarts()
        self._past.record(
            round(1000 * self._clock_s()),
            totals.slots,
            (restarts["device"], restarts["frontend"]),
            totals.gpus(),
            read_processes({**self._pids(), SUPERVISOR_PAGE: os.getpid()}),
        )
        return True


def read_processes(pids: Mapping[int, int], proc: Path = Path("/proc")) -> Iterator[ProcessReading]:
    """Read the resource use of processes, by page; those that have ended are left out."""
    for page, pid in pids.items():
        try:
            stat = (proc / str(pid) / "stat").read_text()
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        cpu_ms = _TICK_MS * (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS]))
        yield ProcessReading(page, pid, cpu_ms, _PAGE_BYTES * int(fields[_RESIDENT_PAGES]))


UNLIMITED: Final = -1
"""The value of the limit if there is none."""


def rate_of(ratio: float) -> int:
    """Return n if about one of n traces that begin here is kept; 0 if none is."""
    return round(1 / ratio) if ratio else 0


@dataclass(slots=True)
class _TraceSetting:
    """The settings for one model, or for all; None where a field is not set.

    Attributes:
        rate: One of this many traces that begin here is kept; 0 for none.
        left: How many further traces are kept.
    """

    on: bool | None = None
    rate: int | None = None
    left: int | None = None

    @property
    def empty(self) -> bool:
        return all(getattr(self, one.name) is None for one in fields(self))


class TraceSettings:
    """The trace settings of a server. May be used on several threads.

    Args:
        ratio: The share of traces beginning here that are kept if nothing else is set.
    """

    def __init__(self, ratio: float = 1.0) -> None:
        self._ratio = ratio
        self._all = _TraceSetting()
        self._models: dict[str, _TraceSetting] = {}
        self._lock = threading.Lock()

    @property
    def sampling(self) -> Sampling:
        """The sampling settings for frontends."""
        with self._lock:
            return Sampling(
                self._share(self._all), {name: self._share(of) for name, of in self._models.items()}
            )

    def change(self, model: str, changes: Mapping[str, Any]) -> None:
        """Change settings.

        Args:
            model: The model; empty for the settings of all models that have none of their own.
            changes: Some of `on` (a boolean), `rate` and `left` (integers), as in `described`. None removes a
                setting: a model then follows those for all models, and these follow the server's start.
        """
        with self._lock:
            setting = self._models.setdefault(model, _TraceSetting()) if model else self._all
            for name, value in changes.items():
                setattr(setting, name, value)
            if model and setting.empty:
                del self._models[model]

    def described(self, model: str) -> dict[str, Any]:
        """Return the settings that hold for a model.

        For an empty name, for all models without settings of their own.
        """
        with self._lock:
            setting = self._models.get(model, self._all)
            rate = self._of(setting, "rate")
            return {
                "on": self._of(setting, "on") is not False,
                "rate": rate_of(self._ratio) if rate is None else rate,
                "left": self._left(setting),
            }

    def admit(self, requests: Iterable[TracedRequest]) -> list[TracedRequest]:
        """Return those of the traced requests that are within the limit, and count them."""
        with self._lock:
            return [request for request in requests if self._take(request.model)]

    def _take(self, model: str) -> bool:
        setting = self._models.get(model, self._all)
        counted = self._all if setting.left is None else setting
        if counted.left is None or counted.left == UNLIMITED:
            return True
        if counted.left == 0:
            return False
        counted.left -= 1
        return True

    def _share(self, setting: _TraceSetting) -> float | None:
        if self._of(setting, "on") is False or self._left(setting) == 0:
            return None
        rate = self._of(setting, "rate")
        if rate is None:
            return self._ratio
        return 1 / rate if rate else 0.0

    def _left(self, setting: _TraceSetting) -> int:
        left: int | None = self._of(setting, "left")
        return UNLIMITED if left is None else left

    def _of(self, setting: _TraceSetting, name: str) -> Any:
        """A field of the model's settings, or otherwise of those for all models."""
        value = getattr(setting, name)
        return getattr(self._all, name) if value is None else value
