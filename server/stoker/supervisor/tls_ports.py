"""The ports of a server that speak TLS: what is looked at before it starts, and what callers are to be told."""

from __future__ import annotations

import ipaddress
import logging
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from stoker.settings.server import ServerSettings
from stoker.system.certificates import Certificate, TlsFiles, read_certificate

__all__ = ["HttpAddress", "TlsPort", "http_address", "tls_ports", "warn_of_expiry"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsPort:
    """A port that speaks TLS.

    Attributes:
        files: What with.
        certificate: As it was read at the start.
    """

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
    """The ports that speak TLS, by what is spoken on them: `http`, `grpc`.

    Raises:
        InvalidSettings: A certificate or key is missing or cannot be used.
    """
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
    """Where a server answers, as its operator is told.

    Attributes:
        base: The address without a path.
        curl: How a command begins that asks it.
    """

    base: str
    curl: str = "curl -s"


def http_address(
    host: str, port: int, tls: TlsPort | None, shown: Callable[[Path], str] = str
) -> HttpAddress:
    """Where this machine reaches a server.

    Args:
        host: The address that it listens on.
        port: The port.
        tls: What it speaks TLS with; None if it does not.
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
