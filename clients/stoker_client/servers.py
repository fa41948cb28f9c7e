"""Several servers of one service: a request goes to the one with the fewest in flight, and around those that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

__all__ = ["Server", "Servers"]

FIRST_ASIDE_S = 1.0
LAST_ASIDE_S = 30.0


@dataclass(slots=True)
class Server:
    """One server, as this client knows it.

    Attributes:
        in_flight: Requests without an answer yet.
        failures: Failures since its last answer.
        aside_until_s: Until when other servers are preferred.
        turn: When it was last chosen, as a running number.
    """

    url: httpx.URL
    in_flight: int = 0
    failures: int = 0
    aside_until_s: float = 0.0
    turn: int = 0

    @property
    def origin(self) -> str:
        """Scheme, host and port, for messages."""
        return f"{self.url.scheme}://{self.url.netloc.decode('ascii')}"

    def at(self, url: httpx.URL) -> httpx.URL:
        """The same path and query at this server."""
        return url.copy_with(scheme=self.url.scheme, host=self.url.host, port=self.url.port)


class Servers:
    """The servers of a client; threads may share them.

    Args:
        urls: Their scoring URIs, absolute; they differ in scheme, host and port alone.
        clock: Monotonic time in seconds.

    Raises:
        ValueError: There is none, or one has another path.
    """

    def __init__(self, urls: Sequence[httpx.URL], clock: Callable[[], float]) -> None:
        if not urls:
            raise ValueError("there is no scoring URI; give one at least")
        first = urls[0]
        for url in urls[1:]:
            if url.raw_path != first.raw_path:
                raise ValueError(
                    f"the scoring URIs are of one service, so they have one path; {first} and {url} differ"
                )
        self._servers = [Server(url) for url in dict.fromkeys(urls)]
        self._clock = clock
        self._turns = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._servers)

    def take(self) -> Server:
        """Choose a server for one request: the one with the fewest requests in flight among those not set aside.

        Among equals it is the one chosen longest ago; if all are set aside, the one that is available first.
        """
        with self._lock:
            now_s = self._clock()
            chosen = min(
                self._servers,
                key=lambda server: (max(server.aside_until_s - now_s, 0.0), server.in_flight, server.turn),
            )
            self._turns += 1
            chosen.turn = self._turns
            chosen.in_flight += 1
            return chosen

    def give_back(self, server: Server) -> None:
        """Say that a request is over, however it ended."""
        with self._lock:
            server.in_flight -= 1

    def answered(self, server: Server) -> None:
        """Record that a server has answered a request."""
        # Without the lock: nobody is misled by a moment.
        server.failures = 0
        server.aside_until_s = 0.0

    def set_aside(self, server: Server, at_least_s: float | None) -> None:
        """Ask others for a while, longer each time: this one cannot be reached, or takes nothing now.

        Args:
            at_least_s: The server's own Retry-After, if any.
        """
        with self._lock:
            aside_s = min(FIRST_ASIDE_S * 2.0 ** min(server.failures, 30), LAST_ASIDE_S)
            server.failures += 1
            server.aside_until_s = self._clock() + max(aside_s, at_least_s or 0.0)

    def has_ready(self) -> bool:
        """Whether there is a server that is not set aside."""
        with self._lock:
            now_s = self._clock()
            return any(server.aside_until_s <= now_s for server in self._servers)
