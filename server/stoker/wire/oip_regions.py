"""Tensors of the Open Inference Protocol v2 in shared memory of the caller: where they are, by their parameters.

Source: Triton's system shared memory extension. Sans-I/O: whoever decodes a request passes in what reads a region.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from stoker.errors import MalformedBody
from stoker.tensors import TensorInfo
from stoker.wire.oip_tensors import from_raw

__all__ = ["RegionReader", "RegionSpan", "from_region", "span_of"]

_REGION: Final = "shared_memory_region"
_OFFSET: Final = "shared_memory_offset"
_SIZE: Final = "shared_memory_byte_size"
_MOST: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RegionSpan:
    """A part of a region that has been registered.

    Attributes:
        region: The region's name.
        offset_bytes: Where the part begins, from the beginning of the region.
        size_bytes: How long it is.
    """

    region: str
    offset_bytes: int
    size_bytes: int


class RegionReader(Protocol):
    """What has the regions that one request may use."""

    def read(self, span: RegionSpan) -> memoryview:
        """Return a copy of a part of a region.

        Raises:
            StokerError: There is no such region, or it does not have this part.
        """


def span_of(parameters: Mapping[str, Any]) -> RegionSpan | None:
    """Return where the parameters of an input or an output say that its data are; None if not in a region.

    Raises:
        MalformedBody: They say it by halves, or with a wrong type.
    """
    region = parameters.get(_REGION)
    if region is None:
        if _OFFSET in parameters or _SIZE in parameters:
            raise MalformedBody(f"'{_OFFSET}' and '{_SIZE}' need '{_REGION}'")
        return None
    if not isinstance(region, str) or not region:
        raise MalformedBody(f"'{_REGION}' must be the name of a region")
    numbers = [parameters.get(_OFFSET, 0), parameters.get(_SIZE)]
    for name, number in zip((_OFFSET, _SIZE), numbers, strict=True):
        if type(number) is not int or not 0 <= number <= _MOST:
            raise MalformedBody(f"'{name}' must be a non-negative number of bytes")
    return RegionSpan(region, *numbers)


def from_region(
    model: str, info: TensorInfo, shape: tuple[int, ...], span: RegionSpan, regions: RegionReader
) -> np.ndarray:
    """Return an input whose data are in a region.

    Args:
        model: The model's name, for error messages.
        info: The input.
        shape: Its shape in this request.
        span: Where its data are.
        regions: Reads them.

    Raises:
        MalformedBody: There are more or fewer bytes than the shape needs; nothing is read then.
        StokerError: As `RegionReader.read`.
    """
    if info.dtype != "string":
        size_bytes = math.prod(shape) * np.dtype(info.dtype).itemsize
        if span.size_bytes != size_bytes:
            raise MalformedBody(
                f"input '{info.name}' of model '{model}' has {span.size_bytes} bytes in shared memory, "
                f"but its shape [{','.join(map(str, shape))}] needs {size_bytes}"
            )
    return from_raw(model, info, shape, regions.read(span))
