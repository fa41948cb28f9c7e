"""Certificates of a server's ports: read, checked, and reloaded when their files are replaced."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from stoker.errors import InvalidSettings

logger = logging.getLogger(__name__)

# X509_V_FLAG_NO_CHECK_TIME of OpenSSL, to read expired certificates too.
_NO_CHECK_TIME: Final = 0x200000
# A handshake is two messages each way; each turn moves one of them.
_HANDSHAKE_TURNS: Final = 4

_Mark: TypeAlias = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of a port with TLS.

    Attributes:
        certificate: The certificate, followed by those that lead to an authority.
        client_ca: The authorities that must have signed callers' certificates; None if callers need none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """All files."""
        pair = (self.certificate, self.key)
        return pair if self.client_ca is None else (*pair, self.client_ca)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A loaded certificate.

    Attributes:
        expires_s: When it expires, in seconds since 1970; 0 if that cannot be read.
        self_signed: Whether it is self-signed, so that callers need the file itself.
    """

    context: ssl.SSLContext
    expires_s: int
    names: tuple[str, ...]
    self_signed: bool


def read_certificate(files: TlsFiles, protocols: Sequence[str] = ()) -> Certificate:
    """Load a certificate and its key into a TLS context: 1.2 or newer, with OpenSSL's ciphers.

    Args:
        protocols: Protocols for ALPN; none to only read the certificate.

    Raises:
        InvalidSettings: A file cannot be used; the message says why.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(list(protocols))
    _load(context, files)
    facts = _facts(context, files.certificate)
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except OSError as error:
            raise InvalidSettings(
                f"the authorities in {files.client_ca}, whose certificates callers are to show, cannot be used: "
                f"{error.strerror or error}; it has to be a PEM file"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return Certificate(
        context,
        int(ssl.cert_time_to_seconds(facts["notAfter"])) if facts else 0,
        tuple(name for kind, name in facts.get("subjectAltName", ()) if kind in ("DNS", "IP Address")),
        bool(facts) and facts["subject"] == facts["issuer"],
    )


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    password_requests = []

    def password() -> str:
        password_requests.append(True)
        return ""

    try:
        for path in (files.certificate, files.key):
            # OpenSSL does not name the file that is missing.
            path.open("rb").close()
        context.load_cert_chain(files.certificate, files.key, password)
    except OSError as error:
        reason = f"{error.strerror} ({error.filename})" if error.filename else str(error.strerror or error)
        if password_requests:
            reason = (
                "the key has a password, and nobody is there to ask for it; give it without a password: openssl pkey "
                f"-in {files.key} -out NEW_KEY"
            )
        elif isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            reason = "the key is of another certificate"
        elif isinstance(error, ssl.SSLError):
            reason += "; both have to be PEM files"
        raise InvalidSettings(
            f"the certificate {files.certificate} and the key {files.key} cannot be used together: {reason}"
        ) from error


def _facts(context: ssl.SSLContext, chain: Path) -> dict[str, Any]:
    """Return the facts that a trusting client learns from a certificate; empty if no client would accept it.

    Python has no other way to read a certificate than a handshake, here in memory, with a client that trusts only it.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client.load_verify_locations(chain)
        connecting = client.wrap_bio(to_client, to_server)
        answering = context.wrap_bio(to_server, to_client, server_side=True)
        for _ in range(_HANDSHAKE_TURNS):
            for side in (connecting, answering):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        return connecting.getpeercert() or {}
    except (OSError, ValueError) as error:
        logger.warning("clients may refuse the certificate %s: %s", chain, error)
        return {}


class FollowedCertificate:
    """A certificate that is loaded again when its files change; open connections keep the one they began with."""

    def __init__(self, files: TlsFiles, protocols: Sequence[str]) -> None:
        """Load the certificate; raise InvalidSettings if it cannot be used."""
        self._files = files
        self._protocols = tuple(protocols)
        self._tried = self._seen = _marks(files)
        self.current = read_certificate(files, protocols)

    def reload_if_changed(self) -> None:
        """Load the files again if they have changed, and were the same in two calls: they are not written at once.

        If they cannot be used, an error is logged and `current` stays.
        """
        marks = _marks(self._files)
        settled, self._seen = marks == self._seen, marks
        if marks == self._tried or not settled:
            return
        self._tried = marks
        try:
            self.current = read_certificate(self._files, self._protocols)
        except InvalidSettings as error:
            logger.error("the certificate stays as it was: %s", error)  # noqa: TRY400  # the operator's, no fault here
        else:
            logger.info(
                "the certificate %s was exchanged, and holds for new connections", self._files.certificate
            )


def _marks(files: TlsFiles) -> tuple[_Mark, ...]:
    """Return a value that changes when a file is written, or a link gets another target."""
    return tuple(map(_mark, files.paths))


def _mark(path: Path) -> _Mark:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
