"""Compressed request bodies (CONTRACT A.8): gzip and deflate are undone, within the limit of a body."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.in_process import MAX_BODY_BYTES, InProcessServer, script
from tests.http.raw_http import request
from tests.puppets import PuppetRuntime

BODY = b'{"data": [[1, 2], [3, 4]]}'


def raw_deflate(data: bytes) -> bytes:
    """Deflate without zlib's frame, as some clients send it."""
    compress = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compress.compress(data) + compress.flush()


ENCODED = {
    "gzip": ("gzip", gzip.compress(BODY)),
    "an older name": ("x-gzip", gzip.compress(BODY)),
    "upper case": ("GZIP", gzip.compress(BODY)),
    "two members": ("gzip", gzip.compress(BODY[:9]) + gzip.compress(BODY[9:])),
    "deflate": ("deflate", zlib.compress(BODY)),
    "deflate without a frame": ("deflate", raw_deflate(BODY)),
    "identity": ("identity", BODY),
}


def headers(raw_data: str, request_headers: dict[str, str]) -> dict[str, Any]:
    """Length and headers of the body."""
    return {"length": len(raw_data), **request_headers}


@pytest.fixture(scope="module")
def text() -> Iterator[InProcessServer]:
    """A script that tells how long its text is, and the headers."""
    with InProcessServer(script(headers)) as server:
        yield server


@pytest.fixture(scope="module")
def rows() -> Iterator[InProcessServer]:
    """A model without a script."""
    with InProcessServer(PuppetRuntime()) as server:
        yield server


@pytest.mark.parametrize("case", ENCODED)
def test_compressed_bodies_are_read(text: InProcessServer, rows: InProcessServer, case: str) -> None:
    """By scripts that take text and by models without a script."""
    encoding, body = ENCODED[case]
    sent = [("Content-Encoding", encoding)]

    assert text.ask("POST", "/score", sent, body).json()["length"] == len(BODY)
    assert rows.ask("POST", "/score", sent, body).json() == [[2, 4], [6, 8]]


def test_a_chunked_and_compressed_body_is_read(rows: InProcessServer) -> None:
    """Byte by byte."""
    body = gzip.compress(BODY)
    chunks = b"".join(b"1\r\n%b\r\n" % body[i : i + 1] for i in range(len(body))) + b"0\r\n\r\n"
    sent = [("Content-Encoding", "gzip"), ("Transfer-Encoding", "chunked")]
    with rows.connect() as connection:
        assert connection.ask(request("POST", "/score", sent) + chunks).json() == [[2, 4], [6, 8]]
        connection.assert_open()


def test_a_script_sees_the_headers_of_the_plain_body(text: InProcessServer) -> None:
    """Nothing says any more that it was compressed, and the length is that of the text."""
    seen = text.ask("POST", "/score", [("Content-Encoding", "gzip")], gzip.compress(BODY)).json()

    assert "Content-Encoding" not in seen
    assert seen["Content-Length"] == str(len(BODY))


@pytest.mark.parametrize(
    "encoding", ["br", "zstd", "compress", "gzip, deflate", "gzip, identity", "nonsense"]
)
def test_other_encodings_are_refused(text: InProcessServer, encoding: str) -> None:
    """The answer is 415 with the supported ones; the same holds for one encoding around another."""
    answer = text.ask("POST", "/score", [("Content-Encoding", encoding)], b"body")

    assert (answer.status, answer.json()["code"]) == (415, "unsupported_encoding")
    assert answer.header("accept-encoding") == "gzip, deflate"


def test_two_headers_are_two_encodings(text: InProcessServer) -> None:
    """However they are written."""
    sent = [("Content-Encoding", "gzip"), ("Content-Encoding", "deflate")]

    assert text.ask("POST", "/score", sent, b"body").status == 415


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", BODY),
        ("gzip", gzip.compress(BODY)[:-1]),
        ("gzip", gzip.compress(BODY)[:-4] + b"\0\0\0\0"),
        ("gzip", gzip.compress(BODY) + b"more"),
        ("deflate", zlib.compress(BODY)[:-1]),
        ("deflate", zlib.compress(BODY) + b"more"),
        ("deflate", b"\xff\xff\xff"),
        ("gzip", b"\x1f"),
    ],
    ids=["plain", "cut", "sum", "tail", "deflate cut", "deflate tail", "deflate noise", "one byte"],
)
def test_corrupt_bodies_are_malformed(text: InProcessServer, encoding: str, body: bytes) -> None:
    """400; a script does not see what came out so far."""
    answer = text.ask("POST", "/score", [("Content-Encoding", encoding)], body)

    assert (answer.status, answer.json()["code"]) == (400, "malformed_body")
    assert "compressed request body" in answer.json()["message"]


def test_the_limit_of_bodies_holds_for_inflated_bytes(text: InProcessServer) -> None:
    """A small body that becomes a large one is 413, exactly above the limit."""
    for size, status in ((MAX_BODY_BYTES, 200), (MAX_BODY_BYTES + 1, 413), (200 * MAX_BODY_BYTES, 413)):
        answer = text.ask("POST", "/score", [("Content-Encoding", "gzip")], gzip.compress(b" " * size))
        assert answer.status == status
        assert status == 200 or answer.json()["code"] == "body_too_large"


def test_the_limit_of_bodies_holds_for_compressed_bytes(text: InProcessServer) -> None:
    """A body that is too large as it comes is refused unread."""
    sent = [("Content-Encoding", "gzip"), ("Content-Length", str(MAX_BODY_BYTES + 1))]
    with text.connect() as connection:
        answer = connection.ask(request("POST", "/score", sent))
        connection.assert_ended()

    assert (answer.status, answer.closes) == (413, True)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "*"])
def test_answers_are_not_compressed(rows: InProcessServer, encoding: str) -> None:
    """Accept-Encoding changes nothing."""
    answer = rows.by_both_doors(BODY, [("Accept-Encoding", encoding)])

    assert (answer.header("content-encoding"), answer.json()) == (None, [[2, 4], [6, 8]])
