"""Certificates for tests, made where they are needed; the keys are short to make, of elliptic curves."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stoker.system.certificates import TlsFiles

__all__ = ["Authority", "client_context", "make_pair", "replace_pair"]

_DAY: Final = dt.timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """An authority that signs certificates.

    Attributes:
        certificate: Its own certificate.
        key: The key that it signs with.
        file: Its certificate as PEM, for callers that trust it.
    """

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    file: Path

    @classmethod
    def made(cls, folder: Path, name: str = "authority") -> Authority:
        """A new one, which trusts itself."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name, (), 30, key, None)
        file = folder / f"{name}.crt"
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return cls(certificate, key, file)


def make_pair(
    folder: Path,
    *names: str,
    days: float = 30,
    authority: Authority | None = None,
    password: str | None = None,
    stem: str = "tls",
) -> TlsFiles:
    """Write a certificate for these names, and its key.

    Args:
        folder: Where.
        *names: Host names and IP addresses; localhost and 127.0.0.1 unless told otherwise.
        days: When it expires; a negative number makes one that has.
        authority: Who signs it; by itself without one.
        password: Of the key.
        stem: The name of both files, without their suffixes.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(stem, names or ("localhost", "127.0.0.1"), days, key, authority)
    lock = (
        serialization.NoEncryption()
        if password is None
        else serialization.BestAvailableEncryption(password.encode())
    )
    files = TlsFiles(folder / f"{stem}.crt", folder / f"{stem}.key")
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
    )
    return files


def replace_pair(files: TlsFiles, folder: Path, *names: str, days: float = 30) -> TlsFiles:
    """Put another pair in the place of one, as a link that leads elsewhere does; returns where the new one was."""
    made = make_pair(folder, *names, days=days, stem="replacement")
    for place, new in zip(files.paths, made.paths, strict=True):
        link = place.with_suffix(".new")
        link.symlink_to(new)
        link.replace(place)
    return made


def client_context(authorities: Path, pair: TlsFiles | None = None) -> ssl.SSLContext:
    """The TLS context of a caller that trusts these authorities; with a pair, it presents a certificate."""
    context = ssl.create_default_context(cafile=authorities)
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def _certificate(
    name: str,
    names: tuple[str, ...],
    days: float,
    key: ec.EllipticCurvePrivateKey,
    authority: Authority | None,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    until = dt.datetime.now(dt.UTC) + days * _DAY
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(until - 60 * _DAY)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=not names, path_length=None), critical=True)
    )
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(each) for each in names]), critical=False
        )
    return builder.sign(key if authority is None else authority.key, hashes.SHA256())


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
