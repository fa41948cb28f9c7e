"""Requests whose answers do not fit into the rows of their exchange, and run again in larger ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from stoker.gateway.rows.ticket import Exchange

if TYPE_CHECKING:
    from stoker.gateway.scoring.call import Call

_MAX_ANSWER_BYTES: Final = 32 << 30
"""The most bytes that an answer may have."""

_GROWTH: Final = 4


class LargerRows:
    """The exchanges of a service whose rows were too small, and the requests that wait for larger ones.

    The length of answers of a model of free sizes is known only once it has computed one. Rows are sparse, so room
    costs address space and no memory: an arena begins with room for usual answers, and is replaced by one with four
    times as much when an answer has not fitted.

    Args:
        request: Asks the supervisor to replace an exchange by one with room for answers of so many bytes; None if
            rows cannot grow.
    """

    def __init__(self, request: Callable[[Exchange, int], None] | None = None) -> None:
        self._request = request
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

    def run_again(self, call: Call, exchange: Exchange) -> bool:
        """Run a request again whose answer has not fitted; to be called within its `complete`.

        False if there cannot be larger rows, or the model keeps state that the request has changed.
        """
        signature = exchange.signature
        size_bytes = _GROWTH * signature.outputs[0].row_bytes
        if self._request is None or signature.takes != "tensors" or size_bytes > _MAX_ANSWER_BYTES:
            return False
        if exchange not in self._replaced and exchange not in self._waiting:
            self._waiting[exchange] = []
            self._request(exchange, size_bytes)
        if signature.keeps_state:
            # Later ones find room.
            return False
        body = call.body()
        call.reopen()
        if exchange in self._replaced:
            call.resubmit(self._replaced[exchange], body)
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
            if call.is_awaited:
                call.resubmit(new, body)

    def disconnect(self, exchange: Exchange) -> list[tuple[Call, bytes]]:
        """Return the requests, with their bodies, that have waited for the replacement of a lost exchange."""
        self._replaced.pop(exchange, None)
        return self._waiting.pop(exchange, [])

    def sweep(self, now_ns: int) -> None:
        """Fail requests that have waited too long, and close replaced exchanges that are empty."""
        for calls in self._waiting.values():
            late = [call for call, _ in calls if call.deadline_ns <= now_ns]
            calls[:] = [pair for pair in calls if pair[0].deadline_ns > now_ns]
            for call in late:
                call.fail(call.timeout_error(begun=False))
        for exchange in self.exchanges:
            if exchange.idle:
                del self._replaced[exchange]
                exchange.close()
