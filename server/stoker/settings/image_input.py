"""The image input of a model: the size of images, and how pixels become numbers."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from stoker.settings.readers import check_keys

Layout = Literal["hwc", "chw"]
Decoding = Literal["precise", "fast"]

_KEYS: Final = ("size", "channels", "scale", "mean", "std", "invert", "layout", "decoding")
_SIZE: Final = re.compile(r"([0-9]{1,5})x([0-9]{1,5})", re.ASCII)
_MAX_SIDE: Final = 16384


@dataclass(frozen=True, slots=True)
class ImageInput:
    """The image input of a model. A pixel's value v in 0..255 becomes `(v / scale - mean) / std`.

    Attributes:
        height: Rows of pixels that the model takes; images of other sizes are resized.
        width: Pixels in each.
        channels: 1 for grey, 3 for red, green and blue.
        scale: The divisor of pixel values; None is 255 for float inputs and 1 for integer ones.
        mean: The numbers that are subtracted afterwards, one for each channel; empty for none.
        std: The divisors of the result, one for each channel; empty for none.
        invert: Whether dark and light change places first: dark ink on white paper becomes light on dark.
        layout: The order of the axes height, width and channel; None takes it from the input's shape.
        decoding: Whether JPEGs are decoded at the smallest scale that gives enough pixels (`fast`), or with at
            least three times as many on each side, if there are (`precise`).
    """

    height: int
    width: int
    channels: int = 3
    scale: float | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    invert: bool = False
    layout: Layout | None = None
    decoding: Decoding = "precise"

    def to_json(self) -> dict[str, Any]:
        """Return the mapping that `read_image_input` reads, in JSON types."""
        values: dict[str, Any] = {"size": [self.height, self.width], "channels": self.channels}
        for name in ("scale", "mean", "std", "invert", "layout"):
            if value := getattr(self, name):
                values[name] = list(value) if isinstance(value, tuple) else value
        if self.decoding != "precise":
            values["decoding"] = self.decoding
        return values

    def __str__(self) -> str:
        return f"{self.height} × {self.width} pixels, {'grey' if self.channels == 1 else 'RGB'}"


def read_image_input(value: Any) -> ImageInput:
    """Read an image input from a mapping or from a text such as `size=28x28,channels=1,scale=255,invert`.

    Args:
        value: The mapping or text; an `ImageInput` is returned as it is.
    """
    if isinstance(value, ImageInput):
        return value
    if isinstance(value, str):
        value = _split(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"must hold {', '.join(_KEYS)} by name, or be a text such as size=28x28,channels=1")
    check_keys(value, _KEYS)
    if "size" not in value:
        raise ValueError("needs a size, height before width: size: [28, 28], or size=28x28 in a text")
    height, width = _size(value["size"])
    channels = value.get("channels", 3)
    if str(channels) not in ("1", "3"):
        raise ValueError("has channels that are neither 1 (grey) nor 3 (red, green, blue)")
    layout = value.get("layout")
    if layout is not None and layout not in get_args(Layout):
        raise ValueError(f"has a layout that is none of {', '.join(get_args(Layout))}")
    decoding = value.get("decoding", "precise")
    if decoding not in get_args(Decoding):
        raise ValueError(f"has a decoding that is none of {', '.join(get_args(Decoding))}")
    scale = value.get("scale")
    return ImageInput(
        height,
        width,
        int(channels),
        None if scale is None else _positive(_number("scale", scale), "scale"),
        _by_channel("mean", value.get("mean", ()), int(channels)),
        tuple(_positive(x, "std") for x in _by_channel("std", value.get("std", ()), int(channels))),
        _switch(value.get("invert", False)),
        layout,
        decoding,
    )


def image_argument(text: str) -> ImageInput:
    """`read_image_input` for `argparse`, which shows the message of this error.

    Raises:
        argparse.ArgumentTypeError: The text is malformed.
    """
    try:
        return read_image_input(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"the image input {text!r} {error}") from None


def _split(text: str) -> dict[str, str]:
    """The items of `key=value,key=value,...`; a key alone is true."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    return {key.strip(): given.strip() or "true" for key, _, given in (item.partition("=") for item in items)}


def _size(value: Any) -> tuple[int, int]:
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        value = [int(match[1]), int(match[2])]
    if (
        not isinstance(value, Sequence)
        or len(value) != 2
        or any(not isinstance(side, int) or not 1 <= side <= _MAX_SIDE for side in value)
    ):
        raise ValueError(f"has a size that is not height and width, each between 1 and {_MAX_SIDE}")
    return value[0], value[1]


def _number(name: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"has a {name} that is not a number")
    return number


def _positive(number: float, name: str) -> float:
    if number <= 0:
        raise ValueError(f"has a {name} that is not above 0")
    return number


def _by_channel(name: str, value: Any, channels: int) -> tuple[float, ...]:
    """Read one number for each channel, or one for all; a text separates them with `/`."""
    parts = value.split("/") if isinstance(value, str) else value
    numbers = (
        tuple(_number(name, part) for part in parts)
        if isinstance(parts, Sequence)
        else (_number(name, parts),)
    )
    if len(numbers) == 1:
        return numbers * channels
    if len(numbers) not in (0, channels):
        raise ValueError(f"has {len(numbers)} numbers for {name} and {channels} channels")
    return numbers


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value not in ("true", "false"):
        raise ValueError("has an invert that is neither true nor false")
    return bool(value == "true")
