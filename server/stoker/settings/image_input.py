"""The image input of a model: the size of images, and how pixels become numbers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, get_args

from stoker.settings.readers import choice_of, number_of, optional, read_members, read_switch

Layout = Literal["hwc", "chw"]
Decoding = Literal["precise", "fast"]

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


def _read_size(value: Any) -> tuple[int, int]:
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        value = [int(match[1]), int(match[2])]
    if (
        not isinstance(value, Sequence)
        or len(value) != 2
        or any(not isinstance(side, int) or not 1 <= side <= _MAX_SIDE for side in value)
    ):
        raise ValueError(f"must be height and width, each between 1 and {_MAX_SIDE}")
    return value[0], value[1]


def _read_channels(value: Any) -> int:
    if str(value) not in ("1", "3"):
        raise ValueError("must be 1 (grey) or 3 (red, green, blue)")
    return int(value)


def _numbers_of(read: Callable[[Any], float]) -> Callable[[Any], tuple[float, ...]]:
    """Return a reader of one number for each channel, or one for all; a text separates them with `/`."""

    def read_all(value: Any) -> tuple[float, ...]:
        """Read a value as the function around says."""
        parts = value.split("/") if isinstance(value, str) else value
        return tuple(map(read, parts if isinstance(parts, Sequence) else (parts,)))

    return read_all


_POSITIVE: Final = number_of(float, 1e-9, 1e9)
_READERS: Final = {
    "size": _read_size,
    "channels": _read_channels,
    "scale": optional(_POSITIVE),
    "mean": _numbers_of(number_of(float, -1e9, 1e9)),
    "std": _numbers_of(_POSITIVE),
    "invert": read_switch,
    "layout": optional(choice_of(*get_args(Layout))),
    "decoding": choice_of(*get_args(Decoding)),
}


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
        raise ValueError(
            f"must hold {', '.join(_READERS)} by name, or be a text such as size=28x28,channels=1"
        )
    members = read_members(value, _READERS)
    if "size" not in members:
        raise ValueError("needs a size, height before width: size: [28, 28], or size=28x28 in a text")
    image = ImageInput(*members.pop("size"), **members)
    mean, std = (_by_channel(name, getattr(image, name), image.channels) for name in ("mean", "std"))
    return replace(image, mean=mean, std=std)


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


def _by_channel(name: str, numbers: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Repeat a number that holds for all channels."""
    if len(numbers) == 1:
        return numbers * channels
    if len(numbers) not in (0, channels):
        raise ValueError(f"has {len(numbers)} numbers for {name} and {channels} channels")
    return numbers
