"""Requests that are traced: what frontends say of each, in rings of shared memory that the supervisor empties.

A frontend waits for nobody: it overwrites what has not been read. They are behind the journal, and take no memory
until requests are traced.
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
"""How many requests of one frontend may wait to be read."""
_RING_BYTES: Final = ring_bytes(_RING_RECORDS)
_TRACES_BYTES: Final = FIRST_DEVICE_PAGE * _RING_BYTES
TRACES_END: Final = JOURNAL_END + _TRACES_BYTES
"""Where they end in the file of the metrics."""


class TracedRequest(NamedTuple):
    """One request; times are `time.monotonic_ns`.

    Attributes:
        trace_id, span_id: Of its span, in hexadecimal.
        parent_id: The span of its caller; empty for a trace that begins here.
        request_id: Its id.
        model, version: What was asked.
        status: What it was answered with.
        code: The code of its error; empty if there is none.
        rows: How many it had.
        caller: The number of who asked.
        received_ns, answered_ns: When its body was complete, and when it was answered.
        enqueued_ns, started_ns, finished_ns: When its rows were queued, and when their last batch left for the device
            and came back; 0 for one that was not run.
        turn_ns: How long that batch waited for its turn of the device before it left.
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
    """What one frontend says."""

    def __init__(self, fd: int, page: int) -> None:
        """Map the file of the metrics; `fd` may be closed afterwards.

        Args:
            fd: The file.
            page: The page of the frontend.
        """
        memory = mmap.mmap(fd, _RING_BYTES, offset=JOURNAL_END + page * _RING_BYTES)
        self._ring = Ring(memory, 0, _RING_RECORDS)
        # A successor writes on behind what the one before it has written.
        self._written = self._ring.newest

    def write(self, request: TracedRequest) -> None:
        """Say that a request is done."""
        record = orjson.dumps(tuple(request))
        if len(record) > RECORD_BYTES:
            record = orjson.dumps(tuple(request._replace(request_id="")))
        self._written += 1
        self._ring.write(self._written, record)


class TraceReader:
    """What all frontends have said, once."""

    def __init__(self, fd: int) -> None:
        """Map the file of the metrics; `fd` may be closed afterwards."""
        memory = mmap.mmap(fd, _TRACES_BYTES, offset=JOURNAL_END)
        self._rings = [Ring(memory, page * _RING_BYTES, _RING_RECORDS) for page in range(FIRST_DEVICE_PAGE)]
        self._seen = [0] * FIRST_DEVICE_PAGE

    def read(self) -> tuple[list[TracedRequest], int]:
        """Return what has come since the last time, and how many requests were overwritten before they were read."""
        found: list[TracedRequest] = []
        lost = 0
        for page, ring in enumerate(self._rings):
            seen = self._seen[page]
            records, self._seen[page] = ring.since(seen)
            found += [TracedRequest(*orjson.loads(record)) for record in records]
            lost += self._seen[page] - seen - len(records)
        return found, lost
