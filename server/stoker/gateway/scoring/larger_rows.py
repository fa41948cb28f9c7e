"""Requests whose answers did not fit into their rows run again in an arena with larger rows.

The length of answers of a model of free sizes is known only once it has computed one. Rows are sparse, so room
costs address space and no memory: an arena begins with room for usual answers, and is replaced by one with four
times as much when an answer has not fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from stoker.gateway.scoring.second_run import submit_again

if TYPE_CHECKING:
    from stoker.gateway.rows.exchange import Exchange
    from stoker.gateway.scoring.call import Call

__all__ = ["LargerRows"]

_MAX_ANSWER_BYTES: Final = 32 << 30
"""The most bytes that an answer may have."""

_GROWTH: Final = 4


class LargerRows:
    """The exchanges of a service whose rows were too small, and the requests that wait for larger ones.

    Args:
        ask: Asks for a replacement of an exchange, with room for answers of so many bytes; None if nobody can be
            asked.
    """

    def __init__(self, ask: Callable[[Exchange, int], None] | None = None) -> None:
        self._ask = ask
        self._waiting: dict[Exchange, list[tuple[Call, bytes]]] = {}
        self._replaced: dict[Exchange, Exchange] = {}

    @property
    def exchanges(self) -> Iterator[Exchange]:
        """The replaced exchanges, which may still hold requests."""
        yield from tuple(self._replaced)

    @property
    def idle(self) -> bool:
        """Whether no request waits or is in a replaced exchange."""
        return not self._waiting and all(exchange.idle for exchange in self._replaced)

    def take(self, call: Call, exchange: Exchange) -> bool:
        """Run a request again whose answer has not fitted.

        Args:
            call: The request, within its `complete`.
            exchange: The exchange that it was in.

        Returns:
            False if there cannot be larger rows, or the model keeps what the request has changed in it: the request
            is as it was.
        """
        signature = exchange.arena.signature
        size_bytes = _GROWTH * signature.outputs[0].row_bytes
        if self._ask is None or signature.takes != "tensors" or size_bytes > _MAX_ANSWER_BYTES:
            return False
        if exchange not in self._replaced and exchange not in self._waiting:
            self._waiting[exchange] = []
            self._ask(exchange, size_bytes)
        if signature.keeps_state:
            # Later ones find room.
            return False
        body = call.body()
        call.reopen()
        if exchange in self._replaced:
            submit_again(call, self._replaced[exchange], body)
        else:
            self._waiting[exchange].append((call, body))
        return True

    def replace(self, old: Exchange, new: Exchange) -> None:
        """Submit the waiting requests to the exchange that replaces an old one."""
        # Exchanges that the old one had replaced may still hold requests.
        for before, successor in self._replaced.items():
            if successor is old:
                self._replaced[before] = new
        self._replaced[old] = new
        for call, body in self._waiting.pop(old, ()):
            if call.wanted:
                submit_again(call, new, body)

    def lose(self, exchange: Exchange) -> list[tuple[Call, bytes]]:
        """Record that the device process of an exchange has ended; no replacement will come.

        Returns:
            The requests that have waited for that, and their bodies.
        """
        self._replaced.pop(exchange, None)
        return self._waiting.pop(exchange, [])

    def sweep(self, now_ns: int) -> None:
        """Fail requests that have waited too long, and close replaced exchanges that are empty."""
        for calls in self._waiting.values():
            late = [call for call, _ in calls if call.deadline_ns <= now_ns]
            calls[:] = [pair for pair in calls if pair[0].deadline_ns > now_ns]
            for call in late:
                call.fail(call.lateness(begun=False))
        for exchange in self.exchanges:
            if exchange.idle:
                del self._replaced[exchange]
                exchange.close()
