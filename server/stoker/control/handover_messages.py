"""Messages between a server and its successor in a reload: the listening sockets, and which of them serves."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from stoker.control.channel import Codec

HANDOVER_VARIABLE: Final = "STOKER_HANDOVER_FD"
"""The environment variable with the descriptor of a successor's channel."""
_SOCKETS_A_MESSAGE: Final = 8


class Labels(Struct, frozen=True):
    """The labels of models, and the memory that devices had; sent to a successor before the sockets.

    A label that was moved to a version which is not loaded yet still refers to the old version, which cannot be
    derived from the files.

    Attributes:
        by_model: Versions by label, by name of the model.
        free_bytes: `DeviceMemory.free_bytes`: what the predecessor uses is no less free for its successor.
    """

    by_model: Mapping[str, Mapping[str, int]]
    free_bytes: Mapping[str, int] = field(default_factory=dict)


class Sockets(Struct, frozen=True):
    """Some of the listening sockets, as descriptors of the message; a packet has room for few.

    The predecessor sends its sockets to the successor, which returns its own when it serves.
    """

    last: bool


class NotStarted(Struct, frozen=True):
    """The successor ends without having served."""

    error: str


class Reload(Struct, frozen=True):
    """The successor requests a reload of its own; answered by `Leave` or `NotReloaded`."""

    labels: Labels


class Leave(Struct, frozen=True):
    """The successor's own successor serves: it answers its last requests and ends."""


class NotReloaded(Struct, frozen=True):
    """The successor keeps serving, because its own successor did not start."""

    error: str


ToSuccessor = Labels | Sockets | Leave | NotReloaded
"""Messages from a server to its successor."""

FromSuccessor = Sockets | NotStarted | Reload
"""Messages from a successor to its predecessor."""

PREDECESSOR_END: Final[Codec[ToSuccessor, FromSuccessor]] = Codec(ToSuccessor, FromSuccessor, "json")
SUCCESSOR_END: Final[Codec[FromSuccessor, ToSuccessor]] = Codec(FromSuccessor, ToSuccessor, "json")


def send_sockets(send: Callable[[Sockets, Sequence[int]], object], sockets: Sequence[socket.socket]) -> None:
    """Send sockets in as many messages as they need.

    They stay open all the time, so no waiting connection is lost, whichever server accepts it (decision 24).
    """
    for first in range(0, len(sockets), _SOCKETS_A_MESSAGE):
        part = sockets[first : first + _SOCKETS_A_MESSAGE]
        send(Sockets(last=first + len(part) == len(sockets)), [sock.fileno() for sock in part])


def open_sockets(fds: Sequence[int]) -> list[socket.socket]:
    """Return the sockets of received descriptors."""
    return [socket.socket(fileno=fd) for fd in fds]
