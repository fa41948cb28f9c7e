"""The structure of image files: the parts that a decoder sees, and refusals before it sees any."""

import io
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stoker.errors import ImageTooLarge, MalformedBody
from stoker.wire.image_files import ImageFile, read_image_file

Image = pytest.importorskip("PIL.Image", reason="Pillow, of the images extra, is not installed")

PIXELS = np.random.default_rng(7).integers(0, 256, (30, 20, 3), np.uint8)
EXIF = struct.pack("<4sIHHHIHxx", b"II*\0", 8, 1, 0x0112, 3, 1, 6)
TIMES = 2000


def encoded(kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, kind, **options)
    return buffer.getvalue()


def segment(code: int, content: bytes = b"") -> bytes:
    return struct.pack(">BBH", 0xFF, code, len(content) + 2) + content


def chunk(kind: bytes, content: bytes = b"") -> bytes:
    return struct.pack(">I4s", len(content), kind) + content + struct.pack(">I", zlib.crc32(kind + content))


def riff(kind: bytes, content: bytes = b"") -> bytes:
    return kind + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def webp(*chunks: bytes) -> bytes:
    """A WebP of the extended format; its canvas is 20 × 30."""
    content = b"WEBP" + riff(b"VP8X", b"\x08\0\0\0" + b"\x13\0\0" + b"\x1d\0\0") + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(content)) + content


def read(content: bytes) -> ImageFile:
    return read_image_file(content, "It")


def pixels(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)))


def before_scan(extra: bytes) -> bytes:
    jpeg = encoded("JPEG")
    place = jpeg.index(b"\xff\xda")
    return jpeg[:place] + extra + jpeg[place:]


def before_data(extra: bytes) -> bytes:
    png = encoded("PNG")
    place = png.index(b"IDAT") - 4
    return png[:place] + extra + png[place:]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("WEBP", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"exif": EXIF}),
    ],
)
def test_size_equals_the_decoders(kind: str, options: dict[str, Any]) -> None:
    """Width and height are read of each format; a file of pixels alone is passed on unchanged."""
    content = encoded(kind, **options)
    file = read(content)
    assert (file.kind, file.width, file.height) == (kind, 20, 30)
    np.testing.assert_array_equal(pixels(file.bare()), pixels(content))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_the_orientation_is_found(kind: str) -> None:
    """Each format says in its own place how a viewer has to turn the picture."""
    assert read(encoded(kind, exif=b"Exif\0\0" + EXIF)).orientation == 6
    assert read(encoded(kind)).orientation == 1


@pytest.mark.parametrize(
    ("exif", "orientation"),
    [
        (b"Exif\0\0" + EXIF, 6),
        (struct.pack(">4sIHHHIHxx", b"MM\0*", 8, 1, 0x0112, 3, 1, 8), 8),
        (struct.pack("<4sIHHHII", b"II*\0", 8, 1, 0x0112, 4, 1, 3), 3),
        (struct.pack("<4sIHHHII", b"II*\0", 8, 1, 0x0112, 5, 1, 3), 1),
        (struct.pack("<4sIHHHIHxx", b"II*\0", 8, 1, 0x0112, 3, 1, 9), 1),
        (struct.pack("<4sIH", b"II*\0", 8, 65535) + bytes(30), 1),
        (struct.pack("<4sI", b"II*\0", 1 << 31), 1),
        (EXIF[:11], 1),
        (b"what is this", 1),
        (b"", 1),
    ],
)
def test_odd_exif_blocks_are_read_or_passed_over(exif: bytes, orientation: int) -> None:
    """Either byte order and any size of number is read; damaged or missing orientations count as none."""
    assert read(before_data(chunk(b"eXIf", exif))).orientation == orientation


