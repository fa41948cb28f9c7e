"""The trace of a request, by W3C's Trace Context."""

from __future__ import annotations

import pytest

from stoker.gateway.http.request_ids import RequestIds, SpanContext, sent_ids, span_context_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
VALID = f"00-{TRACE}-00f067aa0ba902b7-01".encode()


@pytest.mark.parametrize(
    ("traceparent", "trace_id"),
    [
        (VALID, TRACE),
        (VALID[:-2] + b"ff", TRACE),
        (b"cc" + VALID[2:], TRACE),
        (b"cc" + VALID[2:] + b"-what-comes", TRACE),
        (b"cc" + VALID[2:] + b"what-comes", ""),
        (VALID + b"-more", ""),
        (b"ff" + VALID[2:], ""),
        (VALID.upper(), ""),
        (VALID[:-1], ""),
        (VALID + b"\n", ""),
        (VALID.replace(TRACE.encode(), b"0" * 32), ""),
        (VALID.replace(b"00f067aa0ba902b7", b"0" * 16), ""),
        (b"\x9b2J", ""),
        (b"", ""),
    ],
)
def test_only_a_valid_header_names_a_trace(traceparent: bytes, trace_id: str) -> None:
    """Lower case, no zeros, version 00 with nothing behind it, later ones with more, never ff."""
    span = span_context_of(traceparent)
    assert ("" if span is None else span.trace_id) == trace_id


def test_the_trace_goes_with_the_ids_of_a_request() -> None:
    """Whether it has ids of its own or not; without the header it has none."""
    assert RequestIds(*sent_ids({b"traceparent": VALID, b"x-request-id": b"a"})).trace_id == TRACE
    assert RequestIds(*sent_ids({b"traceparent": VALID})).trace_id == TRACE
    assert RequestIds(*sent_ids({b"x-request-id": b"a"})).trace_id == ""


def test_a_span_is_passed_on_unchanged() -> None:
    """Parent and sampling flag are read; the written header can be read again."""
    span = span_context_of(VALID)
    assert span == SpanContext(TRACE, "00f067aa0ba902b7", sampled=True)
    assert span.traceparent == VALID
    dropped = span_context_of(VALID[:-2] + b"fe")
    assert dropped is not None
    assert not dropped.sampled
    ids = RequestIds(traceparent=VALID)
    ids.join(SpanContext(TRACE, "1" * 16))
    assert ids.span == SpanContext(TRACE, "1" * 16)
