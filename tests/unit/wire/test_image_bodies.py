"""Bodies with images: forms, base64 in JSON, single images."""

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.unit.wire.image_bodies import (
    GREY,
    Image,
    encoded,
    form,
    grey_pixels,
    grey_png,
    reader,
    rows,
    signature,
)

from stoker.errors import (
    InvalidInput,
    MalformedBody,
    StokerError,
    UnsupportedEncoding,
)


def test_a_form_gives_a_row_for_each_image_in_order() -> None:
    """Parts with an image's type or a file name are rows; other fields of the form are not."""
    first, second = np.zeros((4, 6), np.uint8), grey_pixels()
    body, content_type = form(
        ('Content-Disposition: form-data; name="comment"', b"a digit"),
        (
            'Content-Disposition: form-data; name="a"\r\nContent-Type: image/png',
            encoded(Image.fromarray(first)),
        ),
        ('Content-Disposition: form-data; name="b"; filename="größe.bin"', encoded(Image.fromarray(second))),
    )
    scored = rows(reader(GREY, signature(4, 6, dtype="uint8")), body, content_type)
    np.testing.assert_array_equal(scored, [first, second])


def test_a_form_may_have_a_preamble_and_a_quoted_boundary() -> None:
    """Bytes before the first boundary and after the last one are ignored."""
    body, _ = form(("Content-Type: image/png", grey_png()), boundary="a b:c")
    body = b"preamble\r\n" + body + b"epilogue"
    assert rows(reader(), body, 'Multipart/Form-Data; charset=x; boundary="a b:c"').shape == (1, 24)


def test_image_part_may_contain_line_ends() -> None:
    """The content of a part is taken byte for byte, line ends included."""
    body = encoded(Image.fromarray(grey_pixels()), pnginfo=_text_chunk("\r\n\r\n--YY\r\n"))
    assert b"\r\n\r\n--YY\r\n" in body
    assert rows(reader(), *form(("Content-Type: image/png", body))).shape == (1, 24)


def _text_chunk(text: str) -> Any:
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add_text("comment", text)
    return info


@pytest.mark.parametrize(
    ("body", "content_type", "error", "problem"),
    [
        (b"", "multipart/form-data", MalformedBody, "names no boundary"),
        (
            b"--XX\r\n\r\nabc",
            "multipart/form-data; boundary=XX",
            MalformedBody,
            "its last boundary is missing",
        ),
        (b"nothing", "multipart/form-data; boundary=XX", MalformedBody, "its last boundary is missing"),
        (
            b"--XX\r\nabc\r\n--XX--",
            "multipart/form-data; boundary=XX",
            MalformedBody,
            "no end of its headers",
        ),
        (b"--XX--\r\n", "multipart/form-data; boundary=XX", InvalidInput, "holds no image"),
        (form(("A: b", b"c"))[0], "multipart/form-data; boundary=XX", InvalidInput, "holds no image"),
        (
            b"",
            "multipart/mixed; boundary=XX",
            UnsupportedEncoding,
            "multipart/mixed is not read; send image/jpeg",
        ),
        (b"GIF89a", "image/gif", UnsupportedEncoding, "image/gif is not read"),
        (b"not an image", "image/jpeg", MalformedBody, "The image is not a JPEG, PNG or WebP image"),
        (b'{"data": [[1]]}', "image/png", MalformedBody, "The image is not"),
        (b"", "image/png", MalformedBody, "The image is not"),
    ],
)
def test_body_that_contradicts_its_type_is_refused(
    body: bytes, content_type: str, error: type[StokerError], problem: str
) -> None:
    """The message says why."""
    with pytest.raises(error, match=re.escape(problem)):
        rows(reader(), body, content_type)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (
            form(("Content-Disposition: form-data; filename=a;filename*=b;filename*1=c", b""))[0],
            "multipart/form-data; boundary=XX",
        ),
        (b"", "multipart/form-data; a=b;a*=c;a*1=d; boundary=XX"),
    ],
)
def test_parameters_that_python_may_fail_at_are_the_callers_fault(body: bytes, content_type: str) -> None:
    """Newer versions of Python parse them; older ones raise other errors than ValueError."""
    with pytest.raises(MalformedBody):
        rows(reader(), body, content_type)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: text,
        lambda text: {"b64": text},
        lambda text: "data:image/png;base64," + text,
    ],
    ids=["text", "b64", "data-url"],
)
def test_base64_in_json_gives_a_row_for_each(wrap: Callable[[str], Any]) -> None:
    """The rows of a JSON body may be base64 texts, bare, as `b64`, or as a canvas gives them."""
    text = base64.b64encode(grey_png()).decode()
    scored = rows(reader(), json.dumps({"data": [wrap(text), wrap(text)]}).encode(), "application/json")
    np.testing.assert_array_equal(scored, [(grey_pixels().reshape(-1) / 255).astype(np.float32)] * 2)


def test_numbers_keep_working_behind_the_reader() -> None:
    """A body of numbers that the reader was shown gives the same rows as without it."""
    body = json.dumps({"data": [list(range(24))], "comment": "x"}).encode()
    np.testing.assert_array_equal(rows(reader(), body), [np.arange(24)])


@pytest.mark.parametrize(
    ("data", "error", "problem"),
    [
        (["!!"], MalformedBody, '"data": row 0 is a text, but not base64'),
        (["ü"], MalformedBody, "but not base64"),
        (["QUJD"], MalformedBody, "The image is not"),
        ([base64.b64encode(grey_png()).decode(), "QUJD"], MalformedBody, "Image 1 is not"),
        (["QUJD", [1, 2]], InvalidInput, "row 1 is no image; either all rows are base64 texts, or none is"),
        ([{"b64": "QUJD"}, {"x": 1}], InvalidInput, "row 1 is no image"),
        ([{"x": 1}], InvalidInput, '"data": expected rows of 24 numbers, row 0 has an object'),
        ("QUJD", InvalidInput, '"data" must be a list of rows, got a string'),
        ([], InvalidInput, '"data" holds no rows'),
    ],
)
def test_json_that_holds_no_images(data: Any, error: type[StokerError], problem: str) -> None:
    """Texts that are no base64, no images, or mixed with numbers are refused by their row."""
    with pytest.raises(error, match=re.escape(problem)):
        rows(reader(), json.dumps({"data": data}).encode())


@pytest.mark.parametrize(
    ("body", "content_type", "claimed"),
    [
        (b'{"data": [[0.5, 1]]}', b"", False),
        (b'{"id": "x", "data": [[0.5, 1]]}', b"application/json", False),
        (b'{"data": ["QUJD"]}', b"", True),
        (b'{"data": [{"b64": "QUJD"}]}', b"", True),
        (b' \n{"data": ["QUJD"]}', b"", True),
        (b"\xff\xd8\xff\xe0", b"", True),
        (b"\x89PNG\r\n\x1a\n", b"application/x-www-form-urlencoded", True),
        (b"RIFF\0\0\0\0WEBPVP8 ", b"", True),
        (b'{"data": [[1]]}', b"image/png", True),
        (b"", b"Multipart/form-data; boundary=X", True),
        (b"", b"", False),
        (b"{}", b"", False),
        (b"[1, 2]", b"application/json", False),
    ],
)
def test_numbers_are_not_claimed(body: bytes, content_type: bytes, claimed: bool) -> None:
    """Bodies of numbers stay on the fast path; images are recognised by type, first bytes, or strings in the data."""
    assert reader().claims(body, content_type) is claimed
