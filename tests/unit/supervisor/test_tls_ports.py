"""Messages to the operator about ports that speak TLS."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from tests.certificates import Authority, make_pair

from stoker.errors import InvalidSettings
from stoker.settings.server import ServerSettings
from stoker.supervisor.addresses import http_address
from stoker.supervisor.tls_ports import TlsPort, tls_ports, warn_of_expiry
from stoker.system.certificates import TlsFiles, read_certificate


def test_a_pair_serves_both_ports_unless_grpc_has_its_own(tmp_path: Path) -> None:
    """The options that gRPC had before go on choosing its certificate alone."""
    pair, other = make_pair(tmp_path), make_pair(tmp_path, stem="other")
    shared = ServerSettings(tls_cert=pair.certificate, tls_key=pair.key, grpc_port=1)
    assert {protocol: port.files for protocol, port in tls_ports(shared).items()} == {
        "http": pair,
        "grpc": pair,
    }
    own = replace(shared, grpc_tls_cert=other.certificate, grpc_tls_key=other.key)
    assert tls_ports(own)["grpc"].files == other
    alone = ServerSettings(grpc_port=1, grpc_tls_cert=other.certificate, grpc_tls_key=other.key)
    assert list(tls_ports(alone)) == ["grpc"]
    assert list(tls_ports(replace(shared, grpc_port=0))) == ["http"]
    assert tls_ports(ServerSettings(grpc_port=1)) == {}


@pytest.mark.parametrize("half", ["tls_cert", "tls_key", "tls_client_ca"])
def test_half_a_pair_is_refused(half: str) -> None:
    """So are authorities of callers without a certificate to show them."""
    with pytest.raises(InvalidSettings, match="TLS needs both: tls_cert and tls_key"):
        tls_ports(ServerSettings(**{half: Path("/x.pem")}))  # type: ignore[arg-type]


def test_an_expired_certificate_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is served: its callers may not look, and another one can take its place."""
    good, old = make_pair(tmp_path), make_pair(tmp_path, days=-1, stem="old")
    warn_of_expiry({"http": TlsPort(good, read_certificate(good))})
    assert caplog.records == []
    with caplog.at_level(logging.WARNING):
        warn_of_expiry({"http": TlsPort(old, read_certificate(old))})
    assert f"the certificate {old.certificate} of http has expired" in caplog.text


def test_the_command_of_the_start_reaches_the_server(tmp_path: Path) -> None:
    """With the certificate where nobody vouches for it, and by a name that it has."""
    assert http_address("127.0.0.1", 80, None).base == "http://127.0.0.1:80"
    assert http_address("::1", 80, None).base == "http://[::1]:80"
    own = _port(make_pair(tmp_path))
    address = http_address("127.0.0.1", 80, own)
    assert (address.base, address.curl) == (
        "https://127.0.0.1:80",
        f"curl -s --cacert {own.files.certificate}",
    )
    local = http_address("127.0.0.1", 80, _port(make_pair(tmp_path, "localhost", stem="local")))
    assert local.base == "https://localhost:80"
    authority = Authority.made(tmp_path)
    named = make_pair(tmp_path, "*.example", "a.example", authority=authority, stem="named")
    address = http_address("127.0.0.1", 80, _port(named))
    assert (address.base, address.curl) == (
        "https://a.example:80",
        "curl -s --resolve a.example:80:127.0.0.1",
    )
    with_ca = http_address("a.example", 80, _port(replace(named, client_ca=authority.file)))
    assert with_ca.curl == "curl -s --cert CLIENT_CERTIFICATE --key CLIENT_KEY"


def _port(files: TlsFiles) -> TlsPort:
    return TlsPort(files, read_certificate(files))