def test_a_decoder_does_not_see_metadata() -> None:
    """Metadata and stray bytes are left out, and the pixels stay the same."""
    metadata = (
        segment(0xE1, b"Exif\0\0" + EXIF), segment(0xE2, b"ICC_PROFILE\0\1\1"), segment(0xFE, b"a comment"), b"\0",
    )  # fmt: skip
    jpeg = before_scan(b"".join(metadata) + b"\xff" * 10)
    assert read(jpeg).bare() == encoded("JPEG")
    texts = b"".join(chunk(kind, b"a\0b") for kind in (b"tEXt", b"iTXt", b"zTXt", b"iCCP", b"eXIf", b"acTL"))
    assert read(before_data(texts)).bare() == encoded("PNG")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (lambda: b"\xff\xd8" + b"\xff" * (1 << 20), "a JPEG with more before its first scan"),
        (lambda: before_scan(b"\0" * (1 << 20)), "a JPEG with more before its first scan"),
        (lambda: before_scan(segment(0xE1) * TIMES), "a JPEG with more before its first scan"),
        (lambda: before_scan(segment(0xFE, bytes(65_000)) * 300), "a JPEG with more before its first scan"),
        (lambda: before_scan(segment(0xDB, bytes(65_000)) * 3), "a JPEG with more before its first scan"),
        (lambda: encoded("JPEG")[:-2] + segment(0xFE) * TIMES, "a JPEG of more than 1000 segments"),
        (lambda: before_data(chunk(b"tEXt") * (1 << 15)), "a PNG of more than 32768 chunks"),
        (lambda: before_data(chunk(b"IDAT") * (1 << 15)), "a PNG of more than 32768 chunks"),
        (lambda: webp(riff(b"abcd") * (1 << 15)), "a WebP of more than 32768 chunks"),
    ],
)
def test_more_parts_than_images_have_are_refused(content: Callable[[], bytes], problem: str) -> None:
    """Millions of segments or chunks cost a decoder minutes and gigabytes, and this server nothing."""
    with pytest.raises(ImageTooLarge, match=f"It is {problem}"):
        read(content())


def test_large_metadata_are_passed_over() -> None:
    """A photo may carry megabytes of depth maps and profiles."""
    jpeg = before_scan(segment(0xE1, bytes(65_000)) * 100)
    assert read(jpeg).bare() == encoded("JPEG")


@pytest.mark.parametrize(
    "content",
    [
        lambda: b"",
        lambda: b"GIF89a",
        lambda: b"\xff\xd8\xff",
        lambda: encoded("JPEG")[:100],
        lambda: before_scan(b"\xff\xd9"),
        lambda: before_scan(b"\xff\xfe\0\1"),
        lambda: before_scan(b"\xff\xfe\xff\xff"),
        lambda: before_scan(segment(0xC0, struct.pack(">BHHB", 8, 9000, 9000, 1))),
        lambda: b"\xff\xd8" + segment(0xDA),
        lambda: b"\x89PNG\r\n\x1a\n",
        lambda: b"\x89PNG\r\n\x1a\n" + chunk(b"IDAT", bytes(30)),
        lambda: b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", bytes(13)),
        lambda: b"RIFF\0\0\0\0WEBPVP8 ",
        lambda: b"RIFF\0\0\0\0WEBPVP8X",
        lambda: b"RIFF\0\0\0\0WEBPabcd" + bytes(30),
    ],
)
def test_image_without_one_size_is_refused(content: Callable[[], bytes]) -> None:
    """Files that end before their size, say it twice, or say none are refused."""
    with pytest.raises(MalformedBody, match="It is not a JPEG, PNG or WebP image"):
        read(content())


def test_a_marker_is_found_wherever_it_stands() -> None:
    """Scans are searched piece by piece, and what stands across two pieces is not overlooked."""
    jpeg = encoded("JPEG")[:-2]
    scan = jpeg[jpeg.rindex(b"\xff\xda") :]
    for padding in range((256 << 10) - len(scan) - 3, (256 << 10) - len(scan) + 3):
        with pytest.raises(ImageTooLarge, match="more than 64 scans"):
            read(jpeg + bytes(padding) + scan * 64)
