"""JPEGs by libjpeg-turbo itself: Pillow's rows, bit for bit, in fast mode too."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from stoker.errors import MalformedBody
from stoker.settings.image_input import ImageInput, read_image_input
from stoker.tensors import Signature, TensorSpec
from stoker.wire import jpegs
from stoker.wire.images import ImageReader, OpenedImages
from stoker.wire.jpegs import decode_jpeg

Image = pytest.importorskip("PIL.Image", reason="Pillow, of the images extra, is not installed")
pytest.importorskip("simplejpeg", reason="simplejpeg, of the images extra, is not installed")


def photo(width: int, height: int) -> Any:
    """A picture with coarse and fine structure."""
    random = np.random.default_rng(7)
    coarse = random.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    fine = random.integers(0, 24, (height, width, 3), dtype=np.uint8)
    large = np.asarray(Image.fromarray(coarse).resize((width, height)))
    return Image.fromarray((large // 255 * 20 + large // 2 + fine).astype(np.uint8))


def jpeg(width: int = 61, height: int = 45, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    photo(width, height).convert(mode).save(file, "JPEG", **options)
    return file.getvalue()


def rows(image: ImageInput, body: bytes) -> np.ndarray:
    spec = TensorSpec("x", "uint8", (image.height, image.width, image.channels))
    signature = Signature((spec,), (TensorSpec("y", "float32", (2,)),))
    opened = ImageReader(image, signature, max_pixels=10_000_000, max_rows_bytes=1 << 20).open(
        body, b"image/jpeg"
    )
    assert isinstance(opened, OpenedImages)
    (array,) = opened.rows(lambda: None)
    return array


def by_pillow(image: ImageInput, body: bytes, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """The rows of a frontend without simplejpeg."""
    with monkeypatch.context() as patch:
        patch.setattr(jpegs, "jpeg_library", lambda: None)
        return rows(image, body)


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return jpeg(61, 45, exif=exif)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(45, 61), (20, 30), (90, 100), (3, 7)], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {"subsampling": 0},
        {"subsampling": 1},
        {"subsampling": 2, "progressive": True},
        {"quality": 20, "optimize": True},
        {"mode": "L"},
        {"mode": "CMYK"},
    ],
    ids=str,
)
def test_pixels_are_those_of_pillow(
    monkeypatch: pytest.MonkeyPatch, channels: int, size: tuple[int, int], options: dict[str, Any]
) -> None:
    """For each way to store colours, for grey and for colour, enlarged, reduced, and as the file has them."""
    image, body = ImageInput(*size, channels), jpeg(**options)
    np.testing.assert_array_equal(rows(image, body), by_pillow(image, body, monkeypatch))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_photos_are_those_of_pillow(monkeypatch: pytest.MonkeyPatch, orientation: int) -> None:
    """Those that swap width and height among them, also where they have the model's size."""
    for image in (ImageInput(45, 61), ImageInput(61, 45), ImageInput(20, 9)):
        body = turned(orientation)
        np.testing.assert_array_equal(rows(image, body), by_pillow(image, body, monkeypatch))


@pytest.mark.parametrize("size", [(600, 802), (601, 799), (1200, 1600), (350, 1700)], ids=str)
def test_large_photos_are_reduced_as_by_pillow(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    """To one half, a quarter or an eighth, while they are decoded."""
    body = jpeg(size[1], size[0])
    for image in (ImageInput(33, 49), ImageInput(150, 210, decoding="fast")):
        np.testing.assert_array_equal(rows(image, body), by_pillow(image, body, monkeypatch))


@pytest.mark.parametrize(
    ("size", "decoded"),
    [((449, 447), (449, 447)), ((448, 600), (224, 300)), ((1000, 900), (250, 225))],
    ids=str,
)
def test_fast_decoding_halves_while_enough_pixels_are_left(
    size: tuple[int, int], decoded: tuple[int, int]
) -> None:
    """At one half, a quarter or an eighth; the numbers differ little from those of all pixels."""
    body = jpeg(*size)
    pixels = decode_jpeg(body, size, (224, 224))
    assert pixels is not None
    assert pixels.shape == (*decoded[::-1], 3)
    precise, fast = (
        rows(read_image_input(f"size=224x224,decoding={word}"), body).astype(int)
        for word in ("precise", "fast")
    )
    assert (np.abs(fast - precise).mean() > 0) == (decoded != size)
    assert np.abs(fast - precise).mean() < 2


def test_the_fast_way_minds_how_photos_are_turned() -> None:
    """The side that becomes the height is as long as the model's height."""
    upright = read_image_input("size=30x10,decoding=fast")
    assert np.abs(rows(upright, turned(6)).astype(int) - rows(ImageInput(30, 10), turned(6))).mean() < 6


def test_small_images_are_not_enlarged_by_the_decoder() -> None:
    """Pillow does that, as ever."""
    pixels = decode_jpeg(jpeg(20, 10), (20, 10), (224, 224))
    assert pixels is not None
    assert pixels.shape == (10, 20, 3)


def test_cut_jpeg_is_refused_and_damaged_one_read_as_by_pillow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If libjpeg-turbo warns, Pillow decides about the file."""
    body, image = jpeg(), ImageInput(45, 61)
    with pytest.raises(MalformedBody):
        rows(image, body[: len(body) // 2] + b"\xff\xd9")
    random = np.random.default_rng(3)
    for place in random.integers(len(body) // 2, len(body) - 2, 40).tolist():
        damaged = body[:place] + bytes([body[place] ^ 0x55]) + body[place + 1 :]
        try:
            expected = by_pillow(image, damaged, monkeypatch)
        except MalformedBody:
            with pytest.raises(MalformedBody):
                rows(image, damaged)
        else:
            np.testing.assert_array_equal(rows(image, damaged), expected)


def test_another_size_than_was_checked_is_left_to_pillow() -> None:
    """Pillow then refuses it."""
    assert decode_jpeg(jpeg(), (60, 45), (60, 45)) is None
