"""Connections: an httpx client for each request in flight, lent last in, first out.

One httpx client could hold all connections, but its pool compares every idle connection with every other for
each request: with 64 connections that costs more than the request itself. A client that holds one connection
has nothing to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, Generic, TypeVar

import httpx

__all__ = ["Http", "Lanes", "lanes_of"]

# About half the time after which proxies and load balancers commonly drop an idle connection without a word.
_IDLE_S = 30.0

Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)


class Lanes(Generic[Http]):
    """The httpx clients of a `Client` or `AsyncClient`; threads may share them.

    Args:
        make: Makes one more, when all are lent.
    """

    def __init__(self, make: Callable[[], Http]) -> None:
        self._make: Callable[[], Http] = make
        self._idle: list[Http] = []
        self._all: list[Http] = []
        self._closed = False

    @contextmanager
    def lane(self) -> Iterator[Http]:
        """Lend the client that was used last, whose connection is the likeliest to stand, for one request.

        Raises:
            RuntimeError: The lanes were taken down.
        """
        if self._closed:
            raise RuntimeError("the client was closed")
        try:
            http = self._idle.pop()
        except IndexError:
            http = self._make()
            self._all.append(http)
        try:
            yield http
        finally:
            self._idle.append(http)

    def taken_down(self) -> list[Http]:
        """Lend no more, and return the clients for closing."""
        self._closed = True
        return self._all


def lanes_of(kind: Callable[..., Http], transport: Any, *, on_loopback: bool) -> Lanes[Http]:
    """Make the lanes of a client.

    Args:
        kind: `httpx.Client` or `httpx.AsyncClient`.
        transport: What all requests are sent through, with connections of its own; None for a connection each.
        on_loopback: Whether the server is reached through this machine's loopback, where no proxy that the
            environment names can be of use.
    """
    options = _http_options(on_loopback=on_loopback)
    if transport is not None:
        shared = kind(transport=transport, **options)
        return Lanes(lambda: shared)
    # Reading the certificates is what makes an httpx client slow to make.
    verify = httpx.create_ssl_context(trust_env=options["trust_env"])
    return Lanes(lambda: kind(verify=verify, **options))


def _http_options(*, on_loopback: bool) -> dict[str, Any]:
    """The options that all httpx clients share."""
    return {
        # Each request brings its own credential; httpx is not to look for another one in the URI or in .netrc.
        "auth": httpx.Auth(),
        "headers": {"User-Agent": f"stoker-client/{version('stoker-client')}", "Accept": "application/json"},
        "limits": httpx.Limits(keepalive_expiry=_IDLE_S),
        "trust_env": not on_loopback,
    }
