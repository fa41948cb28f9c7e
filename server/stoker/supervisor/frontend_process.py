"""One frontend as its supervisor sees it, over all its restarts."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stoker.control.frontend_messages import FromFrontend, ToFrontend
from stoker.supervisor.children import Backoff, Child
from stoker.supervisor.mailboxes import Mailbox

if TYPE_CHECKING:
    from stoker.takeover.comparison import Comparison

__all__ = ["FrontendChild", "FrontendProcess"]

FrontendChild = Child[ToFrontend, FromFrontend]


@dataclass(eq=False)
class FrontendProcess:
    """One frontend, over all its restarts.

    Attributes:
        page: Its page of the metrics.
        sockets: Where it listens.
        mailbox: Where connections arrive that others hand on to it; None if there is no other.
        child: The process, while it runs.
        beats: How often its event loop was seen to have turned.
        still_looks: How many looks in a row have found that it has not since.
        started: Whether it can be attached to replicas.
        listening: Whether it takes connections.
        attached: The generations of the replicas that it scores with.
        serving: The numbers of the models that it has.
        compared: By ticket what it has found of versions that it was asked to compare.
    """

    page: int
    sockets: list[socket.socket]
    mailbox: Mailbox | None = None
    backoff: Backoff = field(default_factory=Backoff)
    child: FrontendChild | None = None
    beats: int = 0
    still_looks: int = 0
    started: bool = False
    listening: bool = False
    attached: set[int] = field(default_factory=set)
    serving: set[int] = field(default_factory=set)
    compared: dict[int, Comparison] = field(default_factory=dict)
