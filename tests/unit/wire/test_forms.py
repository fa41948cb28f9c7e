"""Multipart forms: limits of their parts' headers."""

import pytest

from stoker.errors import MalformedBody
from stoker.wire.images import form_images

FORM_TYPE = b"multipart/form-data; boundary=XX"


def form(*heads: bytes) -> bytes:
    return b"".join(b"--XX\r\n" + head + b"\r\n\r\npixels\r\n" for head in heads) + b"--XX--\r\n"


def test_headers_up_to_their_limit_are_read() -> None:
    """A part may have headers of 8 KiB, long file names and dozens of lines included."""
    long_name = b'Content-Disposition: form-data; filename="' + b"n" * 8000 + b'"'
    many_lines = b"X-Padding: a;b\r\n" * 45 + b"Content-Type: image/png"
    assert form_images(form(long_name, many_lines), FORM_TYPE, 10) == [b"pixels"] * 2


@pytest.mark.parametrize(
    ("head", "problem"),
    [
        (b"Content-Disposition: form-data" + b"; a=b" * 100_000, "no end of its headers within 8 KiB"),
        (b"Content-Type: image/png\r\nX-Padding: " + b"a" * 8192, "no end of its headers within 8 KiB"),
        (b"Content-Type: image/png" + b";" * 101, "too many lines or parameters"),
        (b"Content-Type: image/png" + b"\r\nA: b" * 101, "too many lines or parameters"),
        (b"Content-Type: image/png" + b"\rA: b" * 101, "too many lines or parameters"),
    ],
)
def test_longer_headers_are_refused_before_they_are_taken_apart(head: bytes, problem: str) -> None:
    """The time for the parameters of a header grows with their square, so there may not be many."""
    with pytest.raises(MalformedBody, match=problem):
        form_images(form(head), FORM_TYPE, 10)


@pytest.mark.parametrize("padding", [b"; a=b" * 101, b"; a=" + b"b" * 8192])
def test_the_content_type_of_the_form_is_bounded_too(padding: bytes) -> None:
    """A boundary behind countless or very long parameters is not looked for."""
    with pytest.raises(MalformedBody, match="Content-Type has too many parameters"):
        form_images(form(b"Content-Type: image/png"), FORM_TYPE + padding, 10)
