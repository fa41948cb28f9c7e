"""Long bodies of a frontend are decoded beside its event loop, one after the other.

Rows of numbers are decoded on a thread, where a decoder without Python's interpreter lock is installed. Any other
JSON needs that lock, so a thread would block the event loop: it is decoded by a process, which is started for the
first such body and ended when none has come for a minute. Memory is bounded: a body that waits here stays within
the frontend's budget of large bodies.

See decision 26.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from stoker.errors import Overloaded, StokerError
from stoker.gateway.http.threads import run_in_thread
from stoker.gateway.scoring.parcels import DecodedBody, DecodeTask, Parcel, receive_parcel, send_parcel
from stoker.system.logs import LOG_FORMAT_VARIABLE, log_format

if TYPE_CHECKING:
    from stoker.gateway.rows.ticket import Exchange, Rows
    from stoker.gateway.scoring.call import Call, UnlockedDecoder
    from stoker.wire.script_requests import RequestHead

logger = logging.getLogger(__name__)

PORTION_BYTES: Final = 1 << 20
"""How many bytes are copied to the reader per turn of the loop: half a millisecond of work."""
_IDLE_S: Final = 60.0
_PATIENCE_S: Final = 30.0
"""No body takes as long to decode: a reader that has not answered then is killed."""
_MODULE: Final = "stoker.gateway.scoring.body_reader"

Take = Callable[["Parcel | Rows | BaseException"], None]
"""Takes the decoded content or an error; must not raise. A parcel's memory is closed when it returns."""


class _Waiting(NamedTuple):
    body: bytes
    head: RequestHead | None
    take: Take
    unlocked: UnlockedDecoder | None


class Reader(NamedTuple):
    """A process that decodes long bodies; `end` ends it and waits, on a thread, for that takes a while."""

    socket: socket.socket
    end: Callable[[], object]


