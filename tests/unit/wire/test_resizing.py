"""Images in another size: the same pixels in C++ and by Pillow."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import pytest
from tests.interpreter_lock import releases_interpreter_lock

from stoker.wire import resizing
from stoker.wire.resizing import resize_image, resize_pixels

Image = pytest.importorskip("PIL.Image", reason="Pillow, of the images extra, is not installed")
native = pytest.importorskip("stoker_native.resizing", reason="stoker-native has no resizing on this machine")

SIDES = (1, 2, 3, 7, 16, 61)


def noise(height: int, width: int, *, levels: tuple[int, int] = (0, 256)) -> np.ndarray:
    return np.random.default_rng(height * 1000 + width).integers(*levels, (height, width, 3), np.uint8)


def in_cpp(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    resized = np.full((height, width, 3), 7, np.uint8)
    native.resize_rgb(pixels, *pixels.shape[:2], resized, height, width)
    return resized


def by_pillow(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    return np.asarray(resize_image(Image.fromarray(pixels), (width, height)))


@pytest.mark.parametrize("height", SIDES)
@pytest.mark.parametrize("width", SIDES)
def test_all_changes_of_size_give_pillows_pixels(height: int, width: int) -> None:
    """Enlarged, reduced, in one direction alone, and images of few pixels."""
    for levels in ((0, 256), (255, 256)):
        pixels = noise(height, width, levels=levels)
        for new_height in SIDES:
            for new_width in SIDES:
                expected = by_pillow(pixels, new_width, new_height)
                np.testing.assert_array_equal(in_cpp(pixels, new_width, new_height), expected)


@pytest.mark.parametrize("size", [(375, 500), (1080, 1920), (500, 375), (3, 65_535), (65_535, 2)], ids=str)
def test_photos_and_long_images_give_pillows_pixels(size: tuple[int, int]) -> None:
    """Windows of thousands of neighbours, whose weights are tiny, among them."""
    pixels = noise(*size)
    for width, height in ((224, 224), (5, 1)):
        np.testing.assert_array_equal(in_cpp(pixels, width, height), by_pillow(pixels, width, height))


def test_resized_photo_has_the_pixels_of_pillow_in_one_step() -> None:
    """For a square model Pillow changes the width first, too."""
    pixels = noise(375, 500)
    expected = np.asarray(Image.fromarray(pixels).resize((224, 224), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(in_cpp(pixels, 224, 224), expected)


def test_image_is_the_same_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """In colour by either, grey by Pillow; an image of the right size is not copied."""
    colour, grey = noise(40, 30), noise(40, 30)[:, :, 0].copy()
    resized = [resize_pixels(pixels, (20, 50)) for pixels in (colour, grey)]
    monkeypatch.setattr(resizing, "resize_rgb", None)
    for pixels, expected in zip((colour, grey), resized, strict=True):
        np.testing.assert_array_equal(resize_pixels(pixels, (20, 50)), expected)
        assert resize_pixels(pixels, (30, 40)) is pixels


@pytest.mark.parametrize("width", [1, 2, 3, 9])
def test_nothing_is_read_beyond_an_image(width: int) -> None:
    """The page behind it cannot be read."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + page), page, 0) == 0
    pixels = np.frombuffer(memory, np.uint8, 4 * width * 3, page - 4 * width * 3).reshape(4, width, 3)
    pixels[:] = noise(4, width)
    np.testing.assert_array_equal(in_cpp(pixels, 5, 5), by_pillow(pixels.copy(), 5, 5))


def test_images_are_resized_without_the_interpreter_lock() -> None:
    """Another thread runs meanwhile."""
    pixels, resized = noise(1000, 1000), bytearray(224 * 224 * 3)
    assert releases_interpreter_lock(lambda: native.resize_rgb(pixels, 1000, 1000, resized, 224, 224))


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((bytes(12), 2, 2, bytearray(2), 1, 1), "an image has three bytes for each pixel"),
        ((bytes(11), 2, 2, bytearray(3), 1, 1), "an image has three bytes for each pixel"),
        ((b"", 0, 2, bytearray(3), 1, 1), "the sides of an image are 1 to 65535 pixels"),
        ((bytes(3), 1, 1, bytearray(), 1, -1), "the sides of an image are 1 to 65535 pixels"),
        ((bytes(3), 1, 1, bytearray(), 1, 65_536), "the sides of an image are 1 to 65535 pixels"),
    ],
)
def test_memory_of_another_size_is_refused(arguments: tuple[Any, ...], problem: str) -> None:
    """Nothing is written then."""
    with pytest.raises(ValueError, match=problem):
        native.resize_rgb(*arguments)


def test_memory_that_cannot_be_written_is_refused() -> None:
    """Python's own errors say so, and also for strided images."""
    with pytest.raises(BufferError):
        native.resize_rgb(bytes(3), 1, 1, bytes(3), 1, 1)
    with pytest.raises(ValueError, match="not C-contiguous"):
        native.resize_rgb(noise(2, 4)[:, ::2], 2, 2, bytearray(3), 1, 1)
    with pytest.raises(TypeError):
        native.resize_rgb(bytes(3), 1, 1)
