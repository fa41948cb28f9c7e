"""Checks before a server with gRPC starts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.errors import InvalidSettings
from stoker.settings.server import ServerSettings
from stoker.supervisor import ports
from stoker.supervisor.addresses import address_of
from stoker.supervisor.ports import reserve_grpc_port

TLS = Path(__file__).parents[2] / "tls"
CERTIFICATE, KEY, LOCKED_KEY = TLS / "localhost.crt", TLS / "localhost.key", TLS / "locked.key"


@pytest.fixture
def http() -> Iterator[socket.socket]:
    """The socket on whose address gRPC is served too."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock


@pytest.fixture
def port() -> int:
    """A port that is free."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_a_port_is_kept_for_the_frontends_alone(http: socket.socket, port: int) -> None:
    """They can listen on it (SO_REUSEPORT), and nobody connects before they do; another server cannot have it."""
    settings = ServerSettings(grpc_port=port)
    with reserve_grpc_port(settings, http), socket.socket() as client, socket.socket() as frontend:
        assert client.connect_ex(("127.0.0.1", port)) != 0
        frontend.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        frontend.bind(("127.0.0.1", port))
        frontend.listen()
        with socket.create_connection(("127.0.0.1", port)):
            pass
        with pytest.raises(
            InvalidSettings, match=f"port {port} for gRPC: .* choose another with --grpc-port"
        ):
            reserve_grpc_port(settings, http)


def test_the_port_of_http_is_taken(http: socket.socket) -> None:
    """One port for both is an error that is seen at the start."""
    with pytest.raises(InvalidSettings, match="choose another with --grpc-port"):
        reserve_grpc_port(ServerSettings(grpc_port=http.getsockname()[1]), http)


def test_missing_packages_are_named(http: socket.socket, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, the message says how to install it."""
    monkeypatch.setattr(ports, "_PACKAGES", ("hpack", "not_there.at_all"))
    with pytest.raises(InvalidSettings, match=r" pip install .*'hpack>="):
        reserve_grpc_port(ServerSettings(grpc_port=port), http)


def test_a_certificate_and_its_key_are_taken(http: socket.socket, port: int) -> None:
    """A pair that belongs together."""
    reserve_grpc_port(
        ServerSettings(grpc_port=port, grpc_tls_cert=CERTIFICATE, grpc_tls_key=KEY), http
    ).close()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"grpc_tls_cert": CERTIFICATE}, "gRPC over TLS needs both: grpc_tls_cert and grpc_tls_key"),
        ({"grpc_tls_key": KEY}, "gRPC over TLS needs both"),
        (
            {"grpc_tls_cert": CERTIFICATE, "grpc_tls_key": Path("none.key")},
            "none.key cannot be used together: No such",
        ),
        ({"grpc_tls_cert": KEY, "grpc_tls_key": CERTIFICATE}, "cannot be used together"),
        ({"grpc_tls_cert": CERTIFICATE, "grpc_tls_key": LOCKED_KEY}, "without a password"),
        ({"grpc_port": 0, "grpc_tls_cert": CERTIFICATE, "grpc_tls_key": KEY}, "need a grpc_port"),
    ],
)
def test_certificates_that_cannot_be_used_are_refused(
    http: socket.socket, port: int, settings: dict[str, Path | int], text: str
) -> None:
    """Before anything starts, with what is wrong."""
    with pytest.raises(InvalidSettings) as error:
        reserve_grpc_port(ServerSettings(**{"grpc_port": port, **settings}), http)  # type: ignore[arg-type]
    assert text in str(error.value)


def test_addresses_of_both_families_are_written_as_grpc_reads_them(http: socket.socket) -> None:
    """An IPv6 address stands in brackets."""
    assert address_of(http, 9) == "127.0.0.1:9"
    if socket.has_ipv6:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
            assert address_of(sock, 9) == "[::1]:9"
