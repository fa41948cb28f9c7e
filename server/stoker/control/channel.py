"""The control channel between the supervisor and each of its processes.

A SOCK_SEQPACKET socketpair with one message per packet, plus file descriptors. A message too large for a packet is
passed in shared memory, whose descriptor is the first one of a packet that says so. Each end sees EOF when the other
process ends, for whatever reason; a process whose supervisor has ended exits.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar, cast, get_args

import msgspec

from stoker.system.fd_passing import memory_with, receive_packet
from stoker.system.forks import CHILDREN

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

logger = logging.getLogger(__name__)


_Sent = TypeVar("_Sent")
_Received = TypeVar("_Received")

_FORMATS: Final[dict[str, Any]] = {"msgpack": msgspec.msgpack, "json": msgspec.json}


class Codec(Generic[_Sent, _Received]):
    """Encodes the messages that one end of a channel sends, and decodes those that it receives."""

    def __init__(self, sends: Any, receives: Any, form: Literal["msgpack", "json"] = "msgpack") -> None:
        """Create a codec; messages are frozen dataclasses.

        Args:
            sends: The class of messages that this end sends, or the union of the classes.
            form: MessagePack between processes of one version, which have infinities; JSON between versions.
        """
        self._sends: frozenset[type] = frozenset(_members(sends))
        format_ = _FORMATS[form]
        self._encoder = format_.Encoder(enc_hook=_encode_path)
        self._envelope = format_.Decoder(tuple[str, msgspec.Raw])
        self._decoders = {
            message.__name__: format_.Decoder(message, dec_hook=_decode_path)
            for message in _members(receives)
        }

    def encode(self, message: _Sent) -> bytes:
        """Encode a message.

        Raises:
            TypeError: This end does not send such messages, or a value cannot be encoded.
        """
        if type(message) not in self._sends:
            raise TypeError(f"{type(message).__name__} is not a message that this process sends")
        return cast("bytes", self._encoder.encode((type(message).__name__, message)))

    def decode(self, packet: bytes) -> _Received:
        """Decode a message; the inverse of `encode` at the other end.

        Raises:
            ValueError: This end does not know such a message, or a field has another type.
        """
        kind, content = self._envelope.decode(packet)
        decoder = self._decoders.get(kind)
        if decoder is None:
            raise ValueError(
                f"a message {kind!r} is not one of {', '.join(sorted(self._decoders))}: the process that has sent it "
                "is not of this version of Stoker"
            )
        return cast("_Received", decoder.decode(content))


def _members(union: Any) -> tuple[type, ...]:
    return get_args(union) or (union,)


def _encode_path(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"messages cannot hold {type(value)}")


def _decode_path(declared: type, value: Any) -> Path:
    if declared is Path:
        return Path(value)
    raise TypeError(f"messages cannot hold {declared}")


# A packet must fit into the socket's buffer, by default 208 KiB.
_PACKET_BYTES: Final = 1 << 16
# No codec encodes a message like this.
_IN_MEMORY: Final = b'"in memory"'
_MAX_FDS: Final = 16


class ControlChannel(Generic[_Sent, _Received]):
    """One end of a control channel."""

    def __init__(self, sock: socket.socket, codec: Codec[_Sent, _Received]) -> None:
        """Send and receive messages of a codec through a socket."""
        self._socket = sock
        self._codec = codec
        self._unsent: deque[tuple[bytes, list[int]]] = deque()

    @staticmethod
    def pair(codec: Codec[_Sent, _Received]) -> tuple[ControlChannel[_Sent, _Received], socket.socket]:
        """Make a channel: the non-blocking end for this process, and the socket for the child."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near.setblocking(False)
        return ControlChannel(near, codec), far

    @staticmethod
    def inherited(fd: int, codec: Codec[_Sent, _Received]) -> ControlChannel[_Sent, _Received]:
        """The end that the supervisor has passed to this process."""
        os.set_inheritable(fd, False)
        channel = ControlChannel(socket.socket(fileno=fd), codec)
        CHILDREN.cut_off(channel)
        return channel

    def fileno(self) -> int:
        """The socket's file descriptor, for polling."""
        return self._socket.fileno()

    def descriptors(self) -> list[int]:
        """The socket's, while it is open."""
        number = self.fileno()
        return [] if number < 0 else [number]

    def send(self, message: _Sent, fds: Sequence[int] = ()) -> bool:
        """Send a message; returns False if the other process has ended.

        On a non-blocking end, what the other process has not read yet is queued, and sent by the running event loop
        as soon as possible.

        Raises:
            OSError: This process has too many open descriptors, or there is no memory for a large message.
        """
        packet = self._codec.encode(message)
        if len(packet) <= _PACKET_BYTES:
            return self._send(packet, fds)
        memory_fd = memory_with("stoker-message", [packet])
        try:
            return self._send(_IN_MEMORY, [memory_fd, *fds])
        finally:
            os.close(memory_fd)

    def _send(self, packet: bytes, fds: Sequence[int]) -> bool:
        if not self._unsent:
            try:
                socket.send_fds(self._socket, [packet], list(fds))
            except BlockingIOError:
                _running_loop().add_writer(self._socket.fileno(), self._send_rest)
            except (BrokenPipeError, ConnectionResetError):
                return False
            else:
                return True
        # The caller may close its descriptors.
        self._unsent.append((packet, [os.dup(fd) for fd in fds]))
        return True

    def _send_rest(self) -> None:
        while self._unsent:
            packet, fds = self._unsent[0]
            try:
                socket.send_fds(self._socket, [packet], fds)
            except BlockingIOError:
                return
            except OSError:
                break
            self._unsent.popleft()
            _close_all(fds)
        self._forget_unsent()

    def _forget_unsent(self) -> None:
        _running_loop().remove_writer(self._socket.fileno())
        while self._unsent:
            _close_all(self._unsent.popleft()[1])

    def receive(self) -> tuple[_Received, list[int]] | None:
        """Wait for a message; returns None at EOF.

        Returns:
            The message and all its descriptors, or no descriptors if this process has too many open ones.

        Raises:
            BlockingIOError: There is no message, on a non-blocking end.
            OSError: The message was lost, because this process has too many open descriptors.
        """
        packet = receive_packet(self._socket, _PACKET_BYTES, _MAX_FDS)
        if packet is None:
            return None
        content, fds, incomplete = packet
        if content == _IN_MEMORY:
            if not fds:
                raise OSError(errno.EMFILE, "a message of another process was lost: too many open files")
            with os.fdopen(fds.pop(0), "rb") as memory:
                memory.seek(0)
                content = memory.read()
        if incomplete:
            logger.error("too many open files (ulimit -n): the descriptors of a message were lost")
            _close_all(fds)
            fds = []
        return self._codec.decode(content), fds

    def close(self) -> None:
        """Close this end."""
        if self._unsent:
            self._forget_unsent()
        self._socket.close()


def _running_loop() -> AbstractEventLoop:
    # Imported here: device processes have no loop, and their channels wait where this one must not.
    from asyncio import get_running_loop

    return get_running_loop()


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


_NAME_BYTES: Final = 16
"""Longest name of a protocol."""


class HandedConnection(NamedTuple):
    """A connection that was handed on.

    Attributes:
        descriptor: Its descriptor, which the receiver owns; None if there was none left for it in this process, so
            that the kernel has closed the connection.
    """

    protocol: str
    descriptor: int | None


def send_connection(door: socket.socket, protocol: str, descriptor: int) -> None:
    """Send a copy of a connection's descriptor to a mailbox.

    Raises:
        OSError: The mailbox is full, or the system has no room.
    """
    socket.send_fds(door, [protocol.encode()], [descriptor])


def receive_connection(inbox: socket.socket) -> HandedConnection:
    """Take the next connection out of a mailbox.

    Raises:
        BlockingIOError: There is none.
        OSError: The mailbox cannot be read.
    """
    kind, descriptors, *_ = socket.recv_fds(inbox, _NAME_BYTES, 1)
    return HandedConnection(kind.decode(), descriptors[0] if descriptors else None)
