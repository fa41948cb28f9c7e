"""Samples of the requests to a version, taken from its arenas: there the last ones lie until others need their rows.

So requests cost nothing more for it, whatever their protocol: an occasional look at the rows that have come back is
all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.rows.ticket import Rows

__all__ = ["Samples", "content_of"]

_MAX_BYTES: Final = 16 << 20
_MAX_SAMPLE_BYTES: Final = 1 << 20
_PERIOD_NS: Final = 250_000_000


class Samples:
    """The last sampled requests of one version: a row or a body each, at most four a second."""

    def __init__(self, most: int) -> None:
        """Keep at most so many, of 16 MiB together."""
        self._most = most
        self._kept: deque[Rows | bytes] = deque()
        self._kept_bytes = 0
        self._looked_ns = 0
        self._paused = False

    @property
    def contents(self) -> list[Rows | bytes]:
        """What they were queued with, the oldest first."""
        return list(self._kept)

    def look(self, exchanges: Iterable[Exchange], now_ns: int) -> None:
        """Keep a request that has been answered since the last look, if a quarter of a second has passed since."""
        if self._paused or now_ns - self._looked_ns < _PERIOD_NS:
            return
        since_ns, self._looked_ns = self._looked_ns, now_ns
        for exchange in exchanges:
            for number in exchange.done_since(since_ns, 1):
                self._keep(content_of(exchange, number))
                return

    @contextmanager
    def resting(self, clock_ns: Callable[[], int]) -> Iterator[None]:
        """Keep nothing meanwhile: what is in the arena are samples that run again."""
        self._paused = True
        try:
            yield
        finally:
            self._paused, self._looked_ns = False, clock_ns()

    def _keep(self, content: Rows | bytes) -> None:
        length = _size_bytes(content)
        if length > _MAX_SAMPLE_BYTES:
            return
        self._kept.append(content)
        self._kept_bytes += length
        while len(self._kept) > self._most or self._kept_bytes > _MAX_BYTES:
            self._kept_bytes -= _size_bytes(self._kept.popleft())


def content_of(exchange: Exchange, number: int) -> Rows | bytes:
    """Return what a row was queued with, copied."""
    arena = exchange.arena
    if arena.signature.takes != "rows":
        return arena.read_bytes("in", 0, number)
    return [rows[number : number + 1].copy() for rows in arena.inputs]


def _size_bytes(content: Rows | bytes) -> int:
    """Return how much memory a sample takes."""
    return len(content) if isinstance(content, bytes) else sum(array.nbytes for array in content)
