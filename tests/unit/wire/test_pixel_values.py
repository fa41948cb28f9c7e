"""The values of pixels in a row."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.settings.image_input import ImageInput
from stoker.tensors import TensorSpec
from stoker.wire.images import PixelValues, value_table

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@pytest.mark.parametrize(
    "settings", [{}, IMAGENET, {"invert": True}], ids=["scaled", "per channel", "inverted"]
)
@pytest.mark.parametrize("layout", ["hwc", "chw"])
def test_each_level_of_each_channel_is_looked_up(settings: dict[str, object], layout: str) -> None:
    """All 256 levels of three channels come out as in the table, in the requested order of axes."""
    image = ImageInput(16, 48, **settings)  # type: ignore[arg-type]
    pixels = (
        np.random.default_rng(3).permutation(np.repeat(np.arange(256, dtype=np.uint8), 9)).reshape(16, 48, 3)
    )
    shape = (16, 48, 3) if layout == "hwc" else (3, 16, 48)
    spec = TensorSpec("x", "float32", shape)
    row = np.full(shape, np.nan, np.float32)
    PixelValues(image, spec, layout).put(pixels, row)  # type: ignore[arg-type]
    expected = np.empty_like(row)
    table = value_table(image, spec)
    for (line, column, channel), level in np.ndenumerate(pixels):
        place = (line, column, channel) if layout == "hwc" else (channel, line, column)
        expected[place] = table[channel, level]
    assert row.tobytes() == expected.tobytes()


def test_a_flat_row_of_grey_pixels_takes_them_line_by_line() -> None:
    """One channel has no axis of its own."""
    row = np.zeros(6, np.uint8)
    values = PixelValues(ImageInput(2, 3, channels=1), TensorSpec("x", "uint8", (6,)), "hwc")
    values.put(np.array([[9, 8, 7], [6, 5, 255]], np.uint8), row)
    assert row.tolist() == [9, 8, 7, 6, 5, 255]
