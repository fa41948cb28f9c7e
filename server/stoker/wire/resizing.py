"""Images in another size, bilinear: by stoker-native where it is installed, else by Pillow, with the same pixels.

The width changes first, then the height. Pillow 13 alone would choose the order, and some levels would differ by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from stoker.wire.native import find_native

if TYPE_CHECKING:
    from PIL.Image import Image


resize_rgb: Final = find_native("stoker_native.resizing", "resize_rgb")
"""Writes an image, uint8 `[height, width, 3]`, in another size into an array; None where it is not installed.

The arguments are the image, its height and width, the array, and its height and width.
"""


def resize_pixels(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return an image, uint8 `[height, width]` or `[height, width, 3]`, in the size width, height."""
    width, height = size
    if pixels.shape[:2] == (height, width):
        return pixels
    if resize_rgb is None or pixels.ndim == 2:
        from PIL.Image import fromarray

        return np.asarray(resize_image(fromarray(pixels), size))
    resized = np.empty((height, width, 3), np.uint8)
    resize_rgb(pixels, *pixels.shape[:2], resized, height, width)
    return resized


def resize_image(image: Image, size: tuple[int, int]) -> Image:
    """Return an image in the size width, height, by Pillow."""
    from PIL.Image import Resampling

    narrowed = image.resize((size[0], image.height), Resampling.BILINEAR)
    return narrowed.resize(size, Resampling.BILINEAR)
