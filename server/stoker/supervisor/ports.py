"""The ports of a server for HTTP and gRPC, bound before any process starts."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.settings.server import ServerSettings
from stoker.system.certificates import read_certificate
from stoker.system.extras import how_to_install, is_installed

_PACKAGES: Final = ("google.protobuf", "hpack")


def bind(
    host: str,
    port: int,
    count: int,
    inherited: Sequence[socket.socket] = (),
    option: str = "--host and --port",
) -> list[socket.socket]:
    """Open `count` listening sockets on one address and port (SO_REUSEPORT: the kernel spreads connections).

    Args:
        port: The port; 0 takes a free one.
        inherited: Sockets of a predecessor. All those of this address and port are used, because connections may be
            waiting in each; the others are closed. New sockets listen only when their frontends do: until then the
            predecessor accepts all connections.
        option: The option that chooses another address, for the error.
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
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another with {option}"
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
            # Behind the sockets of the port for HTTP come those of others.
            address = (host, port)
        else:
            sock.close()
    return kept


def reserve_grpc_port(
    settings: ServerSettings, beside: socket.socket, inherited: Sequence[socket.socket] = ()
) -> socket.socket:
    """Check what the frontends need to serve gRPC, and reserve its port.

    Each frontend listens on the port itself (SO_REUSEPORT). The socket that is returned does not listen; it keeps
    other servers away while a frontend is restarted.

    Args:
        inherited: Sockets of a predecessor; one that reserves this port is used again.

    Raises:
        InvalidSettings: There is no port, a package is missing, the certificate or its key cannot be used, or the
            port is taken.
    """
    if not settings.grpc_port:
        raise InvalidSettings("grpc_tls_cert and grpc_tls_key need a grpc_port to serve on")
    if not all(is_installed(name) for name in _PACKAGES):
        raise InvalidSettings(
            f"grpc_port needs the extra grpc, which is not installed; {how_to_install('grpc')}"
        )
    if settings.grpc_tls is not None:
        read_certificate(settings.grpc_tls)
    address = (beside.getsockname()[0], settings.grpc_port, *beside.getsockname()[2:])
    kept = [sock for sock in inherited if sock.fileno() >= 0 and not listens(sock)]
    for sock in kept:
        if sock.getsockname()[:2] == address[:2]:
            return sock
        sock.close()
    sock = socket.socket(beside.family)
    try:
        # Without SO_REUSEPORT, because a second server of the same user must not share the port.
        with socket.socket(beside.family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise InvalidSettings(
            f"cannot listen on {address[0]} port {settings.grpc_port} for gRPC: {error.strerror or error}; "
            "choose another with --grpc-port"
        ) from error
    return sock
