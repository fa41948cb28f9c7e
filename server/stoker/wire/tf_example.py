"""Serialized `tf.train.Example`, for models that parse them; written without TensorFlow, which frontends do not have.

Source: `tensorflow/core/example/feature.proto` and protobuf's wire format. An example is a map from names to lists of
bytes, of 32-bit floats, or of 64-bit integers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

from stoker.wire.protobuf import field, varint_bytes

__all__ = ["Feature", "entry_of", "example_of"]

Feature = Sequence[Any]
"""The values of a feature, all of them `bytes`, `float` or `int`; a list of none has no type."""

# Every field here holds bytes or a message: wire type 2.
_FEATURES: Final = 1
_ENTRY: Final = 1
_KEY, _VALUE = 1, 2
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_LIST_VALUE: Final = 1
_INT64_MASK: Final = (1 << 64) - 1


def example_of(entries: Iterable[bytes]) -> bytes:
    """Return an example with these entries of `entry_of`, the last of those with one name."""
    return field(_FEATURES, b"".join(entries))


def entry_of(name: str, values: Feature) -> bytes:
    """Return a feature under its name.

    Raises:
        OverflowError: A number does not fit its type.
    """
    key = field(_KEY, name.encode(errors="surrogatepass"))
    return field(_ENTRY, key + field(_VALUE, _feature(values)))


def _feature(values: Feature) -> bytes:
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return field(_BYTES_LIST, b"".join(field(_LIST_VALUE, value) for value in values))
    if isinstance(values[0], float):
        return field(_FLOAT_LIST, field(_LIST_VALUE, struct.pack(f"<{len(values)}f", *values)))
    return field(_INT64_LIST, field(_LIST_VALUE, b"".join(map(_int64, values))))


def _int64(value: int) -> bytes:
    if not -(1 << 63) <= value < 1 << 63:
        raise OverflowError("an integer does not fit 64 bits")
    # Negative numbers are written as their complement, in ten bytes.
    return varint_bytes(value & _INT64_MASK)
