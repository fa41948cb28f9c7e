"""Selects remarkable requests to a model: failed ones, and the slowest of each half minute.

Records hold times and names, never a body. A request that is not slow costs one comparison.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from heapq import heappush, heapreplace
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from stoker.echo import cut
from stoker.metrics.rings import RECORD_BYTES

if TYPE_CHECKING:
    from stoker.errors import StokerError
    from stoker.metrics.batch_facts import BatchFacts
    from stoker.metrics.journal import Journal, Kind

__all__ = ["Remarkable", "Remarks"]

_WINDOW_MS: Final = 30_000
_SLOWEST: Final = 16
_FAILURES_A_SECOND: Final = 10
_ID_CHARS: Final = 100


class _Ids(Protocol):
    request_id: bytes


class Remarkable(Protocol):
    """The facts of a request that are recorded."""

    rows: int

    @property
    def stages_ns(self) -> Mapping[str, int]:
        """The duration of each stage of a request that was run."""

    @property
    def batch(self) -> BatchFacts | None:
        """The request's batch; None if unknown."""

    @property
    def ids(self) -> _Ids:
        """The request's ids."""


class Remarks:
    """Records the remarkable requests of one frontend to one version.

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
        """Start with no requests recorded.

        Args:
            journal: Where records are written.
            name: The model's name.
            version: Its version.
            clock_ms: Milliseconds since 1970.
        """
        self.slow_ns = 0
        self._journal, self._clock_ms = journal, clock_ms
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
        times = {"total": total_ns, **call.stages_ns}
        rounded = {f"{name}_ms": round(value / 1e6, 3) for name, value in times.items()}
        batch = call.batch
        told = {} if batch is None else {"batch": batch._asdict()}
        self._write("slow", call, now_ms, {"rows": call.rows, **rounded, **told})

    def begin_anew(self) -> None:
        """Reset the threshold at the end of a half minute; called regularly."""
        if self._slowest and self._clock_ms() - self._begun_ms >= _WINDOW_MS:
            self._slowest.clear()
            self.slow_ns = 0

    def failed(self, call: Remarkable, error: StokerError) -> None:
        """Record a request that is answered with an error, unless the rate limit of such records is reached."""
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
            "message": _text(str(error)),
        }
        self._write("failed", call, now_ms, facts)

    def _write(self, kind: Kind, call: Remarkable, now_ms: int, facts: dict[str, Any]) -> None:
        request_id = call.ids.request_id.decode("latin-1")[:_ID_CHARS]
        record = orjson.dumps({"at_ms": now_ms, "id": request_id, **self._names, **facts})
        if len(record) <= RECORD_BYTES:
            self._journal.write(kind, record)


def _text(message: str) -> str:
    """The beginning of a message, with lone surrogates from callers replaced, which JSON cannot hold."""
    return cut(message).encode(errors="replace").decode()
