"""What pixels of 8 bits become in a row: a number for each level of each channel, looked up."""

from __future__ import annotations

import numpy as np

from stoker.settings.image_input import ImageInput, Layout
from stoker.tensors import TensorSpec

__all__ = ["PixelValues", "value_table"]


def value_table(image: ImageInput, spec: TensorSpec) -> np.ndarray:
    """Return what each of the 256 levels of each channel becomes: `[channels, 256]` in the input's dtype."""
    levels = np.arange(256, dtype=np.float64)
    if image.invert:
        levels = levels[::-1]
    scale = image.scale or (255.0 if spec.numpy_dtype.kind == "f" else 1.0)
    mean = np.reshape(image.mean or 0.0, (-1, 1))
    std = np.reshape(image.std or 1.0, (-1, 1))
    values = np.broadcast_to((levels / scale - mean) / std, (image.channels, 256))
    return np.ascontiguousarray(values.astype(spec.numpy_dtype))


class PixelValues:
    """Puts the pixels of images into rows of one input.

    `take` writes where it is told to with `clip`, which no level needs; otherwise it would fill a buffer first.

    Args:
        image: The model's image input.
        spec: The input.
        layout: The order of the axes in it.
    """

    def __init__(self, image: ImageInput, spec: TensorSpec, layout: Layout) -> None:
        self._table = value_table(image, spec)
        self._planes = layout == "chw" and image.channels > 1
        self._shape = (image.height, image.width, image.channels)
        self._flat = self._table.ravel()
        channels_differ = bool((self._table != self._table[0]).any())
        self._starts = np.arange(image.channels, dtype=np.uint16) * 256 if channels_differ else None

    def put(self, pixels: np.ndarray, row: np.ndarray) -> None:
        """Write an image into a row.

        Args:
            pixels: `[height, width]` for one channel, else `[height, width, channels]`, uint8.
            row: Where to: `[*row_shape]` in the input's dtype, contiguous.
        """
        height, width, channels = self._shape
        if self._planes:
            planes = row.reshape(channels, height, width)
            for channel in range(channels):
                self._table[channel].take(pixels[:, :, channel], out=planes[channel], mode="clip")
            return
        levels = pixels if self._starts is None else pixels + self._starts
        self._flat.take(levels, out=row.reshape(pixels.shape), mode="clip")
