"""A puppet of the package `nvidia.nvimgcodec`: its names that Stoker uses, with a decoder that has no GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import Enum
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image


class PuppetCodec:
    """Stands for the package.

    Attributes:
        opened: The arguments of each decoder that was made.
        decoded: How many files were decoded.
        failure: What making a decoder raises.
        decode: The decoder's own work: from pixels to what it gives; None for a file that it cannot decode.
    """

    class BackendKind(Enum):
        """As the package has them; `CPU_ONLY` would decode without a GPU."""

        CPU_ONLY, GPU_ONLY, HYBRID_CPU_GPU, HW_GPU_ONLY = range(4)

    class ColorSpec(Enum):
        """One of them."""

        SRGB = 1

    def __init__(self) -> None:
        self.opened: list[dict[str, Any]] = []
        self.decoded = 0
        self.failure: Exception | None = None
        # A GPU rounds otherwise.
        self.decode: Callable[[np.ndarray], np.ndarray | None] = lambda pixels: pixels ^ 1

    def Backend(self, kind: BackendKind) -> BackendKind:  # noqa: N802  # the package's name
        """One that may be used."""
        return kind

    def DecodeParams(self, **params: Any) -> dict[str, Any]:  # noqa: N802
        """How to decode."""
        return params

    def CodeStream(self, content: bytes) -> Any:  # noqa: N802
        """A file whose header was read."""
        try:
            image = Image.open(BytesIO(content))
        except OSError:
            raise RuntimeError("Failed to get image info") from None
        return SimpleNamespace(height=image.height, width=image.width, image=image)

    def Decoder(self, **arguments: Any) -> Any:  # noqa: N802
        """A decoder."""
        if self.failure is not None:
            raise self.failure
        self.opened.append(arguments)
        return SimpleNamespace(decode=self._decode)

    def _decode(self, stream: Any, *, params: dict[str, Any]) -> Any:
        assert params == {"apply_exif_orientation": False, "color_spec": self.ColorSpec.SRGB}
        self.decoded += 1
        try:
            pixels = self.decode(np.asarray(stream.image.convert("RGB")))
        except OSError:
            pixels = None
        return None if pixels is None else SimpleNamespace(cpu=lambda: pixels)


def install_codec(monkeypatch: pytest.MonkeyPatch) -> PuppetCodec:
    """Let the package be there."""
    codec = PuppetCodec()
    monkeypatch.setitem(sys.modules, "nvidia.nvimgcodec", codec)
    return codec
