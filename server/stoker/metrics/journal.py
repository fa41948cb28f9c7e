"""Records of single requests in shared memory, after the history: failed, slow and traced ones.

Each frontend writes its own rings of short records; any process reads all of them. A frontend never waits: the oldest
record is overwritten, and a record that is written while it is read is skipped. Records hold times and names, never a
body. The supervisor makes spans of traced requests (decision 34). The rings of these take no memory until requests
are traced.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from heapq import heappush, heapreplace
from typing import Any, Final, Literal, NamedTuple, Protocol

import orjson

from stoker.errors import StokerError, cut
from stoker.metrics.history import PAST_END
from stoker.metrics.layout import FIRST_DEVICE_PAGE

_ENTRY_BYTES: Final = 512
_HEAD: Final = struct.Struct("=qq")
RECORD_BYTES: Final = _ENTRY_BYTES - _HEAD.size
"""The maximum length of a record."""


def ring_bytes(records: int) -> int:
    """Return the size of a ring with this many records."""
    return records * _ENTRY_BYTES


class Ring:
    """A ring of short records in shared memory, numbered from 1: one process writes, any may read."""

    __slots__ = ("_memory", "_records", "_start")

    def __init__(self, memory: mmap.mmap, start: int, records: int) -> None:
        self._memory, self._start, self._records = memory, start, records

    @property
    def newest(self) -> int:
        """The number of the newest record; 0 if there is none."""
        return max((number for number, _ in self.all()), default=0)

    def write(self, number: int, record: bytes) -> None:
        """Write a record of at most `RECORD_BYTES` after the newest; the oldest one is overwritten."""
        start = self._place(number)
        body = start + _HEAD.size
        self._memory[start:body] = _HEAD.pack(0, len(record))
        self._memory[body : body + len(record)] = record
        # Last, so that readers skip the record until it is complete.
        self._memory[start:body] = _HEAD.pack(number, len(record))

    def all(self) -> Iterator[tuple[int, bytes]]:
        """Yield all records with their numbers, in any order."""
        for place in range(self._records):
            number, record = self._read(self._start + place * _ENTRY_BYTES)
            if record is not None:
                yield number, record
            elif not number and place == 1:
                # The first record ever written is stored here, so the ring is empty.
                return

    def since(self, seen: int) -> tuple[list[bytes], int]:
        """Return the records after number `seen`, the oldest first, and the number of the last one that was passed.

        Records that were overwritten meanwhile count as passed. A reader that has fallen behind so far continues half
        a ring behind the writer, so that it is not overtaken again at once.
        """
        found: list[bytes] = []
        while True:
            number, record = self._read(self._place(seen + 1))
            if number > seen + 1:
                seen = number - self._records // 2 - 1
            elif record is None or number <= seen:
                return found, seen
            else:
                seen = number
                found.append(record)

    def _place(self, number: int) -> int:
        return self._start + number % self._records * _ENTRY_BYTES

    def _read(self, start: int) -> tuple[int, bytes | None]:
        """Return the number at a position and its record; None if there is no record, or it is being written."""
        head = _HEAD.unpack_from(self._memory, start)
        number, length = head
        if not number:
            return 0, None
        record = self._memory[start + _HEAD.size : start + _HEAD.size + length]
        return number, record if _HEAD.unpack_from(self._memory, start) == head else None


Kind = Literal["failed", "slow"]

_KINDS: Final[tuple[Kind, ...]] = ("failed", "slow")
_RECORDS: Final = 128
_RING_BYTES: Final = ring_bytes(_RECORDS)
_FRONTEND_BYTES: Final = len(_KINDS) * _RING_BYTES
_JOURNAL_BYTES: Final = FIRST_DEVICE_PAGE * _FRONTEND_BYTES
JOURNAL_END: Final = PAST_END + _JOURNAL_BYTES
"""Offset of the end of the journal in the metrics file."""


class Journal:
    """The latest failed and slow requests: reads those of all frontends, writes those of one."""

    def __init__(self, fd: int, page: int) -> None:
        """Map the metrics file `fd`, which may be closed afterwards; `page` is that of the frontend that writes."""
        self._memory = mmap.mmap(fd, _JOURNAL_BYTES, offset=PAST_END)
        self._own = {kind: self._ring(page, kind) for kind in _KINDS}
        # A restarted frontend continues after the records of its predecessor.
        self._written = {kind: ring.newest for kind, ring in self._own.items()}

    def write(self, kind: Kind, record: bytes) -> None:
        """Append a record of at most `RECORD_BYTES`; the oldest one is overwritten."""
        self._written[kind] += 1
        self._own[kind].write(self._written[kind], record)

    def read(self, kind: Kind) -> list[bytes]:
        """Return the records of all frontends."""
        return [record for page in range(FIRST_DEVICE_PAGE) for _, record in self._ring(page, kind).all()]

    def _ring(self, page: int, kind: Kind) -> Ring:
        return Ring(self._memory, page * _FRONTEND_BYTES + _KINDS.index(kind) * _RING_BYTES, _RECORDS)


_WINDOW_MS: Final = 30_000
_SLOWEST: Final = 16
_FAILURES_A_SECOND: Final = 10
_ID_CHARS: Final = 100
_KEY_CHARS: Final = 40


class _Ids(Protocol):
    request_id: bytes


class Remarkable(Protocol):
    """The facts of a request that are recorded."""

    rows: int

    @property
    def key_name(self) -> str:
        """The name of the caller's key."""

    @property
    def stages_ns(self) -> Mapping[str, int]:
        """The duration of each stage of a request that was run."""

    def stages_until(self, now_ns: int) -> Mapping[str, int]:
        """The duration of each stage of a request that fails now, and of all of them as `total`."""

    @property
    def batch(self) -> NamedTuple | None:
        """The request's batch; None if unknown."""

    @property
    def ids(self) -> _Ids:
        """The request's ids."""


