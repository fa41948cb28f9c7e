"""Checks and limits that the head of every request must pass before anything else is done."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from starlette.types import Scope

from stoker.errors import (
    ExpectationFailed,
    HeaderTooLarge,
    HostNotAllowed,
    MalformedBody,
    NotSupported,
    TargetTooLong,
)

__all__ = [
    "MAX_CHUNK_FRAMING_BYTES",
    "MAX_HEADERS",
    "MAX_HEAD_BYTES",
    "MAX_TARGET_BYTES",
    "NOT_ALLOWED",
    "SCORING_METHODS",
    "AnsweredHosts",
    "check_head",
]

SCORING_METHODS: Final = ("GET", "HEAD", "OPTIONS", "POST")
"""The methods of scoring paths."""
NOT_ALLOWED: Final = "The method is not allowed for the requested URL."
"""Azure's error text for a method that a path does not have."""
MAX_TARGET_BYTES: Final = 1 << 15
"""Longest path and query."""
MAX_HEAD_BYTES: Final = 1 << 16
"""Longest request line and headers."""
MAX_CHUNK_FRAMING_BYTES: Final = 1 << 14
"""Most that a chunked body may have beside its content and 16 bytes per chunk: extensions and trailers."""
MAX_HEADERS: Final = 100
"""Most header lines."""
_MAX_HOST_BYTES: Final = 260
"""A name has at most 253 characters (RFC 1035), a port 6: so few are looked at, each with the names above it."""


class AnsweredHosts:
    """The hosts that requests may be for. Addresses are always among them: no page has one for its own name.

    Args:
        names: Names beside `localhost`; `*.NAME` stands for all below a name.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(("localhost", *names))

    def have(self, host: bytes) -> bool:
        """Whether a value of `Host` is one of them."""
        if len(host) > _MAX_HOST_BYTES:
            return False
        name = host.decode("latin-1").lower()
        if not name.endswith("]"):
            before, colon, port = name.rpartition(":")
            name = before if colon and (port.isdecimal() or not port) else name
        name = name.removesuffix(".")
        if name in self._names:
            return True
        above = name.partition(".")[2]
        while above:
            if f"*.{above}" in self._names or above == "localhost":
                return True
            above = above.partition(".")[2]
        try:
            ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True

    def check(self, host: bytes) -> None:
        """Refuse a request for another host.

        Raises:
            HostNotAllowed: It is none of these.
        """
        if not self.have(host):
            name = host[:100].decode("latin-1")
            raise HostNotAllowed(
                f"The server does not answer for the host {name!r}, whose pages in a browser could read it then: "
                "start it with --allowed-hosts and the names that its callers use, or * for all."
            )


def check_head(scope: Scope, hosts: AnsweredHosts | None = None) -> None:
    """Refuse a request whose head is not acceptable, whatever path it is for.

    Args:
        scope: The request.
        hosts: The hosts that it may be for; None for any.

    Raises:
        HostNotAllowed: It is for another host.
        TargetTooLong: Path and query are too long.
        HeaderTooLarge: There are too many headers, or they are too long.
        MalformedBody: HTTP/1.1 without a `Host`, or with several.
        MalformedBody: HTTP/1.0 with a `Transfer-Encoding`, which that does not have: two readers could disagree.
        NotSupported: `Transfer-Encoding` names another coding than `chunked`.
        ExpectationFailed: `Expect` asks for something other than `100-continue`.
    """
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_TARGET_BYTES:
        raise TargetTooLong.over(MAX_TARGET_BYTES)
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS:
        raise HeaderTooLarge(f"The request has more than {MAX_HEADERS} headers.")
    size_bytes, count, host, expects, coding = 0, 0, b"", b"", b""
    for name, value in headers:
        size_bytes += len(name) + len(value)
        if name == b"host":
            count, host = count + 1, value
        elif name == b"expect":
            expects = value
        elif name == b"transfer-encoding":
            coding = b"%b, %b" % (coding, value) if coding else value
    if size_bytes > MAX_HEAD_BYTES:
        raise HeaderTooLarge.over(MAX_HEAD_BYTES)
    if count != 1 and scope["http_version"] == "1.1":
        raise MalformedBody("A request in HTTP/1.1 has one header Host.")
    if hosts is not None and count:
        hosts.check(host)
    if coding and scope["http_version"] == "1.0":
        raise MalformedBody("A request in HTTP/1.0 has no Transfer-Encoding.")
    if coding and coding.strip().lower() != b"chunked":
        raise NotSupported("The server knows no other Transfer-Encoding than chunked.")
    if expects and expects.lower() != b"100-continue":
        raise ExpectationFailed("The server knows no other expectation than 100-continue.")
