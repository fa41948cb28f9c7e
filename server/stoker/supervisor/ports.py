"""The ports of a server: bound before anything starts, plain or with TLS, for HTTP and gRPC."""

from __future__ import annotations

import ipaddress
import logging
import shlex
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from stoker.errors import InvalidSettings
from stoker.settings.server import ServerSettings
from stoker.system.certificates import Certificate, TlsFiles, read_certificate
from stoker.system.extras import how_to_install, is_installed

logger = logging.getLogger(__name__)


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
        option: What chooses another address, for the error.
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


_PACKAGES: Final = ("google.protobuf", "hpack")


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


def address_of(sock: socket.socket, port: int) -> str:
    """The host of a socket with another port, as `HOST:PORT`."""
    host = sock.getsockname()[0]
    return f"[{host}]:{port}" if sock.family == socket.AF_INET6 else f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class TlsPort:
    """A port that speaks TLS."""

    files: TlsFiles
    certificate: Certificate

    @property
    def until(self) -> str:
        """When the certificate expires, in words."""
        if not self.certificate.expires_s:
            return "whose end cannot be read"
        return f"until {datetime.fromtimestamp(self.certificate.expires_s, UTC):%Y-%m-%d %H:%M} UTC"

    def expired(self, now_s: float) -> bool:
        """Whether that is past."""
        return 0 < self.certificate.expires_s <= now_s


def tls_ports(settings: ServerSettings) -> dict[str, TlsPort]:
    """The ports that speak TLS, by what is spoken on them: `http`, `grpc`."""
    files = {"http": settings.tls, "grpc": settings.grpc_tls if settings.grpc_port else None}
    return {
        protocol: TlsPort(of_port, read_certificate(of_port))
        for protocol, of_port in files.items()
        if of_port is not None
    }


def warn_of_expiry(ports: Mapping[str, TlsPort]) -> None:
    """Warn of certificates that callers refuse because they have expired."""
    for protocol, port in ports.items():
        if port.expired(time.time()):
            logger.warning(
                "the certificate %s of %s has expired (%s): callers refuse it; put another one in its place, which "
                "is read without a restart",
                port.files.certificate,
                protocol,
                port.until,
            )


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where a server answers, as its operator is told."""

    base: str
    curl: str = "curl -s"


def local_host(settings: ServerSettings) -> str:
    """The address at which this machine reaches a server."""
    return "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104  # compared, not bound


def http_address(
    host: str, port: int, tls: TlsPort | None, shown: Callable[[Path], str] = str
) -> HttpAddress:
    """Where this machine reaches a server.

    Args:
        shown: How a path is written.
    """
    at = f"[{host}]" if ":" in host else host
    if tls is None:
        return HttpAddress(f"http://{at}:{port}")
    options = ["curl -s"]
    certificate = tls.certificate
    if certificate.self_signed:
        options.append(f"--cacert {shlex.quote(shown(tls.files.certificate))}")
    named = next((name for name in certificate.names if not _is_address(name) and "*" not in name), None)
    if host not in certificate.names and named is not None:
        # Callers compare the name, and the certificate has not that of the address.
        if named != "localhost":
            options.append(f"--resolve {shlex.quote(f'{named}:{port}:{at}')}")
        at = named
    if tls.files.client_ca is not None:
        options.append("--cert CLIENT_CERTIFICATE --key CLIENT_KEY")
    return HttpAddress(f"https://{at}:{port}", " ".join(options))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
