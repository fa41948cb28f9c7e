"""Answers become shorter where callers ask for it and it is worth it."""

import asyncio
import gzip
import random
import threading
import zlib

import pytest

from stoker.gateway.http import encodings
from stoker.gateway.http.encodings import compress_body

JSON = b"[" + b",".join(b"%.7f" % random.Random(7).random() for _ in range(1000)) + b"]"
NUMBERS = random.Random(8).randbytes(20_000)


def answer(body: bytes, accepted: bytes = b"gzip") -> tuple[bytes, bytes]:
    """Return the body that a caller gets, and its coding."""
    content, line = asyncio.run(compress_body(body, accepted))
    return content, line.removeprefix(b"content-encoding: ").removesuffix(b"\r\n")


@pytest.mark.parametrize(
    ("accepted", "coding"),
    [
        (b"gzip", b"gzip"),
        (b"deflate", b"deflate"),
        (b"deflate, gzip", b"gzip"),
        (b"gzip;q=0.5, deflate;q=0.6", b"deflate"),
        (b"GZIP ; q=1.000", b"gzip"),
        (b"br;q=1, gzip;q=.5", b"gzip"),
        (b"gzip;q=0.33333", b"gzip"),
        (b"gzip;q=0.000, deflate;q=1.", b"deflate"),
        (b"gzip;q=0", b""),
        (b"br, zstd, *", b""),
        (b"", b""),
        (b"gzip;q=.", b"gzip"),
        (b"gzip;q=1.2.3", b"gzip"),
        (b"gzip;q=, deflate;q=0.9", b"gzip"),
        (b"gzip;level=1", b"gzip"),
        (b"\xff;q=\xff,gzip", b"gzip"),
    ],
)
def test_accept_encoding_chooses_the_coding(accepted: bytes, coding: bytes) -> None:
    """A weight that is none counts as if it was not there."""
    content, named = answer(JSON, accepted)
    assert named == coding
    read = {b"gzip": gzip.decompress, b"deflate": zlib.decompress, b"": bytes}[named]
    assert read(content) == JSON
    assert (len(content) < 0.6 * len(JSON)) == bool(coding)


@pytest.mark.parametrize(
    ("body", "worthwhile"),
    [
        (b"a" * 1023, False),
        (b"a" * 1024, True),
        (NUMBERS, False),
        (b'{"outputs": []}' + NUMBERS, False),
        (bytes(20_000), True),
    ],
    ids=["short", "long", "numbers", "json and numbers", "zeros"],
)
def test_incompressible_answer_is_sent_uncompressed(body: bytes, worthwhile: bool) -> None:
    """Answers that hardly shrink are not compressed: half a second for ten mebibytes would be wasted."""
    content, named = answer(body)
    assert named == (b"gzip" if worthwhile else b"")
    assert (gzip.decompress(content) if worthwhile else content) == body


@pytest.mark.parametrize(("size_bytes", "beside"), [(1 << 15, False), ((1 << 15) + 1, True)])
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_long_answers_are_compressed_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, coding: str, size_bytes: int, beside: bool
) -> None:
    """Other requests are served meanwhile."""
    threads = []
    compress = getattr(encodings, f"_{coding}")

    def noting(body: bytes) -> bytes:
        threads.append(threading.current_thread())
        return bytes(compress(body))

    monkeypatch.setattr(encodings, f"_{coding}", noting)
    answer(b"a" * size_bytes, coding.encode())
    assert [thread is threading.main_thread() for thread in threads] == [not beside]
