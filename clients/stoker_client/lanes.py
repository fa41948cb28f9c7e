"""Connections: an httpx client for each request in flight, lent last in, first out.

One httpx client could hold all connections, but its pool compares every idle connection with every other for
each request: with 64 connections that costs more than the request itself. A client that holds one connection
has nothing to compare.

A process that is forked has the sockets of its parent. Two that write to one connection read each other's answers, so
the child begins without connections.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import anyio.lowlevel
import httpx

from stoker_client.addresses import Addresses

__all__ = ["Http", "Lanes", "event_loop", "lanes_of"]

# About half the time after which proxies and load balancers commonly drop an idle connection without a word.
_IDLE_S = 30.0

Http = TypeVar("Http", httpx.Client, httpx.AsyncClient)


class _Home(Generic[Http]):
    """The httpx clients whose connections can be used in one place.

    Attributes:
        idle: The ones that are not in use.
    """

    __slots__ = ("_end", "all", "idle")

    def __init__(self) -> None:
        self.idle: list[Http] = []
        self.all: list[Http] = []
        self._end: AsyncGenerator[None, None] | None = None

    def close_with_loop(self, forget: Callable[[], object]) -> None:
        """Close all connections when the event loop that runs now ends, and call `forget` then.

        Event loops close the asynchronous generators that were begun in them and have not ended, and nothing else.
        """
        self._end = _closed_at_the_end(self.all, forget)
        with suppress(StopIteration):
            # To its `yield`, before which it waits for nothing.
            self._end.__anext__().__await__().__next__()


async def _closed_at_the_end(clients: list[Any], forget: Callable[[], object]) -> AsyncGenerator[None, None]:
    process = os.getpid()
    try:
        yield
    finally:
        forget()
        # A process that was forked has copies of the sockets; their peers are its parent's.
        for http in clients if os.getpid() == process else ():
            await http.aclose()


class Lanes(Generic[Http]):
    """The httpx clients of a `Client` or `AsyncClient`; threads may share them, and so may their event loops.

    Args:
        make: Makes another one when all are in use.
        home: Returns the event loop in which connections can be used; each loop has its own. None for anywhere.
        is_shared: Whether `make` always returns the same one, which cannot be recreated.
    """

    def __init__(
        self,
        make: Callable[[], Http],
        home: Callable[[], object] | None = None,
        *,
        is_shared: bool = False,
    ) -> None:
        self._make: Callable[[], Http] = make
        self._home = home
        self._homes: dict[object, _Home[Http]] = {}
        self._is_shared = is_shared
        self._closed = False
        self._is_lost = False
        _of_this_process.add(self)

    @contextmanager
    def lane(self) -> Iterator[Http]:
        """Lend the client that was used last, whose connection is the likeliest to stand, for one request.

        Raises:
            RuntimeError: The lanes were taken down, or belong to the process that this one was forked from.
        """
        if self._closed:
            raise RuntimeError("the client was closed")
        if self._is_lost:
            raise RuntimeError(
                "the client's transport has connections of the process that this one was forked from; make a client "
                "in each process"
            )
        home = self._here()
        try:
            http = home.idle.pop()
        except IndexError:
            http = self._make()
            home.all.append(http)
        try:
            yield http
        finally:
            home.idle.append(http)

    def _here(self) -> _Home[Http]:
        """The lanes of the event loop that runs now, or those that can be used anywhere."""
        if self._home is None:
            return self._homes.setdefault(None, _Home())
        at = self._home()
        home = self._homes.get(at)
        if home is None:
            for loop in [loop for loop in list(self._homes) if _is_over(loop)]:
                del self._homes[loop]
            home = self._homes[at] = _Home()
            home.close_with_loop(partial(self._forget, at, home))
        return home

    def _forget(self, at: object, home: _Home[Http]) -> None:
        if self._homes.get(at) is home:
            del self._homes[at]

    def taken_down(self) -> list[Http]:
        """Lend no more, and return the clients for closing; those of other event loops are closed when these end."""
        self._closed = True
        home = self._homes.get(None if self._home is None else self._home())
        return [] if home is None else home.all

    def begin_in_child(self) -> None:
        """Leave all connections to the process that this one was forked from."""
        if self._is_shared:
            self._is_lost = any(home.all for home in self._homes.values())
            return
        homes, self._homes = list(self._homes.values()), {}
        for http in (http for home in homes for http in home.idle):
            # This process's copy of a socket alone, which says nothing to the server.
            if isinstance(http, httpx.Client):
                http.close()


_of_this_process: Final[weakref.WeakSet[Lanes[Any]]] = weakref.WeakSet()


def _begin_in_child() -> None:
    for lanes in _of_this_process:
        lanes.begin_in_child()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_begin_in_child)


def event_loop() -> object:
    """Return the running event loop, to which connections of asynchronous code belong."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return _run_of_trio()


_mark: Final[anyio.lowlevel.RunVar[object]] = anyio.lowlevel.RunVar("stoker_client.lanes")


def _is_over(loop: object) -> bool:
    """Return whether an event loop has ended without closing what was opened in it."""
    return isinstance(loop, asyncio.AbstractEventLoop) and loop.is_closed()


def _run_of_trio() -> object:
    mark = _mark.get(None)
    if mark is None:
        mark = object()
        _mark.set(mark)
    return mark


def lanes_of(
    kind: Callable[..., Http],
    transport: Any,
    addresses: Addresses,
    home: Callable[[], object] | None = None,
    ca_file: str | Path | None = None,
) -> Lanes[Http]:
    """Make the lanes of a client.

    Args:
        kind: `httpx.Client` or `httpx.AsyncClient`.
        transport: The transport of all requests, with its own connections; None for one connection each.
        addresses: The servers. On this machine's loopback a proxy from the environment is useless.
        home: As for `Lanes`.
        ca_file: The authorities that servers are trusted by; None for those of httpx, or of SSL_CERT_FILE.

    Raises:
        ValueError: There are authorities, and a transport, which has its own.
        OSError: The file cannot be read, or holds none.
    """
    if transport is not None and ca_file is not None:
        raise ValueError("give ca_file or transport: a transport has authorities of its own")
    on_loopback = addresses.on_loopback
    options = _http_options(on_loopback=on_loopback)
    if transport is not None:
        shared = kind(transport=transport, **options)
        return Lanes(lambda: shared, is_shared=True)
    if ca_file is not None:
        verify = ssl.create_default_context(cafile=ca_file)
    elif on_loopback and not addresses.encrypted:
        # Nothing is encrypted, by no proxy either; to read the certificates takes 20 ms.
        verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    else:
        verify = httpx.create_ssl_context()
    return Lanes(lambda: kind(verify=verify, **options), home)


def _http_options(*, on_loopback: bool) -> dict[str, Any]:
    """The options that all httpx clients share."""
    return {
        # Each request brings its own credential; httpx is not to look for another one in the URI or in .netrc.
        "auth": httpx.Auth(),
        "headers": {"User-Agent": f"stoker-client/{version('stoker-client')}", "Accept": "application/json"},
        "limits": httpx.Limits(keepalive_expiry=_IDLE_S),
        "trust_env": not on_loopback,
    }
