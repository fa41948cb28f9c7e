"""The headers of plain scoring requests: which the direct door reads, and which it leaves to the app."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stoker.gateway.http.heads import MAX_HEADERS
from stoker.gateway.http.traceparent import TRACEPARENT
from stoker.gateway.protocols.infer_dialect import JSON_LENGTH
from stoker.gateway.scoring.askers import GATEWAY_HEADERS, PATIENCE_HEADERS
from stoker.gateway.traffic import DEPLOYMENT_HEADER

__all__ = ["is_whole", "plain_headers"]

(
    _AUTHORIZATION,
    _LENGTH,
    _TYPE,
    _HOST,
    _JSON_LENGTH,
    _ACCEPTS,
    _REQUEST_ID,
    _LEGACY_ID,
    _CLIENT_ID,
    _TRACE,
    _PATIENCE,
    _NOT_PLAIN,
) = range(12)
_HEADERS: Final = {
    b"authorization": _AUTHORIZATION,
    b"content-length": _LENGTH,
    b"content-type": _TYPE,
    b"host": _HOST,
    JSON_LENGTH: _JSON_LENGTH,
    b"accept-encoding": _ACCEPTS,
    b"x-request-id": _REQUEST_ID,
    b"x-ms-request-id": _LEGACY_ID,
    b"x-ms-client-request-id": _CLIENT_ID,
    TRACEPARENT: _TRACE,
    b"expect": _NOT_PLAIN,
    b"transfer-encoding": _NOT_PLAIN,
    b"content-encoding": _NOT_PLAIN,
    b"upgrade": _NOT_PLAIN,
    b"origin": _NOT_PLAIN,
    b"traceid": _NOT_PLAIN,
    DEPLOYMENT_HEADER: _NOT_PLAIN,
    **dict.fromkeys((*PATIENCE_HEADERS, *GATEWAY_HEADERS), _PATIENCE),
}
# Of headers that come several times the app says what is wrong.
_ONCE: Final = (_HOST, _JSON_LENGTH)


def plain_headers(headers: Sequence[tuple[bytes, bytes]]) -> list[bytes] | None:
    """The values of the names above, in their order, empty where absent; None if the request is not plain."""
    values = [b""] * _NOT_PLAIN
    for name, value in headers:
        known = _HEADERS.get(name)
        if known == _NOT_PLAIN or (known in _ONCE and values[known]):
            return None
        if known is not None:
            values[known] = value
    return values if values[_HOST] and len(headers) <= MAX_HEADERS else None


def is_whole(head: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether these bytes are exactly the request line of a POST and the headers that were parsed."""
    return head.startswith(b"POST ") and head.count(b"\r\n") == head.count(b"\n") == len(headers) + 2
