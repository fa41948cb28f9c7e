"""Cached answers of one version of a model, and the exchange that answers from them without the device."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from stoker.arena import Arena
from stoker.gateway.rows.exchange import ArenaExchange
from stoker.gateway.rows.ticket import Rows, SlicedAnswer, Ticket
from stoker.wire.script_requests import ScriptAnswer, ScriptRequest

if TYPE_CHECKING:
    import socket

    from stoker.errors import StokerError
    from stoker.metrics.counters import ModelMetrics

_DIGEST_BYTES: Final = 16
_ENTRY_BYTES: Final = 768
"""Memory of an entry beside its outputs: its key, its place in the order, an object and a list for each output."""


class KeptAnswer(NamedTuple):
    """A cached answer as the model gave it, independent of protocols; its outputs must not be written to."""

    rows: int
    outputs: SlicedAnswer
    size_bytes: int

    @classmethod
    def of(cls, rows: int, outputs: SlicedAnswer) -> KeptAnswer:
        """Copy the outputs of a request."""
        size_bytes = _ENTRY_BYTES
        for array in outputs.arrays:
            array.flags.writeable = False
            size_bytes += array.nbytes
        for texts in outputs.texts:
            size_bytes += sum(map(len, texts))
        return cls(rows, outputs, size_bytes)


class AnswerCache:
    """Answers by request; the least recently used ones are dropped first.

    Requests are identified by 128 bits of BLAKE2b with a key that only this process knows, so nobody can construct
    two requests with one digest, and chance does not produce them.

    Args:
        note_size: Called with the memory in use whenever it changes, and with how many answers were dropped for it.
    """

    def __init__(self, max_bytes: int, note_size: Callable[[int, int], None]) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._note_size = note_size
        self._answers: OrderedDict[bytes, KeptAnswer] = OrderedDict()
        self._empty_hash = hashlib.blake2b(digest_size=_DIGEST_BYTES, key=secrets.token_bytes(32))

    def __len__(self) -> int:
        return len(self._answers)

    def key_of_rows(self, rows: Sequence[np.ndarray]) -> bytes:
        """Return the key of rows: one array per input, `[n, *row_shape]` of the input's dtype, contiguous.

        Row shapes and dtypes are the model's, so the contents and *n* identify the rows.
        """
        digest = self._empty_hash.copy()
        digest.update(len(rows[0]).to_bytes(8, "little"))
        for array in rows:
            digest.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
        return digest.digest()

    def key_of_body(self, body: bytes | memoryview) -> bytes:
        """Return the key of a body."""
        digest = self._empty_hash.copy()
        digest.update(body)
        return digest.digest()

    def find(self, key: bytes) -> KeptAnswer | None:
        """Return the cached answer to this request, if there is one."""
        answer = self._answers.get(key)
        if answer is not None:
            self._answers.move_to_end(key)
        return answer

    def keep(self, key: bytes, answer: KeptAnswer) -> None:
        """Add an answer, dropping others to make room; an answer larger than the whole cache is not added."""
        if answer.size_bytes > self.max_bytes:
            return
        known = self._answers.pop(key, None)
        if known is not None:
            self.size_bytes -= known.size_bytes
        self._answers[key] = answer
        self.size_bytes += answer.size_bytes
        evicted = 0
        while self.size_bytes > self.max_bytes:
            _, oldest = self._answers.popitem(last=False)
            self.size_bytes -= oldest.size_bytes
            evicted += 1
        self._note_size(self.size_bytes, evicted)

    def clear(self) -> None:
        """Drop all answers: the replica that gave them has gone, and its successor may answer differently."""
        self._answers.clear()
        self.size_bytes = 0
        self._note_size(0, 0)


_OK = 200


class CachedExchange(ArenaExchange):
    """An exchange behind a cache of answers, which the replicas of a model may share.

    Decoded inputs are compared and raw outputs are kept, so all protocols share the answers, and each encodes them
    in its own form.
    """

    def __init__(
        self, arena: Arena, doorbell: socket.socket, cache: AnswerCache, metrics: ModelMetrics, **how: Any
    ) -> None:
        """Create it for one end of a doorbell."""
        super().__init__(arena, doorbell, **how)
        self._cache, self._metrics = cache, metrics
        # The key of a request has to be computed before it gets a row.
        self._inputs.memory = None
        self.pending_keys: dict[Ticket, bytes] = {}
        """The cache keys of the requests that the device is to answer."""

    def refusal(self, ticket: Ticket) -> StokerError | None:
        """None: whether a request needs a row, and so could be refused, is known only after it is decoded."""
        del ticket
        return None

    def submit(self, ticket: Ticket, rows: Rows) -> None:
        """Answer a request from the cache, or queue its rows; see `Exchange.submit`.

        Sliced requests are never cached.
        """
        if len(rows[0]) > self.slices.share_rows:
            self._check_taken(ticket)
            super().submit(ticket, rows)
            return
        since_ns = self._request_headers.clock_ns()
        self._inputs.check(rows)
        try:
            exact = [
                np.ascontiguousarray(values, spec.dtype)
                for values, spec in zip(rows, self.arena.signature.inputs, strict=True)
            ]
        except FloatingPointError:
            # Its error messages are those of the base class.
            super().submit(ticket, rows)
            return
        key = self._cache.key_of_rows(exact)
        if not self._answered(ticket, key, since_ns):
            self._check_taken(ticket)
            super().submit(ticket, exact)
            self.pending_keys[ticket] = key

    def submit_body(self, ticket: Ticket, body: bytes | memoryview) -> None:
        """Answer a request whose row is its whole body, or queue it; see `Exchange.submit_body`."""
        since_ns = self._request_headers.clock_ns()
        content: bytes | memoryview = body
        if self.signature.takes == "body":
            request = ScriptRequest.unpack(bytes(body))
            if request.head is not None:
                # Two requests never have the same headers.
                self._check_taken(ticket)
                super().submit_body(ticket, body)
                return
            content = request.body
        key = self._cache.key_of_body(content)
        if not self._answered(ticket, key, since_ns):
            self._check_taken(ticket)
            super().submit_body(ticket, body)
            self.pending_keys[ticket] = key

    def close(self) -> None:
        """Leave the arena; requests in flight complete with `DeviceLost`."""
        self.pending_keys.clear()
        super().close()

    def _answered(self, ticket: Ticket, key: bytes, since_ns: int) -> bool:
        """Answer from the cache if possible; returns whether it was."""
        answer = self._cache.find(key)
        now_ns = self._request_headers.clock_ns()
        self._metrics.count_cache(now_ns - since_ns, found=answer is not None)
        if answer is None:
            return False
        ticket.exchange = self
        ticket.rows, ticket.rows_left, ticket.row_numbers = answer.rows, 0, []
        ticket.sliced = answer.outputs
        ticket.enqueued_ns = ticket.started_ns = ticket.finished_ns = now_ns
        ticket.settle()
        return True

    def _check_taken(self, ticket: Ticket) -> None:
        """Refuse a request that is not in the cache if the device could not take it."""
        refusal = super().refusal(ticket)
        if refusal is not None:
            raise refusal

    def _finish(self, ticket: Ticket) -> None:
        key = self.pending_keys.pop(ticket, None)
        # Before the ticket completes, which frees its rows.
        if (
            key is not None
            and ticket.is_open
            and not any(self._answer_headers.outcome[row] for row in ticket.row_numbers)
        ):
            self._keep(key, ticket)
        super()._finish(ticket)

    def _finish_together(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            key = self.pending_keys.pop(ticket, None)
            if key is not None:
                self._keep(key, ticket)
        super()._finish_together(tickets)

    def _keep(self, key: bytes, ticket: Ticket) -> None:
        since_ns = self._request_headers.clock_ns()
        outputs = SlicedAnswer(self.arena.signature, ticket.rows)
        outputs.put(ticket, 0)
        if self.signature.takes != "body" or _is_good(outputs.texts[0][0]):
            self._cache.keep(key, KeptAnswer.of(ticket.rows, outputs))
        self._metrics.count_cache_insertion(self._request_headers.clock_ns() - since_ns)


def _is_good(answer: bytes) -> bool:
    """Whether an entry script has answered with 200, and has not failed."""
    read = ScriptAnswer.unpack(answer)
    return read.status == _OK and not read.failed
