"""The ports of a server that speak TLS, with their certificates."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct

from stoker.settings.server import ServerSettings
from stoker.system.certificates import Certificate, TlsFiles, read_certificate

logger = logging.getLogger(__name__)


class TlsPort(Struct, frozen=True):
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
