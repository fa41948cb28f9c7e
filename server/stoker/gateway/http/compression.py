"""Compression of answers, for protocols whose clients support it."""

from __future__ import annotations

import gzip
import re
import zlib
from typing import Final

from stoker.gateway.http.side_threads import beside_the_loop

__all__ = ["compressed"]

_SHORT_BYTES: Final = 1 << 10
_QUICK_BYTES: Final = 1 << 15
"""Up to this size a body is compressed on the event loop: it takes less than a millisecond."""
_SAMPLE_BYTES: Final = 1 << 13
_WORTHWHILE: Final = 0.8
"""Compression must bring a part of an answer below this fraction: JSON shrinks to half, floats of a network to nine
tenths."""
_WEIGHT: Final = re.compile(r"\s*q=([0-9]+\.?[0-9]*|\.[0-9]+)\s*")


async def compressed(body: bytes, accepted: bytes) -> tuple[bytes, bytes]:
    """Return the body in the best coding that `Accept-Encoding` allows, and the header line that names it.

    Of codings with equal weight gzip is preferred to deflate; a client that accepts neither gets the body as it is.
    So does every client where compression would gain little: for bodies below 1 KiB, and where a sample of the body
    does not shrink. Most HTTP libraries send the header with every request, whether or not the answer is worth it.
    """
    coding = _best(accepted) if len(body) >= _SHORT_BYTES else None
    if coding is None or not _is_worthwhile(body):
        return body, b""
    compress = _gzip if coding == "gzip" else _deflate
    short = compress(body) if len(body) <= _QUICK_BYTES else await beside_the_loop(compress, body)
    return short, b"content-encoding: %b\r\n" % coding.encode()


def _best(accepted: bytes) -> str | None:
    wishes = {}
    for item in accepted.decode("latin-1").lower().split(","):
        coding, _, weight = item.strip().partition(";")
        match = _WEIGHT.fullmatch(weight)
        wishes[coding.strip()] = float(match[1]) if match else 1.0
    best = max(("gzip", "deflate"), key=lambda coding: wishes.get(coding, 0.0))
    return best if wishes.get(best) else None


def _is_worthwhile(body: bytes) -> bool:
    """Whether a sample from the middle shrinks; the middle, because binary data follow the JSON."""
    start = max(0, len(body) - _SAMPLE_BYTES) // 2
    sample = body[start : start + _SAMPLE_BYTES]
    return len(zlib.compress(sample, 1)) <= _WORTHWHILE * len(sample)


def _gzip(body: bytes) -> bytes:
    return gzip.compress(body, 1, mtime=0)


def _deflate(body: bytes) -> bytes:
    return zlib.compress(body, 1)