class LongBodies:
    """The long bodies that wait to be decoded, and the process that decodes them. Belongs to one event loop.

    Args:
        idle_s: After how many seconds without a long body the process is ended.
        patience_s: How many seconds decoding one may take.
    """

    def __init__(
        self,
        *,
        idle_s: float = _IDLE_S,
        patience_s: float = _PATIENCE_S,
        start: Callable[[], Reader] | None = None,
    ) -> None:
        self._start = start or _start_process
        self._idle_s = idle_s
        self._patience_s = patience_s
        self._waiting: dict[Call, _Waiting] = {}
        self._reader: Reader | None = None
        self._working: asyncio.Task[None] | None = None
        self._ending: asyncio.TimerHandle | None = None

    def read(
        self,
        call: Call,
        body: bytes,
        head: RequestHead | None,
        take: Take,
        unlocked: UnlockedDecoder | None = None,
    ) -> None:
        """Decode a body when its turn comes.

        Args:
            take: Called once, later, unless the body is forgotten before its turn.
            unlocked: A decoder to try first, on a thread.
        """
        self._waiting[call] = _Waiting(body, head, take, unlocked)
        if self._working is None:
            if self._ending is not None:
                self._ending.cancel()
            self._working = asyncio.get_running_loop().create_task(self._work())

    def forget(self, call: Call) -> None:
        """Drop the body of a request whose caller does not wait any more."""
        self._waiting.pop(call, None)

    def close(self) -> None:
        """End the process."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.socket.close()
            asyncio.get_running_loop().run_in_executor(None, reader.end)

    async def _work(self) -> None:
        while self._waiting:
            call = next(iter(self._waiting))
            waiting = self._waiting.pop(call)
            take = waiting.take
            reading = self._read(call, waiting.body, waiting.head, waiting.unlocked)
            # Only the decoder refers to the body from here on, so it is freed as soon as it is not needed.
            del waiting
            try:
                found = await reading
            except Exception as error:  # noqa: BLE001  # passed to the waiting request
                take(error)
            else:
                take(found)
                if isinstance(found, Parcel):
                    os.close(found.memory_fd)
                del found
            del call, take, reading
        self._working = None
        self._ending = asyncio.get_running_loop().call_later(self._idle_s, self.close)

    async def _read(
        self, call: Call, body: bytes, head: RequestHead | None, unlocked: UnlockedDecoder | None
    ) -> Parcel | Rows:
        if unlocked is not None and (rows := await run_in_thread(unlocked, body)) is not None:
            return rows
        try:
            self._reader = reader = self._reader or self._start()
            memory_fd = await _copied(body)
            size_bytes = len(body)
            del body
            try:
                send_parcel(reader.socket, memory_fd, size_bytes, decode_task(call, head))
            finally:
                os.close(memory_fd)
            async with asyncio.timeout(self._patience_s):
                await _readable(reader.socket)
            parcel = receive_parcel(reader.socket)
        except (OSError, TimeoutError) as error:
            logger.error("a long body could not be read: %s", error or "it took too long")  # noqa: TRY400
            parcel = None
        if parcel is None:
            self.close()
            raise _not_read()
        return parcel


class BodiesInDecoding:
    """The requests to one service whose long bodies are decoded beside the event loop.

    Attributes:
        is_possible: Whether any can be; otherwise they are decoded on the loop.
        calls: The requests.
    """

    __slots__ = ("_long_bodies", "calls", "is_possible")

    def __init__(self, long_bodies: LongBodies | None) -> None:
        self._long_bodies = long_bodies
        self.is_possible = long_bodies is not None
        self.calls: set[Call] = set()

    @property
    def idle(self) -> bool:
        """Whether no body is decoded, or waits for it."""
        return not self.calls

    def read(
        self, call: Call, body: bytes, head: RequestHead | None, take: Take, unlocked: UnlockedDecoder | None
    ) -> None:
        """Decode a body; see `LongBodies.read`."""
        assert self._long_bodies is not None, "it is possible"
        self.calls.add(call)

        def take_ended(read: Parcel | Rows | BaseException) -> None:
            self.calls.discard(call)
            take(read)

        self._long_bodies.read(call, body, head, take_ended, unlocked)

    def sweep(self) -> None:
        """Drop the bodies of requests whose callers do not wait any more."""
        for call in [call for call in self.calls if not call.is_awaited]:
            self.calls.discard(call)
            if self._long_bodies is not None:
                self._long_bodies.forget(call)


def _not_read() -> StokerError:
    return Overloaded("The process that reads long bodies has ended; try again later.", retry_after_s=1)


def _start_process() -> Reader:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setblocking(False)
    with far:
        try:
            process = subprocess.Popen(  # this Python, and a module of this package
                [sys.executable, "-P", "-m", _MODULE, "--fd", str(far.fileno())],
                pass_fds=(far.fileno(),),
                stdin=subprocess.DEVNULL,
                # The log format may have been changed since the server was started.
                env={**os.environ, LOG_FORMAT_VARIABLE: log_format()},
            )
        except BaseException:
            near.close()
            raise
    return Reader(near, partial(_end, process))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


async def _copied(body: bytes) -> int:
    """Copy a body into shared memory, with turns of the event loop in between."""
    memory_fd = os.memfd_create("stoker-long-body", os.MFD_CLOEXEC)
    try:
        view, copied = memoryview(body), 0
        while copied < len(view):
            copied += os.write(memory_fd, view[copied : copied + PORTION_BYTES])
            await asyncio.sleep(0)
    except BaseException:
        os.close(memory_fd)
        raise
    return memory_fd


async def _readable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def set_ready() -> None:
        with contextlib.suppress(asyncio.InvalidStateError):
            ready.set_result(None)

    loop.add_reader(sock.fileno(), set_ready)
    try:
        await ready
    finally:
        loop.remove_reader(sock.fileno())


@cache
def shared_long_bodies() -> LongBodies:
    """The one for all models of this process."""
    return LongBodies()


def submit_decoded_body(call: Call, exchange: Exchange, read: Parcel | Rows | BaseException) -> None:
    """Submit decoded content as the dialect would have done; answers with an error if that fails.

    Args:
        read: The reader's parcel, whose content is a `DecodedBody`; or the rows alone; or an error.
    """
    try:
        _submit(call, exchange, read)
    except StokerError as error:
        call.refuse(error)
    except Exception as error:  # noqa: BLE001  # otherwise this request would never be answered
        call.refuse_for_fault(error)


def _submit(call: Call, exchange: Exchange, read: Parcel | Rows | BaseException) -> None:
    if isinstance(read, BaseException):
        raise read
    if isinstance(read, Parcel):
        _submit_parcel(call, exchange, read)
    else:
        exchange.submit(call, read)


def _submit_parcel(call: Call, exchange: Exchange, parcel: Parcel) -> None:
    found: DecodedBody = parcel.content
    if found.error is not None:
        raise found.error
    if found.fault:
        raise RuntimeError(f"a long body could not be read:\n{found.fault}")
    before = call.urgency
    call.deadline_ns, call.urgency = found.deadline_ns, found.urgency
    if before is not None and call.urgency is not None:
        call.urgency = call.urgency._replace(quota=before.quota, shared=before.shared)
    if found.write is not None:
        call.write = found.write
    if found.sequence is not None:
        call.sequence = found.sequence
    if found.empty:
        call.complete_empty(exchange)
        return
    # Arrays that refer to the mapping keep it alive.
    memory = mmap.mmap(parcel.memory_fd, 0, prot=mmap.PROT_READ)
    if found.arrays is None:
        exchange.submit_body(call, memoryview(memory)[: parcel.size_bytes])
    else:
        exchange.submit(call, _arrays_in(memory, found.arrays))


def _arrays_in(memory: mmap.mmap, described: list[tuple[str, tuple[int, ...]]]) -> list[np.ndarray]:
    arrays, start = [], 0
    for dtype, shape in described:
        array: np.ndarray = np.ndarray(shape, dtype, memory, start)
        arrays.append(array)
        start += array.nbytes
    return arrays


def decode_task(call: Call, head: RequestHead | None) -> DecodeTask:
    """The reader's task for a request to a model that is loaded."""
    service = call.service
    assert service.signature is not None, "it is loaded"
    return DecodeTask(
        service.name,
        service.version,
        service.signature,
        service.facts.non_finite,
        call.dialect,
        head,
        call.ids.request_id,
        call.received_ns,
        call.deadline_ns,
        # The rows are claimed here, in this process.
        None if call.urgency is None else call.urgency._replace(quota=None, shared=None),
    )
