"""Whether a frontend is ready or draining, and the listeners for changes of that."""

from __future__ import annotations

from collections.abc import Callable

from stoker.errors import NotReady


class Readiness:
    """The state of a frontend between its start and its end.

    Attributes:
        draining: Set once, when the server shuts down: it is not ready from then on.
        closes: Set once, when connections are to end: each answer then closes its connection.
    """

    def __init__(self) -> None:
        self.draining = False
        self.closes = False
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call a listener whenever models may have become ready or not ready, after those that came before it."""
        self._listeners.append(listener)

    def notify(self) -> None:
        """Call the listeners, after models have become ready or not ready."""
        for listener in self._listeners:
            listener()

    def start_draining(self, *, port_stays: bool = False) -> None:
        """Close connections with each answer, and turn readiness off, unless another server serves on this port."""
        self.closes = True
        self.draining = not port_stays
        self.notify()

    def check(self) -> None:
        """Raise NotReady if the server shuts down."""
        if self.draining:
            raise NotReady("The server is shutting down.")
