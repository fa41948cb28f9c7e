"""What every call has: its metadata, its ids, its deadline, and the status it ends with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import unquote

import grpc
from google.protobuf.message import DecodeError

from stoker.errors import BodyTooLarge, DeadlineExceeded, MalformedBody, StokerError
from stoker.errors.serving import unforeseen
from stoker.gateway.grpc.statuses import status_of
from stoker.gateway.http.request_ids import RequestIds

__all__ = [
    "BEARER_METADATA",
    "CallsUnderWay",
    "RpcCall",
    "authorization_of",
    "fault",
    "parsed",
    "reader",
    "refusing",
    "shown",
]

logger = logging.getLogger(__name__)

BEARER_METADATA: Final = "the metadata 'authorization: Bearer <{}>'"
"""What `stoker.keys.keyring.BEARER_HEADER` is over HTTP."""

_DETAILS_CHARS: Final = 1024
_LONG_ANSWER_BYTES: Final = 1 << 14
"""An answer above this size may take several writes; the kernel has room for shorter ones at once."""


class RpcCall:
    """One call or stream: who makes it, and how long they wait.

    Attributes:
        authorization: The value of the metadata `authorization`.
        ids: Its request id, from the metadata `x-request-id` or a fresh one.
        write: Sends an answer of a stream.
        context: What the library knows of it.
    """

    __slots__ = ("authorization", "context", "ids", "write")

    def __init__(self, context: Any) -> None:
        """Read the metadata, and name the call in what goes out behind its answer.

        Raises:
            RequestError: Its request id cannot be taken over.
        """
        self.context = context
        self.write: Callable[[Any], Awaitable[None]] = context.write
        metadata = dict(context.invocation_metadata())
        self.authorization = authorization_of(metadata)
        self.ids = RequestIds(metadata.get("x-request-id", "").encode("latin-1"))
        context.set_trailing_metadata((("x-request-id", self.ids.request_id.decode("latin-1")),))

    @property
    def address(self) -> str:
        """Where it comes from: an address, in the library's spelling if that is none of IP."""
        peer = unquote(self.context.peer())
        kind, _, place = peer.partition(":")
        return place.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer

    def headers(self) -> dict[bytes, bytes]:
        """Return its metadata as headers of HTTP, without those whose values are bytes."""
        pairs = self.context.invocation_metadata()
        texts = {name: value for name, value in pairs if isinstance(value, str)}
        return {name.encode("latin-1"): value.encode("latin-1", "replace") for name, value in texts.items()}

    def patience_ns(self, timeout_ns: int | None) -> int | None:
        """The time until the caller's deadline, or `timeout_ns` if that is shorter; None for neither.

        Raises:
            DeadlineExceeded: The deadline has passed.
        """
        remaining_s = self.context.time_remaining()
        if remaining_s is None:
            return timeout_ns
        if remaining_s <= 0:
            raise DeadlineExceeded
        remaining_ns = int(remaining_s * 1e9)
        return remaining_ns if timeout_ns is None else min(remaining_ns, timeout_ns)


def authorization_of(metadata: dict[str, Any]) -> bytes:
    """The value of `authorization` as HTTP has it."""
    value: str = metadata.get("authorization", "")
    return value.encode("latin-1", "replace")


def reader(read: Callable[[bytes], Any], max_bytes: int | None = None) -> Callable[[bytes], Any]:
    """A deserializer that returns the error to answer with, where gRPC would write one into the log.

    Args:
        read: Reads a message.
        max_bytes: The longest one that is read; None leaves that to gRPC.
    """

    def read_or_say_why(content: bytes) -> Any:
        if max_bytes is not None and len(content) > max_bytes:
            return BodyTooLarge(f"the message has {len(content)} bytes; this method reads {max_bytes}")
        try:
            return read(content)
        except StokerError as error:
            return error.with_traceback(None)
        except DecodeError as error:
            return MalformedBody(f"the message cannot be read: {error}")

    return read_or_say_why


def parsed(request: Any) -> Any:
    """Return a message that was read, or raise the error that `reader` has put in its place."""
    if isinstance(request, StokerError):
        raise request
    return request


class CallsUnderWay:
    """The calls and streams that have begun and not ended.

    Attributes:
        begun: How many have begun ever.
    """

    def __init__(self) -> None:
        self.begun = 0
        self._count = 0
        self._long: dict[Any, int] = {}
        self._none_left: asyncio.Future[None] | None = None

    def handler(
        self, method: Callable[[Any, RpcCall], Awaitable[Any]]
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        """The handler of a method: it ends a call with the status of the error that the method raises."""

        async def handle(request: Any, context: Any) -> Any:
            self.begun += 1
            self._count += 1
            call = None
            try:
                call = RpcCall(context)
                answer = await method(parsed(request), call)
                if type(answer) is bytes:
                    self.note_answer(answer, call)
                return answer
            except StokerError as error:
                _refuse(context, error)
            except Exception as error:  # noqa: BLE001  # a fault of ours must have an answer
                _refuse(context, fault(error, call, getattr(request, "model_name", "")))
            finally:
                self._count -= 1
                if not self._count and self._none_left is not None and not self._none_left.done():
                    self._none_left.set_result(None)

        return handle

    def note_answer(self, answer: bytes, call: RpcCall) -> None:
        """Take note of the connection on which a long answer goes out, until its call has ended."""
        context = call.context
        if len(answer) > _LONG_ANSWER_BYTES and context not in self._long:
            self._long[context] = int(context.peer().rpartition(":")[2])
            context.add_done_callback(self._long.pop)

    @property
    def long_answers(self) -> set[int]:
        """The peers' ports of the connections on which long answers may be being written."""
        return set(self._long.values())

    async def finish(self, timeout_s: float) -> int:
        """Wait until there are none; return how many are left after `timeout_s`."""
        if self._count:
            self._none_left = asyncio.get_running_loop().create_future()
            await asyncio.wait((self._none_left,), timeout=timeout_s)
        return self._count


def refusing(error: StokerError) -> grpc.RpcMethodHandler:
    """A handler, for any method, that ends the call with an error and does not read its message."""

    async def refuse(_: Any, context: Any) -> None:
        _refuse(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse)


def fault(error: Exception, call: RpcCall | None = None, model: str = "") -> StokerError:
    """Log an error that should not have been, and return what the caller is told."""
    name = "without id" if call is None else call.ids.request_id.decode("latin-1")
    logger.error("request %s: %s failed", name, f"scoring {model}" if model else "a call", exc_info=error)
    return unforeseen(error)


def _refuse(context: Any, error: StokerError) -> None:
    """Set the status of a call that ends without an answer.

    `context.abort` would raise, and the context keep the exception, whose frames keep the context and the message:
    only a collection of garbage frees these, and a message may have 100 MiB.
    """
    metadata = (*(context.trailing_metadata() or ()), ("error-code", error.code))
    if error.retry_after_s is not None:
        metadata += (("retry-after", str(error.retry_after_s)),)
    if error.error_id is not None:
        metadata += (("error-id", error.error_id),)
    context.set_code(status_of(error))
    context.set_details(shown(error))
    context.set_trailing_metadata(metadata)


def shown(error: StokerError) -> str:
    """The message of an error, cut to what clients take as metadata."""
    text = str(error)
    return text if len(text) <= _DETAILS_CHARS else text[: _DETAILS_CHARS - 1] + "…"
