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
_TIMEOUT_S: Final = 10.0
_MAX_URL_CHARS: Final = 2048
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


def send_callback(url: str, name: str, stored: Stored, secret: bytes, hosts: Sequence[str]) -> bool:
    """Tell a URL that an answer is there; returns whether it answered with 2xx. Blocks up to some ten seconds."""
    # Imported only where callbacks are sent.
    import http.client
    import ssl

    head = stored.head
    body = json.dumps(
        {
            "type": "answer.ready",
            "data": {"location": head["location"], "status": head["status"], "attempt": stored.attempt},
        }
    ).encode()
    try:
        parts = check_callback(url, hosts)
        assert parts.hostname is not None, "it was checked"
        port = parts.port or _PORTS[parts.scheme]
        sock = socket.create_connection((find_address(parts.hostname, port, hosts), port), _TIMEOUT_S)
        try:
            if parts.scheme == "https":
                sock = ssl.create_default_context().wrap_socket(sock, server_hostname=parts.hostname)
            connection = http.client.HTTPConnection(parts.hostname, port, timeout=_TIMEOUT_S)
            connection.sock = sock
            timestamp_s = int(time.time())
            target = (parts.path or "/") + ("?" + parts.query if parts.query else "")
            headers = {
                "Content-Type": "application/json",
                "Webhook-Id": name,
                "Webhook-Timestamp": str(timestamp_s),
                "Webhook-Signature": sign(secret, name, timestamp_s, body),
                "Stoker-Attempt": str(stored.attempt),
            }
            connection.request("POST", target, body, headers)
            status = connection.getresponse().status
        finally:
            sock.close()
    except (OSError, CallbackRefused, http.client.HTTPException) as error:
        logger.warning("a callback to %s failed and is tried again: %s", url, error)
        return False
    if 200 <= status < 300:
        return True
    logger.warning("a callback to %s was answered with %d and is tried again", url, status)
    return False
