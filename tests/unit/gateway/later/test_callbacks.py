"""Callbacks: which URLs are taken, which addresses are connected to, and how they are signed."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from tests.patience import PATIENCE_S

from stoker.errors import CallbackRefused
from stoker.gateway.later.callbacks import check_callback, find_address, send_callback
from stoker.gateway.later.spool import Stored


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("https://example.com/done?id=1", ["example.com"]),
        ("http://a.example.com:8080/", ["*.example.com"]),
        ("https://EXAMPLE.com", ["example.com"]),
        ("https://example.org/", ["*"]),
        ("http://10.1.2.3/", ["10.0.0.0/8"]),
        ("http://[::1]/", ["::1/128"]),
    ],
)
def test_a_callback_to_an_allowed_host_is_taken(url: str, hosts: Sequence[str]) -> None:
    """By its name, a name above it, or an address in a network."""
    check_callback(url, hosts)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/", "https://example.com.evil.org/", "ftp://example.com/", "https://", "//example.com",
        "https://me@example.com/", "https://example.com:99999/", "https://example.com/\r\nX: y", "https://127.0.0.1/",
        "https://[::1]/", "http://0x7f.1/", "https://example.com/ä", "https://example.com/" + "x" * 3000,
    ],
)  # fmt: skip
def test_other_callbacks_are_refused(url: str) -> None:
    """An invalid URL, a host that is not named, an address of no named network."""
    with pytest.raises(CallbackRefused):
        check_callback(url, ["example.com"])


def test_an_address_is_not_allowed_by_any_name() -> None:
    """`*` allows all names, which have to be public."""
    with pytest.raises(CallbackRefused):
        check_callback("http://169.254.169.254/", ["*"])


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "::1",
        "::ffff:127.0.0.1",
        "fe80::1",
        "0.0.0.0",
    ],
)
def test_a_name_with_a_private_address_is_refused(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """A public name does not help; a network named in the settings does."""
    public = ("93.184.215.14", 443)

    def resolve(*_: object, **__: object) -> list[Any]:
        return [(0, 0, 0, "", public), (0, 0, 0, "", (address, 443))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(CallbackRefused):
        find_address("example.com", 443, ["*"])
    listed = "127.0.0.1" if address.startswith("::ffff") else address
    assert find_address("example.com", 443, ["*", listed]) == public[0]


@pytest.mark.parametrize("status", [204, 302, 500])
def test_a_callback_is_signed_and_only_2xx_counts(status: int) -> None:
    """As the Standard Webhooks have it; a redirect is not followed."""
    received: list[tuple[Any, bytes]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append((self.headers, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/done"
        stored = Stored(2, {"location": "/later/1-2", "status": 200}, b"")
        delivered = send_callback(url, "the-id", stored, b"secret", ["127.0.0.1/32"])
        thread.join()
    assert delivered is (status == 204)
    ((headers, body),) = received
    assert json.loads(body)["data"] == {"location": "/later/1-2", "status": 200, "attempt": 2}
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.new(b"secret", signed, hashlib.sha256).digest()).decode()
    assert (headers["webhook-id"], headers["webhook-signature"]) == ("the-id", f"v1,{expected}")
    assert headers["stoker-attempt"] == "2"


_DRIPS = {
    "no answer": b"",
    "a head without an end": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 500,
    "interim answers": b"HTTP/1.1 100 Continue\r\n\r\n" * 200,
    "a status line without an end": b"HTTP/1.1 2" + b" " * 500,
}


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("drip", _DRIPS.values(), ids=_DRIPS.keys())
def test_callback_ends_at_its_limit_however_the_host_drips(scheme: str, drip: bytes) -> None:
    """The limit is for the whole of a callback: its handshake, its writes, and an answer that comes byte by byte."""
    ended = threading.Event()

    def drip_bytes(listener: socket.socket) -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            for place in range(len(drip)):
                connection.sendall(drip[place : place + 1])
                if ended.wait(0.01):
                    return
            ended.wait(PATIENCE_S)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip_bytes, args=(listener,))
        thread.start()
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/"
        stored = Stored(1, {"location": "/later/1-2", "status": 200}, b"")
        assert not send_callback(url, "the-id", stored, b"secret", ["127.0.0.1/32"], 0.1)
        # The host had more to send.
        assert thread.is_alive() or scheme == "https"
        ended.set()
        thread.join()


@pytest.mark.parametrize(
    ("answer", "delivered"),
    [
        (b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", True),
        (b"HTTP/1.0 200\r\n\r\n", True),
        (b"HTTP/1.1 204 No Content\r\nX: cut", False),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", False),
        (b"HTTP/1.1 2000 OK\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * (1 << 17) + b"\r\n\r\n", False),
        (b"", False),
    ],
)
def test_callback_is_delivered_by_a_whole_head_with_2xx(answer: bytes, delivered: bool) -> None:
    """Interim answers may precede it; answers that are no HTTP, cut short or too long count as failed."""

    def respond(listener: socket.socket) -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=respond, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        stored = Stored(1, {"location": "/later/1-2", "status": 200}, b"")
        assert send_callback(url, "the-id", stored, b"secret", ["127.0.0.1/32"]) is delivered
        thread.join()
