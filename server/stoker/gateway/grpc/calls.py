"""Calls of one message or of many: their ids, deadlines, messages, and the status with which they end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from stoker.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    MalformedBody,
    NotReady,
    RequestTimeout,
    StokerError,
    unexpected_error,
)
from stoker.gateway.grpc.framing import PREFIX_BYTES, Message, MessageReader, add_prefix, inflate
from stoker.gateway.grpc.metadata import ANSWER_HEAD, CallHead, error_fields, ok_trailers, trailers_only
from stoker.gateway.http.request_ids import TRACEPARENT, RequestIds
from stoker.gateway.http.threads import run_in_thread
from stoker.wire.http2.fields import Fields, encoded

if TYPE_CHECKING:
    from stoker.gateway.grpc.framing import MessageBudget
    from stoker.wire.http2.connection import Connection
    from stoker.wire.http2.streams import Stream

logger = logging.getLogger(__name__)

BEARER_METADATA: Final = "the metadata 'authorization: Bearer <{}>'"
"""The metadata key that corresponds to `stoker.keys.keyring.BEARER_HEADER` over HTTP."""

_INLINE_BYTES: Final = 1 << 12
"""Up to this size a compressed message is inflated on the event loop: it inflates to at most 4 MiB."""
_ARRIVAL_S: Final = 10
_SLOWEST_BYTES_S: Final = 1024
_LONGEST_ARRIVAL_S: Final = 900
_UNSENT_S: Final = 75
"""As for bodies of HTTP: how long a message may take to arrive, longer only if it arrives at this rate; and how long
an answer waits for a client that reads nothing."""


class CallConnection(Protocol):
    """The part of a connection that its calls use."""

    http: Connection[CallHead]
    address: str
    budget: MessageBudget

    def flush_soon(self) -> None:
        """Write what is in `http.out` at the end of this turn of the loop."""


class Method(NamedTuple):
    """A method that can be called.

    Attributes:
        too_long: Makes the error for a longer message, from its size and `max_bytes`.
        answer: Answers messages; its type depends on the call that `begin` makes.
    """

    begin: Callable[[CallConnection, Stream, CallHead, Method], RpcCall]
    max_bytes: int
    too_long: Callable[[int, int], BodyTooLarge]
    answer: Any


class RpcCall:
    """One call; receives what arrives on its HTTP/2 stream.

    Attributes:
        done: Whether the call has ended for its caller: nothing more is sent.
        counts: Whether the server waits for the call when it stops.
    """

    __slots__ = (
        "_deadline",
        "_reader",
        "_sent_bytes",
        "_slow_sweeps",
        "_stream",
        "_unsent_sweeps",
        "begun_ns",
        "connection",
        "done",
        "head",
        "ids",
        "method",
    )

    counts = True

    def __init__(self, connection: CallConnection, stream: Stream, head: CallHead, method: Method) -> None:
        self.connection = connection
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
        """The address of the caller."""
        return self.connection.address

    def headers(self) -> dict[bytes, bytes]:
        """Return the metadata as headers of HTTP."""
        return self.head.headers()

    def deadline_ns(self) -> int | None:
        """When the caller stops waiting, as `time.monotonic_ns`; None for never."""
        if self.head.timeout_ns is None:
            return None
        deadline_ns = self.begun_ns + self.head.timeout_ns
        if deadline_ns <= time.monotonic_ns():
            raise DeadlineExceeded
        return deadline_ns

    def watch_deadline(self) -> None:
        """End this call when its deadline passes. Scored calls need no timer: scoring ends them."""
        if self.head.timeout_ns is not None and not self.done:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self.head.timeout_ns / 1e9, self.fail, DeadlineExceeded())

    def take(self, part: bytes | memoryview, ended: bool) -> None:
        """Receive some content."""
        if not self.done:
            for item in self._read(part):
                self.arrive(item)
        if ended:
            self.end()

    def check(self) -> None:
        """Refuse a caller without a key before the rest of the messages is sent; for calls that infer."""
        if not self.done and (error := self.method.answer.check_key(self.authorization)) is not None:
            self.fail(error)

    def end(self) -> None:
        """Handle the end of the caller's messages."""

    def lost(self) -> None:
        """Handle the disconnection of the caller."""
        if not self.done:
            self._finish()
            self.abandon()

    def drained(self) -> None:
        """Continue: the caller has taken all that was sent."""

    def arrive(self, item: Message | StokerError) -> None:
        """Handle a message, or the error in its place."""
        raise NotImplementedError

    def abandon(self) -> None:
        """Cancel the work for this call; called at most once, and not after an answer."""

    def close(self) -> None:
        """End a call that would never end by itself, because the server stops."""

    def _read(self, part: bytes | memoryview) -> list[Message | StokerError]:
        if self._reader is None:
            self._reader = MessageReader(self.method.max_bytes, self.method.too_long, self.connection.budget)
        return self._reader.feed(part)

    def send(self, message: bytes) -> None:
        """Send a message, after the head of the answer."""
        if not self.done:
            http = self.connection.http
            if self._stream.queue is None:
                http.begin_answer(self._stream, ANSWER_HEAD)
            http.send(self._stream, add_prefix(message))
            self.connection.flush_soon()

    def answer(self, message: bytes) -> None:
        """Answer with one message, and end."""
        if not self.done:
            self._finish()
            trailers = ok_trailers(self.ids.request_id)
            self.connection.http.answer(self._stream, ANSWER_HEAD, add_prefix(message), trailers)
            self.connection.flush_soon()

    def succeed(self) -> None:
        """End without an error."""
        self.end_with([(b"grpc-status", b"0")])

    def refuse(self, error: StokerError) -> None:
        """End with an error."""
        self.end_with(error_fields(error))

    def fail(self, error: StokerError) -> None:
        """End with an error, and cancel the work for this call."""
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
        self.connection.http.end_answer(self._stream, block if begun else trailers_only(block))
        self.connection.flush_soon()

    def _finish(self) -> None:
        self.done = True
        if self._deadline is not None:
            self._deadline.cancel()
        if self._reader is not None:
            self._reader.close()

    @property
    def arriving(self) -> bool:
        """Whether the caller still has to send something."""
        return not self.done and not self._stream.ended

    def sweep(self) -> None:
        """End the call if its message does not arrive, or if its answer is not read; called once a second."""
        stream = self._stream
        if stream.queued_bytes and stream.sent_bytes == self._sent_bytes:
            self._unsent_sweeps += 1
            if self._unsent_sweeps > _UNSENT_S:
                self.connection.http.cancel(stream)
                return
        else:
            self._sent_bytes, self._unsent_sweeps = stream.sent_bytes, 0
        if not self.arriving:
            self._slow_sweeps = 0
            return
        self._slow_sweeps += 1
        arrived = 0 if self._reader is None else self._reader.arrived_bytes
        if self._slow_sweeps > min(_ARRIVAL_S + arrived // _SLOWEST_BYTES_S, _LONGEST_ARRIVAL_S):
            self.fail(RequestTimeout("The message did not arrive in time."))


async def inflate_message(call: RpcCall, message: Message) -> Message:
    """Inflate a compressed message."""
    message.release()
    method = call.method
    work = (message.content, call.head.encoding, method.max_bytes, method.too_long)
    if len(message.content) <= _INLINE_BYTES:
        content = inflate(*work)
    else:
        content = await run_in_thread(inflate, *work)
    return Message(content, False, call.connection.budget.reserve(len(content)))


def log_fault(error: Exception, call: RpcCall, model: str = "") -> StokerError:
    """Log an unexpected error, and return the error for the caller."""
    name = call.ids.request_id.decode("latin-1")
    logger.error("request %s: %s failed", name, f"scoring {model}" if model else "a call", exc_info=error)
    return unexpected_error(error)


def closing_error() -> NotReady:
    """Return the error of calls that end because the server stops."""
    return NotReady("The server is shutting down.", retry_after_s=1)


class UnaryCall(RpcCall):
    """A call of one message; a subclass answers it in `run`."""

    __slots__ = ("_message", "_task")

    def __init__(self, connection: CallConnection, stream: Stream, head: CallHead, method: Method) -> None:
        self._message: Message | None = None
        self._task: asyncio.Task[None] | None = None
        super().__init__(connection, stream, head, method)

    def run(self, content: bytes) -> None:
        """Answer a message."""
        raise NotImplementedError

    def take(self, part: bytes | memoryview, ended: bool) -> None:
        """Receive some content. Most calls have all of it in one frame, which takes nothing of the budget."""
        size = len(part) - PREFIX_BYTES
        if (
            ended
            and self._reader is None
            and not self.done
            and 0 <= size <= self.method.max_bytes
            and not part[0]
            and int.from_bytes(part[1:PREFIX_BYTES], "big") == size
        ):
            self.run(bytes(part[PREFIX_BYTES:]))
            return
        super().take(part, ended)

    def arrive(self, item: Message | StokerError) -> None:
        """Keep the message until the caller has ended."""
        if isinstance(item, StokerError):
            self.refuse(item)
        elif self._message is None and not self.done:
            self._message = item
        else:
            item.release()
            self.refuse(MalformedBody("a call of this method has one message"))

    def end(self) -> None:
        """Answer the message."""
        if self.done:
            return
        message = self._message
        if message is None:
            self.refuse(MalformedBody("the call ends without a message"))
        elif message.compressed:
            self._task = asyncio.ensure_future(self._inflate(message))
        else:
            self.run(message.content)

    def abandon(self) -> None:
        """Cancel the task that answers."""
        if self._task is not None:
            self._task.cancel()

    async def _inflate(self, message: Message) -> None:
        try:
            self._message = await inflate_message(self, message)
        except StokerError as error:
            self.refuse(error)
            return
        if self.done:
            self._release()
        else:
            self.run(self._message.content)

    def _finish(self) -> None:
        super()._finish()
        self._release()

    def _release(self) -> None:
        if self._message is not None:
            self._message.release()
            self._message = None


class CoroutineCall(UnaryCall):
    """A call that a coroutine answers, `method.answer(content, call)`."""

    __slots__ = ()

    def run(self, content: bytes) -> None:
        """Answer a message in a task."""
        self.watch_deadline()
        self._task = asyncio.ensure_future(self._run(content))

    async def _run(self, content: bytes) -> None:
        try:
            self.answer(await self.method.answer(content, self))
        except StokerError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001  # a fault of ours must have an answer
            self.refuse(log_fault(error, self))


_UNSENT_BYTES: Final = 1 << 18
"""While so many bytes of answers wait for the caller, no more messages of a stream are handled."""


class StreamedCall(RpcCall):
    """A call of many messages; a subclass handles each in `handle`."""

    __slots__ = ("_backlog", "_closing", "_inflating", "_received_all")

    def __init__(self, connection: CallConnection, stream: Stream, head: CallHead, method: Method) -> None:
        self._backlog: deque[Message | StokerError] = deque()
        self._closing = self._received_all = False
        self._inflating: asyncio.Task[None] | None = None
        super().__init__(connection, stream, head, method)
        stream.notifies_drained = True
        self.watch_deadline()

    def handle(self, item: Message | StokerError) -> None:
        """Handle a message that is not compressed, or the error in its place."""
        raise NotImplementedError

    @property
    def busy(self) -> bool:
        """Whether no further message can be handled now."""
        return self._inflating is not None or self._stream.queued_bytes > _UNSENT_BYTES

    @property
    def complete(self) -> bool:
        """Whether all handled messages have been answered."""
        return True

    @property
    def arriving(self) -> bool:
        """Whether a message has arrived in part; between messages the caller may wait."""
        reader = self._reader
        return not (self.done or self._stream.held or reader is None or reader.is_idle)

    def arrive(self, item: Message | StokerError) -> None:
        """Queue a message."""
        self._backlog.append(item)
        self.advance()

    def drained(self) -> None:
        """Handle further messages."""
        self.advance()

    def end(self) -> None:
        """End when all has been answered."""
        self._received_all = True
        self.advance()

    def close(self) -> None:
        """End after the answers to what has arrived."""
        self._closing = True
        self.advance()

    def advance(self) -> None:
        """Handle queued messages until the call is busy; called after each answer."""
        while self._backlog and not self.busy and not self.done:
            item = self._backlog.popleft()
            if isinstance(item, Message) and item.compressed:
                self._inflating = asyncio.ensure_future(self._inflate(item))
            else:
                self.handle(item)
        if self.done:
            return
        stream = self._stream
        if self.busy:
            stream.held = True
        elif stream.held:
            self.connection.http.release(stream)
            self.connection.flush_soon()
        if self.complete and not self._backlog and self._inflating is None:
            if self._received_all:
                self.succeed()
            elif self._closing:
                self.refuse(closing_error())

    async def _inflate(self, message: Message) -> None:
        item: Message | StokerError
        try:
            item = await inflate_message(self, message)
        except StokerError as error:
            item = error.with_traceback(None)
        self._inflating = None
        if self.done:
            _release(item)
            return
        self._backlog.appendleft(item)
        self.advance()

    def abandon(self) -> None:
        """Cancel the inflation of the next message."""
        if self._inflating is not None:
            self._inflating.cancel()

    def _finish(self) -> None:
        super()._finish()
        while self._backlog:
            _release(self._backlog.popleft())


def _release(item: Message | StokerError) -> None:
    if isinstance(item, Message):
        item.release()