class Remarks:
    """Records the failed requests of one frontend to one version, and the slowest of each half minute.

    A request that is not slow costs one comparison.

    Attributes:
        slow_ns: Requests that take longer are among the slowest of the current half minute.
    """

    def __init__(
        self,
        journal: Journal,
        name: str,
        version: str,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.slow_ns = 0
        self._journal = journal
        self._clock_ms = clock_ms
        self._names = {"model": name, "version": version}
        self._slowest: list[int] = []
        self._begun_ms = self._second = self._failures = 0

    def slow(self, call: Remarkable, total_ns: int) -> None:
        """Record a request that took longer than `slow_ns`; called just before it is answered."""
        now_ms = self._clock_ms()
        if now_ms - self._begun_ms >= _WINDOW_MS:
            self._begun_ms = now_ms
            self._slowest.clear()
        if len(self._slowest) < _SLOWEST:
            heappush(self._slowest, total_ns)
        else:
            heapreplace(self._slowest, total_ns)
        self.slow_ns = self._slowest[0] if len(self._slowest) == _SLOWEST else 0
        times_ms = _in_ms({"total": total_ns, **call.stages_ns})
        batch = call.batch
        facts = {} if batch is None else {"batch": batch._asdict()}
        self._write("slow", call, now_ms, {"status": 200, "rows": call.rows, **times_ms, **facts})

    def begin_anew(self) -> None:
        """Reset the threshold at the end of a half minute; called regularly."""
        if self._slowest and self._clock_ms() - self._begun_ms >= _WINDOW_MS:
            self._slowest.clear()
            self.slow_ns = 0

    def failed(self, call: Remarkable, error: StokerError, now_ns: int) -> None:
        """Record a request that is answered with an error, unless the rate limit of such records is reached.

        Args:
            now_ns: The time on the clock of the request's stages.
        """
        now_ms = self._clock_ms()
        if now_ms // 1000 != self._second:
            self._second, self._failures = now_ms // 1000, 0
        self._failures += 1
        if self._failures > _FAILURES_A_SECOND:
            return
        facts = {
            "status": error.status,
            "code": error.code,
            "error_id": error.error_id,
            **_in_ms(call.stages_until(now_ns)),
            "message": _text(str(error)),
        }
        self._write("failed", call, now_ms, facts)

    def _write(self, kind: Kind, call: Remarkable, now_ms: int, facts: dict[str, Any]) -> None:
        request_id = call.ids.request_id.decode("latin-1")[:_ID_CHARS]
        names = {**self._names, "key": call.key_name[:_KEY_CHARS]}
        record = orjson.dumps({"at_ms": now_ms, "id": request_id, **names, **facts})
        if (excess := len(record) - RECORD_BYTES) > 0 and "message" in facts:
            shortened = facts["message"][: -excess - len(_MORE.encode())] + _MORE
            record = orjson.dumps({"at_ms": now_ms, "id": request_id, **names, **facts, "message": shortened})
        if len(record) <= RECORD_BYTES:
            self._journal.write(kind, record)


_MORE: Final = "…"


def _in_ms(times_ns: Mapping[str, int]) -> dict[str, float]:
    return {f"{name}_ms": round(value / 1e6, 3) for name, value in times_ns.items()}


def _text(message: str) -> str:
    """The beginning of a message, with lone surrogates from callers replaced, which JSON cannot hold."""
    return cut(message).encode(errors="replace").decode()


_TRACE_RING_RECORDS: Final = 4096
"""Number of unread requests that the ring of one frontend can hold."""
_TRACE_RING_BYTES: Final = ring_bytes(_TRACE_RING_RECORDS)
_TRACES_BYTES: Final = FIRST_DEVICE_PAGE * _TRACE_RING_BYTES
TRACES_END: Final = JOURNAL_END + _TRACES_BYTES
"""Offset of the end of the rings in the metrics file."""


class TracedRequest(NamedTuple):
    """One traced request; times are `time.monotonic_ns`.

    Attributes:
        trace_id, span_id: Of its span, in hexadecimal.
        parent_id: The caller's span; empty for a trace that begins here.
        code: The code of its error; empty if there is none.
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
        """Map the metrics file `fd`, which may be closed afterwards; `page` is that of the frontend."""
        memory = mmap.mmap(fd, _TRACE_RING_BYTES, offset=JOURNAL_END + page * _TRACE_RING_BYTES)
        self._ring = Ring(memory, 0, _TRACE_RING_RECORDS)
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
        self._rings = [
            Ring(memory, page * _TRACE_RING_BYTES, _TRACE_RING_RECORDS) for page in range(FIRST_DEVICE_PAGE)
        ]
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
