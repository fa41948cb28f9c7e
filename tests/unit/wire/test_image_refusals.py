"""Images refused for their size, number or damage, and the cost of refusing them."""

import base64
import json
import struct
import subprocess
import sys
import weakref
import zlib
from typing import Any

import numpy as np
import pytest
from tests.unit.wire.image_bodies import Image, encoded, form, grey_pixels, grey_png, reader, rows, signature

from stoker.errors import (
    BodyTooLarge,
    ImageTooLarge,
    MalformedBody,
)
from stoker.settings.image_input import ImageInput
from stoker.wire.images import OpenedImages


def _png_header(width: int, height: int) -> bytes:
    """A PNG that announces a size, in 60 bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + content


def test_bombs_are_refused_by_their_header() -> None:
    """An image of too many pixels is refused before any is decoded; one at the limit is not."""
    body = _png_header(65_000, 65_000)
    with pytest.raises(
        ImageTooLarge, match=r"The image has 65000 × 65000 pixels; at most 1 million are decoded"
    ):
        reader().open(body, b"image/png")
    exact = encoded(Image.new("L", (1000, 1000)))
    assert rows(reader(), exact).shape == (1, 24)
    with pytest.raises(ImageTooLarge, match=r"at most 0\.999999 million"):
        reader(max_pixels=999_999).open(exact, b"image/png")


def test_the_bomb_in_a_form_is_named() -> None:
    """Of several images the one that is too large is named by its place."""
    body, content_type = form(
        ("Content-Type: image/png", grey_png()), ("Content-Type: image/png", _png_header(5000, 5000))
    )
    with pytest.raises(ImageTooLarge, match="Image 1 has 5000 × 5000 pixels"):
        reader().open(body, content_type.encode())


def test_very_long_sides_are_refused() -> None:
    """Millions of lines of one pixel, and what would grow beyond the limit while it is resized, are not decoded."""
    with pytest.raises(ImageTooLarge, match="1 × 65536 pixels; at most 65535 on a side"):
        reader().open(_png_header(1, 65_536), b"image/png")
    wide = ImageInput(2, 100, channels=1)
    upright, lying = encoded(Image.new("L", (1, 10_001))), encoded(Image.new("L", (10_001, 1)))
    made = reader(wide)
    with pytest.raises(ImageTooLarge, match="too long a side to be resized to 100 × 2"):
        made.open(upright, b"image/png")
    assert rows(made, lying).shape == (1, 200)
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encoded(Image.new("L", (10_001, 1)), exif=exif)
    with pytest.raises(ImageTooLarge, match="too long a side"):
        made.open(turned, b"image/png")
    assert rows(reader(wide, max_pixels=1_000_100), upright).shape == (1, 200)


def test_many_large_images_in_one_request_are_refused() -> None:
    """One request may keep a thread for no longer than sixteen images of the largest size do."""
    image = ("Content-Type: image/png", encoded(Image.new("L", (40, 50))))
    made = reader(max_pixels=2000)
    assert rows(made, *form(*[image] * 16)).shape == (16, 24)
    body, content_type = form(*[image] * 17)
    with pytest.raises(
        ImageTooLarge, match=r"have 0\.034 million pixels together; at most 16 times the 0\.002"
    ):
        made.open(body, content_type.encode())


def test_images_are_decoded_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """When an image is begun nothing is left of the one before it but its row."""
    alive: list[weakref.ref[Any]] = []
    open_image = Image.open

    def watched(*arguments: Any, **options: Any) -> Any:
        assert all(reference() is None for reference in alive)
        image = open_image(*arguments, **options)
        alive.append(weakref.ref(image))
        return image

    monkeypatch.setattr(Image, "open", watched)
    assert rows(reader(), *form(*[("Content-Type: image/png", grey_png())] * 3)).shape == (3, 24)
    assert len(alive) == 3


def test_transparency_is_laid_on_paper_in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image is flattened piece by piece, and comes out as if it were flattened at once."""
    random = np.random.default_rng(8)
    image = Image.fromarray(random.integers(0, 256, (9, 6, 4), np.uint8))
    bodies = [encoded(image), encoded(image.quantize(20))]
    made = reader(ImageInput(9, 6), signature(9, 6, 3))
    whole = [rows(made, body) for body in bodies]
    monkeypatch.setattr("stoker.wire.images._STRIP_PIXELS", 15)
    for body, expected in zip(bodies, whole, strict=True):
        np.testing.assert_array_equal(rows(made, body), expected)


