"""Request bodies: rows -> JSON bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import orjson

from stoker_client.errors import InvalidRows

__all__ = ["Rows", "encode_json", "refuse_masked"]

_MASKED: Final = (
    "a masked array, and what lies under its mask would be sent: fill it first, by its method filled"
)

Rows: TypeAlias = npt.ArrayLike | Sequence[object]
"""Rows to score: an array or anything numpy makes one of (tensors, data frames), or a list of JSON values.

The first axis always counts the rows: one image of 784 numbers is `image[None]`, of shape (1, 784).
"""


def encode_json(body: object) -> bytes:
    """Encode a body that may hold numpy arrays anywhere, as strict JSON (decision 9); float32 keeps its short form.

    Raises:
        InvalidRows: A number is NaN or infinite, for which JSON has no form, or a value has no JSON form.
    """
    try:
        encoded = _dumps(body)
    except TypeError:
        try:
            encoded = _dumps(_with_native_arrays(body))
        except TypeError as error:
            raise InvalidRows(f"the rows have no JSON form: {error.__cause__ or error}") from error
    # orjson writes null for NaN and infinities. Looking for that word costs far less than looking at every
    # number; a null or a text "null" of the caller's own only costs the closer look.
    if b"null" in encoded:
        _refuse_non_finite(body, "body")
    return encoded


def refuse_masked(value: object, subject: str = "the rows are") -> None:
    """Raise InvalidRows, with `subject` in the message, for an array with masked values, which would be sent."""
    if _is_masked(value):
        raise InvalidRows(f"{subject} {_MASKED}")


def _is_masked(value: object) -> bool:
    # Few arrays are of a class of their own, and numpy.ma is not loaded for others.
    return type(value) is not np.ndarray and isinstance(value, np.ndarray) and bool(np.ma.is_masked(value))


def _dumps(body: object) -> bytes:
    return orjson.dumps(body, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)


def _with_native_arrays(value: object) -> object:
    """Convert arrays to this machine's byte order: orjson refuses others without calling `_plain`."""
    if isinstance(value, Mapping):
        return {name: _with_native_arrays(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_native_arrays(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.astype(value.dtype.newbyteorder("="), copy=False)
    return value


def _plain(value: object) -> object:
    """Convert a value that orjson cannot encode; it calls this only for those."""
    if isinstance(value, np.generic):
        value = np.asarray(value)
    if not isinstance(value, np.ndarray):
        if hasattr(value, "__array__"):
            return np.asarray(value)
        raise TypeError(f"a value of type {type(value).__name__}")
    if _is_masked(value):
        raise TypeError(_MASKED)
    if value.dtype.kind not in "biufUO":
        raise TypeError(f"an array of dtype {value.dtype}")
    if value.dtype.kind == "f" and value.dtype.itemsize > 8:
        value = _as_double(value)
    return value.tolist() if value.ndim == 0 or value.dtype.kind in "UO" else np.ascontiguousarray(value)


def _as_double(array: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    with np.errstate(over="ignore"):  # what becomes infinite is refused with its place
        return array.astype(np.float64)


def _refuse_non_finite(value: object, place: str) -> None:
    """Raise InvalidRows with the place of the first number that is not finite."""
    if isinstance(value, float | np.floating):
        if not math.isfinite(value):
            raise InvalidRows(f"{place} is {float(value)}: only finite numbers can be sent")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            _refuse_non_finite(item, f"{place}[{name!r}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _refuse_non_finite(item, f"{place}[{index}]")
    elif hasattr(value, "__array__"):
        _refuse_non_finite_array(np.asarray(value), place)


def _refuse_non_finite_array(array: npt.NDArray[np.generic], place: str) -> None:
    if array.dtype.kind == "O":
        _refuse_non_finite(array.tolist(), place)
    elif array.dtype.kind == "f":
        array = _as_double(array)
        for index in np.argwhere(~np.isfinite(array))[:1]:
            _refuse_non_finite(array[tuple(index)], place + "".join(f"[{axis}]" for axis in index))
