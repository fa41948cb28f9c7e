"""The entrance of a frontend: a new connection is served here, by another frontend, or is closed for lack of room."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable

from stoker.gateway.doors.descriptors import Descriptors
from stoker.gateway.doors.sharing import ConnectionShare, Siblings

__all__ = ["Entrance"]


class Entrance:
    """Decides where each new connection of one protocol is served; belongs to the event loop of its frontend."""

    def __init__(self, count_refused: Callable[[], None] = lambda: None) -> None:
        """Serve all connections in this frontend, until `join`.

        Args:
            count_refused: Called for each connection that is closed unserved for lack of descriptors.
        """
        self._descriptors = Descriptors(count_refused)
        self._share: ConnectionShare | None = None

    def join(
        self, siblings: Siblings, protocol: str, take: Callable[[socket.socket], Awaitable[object]]
    ) -> None:
        """Share connections with the other frontends from now on.

        Args:
            siblings: The other frontends.
            protocol: What is spoken on them, of `stoker.metrics.layout.PROTOCOLS`.
            take: Called with each connection that another frontend has handed on; owns it.
        """
        self._share = siblings.share(protocol, take, lost=self._descriptors.refuse)

    def leave(self) -> None:
        """Neither hand connections on nor take those of others any more; what is under way is still taken."""
        if self._share is not None:
            self._share.leave()

    def tell(self, count: int) -> None:
        """Tell the other frontends how many connections are open here."""
        if self._share is not None:
            self._share.tell(count)

    def admits(self, descriptor: int, *, handed_on: bool = False) -> bool:
        """Whether a new connection is served here; if not, the caller closes its socket.

        Args:
            descriptor: That of the connection.
            handed_on: Whether it stays here if there is room: another frontend has handed it on, or nobody else takes
                connections any more.
        """
        share, fits = self._share, self._descriptors.fits(descriptor)
        if share is not None:
            if not fits:
                # Said before anything else: a full frontend has few connections, and would be given those of others.
                share.fill()
            if not (handed_on and fits) and share.hand_on(descriptor):
                return False
            if self._descriptors.is_last(descriptor):
                # Only of one that stays: the descriptor of one that was handed on is free again.
                share.fill()
        if not fits:
            self._descriptors.refuse()
        return fits

    def look(self) -> None:
        """See whether there is room again; call this once a second."""
        if self._descriptors.look() and self._share is not None:
            self._share.reopen()
