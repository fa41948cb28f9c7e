"""Decodes the JSON of models whose requests are whole tensors, as `decode_tensors` does, and lists of numbers sooner.

As with rows of numbers there are two paths with the same verdict: simdjson flattens the numbers of each input, and
the brackets prove what shape they were in. What cannot be proved goes to `decode_tensors`, which also says what is
wrong.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import simdjson

from stoker.errors import InvalidInput
from stoker.tensors import ModelTensors, TensorInfo
from stoker.wire.flat_numbers import BUFFERS, KEPT_BYTES, holds_structure, pattern, structure
from stoker.wire.json_bodies import MAX_VALUES, check_values
from stoker.wire.tensor_json import as_dtype, check_rows, decode_tensors

__all__ = ["TensorDecoder"]


class TensorDecoder:
    """Decodes the bodies of one model. Not thread-safe: it reuses its parser's memory.

    Args:
        tensors: What the model takes.
    """

    def __init__(self, tensors: ModelTensors) -> None:
        self._tensors = tensors
        self._parser = simdjson.Parser()
        self._infos = {info.name: info for info in tensors.inputs} if _are_numbers(tensors) else {}

    def decode(self, body: bytes) -> dict[str, np.ndarray]:
        """Return the inputs by name, with the model's dtypes; raises as `decode_tensors`."""
        if self._infos:
            if len(body) > MAX_VALUES:
                check_values(body)
            arrays = self._decode_fast(body)
            if len(body) > KEPT_BYTES:
                self._parser = simdjson.Parser()
            if arrays is not None:
                return arrays
        return decode_tensors(body, self._tensors)

    def _decode_fast(self, body: bytes) -> dict[str, np.ndarray] | None:
        try:
            document: Any = self._parser.parse(body)
            if len(document) != 1:
                return None
            data: Any = document["data"]
            arrays, patterns = {}, []
            for name, lists in self._named(data):
                if name in arrays:
                    return None
                info = self._infos[name]
                shape = _shape(lists)
                if not info.fits(shape):
                    return None
                arrays[name] = as_dtype(_flattened(lists, info, shape), info)
                patterns.append(pattern(shape))
            if len(arrays) < len(self._infos) or structure(body) != b",".join(patterns):
                return None
            check_rows(arrays, self._tensors)
            return {name: arrays[name] for name in self._infos}
        except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, InvalidInput):
            return None
        finally:
            # The parser refuses its next document while anything refers to the last one.
            document = data = lists = None

    def _named(self, data: Any) -> list[tuple[str, Any]]:
        """The inputs that a body names; the only one needs no name."""
        if isinstance(data, simdjson.Array):
            (name,) = self._infos
            return [(name, data)]
        # Its `items` would make Python lists of them.
        return [(name, data[name]) for name in data.keys()]  # noqa: SIM118  # it is no dict


def _are_numbers(tensors: ModelTensors) -> bool:
    """Whether simdjson can flatten all inputs, and no name holds what would be taken for a list's bracket."""
    return all(
        info.dtype != "string" and np.dtype(info.dtype).kind in BUFFERS and not holds_structure(info.name)
        for info in tensors.inputs
    )


def _shape(lists: Any) -> tuple[int, ...]:
    """The lengths of the lists, of which each first one is looked at; whether the others are alike is seen later."""
    sizes = []
    while isinstance(lists, simdjson.Array):
        sizes.append(len(lists))
        lists = lists[0]
    return tuple(sizes)


def _flattened(lists: Any, info: TensorInfo, shape: tuple[int, ...]) -> np.ndarray:
    """All numbers of lists as `[*shape]` of the widest dtype of their kind.

    Raises ValueError if they are more or fewer, and what simdjson raises if they are something else.
    """
    buffer_type, dtype = BUFFERS[np.dtype(info.dtype).kind]
    values = memoryview(lists.as_buffer(of_type=buffer_type))
    if values.nbytes != math.prod(shape) * 8:
        raise ValueError("the lists are ragged")
    return np.ndarray(shape, dtype, values)
