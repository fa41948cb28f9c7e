"""JPEGs that nvImageCodec decodes on a real GPU; skipped where either is missing."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
import pytest

from stoker.gpu.jpegs import JpegDecoder, find_decoder_problem

Image = pytest.importorskip("PIL.Image", reason="Pillow, of the images extra, is not installed")
pytest.importorskip("nvidia.nvimgcodec", reason="nvImageCodec is not installed")

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("first_gpu")]


def test_nothing_is_wrong_with_the_decoder() -> None:
    """The start of a server does this trial."""
    assert find_decoder_problem() is None


@pytest.mark.parametrize("options", [{}, {"subsampling": 0}, {"progressive": True}, {"mode": "L"}], ids=str)
def test_a_gpu_gives_nearly_the_pixels_of_pillow(options: dict[str, Any]) -> None:
    """Rounding differs by a few levels."""
    coarse = np.random.default_rng(1).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    picture = Image.fromarray(coarse).resize((501, 375)).convert(options.pop("mode", "RGB"))
    file = BytesIO()
    picture.save(file, "JPEG", quality=90, **options)
    pixels = JpegDecoder().decode(file.getvalue(), (375, 501))
    assert pixels is not None
    expected = np.asarray(Image.open(file).convert("RGB")).astype(int)
    differences = np.abs(pixels - expected)
    assert (differences.mean() < 1, differences.max() < 16) == (True, True)


def test_a_damaged_file_is_left_to_others() -> None:
    """A file without the header of a JPEG is not decoded."""
    assert JpegDecoder().decode(b"\xff\xd8\xff\xe0", (375, 501)) is None