def test_a_jpeg_with_a_thousand_scans_is_refused() -> None:
    """A progressive JPEG may not make the decoder pass over its pixels again and again."""
    body = encoded(Image.fromarray(grey_pixels(24, 10)), "JPEG", progressive=True)
    last, end = body.rindex(b"\xff\xda"), body.rindex(b"\xff\xd9")
    scan = body[last:end]
    assert rows(reader(), body[:end] + scan * 20 + body[end:]).shape == (1, 24)
    with pytest.raises(ImageTooLarge, match="a JPEG of more than 64 scans"):
        reader().open(body[:end] + scan * 64 + body[end:], b"image/jpeg")


def test_bytes_behind_a_jpegs_end_are_no_scans() -> None:
    """Phones append films to photos; what looks like scans there does not count."""
    body = encoded(Image.fromarray(grey_pixels()), "JPEG") + b"\xff\xda\0\x02" * 1000
    assert rows(reader(), body).shape == (1, 24)


def test_more_images_than_rows_fit_are_refused() -> None:
    """Tiny images may not grow into more rows than a body of numbers could have brought; one always may."""
    texts = [base64.b64encode(grey_png()).decode()] * 3
    body = json.dumps({"data": texts}).encode()
    row_bytes = 24 * 4
    assert rows(reader(max_rows_bytes=3 * row_bytes), body).shape == (3, 24)
    with pytest.raises(BodyTooLarge, match="The request holds 3 images; at most 2 are taken at once"):
        rows(reader(max_rows_bytes=3 * row_bytes - 1), body)
    assert rows(reader(max_rows_bytes=1), grey_png()).shape == (1, 24)


def test_a_form_of_countless_parts_is_refused() -> None:
    """Beside as many images as fit, a form may have a hundred other fields; longer forms are not parsed."""
    made = reader(max_rows_bytes=2 * 24 * 4)
    field, image = ("A: b", b""), ("Content-Type: image/png", grey_png())
    assert rows(made, *form(*[field] * 100, image, image)).shape == (2, 24)
    with pytest.raises(BodyTooLarge, match="The multipart form has more than 102 parts"):
        rows(made, *form(*[field] * 101, image, image))
    with pytest.raises(BodyTooLarge, match="The request holds 3 images; at most 2"):
        rows(made, *form(image, image, image))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_images_that_are_cut_short_are_refused(kind: str) -> None:
    """However short an image is cut, the answer is that it is damaged; nothing else escapes."""
    noise = np.random.default_rng(5).integers(0, 256, (24, 36, 3), np.uint8)
    body = encoded(Image.fromarray(noise), kind)
    for length in range(4, len(body) - 40, 97):
        with pytest.raises(MalformedBody, match="damaged or cut short"):
            rows(reader(), body[:length], f"image/{kind.lower()}")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_damaged_images_are_scored_or_refused(kind: str) -> None:
    """This holds for damage of any single byte; no other error occurs."""
    random = np.random.default_rng(6)
    noise = random.integers(0, 256, (24, 36, 3), np.uint8)
    body = encoded(Image.fromarray(noise), kind)
    outcomes = set()
    for place in range(0, len(body), 7):
        damaged = bytearray(body)
        damaged[place] ^= int(random.integers(1, 256))
        try:
            rows(reader(), bytes(damaged), f"image/{kind.lower()}")
            outcomes.add("scored")
        except (MalformedBody, ImageTooLarge):
            outcomes.add("refused")
    assert outcomes == {"scored", "refused"}


def test_decoding_ends_when_its_caller_has_gone() -> None:
    """The caller's deadline is checked before each image, so many images cannot keep a thread for long."""
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks == 2:
            raise TimeoutError

    body = json.dumps({"data": [base64.b64encode(grey_png()).decode()] * 3}).encode()
    opened = reader().open(body, b"")
    assert isinstance(opened, OpenedImages)
    assert opened.pixels == 3 * 24
    with pytest.raises(TimeoutError):
        opened.rows(check)
    assert checks == 2


def test_pillow_is_not_imported_without_need() -> None:
    """A frontend without image models does not carry Pillow."""
    code = "import sys, stoker.wire.images; sys.exit('PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
