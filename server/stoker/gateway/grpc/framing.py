"""Messages in the content of calls, and the memory budget of those that are arriving.

Five bytes before each message hold its length, and whether it is compressed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

from stoker.errors import BodyTooLarge, MalformedBody, Overloaded, StokerError
from stoker.gateway.http.body_budget import LARGE_BODY_BYTES, BodyBudget, Caller
from stoker.gateway.http.encodings import inflater_for

_SMALL_BYTES: Final = 1 << 16
"""Messages up to this size are not counted: there are no more of them than streams."""


class Reservation:
    """The memory of one message, until it is released."""

    __slots__ = ("_budget", "_size_bytes")

    def __init__(self, budget: MessageBudget, size_bytes: int) -> None:
        self._budget = budget
        self._size_bytes = size_bytes

    def release(self) -> None:
        """Release the memory; does nothing the second time."""
        size_bytes, self._size_bytes = self._size_bytes, 0
        self._budget.release_bytes(size_bytes)


class MessageBudget:
    """The memory of the messages of one connection, taken from the budget for large bodies.

    Up to 1 MiB together is not counted, as for one body of HTTP. The caller is identified by address: while messages
    arrive, their model and so the key is not known.
    """

    def __init__(self, budget: Callable[[], BodyBudget], address: str) -> None:
        self._find_budget = budget
        self._caller = Caller.at(address)
        self._held_bytes = 0
        self._budget: BodyBudget | None = None
        self._covered_bytes = 0

    def reserve(self, size_bytes: int) -> Reservation | None:
        """Reserve memory for a message; return None for a small one, which is not counted."""
        if size_bytes <= _SMALL_BYTES:
            return None
        if not self._cover(self._held_bytes + size_bytes):
            raise Overloaded("Too many large request bodies are being received.", retry_after_s=1)
        return Reservation(self, size_bytes)

    def release_bytes(self, size_bytes: int) -> None:
        """Return the memory of a message to the budget."""
        self._cover(self._held_bytes - size_bytes)

    def _cover(self, held_bytes: int) -> bool:
        steps = -(-held_bytes // LARGE_BODY_BYTES)
        wanted = steps * LARGE_BODY_BYTES if steps > 1 else 0
        more = wanted - self._covered_bytes
        if more:
            if self._budget is None or not self._covered_bytes:
                self._budget = self._find_budget()
            if more < 0:
                self._budget.release(self._caller, -more, -more)
            elif not self._budget.reserve(self._caller, more, more):
                return False
            self._covered_bytes = wanted
        self._held_bytes = held_bytes
        return True


PREFIX_BYTES: Final = 5


class Message(NamedTuple):
    """A message that has arrived, with its reservation of memory unless it is small."""

    content: bytes
    compressed: bool
    reservation: Reservation | None

    def release(self) -> None:
        """Release its memory."""
        if self.reservation is not None:
            self.reservation.release()


class MessageReader:
    """Splits the content of one call into messages.

    Attributes:
        arrived_bytes: How much of an incomplete message has arrived.
    """

    def __init__(
        self, max_bytes: int, too_long: Callable[[int, int], BodyTooLarge], budget: MessageBudget
    ) -> None:
        self._max_bytes = max_bytes
        self._too_long = too_long
        self._budget = budget
        self._prefix = b""
        self._parts: list[bytes | memoryview] = []
        self._missing_bytes = -1
        self._compressed = False
        self._skipped = False
        self._reservation: Reservation | None = None
        self.arrived_bytes = 0

    @property
    def is_idle(self) -> bool:
        """Whether no message has arrived in part."""
        return self._missing_bytes < 0 and not self._prefix

    def feed(self, part: bytes | memoryview) -> list[Message | StokerError]:
        """Read some content; return the messages that end in it, and an error in the place of each refused message.

        The rest of a refused message is skipped.
        """
        found: list[Message | StokerError] = []
        while part:
            if self._missing_bytes < 0:
                needed = PREFIX_BYTES - len(self._prefix)
                self._prefix += part[:needed]
                part = part[needed:]
                if len(self._prefix) < PREFIX_BYTES:
                    break
                refusal = self._begin()
                if refusal is not None:
                    found.append(refusal)
            else:
                taken, part = part[: self._missing_bytes], part[self._missing_bytes :]
                self._missing_bytes -= len(taken)
                self.arrived_bytes += len(taken)
                if not self._skipped:
                    self._parts.append(taken)
            if not self._missing_bytes:
                self._end(found)
        return found

    def close(self) -> None:
        """Drop an incomplete message and release its memory."""
        self._parts.clear()
        if self._reservation is not None:
            self._reservation.release()
            self._reservation = None

    def _begin(self) -> StokerError | None:
        flag, size = self._prefix[0], int.from_bytes(self._prefix[1:], "big")
        self._prefix = b""
        self._missing_bytes, self._compressed, self._skipped = size, bool(flag), False
        self.arrived_bytes = 0
        try:
            if flag > 1:
                raise MalformedBody("the content is no messages of gRPC")
            if size > self._max_bytes:
                raise self._too_long(size, self._max_bytes)
            self._reservation = self._budget.reserve(size)
        except StokerError as error:
            self._skipped = True
            return error.with_traceback(None)
        return None

    def _end(self, found: list[Message | StokerError]) -> None:
        self._missing_bytes = -1
        if self._skipped:
            return
        # A single part is copied too: it may be a view of everything received with it.
        found.append(Message(b"".join(self._parts), self._compressed, self._reservation))
        self._parts, self._reservation = [], None


def inflate(
    content: bytes, encoding: bytes, max_bytes: int, too_long: Callable[[int, int], BodyTooLarge]
) -> bytes:
    """Inflate a compressed message; run this in a thread if the message may be long."""
    inflater = inflater_for([encoding])
    if inflater is None:
        raise MalformedBody("a message is compressed, and grpc-encoding does not say how")
    pieces, size = [], 0
    try:
        for piece in inflater.feed(content):
            size += len(piece)
            if size > max_bytes:
                raise too_long(size, max_bytes)
            pieces.append(piece)
    except zlib.error as error:
        raise MalformedBody(f"the compressed message is corrupt: {error}") from None
    inflater.finish()
    return b"".join(pieces)


def add_prefix(message: bytes) -> bytes:
    """Return a message with its prefix."""
    return b"".join((b"\0", len(message).to_bytes(4, "big"), message))
