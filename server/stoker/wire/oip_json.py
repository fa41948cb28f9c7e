"""The JSON of infer requests whose inputs are flat lists of numbers, which simdjson flattens without making objects.

As with rows of numbers there are two paths with the same verdict: what cannot be proved here goes to
`wire.oip_requests`, which also says what is wrong.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import simdjson

from stoker.tensors import ModelTensors
from stoker.wire.flat_numbers import BUFFERS, KEPT_BYTES
from stoker.wire.json_bodies import MAX_VALUES, check_values

__all__ = ["NumberLists"]

_LISTS_OF_INPUT: Final = 2
_MAX_OBJECTS: Final = 100


class NumberLists:
    """Reads the requests of one model. Not thread-safe: it reuses its parser's memory.

    Args:
        tensors: What the model takes.
    """

    def __init__(self, tensors: ModelTensors) -> None:
        self._parser = simdjson.Parser()
        self._buffers: dict[str, tuple[str, type[Any]]] = {}
        # Each request has all inputs, so one that cannot be read here keeps the others from it.
        if not any(info.dtype in ("string", "bool", "float16") for info in tensors.inputs):
            self._buffers = {info.name: BUFFERS[np.dtype(info.dtype).kind] for info in tensors.inputs}
        # Each input has some, they are in one, and so are the outputs.
        self._most_lists = 2 + _LISTS_OF_INPUT * len(tensors.inputs)

    def read(self, body: bytes) -> dict[str, Any] | None:
        """Return the document with the `data` of each input as a vector of the widest dtype of its kind.

        None if it is something else than such a request: other values, nested lists, names that come twice.

        Raises:
            BodyTooLarge: See `check_values`.
        """
        # A body may begin with less, or hold more, than the other parser takes; nested lists are not parsed twice.
        if (
            not self._buffers
            or not body.startswith(b"{")
            or body.count(b"{") > _MAX_OBJECTS
            or body.count(b"[") > self._most_lists
        ):
            return None
        if len(body) > MAX_VALUES:
            check_values(body)
        document = self._read(body)
        if len(body) > KEPT_BYTES:
            self._parser = simdjson.Parser()
        return document

    def _read(self, body: bytes) -> dict[str, Any] | None:
        document: Any
        entries: Any
        try:
            document = self._parser.parse(body)
            read = _members(document, without="inputs")
            entries = document["inputs"]
            read["inputs"] = inputs = [self._entry(entry) for entry in entries]
            # Each list that a request of this form has; so there is none within another one's numbers.
            lists = 1 + _LISTS_OF_INPUT * len(inputs) + isinstance(read.get("outputs"), list)
            return read if body.count(b"[") == lists else None
        except (ValueError, TypeError, LookupError, AttributeError, RuntimeError):
            return None
        finally:
            # The parser refuses its next document while anything refers to the last one.
            document = entries = None

    def _entry(self, entry: Any) -> dict[str, Any]:
        read = _members(entry, without="data")
        buffer_type, dtype = self._buffers[read["name"]]
        if not isinstance(read["shape"], list):
            raise TypeError("no list")
        read["data"] = np.frombuffer(entry["data"].as_buffer(of_type=buffer_type), dtype)
        return read


def _members(value: Any, without: str) -> dict[str, Any]:
    """The members of an object but one, which is there; raises ValueError if one is there twice."""
    names = list(value.keys())
    if len(set(names)) < len(names) or without not in names:
        raise ValueError("names come twice, or not at all")
    return {name: _plain(value[name]) for name in names if name != without}


def _plain(value: Any) -> Any:
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value
