"""Reading a request, for all endpoints: head, query and body, within their limits."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote

from msgspec import Struct

from stoker.errors import (
    ExpectationFailed,
    HeaderTooLarge,
    HostNotAllowed,
    MalformedBody,
    NotSupported,
    TargetTooLong,
    quoted,
)
from stoker.keys.keyring import BEARER_HEADER
from stoker.wire.json_bodies import nests_deeper
from stoker.wire.script_requests import RequestHead

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Scope


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
"""A name has at most 253 characters (RFC 1035), a port 6."""


class AllowedHosts:
    """The hosts for which requests are accepted. Addresses are always accepted: DNS rebinding needs a name.

    Args:
        names: Names beside `localhost`; `*.NAME` stands for all below a name.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(("localhost", *names))

    def have(self, host: bytes) -> bool:
        """Whether a value of `Host` is allowed."""
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
        """Refuse a request for another host."""
        if not self.have(host):
            name = host[:100].decode("latin-1")
            raise HostNotAllowed(
                f"The server does not answer for the host {name!r}, whose pages in a browser could read it then: "
                "start it with --allowed-hosts and the names that its callers use, or * for all."
            )


def check_head(scope: Scope, hosts: AllowedHosts | None = None) -> None:
    """Refuse a request whose head is not acceptable, whatever path it is for."""
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


_ALLOWED_METHODS: Final = (b"GET", b"POST")
_VARY: Final = (b"vary", b"Origin")
_Pair = tuple[bytes, bytes]


def is_preflight(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request is a CORS preflight."""
    return method == "OPTIONS" and b"origin" in headers and b"access-control-request-method" in headers


class Cors(Struct, frozen=True):
    """The origins (`*` for all) that may read answers. Browsers withhold them from others; no request is refused."""

    origins: tuple[str, ...]

    @property
    def without_origin(self) -> list[_Pair]:
        """The CORS headers for requests without an `Origin`: they name `*`, or the first origin."""
        if "*" in self.origins:
            return [(b"access-control-allow-origin", b"*")]
        allowed = [(b"access-control-allow-origin", self.origins[0].encode())]
        return allowed if len(self.origins) == 1 else [*allowed, _VARY]

    def names(self, origin: bytes) -> bool:
        """Whether an origin may read answers; schemes and hosts are compared without case."""
        requested = origin.decode("latin-1").lower()
        return any(listed in ("*", requested) for listed in map(str.lower, self.origins))

    def headers(self, method: str, headers: Mapping[bytes, bytes]) -> list[_Pair]:
        """Return the headers that an answer gets, given those of its request by lower-case name."""
        origin = headers.get(b"origin")
        if not origin:
            allowed = self.without_origin
        elif self.names(origin):
            allowed = [(b"access-control-allow-origin", origin), _VARY]
        else:
            return []
        if method == "OPTIONS" and headers.get(b"access-control-request-method") in _ALLOWED_METHODS:
            allowed.append((b"access-control-allow-methods", b", ".join(_ALLOWED_METHODS)))
            names = headers.get(b"access-control-request-headers", b"").split(b",")
            if requested := b", ".join(name.strip() for name in names if name.strip()):
                allowed.append((b"access-control-allow-headers", requested))
        return allowed


def content_encodings(scope: Scope) -> list[bytes]:
    """Return all values of the header `Content-Encoding`, in order."""
    return [value for name, value in scope["headers"] if name == b"content-encoding"]


class Requester(NamedTuple):
    """The sender of a request that scores nothing.

    Attributes:
        from_page: Whether the request's headers say that a web page made it in a browser.
        sent_as: How clients of its protocol send a key, in the wording of `BEARER_HEADER`.
    """

    authorization: bytes
    address: str = ""
    from_page: bool = False
    sent_as: str = BEARER_HEADER


def requester_of(request: Request) -> Requester:
    """Return who sends a request over HTTP."""
    address = request.client.host if request.client else ""
    return Requester(authorization_of(request), address, "origin" in request.headers)


def authorization_in(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the value of `Authorization`; several are joined as HTTP does it, which makes no valid key."""
    return b", ".join(value for name, value in headers if name == b"authorization")


def authorization_of(request: Request) -> bytes:
    """Return the header `Authorization`; empty if absent."""
    return request.headers.get("authorization", "").encode("latin-1")


def request_head(scope: Scope, inflated_bytes: int | None) -> RequestHead:
    """Return the part of a request that a script may see; a body that was inflated appears as if it was sent so."""
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
    if inflated_bytes is not None:
        framing = ("content-encoding", "content-length", "transfer-encoding")
        pairs = [pair for pair in pairs if pair[0] not in framing]
        pairs.append(("content-length", str(inflated_bytes)))
    path = scope.get("raw_path") or quote(scope["path"]).encode()
    remote = scope.get("client")
    return RequestHead(
        scope["method"],
        path.decode("latin-1"),
        scope["query_string"].decode("latin-1"),
        pairs,
        remote[0] if remote else "",
    )


_MAX_DEPTH: Final = 100


def query_body(query: bytes) -> bytes:
    """Return the JSON object of a query's arguments, in their order.

    Each value is read as JSON (`NaN` included), and is taken as a string if it is not JSON. A name that occurs
    several times gets the list of its values. Percent-encoded bytes that are not UTF-8 stay as they were sent.
    """
    values: dict[str, list[Any]] = {}
    pairs = parse_qsl(query.decode(errors=_KEPT), keep_blank_values=True, errors=_KEPT)
    for name, text in pairs:
        values.setdefault(name, []).append(_value(name, text))
    arguments = {name: given[0] if len(given) == 1 else given for name, given in values.items()}
    return json.dumps(arguments).encode()


def _value(name: str, text: str) -> Any:
    # There may be thousands of short ones.
    if len(text) > _MAX_DEPTH and nests_deeper(text.encode(), _MAX_DEPTH):
        raise MalformedBody(f"The argument {quoted(name)} is nested more than {_MAX_DEPTH} levels deep.")
    try:
        return json.loads(text)
    except ValueError:
        return text


def _keep_percent_encoded(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError), "only used for decoding"
    return "".join(f"%{byte:02X}" for byte in error.object[error.start : error.end]), error.end


_KEPT: Final = "stoker.percent-encoded"
codecs.register_error(_KEPT, _keep_percent_encoded)


def content_length(headers: Mapping[bytes, bytes]) -> int:
    """Return the `Content-Length` of a request; -1 if it has none."""
    value = headers.get(b"content-length", b"")
    return int(value) if value.isdigit() else -1
