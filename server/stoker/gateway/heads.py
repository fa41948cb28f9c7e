"""What every request's head must fulfil before anything is done about it, and the limits of heads."""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

from stoker.errors import ExpectationFailed, HeaderTooLarge, MalformedBody, TargetTooLong

__all__ = [
    "MAX_HEADERS",
    "MAX_HEAD_BYTES",
    "MAX_TARGET_BYTES",
    "NOT_ALLOWED",
    "SCORING_METHODS",
    "check_head",
]

SCORING_METHODS: Final = ("GET", "HEAD", "OPTIONS", "POST")
"""The methods of scoring paths."""
NOT_ALLOWED: Final = "The method is not allowed for the requested URL."
"""What Azure says of a method that a path never has."""
MAX_TARGET_BYTES: Final = 1 << 15
"""Longest path and query."""
MAX_HEAD_BYTES: Final = 1 << 16
"""Longest request line and headers."""
MAX_HEADERS: Final = 100
"""Most header lines."""


def check_head(scope: Scope) -> None:
    """Refuse a request whose head is not acceptable, whatever it is for.

    Raises:
        TargetTooLong: Path and query are too long.
        HeaderTooLarge: There are too many headers, or they are too long.
        MalformedBody: HTTP/1.1 without a `Host`, or with several.
        ExpectationFailed: `Expect` asks for something else than to be told to go on.
    """
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_TARGET_BYTES:
        raise TargetTooLong(f"Path and query are longer than {MAX_TARGET_BYTES} bytes.")
    headers = scope["headers"]
    if len(headers) > MAX_HEADERS:
        raise HeaderTooLarge(f"The request has more than {MAX_HEADERS} headers.")
    size_bytes, hosts, expects = 0, 0, b""
    for name, value in headers:
        size_bytes += len(name) + len(value)
        if name == b"host":
            hosts += 1
        elif name == b"expect":
            expects = value
    if size_bytes > MAX_HEAD_BYTES:
        raise HeaderTooLarge(f"The request's headers are larger than {MAX_HEAD_BYTES} bytes.")
    if hosts != 1 and scope["http_version"] == "1.1":
        raise MalformedBody("A request in HTTP/1.1 has one header Host.")
    if expects and expects.lower() != b"100-continue":
        raise ExpectationFailed("The server knows no other expectation than 100-continue.")
