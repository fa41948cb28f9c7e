"""Hands the connections that wait for a frontend that has ended to other frontends."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stoker.control.channel import receive_connection, send_connection
from stoker.metrics.memory import MetricPage


class Mailbox(NamedTuple):
    """The two ends of a datagram socket pair; each datagram is a protocol's name with one connection's descriptor."""

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
        lost: Called for a connection that could neither be handed on nor put back.

    Returns:
        How many connections were handed on.
    """
    forwarded = 0
    while receivers:
        try:
            handed = receive_connection(mailbox.inbox)
        except OSError:
            # The mailbox is empty.
            break
        if handed.descriptor is None:
            lost()
            break
        receiver = receivers[forwarded % len(receivers)]
        receiver.page.add_connections(handed.protocol, 1)
        try:
            send_connection(receiver.mailbox.door, handed.protocol, handed.descriptor)
        except OSError:
            receiver.page.add_connections(handed.protocol, -1)
            _put_back(mailbox, handed.protocol, handed.descriptor, lost)
            break
        finally:
            os.close(handed.descriptor)
        forwarded += 1
    return forwarded


def _put_back(mailbox: Mailbox, protocol: str, descriptor: int, lost: Callable[[], None]) -> None:
    try:
        send_connection(mailbox.door, protocol, descriptor)
    except OSError:
        # Other frontends have filled it meanwhile.
        lost()
