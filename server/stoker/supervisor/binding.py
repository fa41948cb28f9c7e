"""The listening sockets of a server: opened by the supervisor, inherited by the frontends."""

from __future__ import annotations

import socket

from stoker.errors import InvalidSettings

__all__ = ["bind"]


def bind(host: str, port: int, count: int) -> list[socket.socket]:
    """Open `count` listening sockets on one address and port (SO_REUSEPORT: the kernel spreads connections).

    Raises:
        InvalidSettings: The address is unknown or the port is taken.
    """
    sockets: list[socket.socket] = []
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if port:
            # SO_REUSEPORT would let a second server of the same user share the port: make sure that it is
            # free.
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        for _ in range(count):
            sock = socket.socket(family)
            sockets.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(address)
            # With port 0 the first socket chooses the port for all.
            address = (address[0], sock.getsockname()[1], *address[2:])
        for sock in sockets:
            sock.listen(2048)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise InvalidSettings(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another with --host and --port"
        ) from error
    return sockets
