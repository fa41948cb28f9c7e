"""Traced requests: sampling, spans of a request, the span that a script sees."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.http.raw_http import rows_body
from tests.puppets import Joined, metric_memory, puppet_service

from stoker.control.frontend_messages import Sampling
from stoker.errors import Overloaded, Unauthorized
from stoker.gateway.http.request_ids import RequestIds
from stoker.gateway.scoring.call import Call
from stoker.gateway.scoring.observers import Observers, head_with_span
from stoker.gateway.scoring.tracing import Tracing
from stoker.metrics.journal import TracedRequest, TraceReader, TraceWriter
from stoker.metrics.memory import MetricMemory
from stoker.wire.script_requests import RequestHead

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
KEPT, DROPPED = (f"00-{TRACE}-{PARENT}-{flags}".encode() for flags in ("01", "00"))
HALF = 1 << 63


class Traced:
    """A service whose requests are traced, with their spans."""

    def __init__(self, joined: Joined, fd: int, *bits: int, ratio: float | None = 0.5) -> None:
        numbers = iter(bits)
        tracing = Tracing(TraceWriter(fd, 3), Sampling(ratio), lambda _: next(numbers), joined.clock)
        self._reader = TraceReader(fd)
        self.service = puppet_service(memory=metric_memory())
        self.service.attach(joined.exchange)
        self.observers = Observers([tracing])
        self.observers.observe(self.service)
        self._joined = joined

    def score(self, ids: RequestIds | None = None) -> Call:
        """Ask for one row."""
        return self.service.score(rows_body([1, 0]), ids, lambda *_: None, self._joined.clock())

    def read_spans(self) -> list[TracedRequest]:
        """Spans written since the last call."""
        requests, lost = self._reader.read()
        assert not lost
        return requests


@pytest.fixture
def joined() -> Iterator[Joined]:
    """A device that doubles."""
    with Joined() as joined:
        yield joined


@pytest.fixture
def fd() -> Iterator[int]:
    """The memory of the metrics."""
    fd = MetricMemory.create()
    yield fd
    os.close(fd)


def test_scored_request_is_traced_with_its_stages(joined: Joined, fd: int) -> None:
    """Its span is a child of its caller's span and has the times of its answer."""
    traced = Traced(joined, fd, 0xAB)
    call = traced.score(RequestIds(b"mi\x9bne", traceparent=KEPT))
    joined.clock.advance_ms(2)
    joined.settle()
    (span,) = traced.read_spans()
    assert span[:4] == (TRACE, f"{0xAB:016x}", PARENT, "mi\x9bne")
    assert (span.model, span.version, span.status, span.code, span.rows) == ("m", "1", 200, "", 1)
    assert span.received_ns == call.received_ns
    assert (span.enqueued_ns, span.started_ns) == (call.enqueued_ns, call.started_ns)
    assert (span.finished_ns, span.answered_ns) == (call.finished_ns, joined.clock())
    assert call.ids.trace_id == TRACE


def test_the_caller_decides_and_else_the_ratio(joined: Joined, fd: int) -> None:
    """Of traces that begin here those are kept whose low 64 bits are below the ratio, as OpenTelemetry samples."""
    traced = Traced(joined, fd, HALF, (7 << 64) + HALF - 1, 1, ratio=0.5)
    traced.score(RequestIds(b"not", traceparent=DROPPED))
    traced.score(RequestIds(b"above"))
    below = traced.score()
    joined.settle()
    (span,) = traced.read_spans()
    assert span[:4] == (f"{(7 << 64) + HALF - 1:032x}", f"{1:016x}", "", below.ids.request_id.decode())
    assert below.ids.trace_id == span.trace_id


def test_sampling_of_traces_can_be_changed_per_model(joined: Joined, fd: int) -> None:
    """A model's own ratio wins; where nothing is traced, callers cannot change that."""
    traced = Traced(joined, fd, *range(1, 9), ratio=None)
    traced.score(RequestIds(b"off", traceparent=KEPT))
    traced.observers.set_sampling(Sampling(None, {"m": 1.0}))
    traced.score(RequestIds(b"own", traceparent=KEPT))
    traced.observers.set_sampling(Sampling(1.0, {"m": None}))
    traced.score(RequestIds(b"not", traceparent=KEPT))
    traced.observers.set_sampling(Sampling(1.0, {"other": None}))
    traced.score(RequestIds(b"all"))
    joined.settle()
    assert sorted(one.request_id for one in traced.read_spans()) == ["all", "own"]


def test_refused_or_abandoned_request_is_traced_without_stages(joined: Joined, fd: int) -> None:
    """Refused and abandoned requests ran nothing, so their traces have no stages."""
    traced = Traced(joined, fd, *range(1, 7), ratio=1)
    traced.score(RequestIds(b"a")).refuse(Overloaded("full"))
    traced.score(RequestIds(b"b")).abandon()
    traced.observers.record_refusal(traced.service, RequestIds(b"c"), Unauthorized("no"))
    spans = traced.read_spans()
    assert [(one.request_id, one.status, one.code) for one in spans] == [
        ("a", 503, "overloaded"),
        ("b", 499, ""),
        ("c", 401, "unauthorized"),
    ]
    assert {one.finished_ns for one in spans} == {0}
    joined.settle()


def test_a_script_sees_the_span_of_its_request(joined: Joined, fd: int) -> None:
    """In the place of its caller's, so that spans of its own are children; of a request without one as it came."""
    traced = Traced(joined, fd, 0xCD)
    head = RequestHead("POST", "/score", "", [("Traceparent", KEPT.decode()), ("accept", "*/*")], "")
    call = traced.score(RequestIds(traceparent=KEPT))
    shown = head_with_span(call, head)
    assert shown.headers == [("accept", "*/*"), ("traceparent", f"00-{TRACE}-{0xCD:016x}-01")]
    assert head_with_span(traced.score(RequestIds(traceparent=DROPPED)), head) is head
    joined.settle()


def test_oversized_trace_is_written_without_its_request_id(fd: int) -> None:
    """Times, names and ids of spans always fit."""
    writer, reader = TraceWriter(fd, 0), TraceReader(fd)
    wide = 10**18
    request = TracedRequest(
        TRACE, PARENT, PARENT, "\x80" * 250, "m" * 100, "9" * 18, 503, "c" * 20, wide, 255, *[wide] * 6
    )
    writer.write(request)
    assert reader.read() == ([request._replace(request_id="")], 0)


def test_spans_not_read_in_time_are_counted(fd: int) -> None:
    """A ring keeps 4096 of each frontend; a successor of it goes on behind them."""
    reader = TraceReader(fd)
    request = TracedRequest(TRACE, PARENT, "", "", "m", "1", 200, "", 1, 0, 1, 2)
    for _ in range(2):
        writer = TraceWriter(fd, 5)
        for _ in range(2500):
            writer.write(request)
    TraceWriter(fd, 6).write(request)
    requests, lost = reader.read()
    assert (len(requests), lost) == (5000 - 2048 + 1, 2048)
    assert reader.read() == ([], 0)
