"""Samples of the requests to a version, kept for running them again.

Requests and answers are read from the arenas, where they stay until their rows are reused. So sampling costs requests
nothing, whatever their protocol.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from stoker.gateway.rows.ticket import Rows

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Exchange

_MAX_SAMPLES: Final = 100
_MAX_BYTES: Final = 16 << 20
_MAX_SAMPLE_BYTES: Final = 1 << 20
_PERIOD_NS: Final = 250_000_000


class Samples:
    """The last sampled requests of one version: one row or body each, at most four a second."""

    def __init__(self, most: int = _MAX_SAMPLES) -> None:
        """Keep at most this many, of 16 MiB together."""
        self._most = most
        self._kept: deque[Rows | bytes] = deque()
        self._kept_bytes = 0
        self._checked_ns = 0
        self._paused = False

    @property
    def contents(self) -> list[Rows | bytes]:
        """The sampled rows or bodies, the oldest first."""
        return list(self._kept)

    def collect(self, exchanges: Iterable[Exchange], now_ns: int) -> None:
        """Sample a request that was answered since the last call, at most four a second."""
        if self._paused or now_ns - self._checked_ns < _PERIOD_NS:
            return
        since_ns, self._checked_ns = self._checked_ns, now_ns
        for exchange in exchanges:
            for number in exchange.done_since(since_ns, 1):
                self._keep(content_of(exchange, number))
                return

    @contextmanager
    def pause(self, clock_ns: Callable[[], int]) -> Iterator[None]:
        """Pause sampling: the rows in the arena are those of samples that run again."""
        self._paused = True
        try:
            yield
        finally:
            self._paused, self._checked_ns = False, clock_ns()

    def _keep(self, content: Rows | bytes) -> None:
        length = _size_bytes(content)
        if length > _MAX_SAMPLE_BYTES:
            return
        self._kept.append(content)
        self._kept_bytes += length
        while len(self._kept) > self._most or self._kept_bytes > _MAX_BYTES:
            self._kept_bytes -= _size_bytes(self._kept.popleft())


def content_of(exchange: Exchange, number: int) -> Rows | bytes:
    """Return a copy of the content of a queued row."""
    arena = exchange.arena
    if arena.signature.takes != "rows":
        return arena.read_bytes("in", 0, number)
    return [rows[number : number + 1].copy() for rows in arena.inputs]


def _size_bytes(content: Rows | bytes) -> int:
    return len(content) if isinstance(content, bytes) else sum(array.nbytes for array in content)
