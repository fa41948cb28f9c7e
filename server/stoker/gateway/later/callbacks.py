"""Callbacks: a POST in the form of the Standard Webhooks says that an answer is there.

The server sends callbacks only to hosts that the operator names, and only to public addresses or networks that the
operator names: a caller must not reach through the server what the caller cannot reach. It resolves the name once,
and connects to the address that it has checked. It follows no redirects, and counts them as failed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import re
import socket
import time
from collections.abc import Sequence
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlsplit

from stoker.errors import CallbackRefused, quoted

if TYPE_CHECKING:
    from stoker.gateway.later.spool import Stored

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0
"""The shortest time between two tries."""
CALLBACK_S: Final = 10.0
"""The longest time that a callback may take, from the look for its host's address to the end of the answer's head."""
_MOST_HEAD_BYTES: Final = 1 << 16
_MAX_URL_CHARS: Final = 2048
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: |\r|$)")
_PORTS: Final = {"http": 80, "https": 443}


def check_callback(url: str, hosts: Sequence[str]) -> SplitResult:
    """Return the parts of a callback's URL; raises CallbackRefused if it is invalid, or its host is not allowed."""
    parts = None
    if len(url) <= _MAX_URL_CHARS and url.isascii() and url.isprintable() and " " not in url:
        try:
            parts = urlsplit(url)
            parts.port  # noqa: B018  # raises if it is no port
        except ValueError:
            parts = None
    if parts is None or parts.scheme not in _PORTS or not parts.hostname or parts.username is not None:
        raise CallbackRefused("'Stoker-Callback' has to be a URL such as https://example.com/answers.")
    name = parts.hostname.removesuffix(".")
    if not (_is_named(name, hosts) or _is_listed(name, hosts)):
        raise CallbackRefused(f"The host {quoted(name)} of 'Stoker-Callback' is not one of callback_hosts.")
    return parts


def _is_named(name: str, hosts: Sequence[str]) -> bool:
    """Whether a name is allowed; an address is not a name, and needs its network."""
    try:
        ip_address(name)
    except ValueError:
        return any(
            host in ("*", name) or (host.startswith("*.") and name.endswith(host[1:])) for host in hosts
        )
    return False


def _is_listed(address: str, hosts: Sequence[str]) -> bool:
    """Whether an address is in a network that is allowed."""
    for host in hosts:
        try:
            if ip_address(address) in ip_network(host):
                return True
        except ValueError:
            continue
    return False


def find_address(host: str, port: int, hosts: Sequence[str]) -> str:
    """Return an address of a host that may be connected to.

    Raises:
        CallbackRefused: One of its addresses is neither public nor in an allowed network.
        OSError: It cannot be resolved.
    """
    found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in found:
        parsed = ip_address(address.partition("%")[0])
        mapped = getattr(parsed, "ipv4_mapped", None) or parsed
        if not ((mapped.is_global and not mapped.is_multicast) or _is_listed(str(mapped), hosts)):
            raise CallbackRefused(f"The host {quoted(host)} has an address that is not public: {address}.")
    return found[0]


def sign(secret: bytes, name: str, timestamp_s: int, body: bytes) -> str:
    """Return the signature of a callback, as the Standard Webhooks define `v1`.

    The receiver computes the same: HMAC-SHA256 of `ID.TIMESTAMP.BODY`, in Base64.
    """
    signed = hmac.new(secret, b"%b.%d.%b" % (name.encode(), timestamp_s, body), hashlib.sha256)
    return "v1," + base64.b64encode(signed.digest()).decode()


def send_callback(
    url: str, name: str, stored: Stored, secret: bytes, hosts: Sequence[str], limit_s: float = CALLBACK_S
) -> bool:
    """Tell a URL that an answer is there; returns whether it answered with 2xx.

    Blocks for at most `limit_s`, and as long as the system's resolver looks for the host.
    """
    ends_s = time.monotonic() + limit_s
    head = stored.head
    body = json.dumps(
        {
            "type": "answer.ready",
            "data": {"location": head["location"], "status": head["status"], "attempt": stored.attempt},
        }
    ).encode()
    try:
        parts = check_callback(url, hosts)
        timestamp_s = int(time.time())
        lines = [
            f"POST {parts.path or '/'}{'?' + parts.query if parts.query else ''} HTTP/1.1",
            f"Host: {parts.netloc}",
            "Connection: close",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            f"Webhook-Id: {name}",
            f"Webhook-Timestamp: {timestamp_s}",
            f"Webhook-Signature: {sign(secret, name, timestamp_s, body)}",
            f"Stoker-Attempt: {stored.attempt}",
        ]
        message = "\r\n".join([*lines, "", ""]).encode() + body
        with _connect(parts, hosts, ends_s) as sock:
            status = _exchange(sock, message, ends_s)
    except (OSError, ValueError, CallbackRefused) as error:
        logger.warning("a callback to %s failed and is tried again: %s", url, error)
        return False
    if 200 <= status < 300:
        return True
    logger.warning("a callback to %s was answered with %d and is tried again", url, status)
    return False


def _connect(parts: SplitResult, hosts: Sequence[str], ends_s: float) -> socket.socket:
    assert parts.hostname is not None, "it was checked"
    port = parts.port or _PORTS[parts.scheme]
    address = find_address(parts.hostname, port, hosts)
    sock = socket.create_connection((address, port), _left_s(ends_s))
    if parts.scheme != "https":
        return sock
    # Imported only where callbacks are sent.
    import ssl

    try:
        # A handshake and a write as a whole take no longer than the socket's timeout; a read of some bytes, too.
        sock.settimeout(_left_s(ends_s))
        return ssl.create_default_context().wrap_socket(sock, server_hostname=parts.hostname)
    except BaseException:
        sock.close()
        raise


def _exchange(sock: socket.socket, message: bytes, ends_s: float) -> int:
    """Send a request and return the status of its answer, whose head is read to its end."""
    sock.settimeout(_left_s(ends_s))
    sock.sendall(message)
    received = b""
    while True:
        head, end, rest = received.partition(b"\r\n\r\n")
        if end:
            found = _STATUS_LINE.match(head)
            if found is None:
                raise ValueError("the answer is not HTTP")
            if not found[1].startswith(b"1"):
                return int(found[1])
            # An interim answer: 100 Continue, for instance.
            received = rest
            continue
        sock.settimeout(_left_s(ends_s))
        piece = sock.recv(_MOST_HEAD_BYTES)
        if not piece:
            raise ConnectionError("the connection ended before the head of the answer")
        received += piece
        if len(received) > _MOST_HEAD_BYTES:
            raise ValueError(f"the head of the answer has more than {_MOST_HEAD_BYTES} bytes")


def _left_s(ends_s: float) -> float:
    left_s = ends_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("it took too long")
    return left_s
