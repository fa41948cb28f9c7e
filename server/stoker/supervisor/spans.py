"""Spans of traced requests and of their batches, as frontends record them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from stoker.metrics.journal import TracedRequest

MAX_LINKS: Final = 128
"""Most requests that a batch's span links to, as OpenTelemetry's own limit."""
_SERVER_FAULT: Final = 500
_ROUNDS: Final = 1
"""After this many further readings no more requests of a batch are expected."""


class Span(Struct, frozen=True):
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
    attributes: dict[str, Any] = msgspec.field(default_factory=dict)
    links: tuple[tuple[str, str], ...] = ()
    failed: bool = False


class _Batch(Struct):
    model: str
    version: str
    trace_id: str
    span_id: str
    begin_ns: int
    end_ns: int
    requests: int = 0
    rows: int = 0
    rounds: int = 0
    links: list[tuple[str, str]] = msgspec.field(default_factory=list)


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
        """Return the spans of requests, and of the batches that expect no more requests."""
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
