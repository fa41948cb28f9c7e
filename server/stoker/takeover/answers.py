"""The answers of rows, packed tensors and entry scripts, as fields that can be compared."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import orjson

from stoker.errors import ServingError
from stoker.takeover.comparison import Answer
from stoker.wire.envelope import ScriptAnswer
from stoker.wire.packed import unpack

__all__ = ["json_fields", "packed_fields", "script_fields"]

_MAX_DEPTH: Final = 8
_STATUS: Final = "status"


def json_fields(body: bytes) -> dict[str, np.ndarray]:
    """Return the members of a JSON object by name, those of inner objects behind dots; any other value has no name.

    Numbers are arrays, as far as lists of them have one shape. Whatever else there is is compared as a text.
    """
    try:
        value = orjson.loads(body)
    except ValueError:
        return {"": _one(body)}
    fields: dict[str, np.ndarray] = {}
    _gather(value, "", fields, 0)
    return fields


def packed_fields(row: bytes) -> Answer:
    """Return the tensors of a row that holds a whole answer."""
    return unpack(row)


def script_fields(row: bytes) -> dict[str, np.ndarray]:
    """Return the fields of an entry script's answer, and its status where that is not 200.

    Raises:
        ServingError: The script is to blame for not answering.
    """
    answer = ScriptAnswer.unpack(row)
    if answer.failed:
        raise ServingError(f"The script has failed with status {answer.status}.")
    fields = json_fields(answer.body)
    if answer.status != 200:
        fields[_STATUS] = np.array([answer.status])
    return fields


def _gather(value: Any, name: str, fields: dict[str, np.ndarray], depth: int) -> None:
    if isinstance(value, dict) and value and depth < _MAX_DEPTH:
        for key, inner in value.items():
            _gather(inner, f"{name}.{key}" if name else key, fields, depth + 1)
        return
    fields[name] = _array(value)


def _array(value: Any) -> np.ndarray:
    try:
        array = np.array(value)
    except ValueError:  # lists of different lengths
        array = np.empty(0, object)
    return array if array.dtype.kind in "biuf" else _one(orjson.dumps(value))


def _one(text: bytes) -> np.ndarray:
    array = np.empty(1, object)
    array[0] = text
    return array
