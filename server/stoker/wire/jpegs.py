"""JPEG files to pixels by libjpeg-turbo itself: the pixels that Pillow gives, in half of its time.

Pillow reads what this module leaves: other colours than grey and YCbCr, and files that libjpeg-turbo warns of.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

# Other eighths are slower than all pixels: libjpeg-turbo has no SIMD for them.
_SCALES: Final = (8, 4, 2)
_COLOURS: Final[Mapping[str, str]] = {"YCbCr": "RGB", "Gray": "GRAY"}


def decode_jpeg(content: bytes, size: tuple[int, int], least: tuple[int, int]) -> np.ndarray | None:
    """Return the pixels of a file, uint8 `[height, width]` or `[height, width, 3]`; None if Pillow has to read it.

    They are as many as the file has, or one half, quarter or eighth on each side, as Pillow's `draft` chooses.

    Args:
        size: Width and height in its header.
        least: Width and height that are needed.
    """
    library = jpeg_library()
    if library is None:
        return None
    times = min(size[0] // least[0], size[1] // least[1])
    scale = next((scale for scale in _SCALES if times >= scale), 1)
    try:
        height, width, colours, _ = library.decode_jpeg_header(content)
        if (width, height) != size or colours not in _COLOURS:
            return None
        pixels: np.ndarray = library.decode_jpeg(
            content,
            _COLOURS[colours],
            min_height=-(-height // scale),
            min_width=-(-width // scale),
            strict=True,
        )
    except ValueError:
        return None
    return pixels[:, :, 0] if pixels.shape[2] == 1 else pixels


@cache
def jpeg_library() -> Any:
    """Return the package that brings libjpeg-turbo, or None; imported once, before requests wait for it."""
    return importlib.import_module("simplejpeg") if find_spec("simplejpeg") is not None else None
