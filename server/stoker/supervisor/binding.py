"""The listening sockets of a server: opened by the supervisor, inherited by the frontends."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from stoker.errors import InvalidSettings

__all__ = ["bind", "listens"]


def bind(host: str, port: int, count: int, inherited: Sequence[socket.socket] = ()) -> list[socket.socket]:
    """Open `count` listening sockets on one address and port (SO_REUSEPORT: the kernel spreads connections).

    Args:
        host: The address.
        port: The port; 0 takes a free one.
        count: How many.
        inherited: Sockets of a predecessor. All those of this address and port are used, because connections may be
            waiting in each; the others are closed. New sockets listen only when their frontends do: until then the
            predecessor accepts all connections.

    Raises:
        InvalidSettings: The address is unknown or the port is taken.
    """
    sockets: list[socket.socket] = []
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        kept = _kept(inherited, family, address)
        sockets += kept
        if kept:
            address = kept[0].getsockname()
        elif port:
            # With SO_REUSEPORT a second server of the same user could share the port: check that it is free.
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        for _ in range(count - len(sockets)):
            sock = socket.socket(family)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
            # With port 0 the first socket chooses the port for all.
            address = (address[0], sock.getsockname()[1], *address[2:])
        for sock in [] if kept else sockets:
            sock.listen(2048)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise InvalidSettings(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another with --host and --port"
        ) from error
    return sockets


def listens(sock: socket.socket) -> bool:
    """Whether a socket listens; one that only reserves its port does not."""
    return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _kept(
    inherited: Sequence[socket.socket], family: socket.AddressFamily, address: tuple[Any, ...]
) -> list[socket.socket]:
    kept = []
    for sock in filter(listens, inherited):
        host, port, *_ = sock.getsockname()
        if sock.family == family and host == address[0] and address[1] in (0, port):
            kept.append(sock)
        else:
            sock.close()
    return kept
