"""Mailboxes of frontends: where connections arrive that other frontends hand on.

The supervisor holds both ends of each, so that a connection survives the frontend it was handed to.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from stoker.metrics.memory import MetricPage

__all__ = ["Mailbox", "Receiver", "forward"]

_NAME_BYTES: Final = 16
"""Longest name of a protocol."""


class Mailbox(NamedTuple):
    """The two ends of a datagram socket pair; each datagram is a protocol's name with one connection's descriptor.

    Attributes:
        inbox: Where the frontend receives connections.
        door: Where other frontends send them.
    """

    inbox: socket.socket
    door: socket.socket

    @classmethod
    def new(cls) -> Mailbox:
        """An empty one, which blocks nobody."""
        inbox, door = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        inbox.setblocking(False)
        door.setblocking(False)
        return cls(inbox, door)


class Receiver(NamedTuple):
    """A frontend that can be handed connections: its mailbox, and its page of the metrics, which counts them."""

    mailbox: Mailbox
    page: MetricPage


def forward(mailbox: Mailbox, receivers: Sequence[Receiver], lost: Callable[[], None] = lambda: None) -> int:
    """Hand the connections in the mailbox of a frontend that has ended to others, in turns.

    When a receiver has no room, the rest stays in the mailbox, for the frontend's successor.

    Args:
        mailbox: That of the frontend that has ended.
        receivers: The others.
        lost: Called for a connection that could neither be handed on nor put back.

    Returns:
        How many connections were handed on.
    """
    forwarded = 0
    while receivers:
        try:
            kind, descriptors, *_ = socket.recv_fds(mailbox.inbox, _NAME_BYTES, 1)
        except OSError:
            # The mailbox is empty.
            break
        if not descriptors:
            # No descriptor was left to receive it, so the kernel has closed the connection.
            lost()
            break
        receiver = receivers[forwarded % len(receivers)]
        receiver.page.add_connections(kind.decode(), 1)
        try:
            socket.send_fds(receiver.mailbox.door, [kind], descriptors)
        except OSError:
            receiver.page.add_connections(kind.decode(), -1)
            _put_back(mailbox, kind, descriptors, lost)
            break
        finally:
            os.close(descriptors[0])
        forwarded += 1
    return forwarded


def _put_back(mailbox: Mailbox, kind: bytes, descriptors: list[int], lost: Callable[[], None]) -> None:
    try:
        socket.send_fds(mailbox.door, [kind], descriptors)
    except OSError:
        # Other frontends have filled it meanwhile.
        lost()
