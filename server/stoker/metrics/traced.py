"""Traced requests: frontends write a record of each to rings in shared memory, which the supervisor reads.

A frontend never waits: it overwrites records that have not been read. The rings are after the journal, and take no
memory until requests are traced.
"""

from __future__ import annotations

import mmap
from typing import Final, NamedTuple

import orjson

from stoker.metrics.journal import JOURNAL_END
from stoker.metrics.layout import FIRST_DEVICE_PAGE
from stoker.metrics.rings import RECORD_BYTES, Ring, ring_bytes

__all__ = ["TRACES_END", "TraceReader", "TraceWriter", "TracedRequest"]

_RING_RECORDS: Final = 4096
"""Number of unread requests that the ring of one frontend can hold."""
_RING_BYTES: Final = ring_bytes(_RING_RECORDS)
_TRACES_BYTES: Final = FIRST_DEVICE_PAGE * _RING_BYTES
TRACES_END: Final = JOURNAL_END + _TRACES_BYTES
"""Offset of the end of the rings in the metrics file."""


class TracedRequest(NamedTuple):
    """One traced request; times are `time.monotonic_ns`.

    Attributes:
        trace_id, span_id: Of its span, in hexadecimal.
        parent_id: The caller's span; empty for a trace that begins here.
        request_id: Its id.
        model, version: The requested model and version.
        status: The status of its answer.
        code: The code of its error; empty if there is none.
        rows: Number of rows.
        caller: The caller's number.
        received_ns, answered_ns: When its body was complete, and when it was answered.
        enqueued_ns, started_ns, finished_ns: When its rows were queued, when their last batch was dispatched to the
            device, and when that was done; 0 for a request that was not run.
        turn_ns: How long that batch waited for its turn on the device before it was dispatched.
    """

    trace_id: str
    span_id: str
    parent_id: str
    request_id: str
    model: str
    version: str
    status: int
    code: str
    rows: int
    caller: int
    received_ns: int
    answered_ns: int
    enqueued_ns: int = 0
    started_ns: int = 0
    finished_ns: int = 0
    turn_ns: int = 0


class TraceWriter:
    """Writes the traced requests of one frontend."""

    def __init__(self, fd: int, page: int) -> None:
        """Map the metrics file; `fd` may be closed afterwards.

        Args:
            fd: The file descriptor.
            page: The page of the frontend.
        """
        memory = mmap.mmap(fd, _RING_BYTES, offset=JOURNAL_END + page * _RING_BYTES)
        self._ring = Ring(memory, 0, _RING_RECORDS)
        # A restarted frontend continues after the records of its predecessor.
        self._written = self._ring.newest

    def write(self, request: TracedRequest) -> None:
        """Write the record of a request that has been answered."""
        record = orjson.dumps(tuple(request))
        if len(record) > RECORD_BYTES:
            record = orjson.dumps(tuple(request._replace(request_id="")))
        self._written += 1
        self._ring.write(self._written, record)


class TraceReader:
    """Reads the traced requests of all frontends, each once."""

    def __init__(self, fd: int) -> None:
        """Map the metrics file; `fd` may be closed afterwards."""
        memory = mmap.mmap(fd, _TRACES_BYTES, offset=JOURNAL_END)
        self._rings = [Ring(memory, page * _RING_BYTES, _RING_RECORDS) for page in range(FIRST_DEVICE_PAGE)]
        self._seen = [0] * FIRST_DEVICE_PAGE

    def read(self) -> tuple[list[TracedRequest], int]:
        """Return the requests since the last call, and how many were overwritten before they were read."""
        found: list[TracedRequest] = []
        lost = 0
        for page, ring in enumerate(self._rings):
            seen = self._seen[page]
            records, self._seen[page] = ring.since(seen)
            found += [TracedRequest(*orjson.loads(record)) for record in records]
            lost += self._seen[page] - seen - len(records)
        return found, lost
