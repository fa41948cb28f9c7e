"""The header `traceparent` of W3C's Trace Context: which trace a request belongs to."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["TRACEPARENT", "SpanContext", "span_context_of"]

TRACEPARENT: Final = b"traceparent"
"""The name of the header."""

# Versions after 00 may have more fields; version ff is invalid (Trace Context, section 3.2.2).
_FORM: Final = re.compile(rb"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE: Final = b"0" * 32
_NO_PARENT: Final = b"0" * 16
_SAMPLED: Final = 1


class SpanContext(NamedTuple):
    """The identity of a span, as it is passed on to those whose spans are its children.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16 of them.
        sampled: Whether it is recorded.
        parent_id: The id of its own parent where known; not passed on.
    """

    trace_id: str
    span_id: str
    sampled: bool = True
    parent_id: str = ""

    @property
    def traceparent(self) -> bytes:
        """The header's value."""
        return f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}".encode()


def span_context_of(traceparent: bytes) -> SpanContext | None:
    """Return the span that a header value names; None if it is absent or invalid."""
    found = _FORM.fullmatch(traceparent)
    if found is None or found[1] == _NO_TRACE or found[2] == _NO_PARENT:
        return None
    if found[4] is not None and traceparent.startswith(b"00"):
        return None
    return SpanContext(found[1].decode(), found[2].decode(), bool(int(found[3], 16) & _SAMPLED))
