"""Images, forms and readers for tests of image inputs."""

import io
from typing import Any

import numpy as np
import pytest

from stoker.settings.image_input import ImageInput
from stoker.tensors import Signature, TensorSpec
from stoker.wire.images import ImageReader, OpenedImages

Image = pytest.importorskip("PIL.Image", reason="Pillow, of the images extra, is not installed")

GREY = ImageInput(4, 6, channels=1)
COLOUR = ImageInput(4, 6)
RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def signature(*shape: int, dtype: str = "float32") -> Signature:
    return Signature((TensorSpec("x", dtype, shape),), (TensorSpec("y", "float32", (2,)),))


def reader(
    image: ImageInput = GREY,
    taken: Signature | None = None,
    *,
    max_pixels: int = 1_000_000,
    max_rows_bytes: int = 1 << 20,
) -> ImageReader:
    taken = taken or signature(image.height * image.width * image.channels)
    return ImageReader(image, taken, max_pixels=max_pixels, max_rows_bytes=max_rows_bytes)


def rows(made: ImageReader, body: bytes, content_type: str = "") -> np.ndarray:
    opened = made.open(body, content_type.encode())
    (array,) = opened.rows(lambda: None) if isinstance(opened, OpenedImages) else opened
    return array


def encoded(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def grey_pixels(width: int = 6, height: int = 4) -> np.ndarray:
    return (np.arange(width * height, dtype=np.uint8) * 10).reshape(height, width)


def grey_png(**options: Any) -> bytes:
    return encoded(Image.fromarray(grey_pixels()), **options)


def form(*parts: tuple[str, bytes], boundary: str = "XX") -> tuple[bytes, str]:
    """A multipart form of parts, each with its header lines."""
    pieces = [f"--{boundary}\r\n{head}\r\n\r\n".encode() + content + b"\r\n" for head, content in parts]
    return b"".join(pieces) + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"
