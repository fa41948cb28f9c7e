"""One frontend as its supervisor sees it, over all restarts."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from stoker.control.frontend_messages import FromFrontend, ToFrontend
from stoker.supervisor.backoff import Backoff
from stoker.supervisor.children import Child
from stoker.supervisor.mailboxes import Mailbox
from stoker.takeover.comparison import Comparison

FrontendChild = Child[ToFrontend, FromFrontend]


@dataclass(eq=False)
class FrontendProcess:
    """One frontend, over all its restarts.

    Attributes:
        mailbox: Where it receives connections from other frontends; None if there is only one frontend.
        beats: The last count of turns of its event loop that was seen.
        still_looks: How many checks in a row have found no progress of that count.
        leaving: Numbers of the models whose last requests it still answers before they are unloaded.
        compared: By ticket the results of comparisons that it was asked for.
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
    leaving: set[int] = field(default_factory=set)
    compared: dict[int, Comparison] = field(default_factory=dict)
