"""Compressed answers, for callers of protocols that have them."""

from __future__ import annotations

import gzip
import re
import zlib
from typing import Final

__all__ = ["compressed"]

_SHORT_BYTES: Final = 1024


def compressed(body: bytes, accepted: bytes) -> tuple[bytes, bytes]:
    """Return a body in the best coding that `Accept-Encoding` names, and the header line that says so.

    Of codings that the caller likes equally gzip comes before deflate; a caller that names neither gets the body as
    it is. So does everybody where it is shorter than 1 KiB: it would not become shorter by much.
    """
    if len(body) < _SHORT_BYTES:
        return body, b""
    wishes = {}
    for item in accepted.decode("latin-1").lower().split(","):
        coding, _, weight = item.strip().partition(";")
        match = re.fullmatch(r"\s*q=([0-9.]+)\s*", weight) if weight else None
        wishes[coding.strip()] = float(match[1]) if match and match[1].count(".") < 2 else 1.0
    best = max(("gzip", "deflate"), key=lambda coding: wishes.get(coding, 0.0))
    if not wishes.get(best):
        return body, b""
    if best == "gzip":
        return gzip.compress(body, 1, mtime=0), b"content-encoding: gzip\r\n"
    return zlib.compress(body, 1), b"content-encoding: deflate\r\n"
