"""Compressed bodies: requests in gzip and deflate are inflated piece by piece, answers are compressed."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

from stoker.errors import MalformedBody, UnsupportedEncoding, quoted
from stoker.gateway.http.threads import run_in_thread

_ENCODINGS: Final = ("gzip", "deflate")
"""The content encodings that are accepted."""

PIECE_BYTES: Final = 1 << 18
"""The most bytes that one step of inflating yields: well below a millisecond of work."""

_SLICE_BYTES: Final = 1 << 13
_GZIP: Final = 16 + zlib.MAX_WBITS
_IDENTITY: Final = b"identity"


def inflater_for(encodings: Iterable[bytes]) -> Inflater | None:
    """Return the inflater for these values of `Content-Encoding`; None if the body is not compressed."""
    named = [name.strip().lower() for value in encodings for name in value.split(b",") if name.strip()]
    if all(name == _IDENTITY for name in named):
        return None
    match named:
        case [b"gzip" | b"x-gzip"]:
            return Inflater(_GZIP)
        case [b"deflate"]:
            return Inflater(None)
        case _:
            shown = b", ".join(named).decode("latin-1")
            raise UnsupportedEncoding(
                f"The content encoding {quoted(shown)} is not read; send gzip, deflate, or the body as it is.",
                accepted=_ENCODINGS,
            )


class Inflater:
    """Inflates one body. To bound its size, the caller can stop after each piece."""

    def __init__(self, window_bits: int | None) -> None:
        """Begin; `window_bits` as in zlib, None to accept deflate with and without the zlib header."""
        self._window_bits = window_bits
        self._stream: zlib._Decompress | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Inflate a part of the compressed body, and yield pieces of at most `PIECE_BYTES`.

        Empty pieces give the caller a chance to stop: a long input can inflate to very little.
        """
        # Each gzip member copies the input that follows it, so zlib is given short inputs.
        for start in range(0, len(data), _SLICE_BYTES):
            if start:
                yield b""
            yield from self._feed(data[start : start + _SLICE_BYTES])

    def _feed(self, data: bytes) -> Iterator[bytes]:
        more_to_come = False
        while data or more_to_come:
            if self._stream is None or self._stream.eof:
                self._stream = self._begin(data)
            try:
                piece = self._stream.decompress(data, PIECE_BYTES)
            except zlib.error as error:
                raise MalformedBody(f"The compressed request body is corrupt: {error}.") from None
            data = self._stream.unconsumed_tail or self._stream.unused_data
            # When a piece is full, zlib may hold more output although all input is consumed.
            more_to_come = len(piece) == PIECE_BYTES and not self._stream.eof
            if piece:
                yield piece

    def finish(self) -> None:
        """Record that the body has ended."""
        if self._stream is not None and not self._stream.eof:
            raise MalformedBody("The compressed request body ends too early.")

    def _begin(self, data: bytes) -> zlib._Decompress:
        if self._window_bits == _GZIP:
            # A gzip file may have several members (RFC 1952, section 2.2).
            return zlib.decompressobj(_GZIP)
        if self._stream is not None:
            raise MalformedBody("The compressed request body is corrupt: something follows its end.")
        framed = data[0] & 0x0F == zlib.DEFLATED
        return zlib.decompressobj(zlib.MAX_WBITS if framed else -zlib.MAX_WBITS)


_SHORT_BYTES: Final = 1 << 10
_QUICK_BYTES: Final = 1 << 15
"""Up to this size a body is compressed on the event loop: it takes less than a millisecond."""
_SAMPLE_BYTES: Final = 1 << 13
_WORTHWHILE: Final = 0.8
"""Compression must bring a part of an answer below this fraction: JSON shrinks to half, floats of a network to nine
tenths."""
_WEIGHT: Final = re.compile(r"\s*q=([0-9]+\.?[0-9]*|\.[0-9]+)\s*")


async def compress_body(body: bytes, accepted: bytes) -> tuple[bytes, bytes]:
    """Return the body in the best coding that `Accept-Encoding` allows, and the header line that names it.

    Of codings with equal weight gzip is preferred to deflate; a client that accepts neither gets the body as it is.
    So does every client where compression would gain little: for bodies below 1 KiB, and where a sample of the body
    does not shrink. Most HTTP libraries send the header with every request, whether or not the answer is worth it.
    """
    coding = _best(accepted) if len(body) >= _SHORT_BYTES else None
    if coding is None or not _is_worthwhile(body):
        return body, b""
    compress = _gzip if coding == "gzip" else _deflate
    short = compress(body) if len(body) <= _QUICK_BYTES else await run_in_thread(compress, body)
    return short, b"content-encoding: %b\r\n" % coding.encode()


def _best(accepted: bytes) -> str | None:
    weights = {}
    for item in accepted.decode("latin-1").lower().split(","):
        coding, _, weight = item.strip().partition(";")
        match = _WEIGHT.fullmatch(weight)
        weights[coding.strip()] = float(match[1]) if match else 1.0
    best = max(("gzip", "deflate"), key=lambda coding: weights.get(coding, 0.0))
    return best if weights.get(best) else None


def _is_worthwhile(body: bytes) -> bool:
    """Whether a sample from the middle shrinks; the middle, because binary data follow the JSON."""
    start = max(0, len(body) - _SAMPLE_BYTES) // 2
    sample = body[start : start + _SAMPLE_BYTES]
    return len(zlib.compress(sample, 1)) <= _WORTHWHILE * len(sample)


def _gzip(body: bytes) -> bytes:
    return gzip.compress(body, 1, mtime=0)


def _deflate(body: bytes) -> bytes:
    return zlib.compress(body, 1)
