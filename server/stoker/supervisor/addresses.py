"""The addresses at which a server is reached, as its operator and its processes write them."""

from __future__ import annotations

import ipaddress
import shlex
import socket
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from stoker.settings.server import ServerSettings
from stoker.supervisor.tls_ports import TlsPort


def address_of(sock: socket.socket, port: int) -> str:
    """The host of a socket with another port, as `HOST:PORT`."""
    host = sock.getsockname()[0]
    return f"[{host}]:{port}" if sock.family == socket.AF_INET6 else f"{host}:{port}"


class HttpAddress(Struct, frozen=True):
    """The address of a server, and the curl command that reaches it."""

    base: str
    curl: str = "curl -s"


def local_host(settings: ServerSettings) -> str:
    """The address at which this machine reaches a server."""
    return "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host  # noqa: S104  # compared, not bound


def http_address(
    host: str, port: int, tls: TlsPort | None, shown: Callable[[Path], str] = str
) -> HttpAddress:
    """Return the address at which this machine reaches a server.

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
