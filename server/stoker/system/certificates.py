"""Certificates of the ports of a server: read and checked, and followed while others are put in their place."""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from stoker.errors import InvalidSettings

__all__ = ["Certificate", "FollowedCertificate", "TlsFiles", "read_certificate"]

logger = logging.getLogger(__name__)

# X509_V_FLAG_NO_CHECK_TIME of OpenSSL: an expired certificate can be looked at too.
_NO_CHECK_TIME: Final = 0x200000
# A handshake is two messages each way; each turn moves one of them.
_HANDSHAKE_TURNS: Final = 4

_Mark: TypeAlias = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What a port speaks TLS with: PEM files.

    Attributes:
        certificate: The certificate, with those that lead from it to an authority behind it.
        key: Its private key, without a password.
        client_ca: The authorities whose certificates callers have to show; None if they show none.
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """All of them."""
        pair = (self.certificate, self.key)
        return pair if self.client_ca is None else (*pair, self.client_ca)


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that was read.

    Attributes:
        context: Speaks TLS with it.
        expires_s: When it expires, in seconds since 1970; 0 if that cannot be read.
        names: The host names and IP addresses that it is for.
        self_signed: Whether it vouches for itself, so that callers need the file itself.
    """

    context: ssl.SSLContext
    expires_s: int
    names: tuple[str, ...]
    self_signed: bool


def read_certificate(files: TlsFiles, protocols: Sequence[str] = ()) -> Certificate:
    """Read a certificate and its key, and make what speaks TLS with them: 1.2 or newer, with OpenSSL's ciphers.

    Args:
        files: Where they are.
        protocols: What is spoken over it, as ALPN names it; none to look at the certificate only.

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
    asked = []

    def password() -> str:
        asked.append(True)
        return ""

    try:
        for path in (files.certificate, files.key):
            # OpenSSL does not say which one it is.
            path.open("rb").close()
        context.load_cert_chain(files.certificate, files.key, password)
    except OSError as error:
        reason = f"{error.strerror} ({error.filename})" if error.filename else str(error.strerror or error)
        if asked:
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
    """What a client is told of a certificate that it trusts; empty if no client would take it.

    Python has no other way to read a certificate: this is a handshake in memory, with one who trusts it alone.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN | _NO_CHECK_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client.load_verify_locations(chain)
        asking = client.wrap_bio(to_client, to_server)
        answering = context.wrap_bio(to_server, to_client, server_side=True)
        for _ in range(_HANDSHAKE_TURNS):
            for side in (asking, answering):
                with contextlib.suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        return asking.getpeercert() or {}
    except (OSError, ValueError) as error:
        logger.warning("clients may refuse the certificate %s: %s", chain, error)
        return {}


class FollowedCertificate:
    """A certificate whose files are looked at again and again, and read again when they were exchanged.

    Connections that are open keep what they began with.

    Attributes:
        current: What new connections begin with.
    """

    def __init__(self, files: TlsFiles, protocols: Sequence[str]) -> None:
        """Read it.

        Raises:
            InvalidSettings: It cannot be used.
        """
        self._files, self._protocols = files, tuple(protocols)
        self._tried = self._seen = _marks(files)
        self.current = read_certificate(files, protocols)

    def look(self) -> None:
        """Read the files again if they are others, and have been for one look: they are not written at once.

        What cannot be used is logged, and `current` stays.
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
    """What changes when a file is written, or a link leads to another one."""
    return tuple(map(_mark, files.paths))


def _mark(path: Path) -> _Mark:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
