"""Calls of one message that are answered by one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from stoker.errors import MalformedBody, StokerError
from stoker.gateway.grpc.calls import Line, Method, RpcCall, fault, inflated_message
from stoker.gateway.grpc.framing import PREFIX_BYTES, Message

if TYPE_CHECKING:
    from stoker.gateway.grpc.heads import CallHead
    from stoker.wire.http2.stream import Stream

__all__ = ["CoroutineCall", "UnaryCall"]


class UnaryCall(RpcCall):
    """A call of one message; a subclass says in `run` what becomes of it."""

    __slots__ = ("_message", "_task")

    def __init__(self, line: Line, stream: Stream, head: CallHead, method: Method) -> None:
        self._message: Message | None = None
        self._task: asyncio.Task[None] | None = None
        super().__init__(line, stream, head, method)

    def run(self, content: bytes) -> None:
        """Answer a message."""
        raise NotImplementedError

    def take(self, part: bytes | memoryview, ended: bool) -> None:
        """Take some content: most calls have all of it in one frame, which is not held on any budget."""
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
            if item.hold is not None:
                item.hold.release()
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
        """Cancel what answers it."""
        if self._task is not None:
            self._task.cancel()

    async def _inflate(self, message: Message) -> None:
        try:
            self._message = await inflated_message(self, message)
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
            if self._message.hold is not None:
                self._message.hold.release()
            self._message = None


class CoroutineCall(UnaryCall):
    """A call that a coroutine answers, `method.answer(content, call)`."""

    __slots__ = ()

    def run(self, content: bytes) -> None:
        """Answer a message beside what else happens."""
        self.watch_deadline()
        self._task = asyncio.ensure_future(self._run(content))

    async def _run(self, content: bytes) -> None:
        try:
            self.answer(await self.method.answer(content, self))
        except StokerError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001  # a fault of ours must have an answer
            self.refuse(fault(error, self))
