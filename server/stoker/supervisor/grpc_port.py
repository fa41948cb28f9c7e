"""Checks and reservations before a server with gRPC starts: packages, certificate and port."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from stoker.errors import InvalidSettings
from stoker.settings.server import ServerSettings
from stoker.supervisor.binding import listens
from stoker.system.certificates import read_certificate
from stoker.system.extras import how_to_install

__all__ = ["address_of", "reserve_grpc_port"]

_PACKAGES: Final = ("google.protobuf", "hpack")


def reserve_grpc_port(
    settings: ServerSettings, beside: socket.socket, inherited: Sequence[socket.socket] = ()
) -> socket.socket:
    """Check what the frontends need to serve gRPC, and reserve its port.

    Each frontend listens on the port itself (SO_REUSEPORT). The socket that is returned does not listen; it keeps
    other servers away while a frontend is restarted.

    Args:
        settings: The server's, with `grpc_port`.
        beside: A listening socket of HTTP, whose address gRPC uses too.
        inherited: Sockets of a predecessor; one that reserves this port is used again.

    Raises:
        InvalidSettings: There is no port, a package is missing, the certificate or its key cannot be used, or the
            port is taken.
    """
    if not settings.grpc_port:
        raise InvalidSettings("grpc_tls_cert and grpc_tls_key need a grpc_port to serve on")
    if not all(_installed(name) for name in _PACKAGES):
        raise InvalidSettings(f"grpc_port needs packages that are missing here; {how_to_install('grpc')}")
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


def address_of(sock: socket.socket, port: int) -> str:
    """The host of a socket with another port, as `HOST:PORT`."""
    host = sock.getsockname()[0]
    return f"[{host}]:{port}" if sock.family == socket.AF_INET6 else f"{host}:{port}"


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
