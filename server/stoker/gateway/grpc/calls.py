"""What every call has: its metadata, its ids, its deadline, its messages, and the status it ends with."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from stoker.errors import BodyTooLarge, DeadlineExceeded, NotReady, RequestTimeout, StokerError
from stoker.errors.serving import unforeseen
from stoker.gateway.grpc.framing import Message, MessageReader, inflated, prefixed
from stoker.gateway.grpc.heads import ANSWER_HEAD, CallHead, ok_trailers, refusal_fields, trailers_alone
from stoker.gateway.http.request_ids import TRACEPARENT, RequestIds
from stoker.gateway.http.threads import run_in_thread
from stoker.wire.http2.fields import Fields, encoded

if TYPE_CHECKING:
    from stoker.gateway.grpc.room import Room
    from stoker.wire.http2.connection import Connection
    from stoker.wire.http2.stream import Stream

__all__ = ["BEARER_METADATA", "Line", "Method", "RpcCall", "closing", "fault", "inflated_message"]

logger = logging.getLogger(__name__)

BEARER_METADATA: Final = "the metadata 'authorization: Bearer <{}>'"
"""What `stoker.keys.keyring.BEARER_HEADER` is over HTTP."""

_INLINE_BYTES: Final = 1 << 12
"""Up to this size a compressed message is inflated on the loop: it becomes four MiB at most."""
_ARRIVAL_S: Final = 10
_SLOWEST_BYTES_S: Final = 1024
_LONGEST_ARRIVAL_S: Final = 900
_UNSENT_S: Final = 75
"""As for bodies of HTTP: so long a message may take to arrive, more only as far as it arrives at this rate; and so
long an answer may wait for a client that takes nothing of it."""


class Line(Protocol):
    """What calls know of the connection that they are on."""

    http: Connection[CallHead]
    address: str
    room: Room

    def flush_soon(self) -> None:
        """Write what is in `http.out` at the end of this turn of the loop."""


class Method(NamedTuple):
    """A method that can be called.

    Attributes:
        begin: Makes a call of it.
        max_bytes: The longest message that it reads.
        too_long: Makes the error for a longer one, of its size and that.
        answer: What answers it, for the kind of call that `begin` makes.
    """

    begin: Callable[[Line, Stream, CallHead, Method], RpcCall]
    max_bytes: int
    too_long: Callable[[int, int], BodyTooLarge]
    answer: Any


class RpcCall:
    """One call or stream: who makes it, and how long they wait. It receives its stream.

    Attributes:
        line: The connection.
        head: What its head says.
        method: What is called.
        ids: Its request id, from the metadata `x-request-id` or a fresh one.
        done: Whether it has ended for its caller: nothing more is sent.
        counts: Whether the server waits for it when it stops.
    """

    __slots__ = (
        "_deadline",
        "_reader",
        "_sent_bytes",
        "_slow_sweeps",
        "_stream",
        "_unsent_sweeps",
        "begun_ns",
        "done",
        "head",
        "ids",
        "line",
        "method",
    )

    counts = True

    def __init__(self, line: Line, stream: Stream, head: CallHead, method: Method) -> None:
        self.line = line
        self.head = head
        self.done = False
        self._stream = stream
        self.method = method
        self._reader: MessageReader | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._sent_bytes = self._slow_sweeps = self._unsent_sweeps = 0
        self.begun_ns = time.monotonic_ns()
        try:
            self.ids = RequestIds(head.request_id, traceparent=head.metadata.get(TRACEPARENT, b""))
        except StokerError as error:
            self.ids = RequestIds()
            self.refuse(error)

    @property
    def authorization(self) -> bytes:
        """The value of the metadata `authorization`."""
        return self.head.authorization

    @property
    def address(self) -> str:
        """Where it comes from."""
        return self.line.address

    def headers(self) -> dict[bytes, bytes]:
        """Return its metadata as headers of HTTP."""
        return self.head.headers()

    def deadline_ns(self) -> int | None:
        """When the caller stops waiting, as `time.monotonic_ns`; None for never.

        Raises:
            DeadlineExceeded: The deadline has passed.
        """
        if self.head.timeout_ns is None:
            return None
        deadline_ns = self.begun_ns + self.head.timeout_ns
        if deadline_ns <= time.monotonic_ns():
            raise DeadlineExceeded
        return deadline_ns

    def watch_deadline(self) -> None:
        """End this call when its deadline passes; for those that nobody else ends then."""
        if self.head.timeout_ns is not None and not self.done:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self.head.timeout_ns / 1e9, self.give_up, DeadlineExceeded())

    # --- what its stream says ---

    def take(self, part: bytes | memoryview, ended: bool) -> None:
        """Take some content."""
        if not self.done:
            for item in self._read(part):
                self.arrive(item)
        if ended:
            self.end()

    def end(self) -> None:
        """Take note that the caller has sent all."""

    def lost(self) -> None:
        """Take note that the caller has gone."""
        if not self.done:
            self._finish()
            self.abandon()

    def drained(self) -> None:
        """Go on where the caller had not taken all."""

    def arrive(self, item: Message | StokerError) -> None:
        """Take a message, or the error in its place."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Give up what is under way for it; called once, if it has not been answered."""

    def close(self) -> None:
        """End it if it would never end by itself: the server does."""

    def _read(self, part: bytes | memoryview) -> list[Message | StokerError]:
        if self._reader is None:
            self._reader = MessageReader(self.method.max_bytes, self.method.too_long, self.line.room)
        return self._reader.feed(part)

    # --- what it says ---

    def send(self, message: bytes) -> None:
        """Send a message, behind the head of the answer."""
        if not self.done:
            http = self.line.http
            if self._stream.queue is None:
                http.begin_answer(self._stream, ANSWER_HEAD)
            http.send(self._stream, prefixed(message))
            self.line.flush_soon()

    def answer(self, message: bytes) -> None:
        """Answer with one message, and end."""
        if not self.done:
            self._finish()
            trailers = ok_trailers(self.ids.request_id)
            self.line.http.answer(self._stream, ANSWER_HEAD, prefixed(message), trailers)
            self.line.flush_soon()

    def succeed(self) -> None:
        """End without an error."""
        self.end_with([(b"grpc-status", b"0")])

    def refuse(self, error: StokerError) -> None:
        """End with an error."""
        self.end_with(refusal_fields(error))

    def give_up(self, error: StokerError) -> None:
        """End with an error, and give up what is under way."""
        if not self.done:
            self.refuse(error)
            self.abandon()

    def end_with(self, fields: Fields) -> None:
        """End with these fields; the id of the request is added."""
        if self.done:
            return
        self._finish()
        block = encoded([*fields, (b"x-request-id", self.ids.request_id)])
        begun = self._stream.queue is not None
        self.line.http.end_answer(self._stream, block if begun else trailers_alone(block))
        self.line.flush_soon()

    def _finish(self) -> None:
        self.done = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._reader is not None:
            self._reader.close()

    # --- time ---

    @property
    def arriving(self) -> bool:
        """Whether the caller is to send more now."""
        return not self.done and not self._stream.ended

    def sweep(self) -> None:
        """Look at it, as is done each second: end it if its message does not arrive, or its answer is not taken."""
        stream = self._stream
        if stream.queued_bytes and stream.sent_bytes == self._sent_bytes:
            self._unsent_sweeps += 1
            if self._unsent_sweeps > _UNSENT_S:
                self.line.http.cancel(stream)
                return
        else:
            self._sent_bytes, self._unsent_sweeps = stream.sent_bytes, 0
        if not self.arriving:
            self._slow_sweeps = 0
            return
        self._slow_sweeps += 1
        arrived = 0 if self._reader is None else self._reader.arrived_bytes
        if self._slow_sweeps > min(_ARRIVAL_S + arrived // _SLOWEST_BYTES_S, _LONGEST_ARRIVAL_S):
            self.give_up(RequestTimeout("The message did not arrive in time."))


async def inflated_message(call: RpcCall, message: Message) -> Message:
    """Return what a compressed message holds.

    Raises:
        StokerError: It cannot be read, or there is no room for it.
    """
    if message.hold is not None:
        message.hold.release()
    method = call.method
    work = (message.content, call.head.encoding, method.max_bytes, method.too_long)
    if len(message.content) <= _INLINE_BYTES:
        content = inflated(*work)
    else:
        content = await run_in_thread(inflated, *work)
    return Message(content, False, call.line.room.take(len(content)))


def fault(error: Exception, call: RpcCall, model: str = "") -> StokerError:
    """Log an error that should not have been, and return what the caller is told."""
    name = call.ids.request_id.decode("latin-1")
    logger.error("request %s: %s failed", name, f"scoring {model}" if model else "a call", exc_info=error)
    return unforeseen(error)


def closing() -> NotReady:
    """Return the error for what ends because the server does."""
    return NotReady("The server is shutting down.", retry_after_s=1)
