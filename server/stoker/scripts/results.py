"""Writes what `run` returned as the bytes of an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson


def encode_result(result: Any) -> bytes:
    """Return a result of `run` as JSON, as the Azure inference server writes it.

    `None` becomes `{}`; a string is encoded again even if it holds JSON; NaN and infinities become the
    tokens `NaN`, `Infinity` and `-Infinity`; numpy arrays and numbers become lists and numbers.

    Raises:
        TypeError: JSON cannot hold the result; the message is for the author of the script.
    """
    return b"{}" if result is None else _dumped(result)


def encode_rows(rows: Sequence[Any]) -> list[bytes]:
    """Return each row of a batched result as compact JSON.

    Raises:
        TypeError: JSON cannot hold a row.
    """
    return [_encode_row(row) for row in rows]


def is_response(result: Any) -> bool:
    """Whether `run` returned a response: an `AMLResponse`, or one of Flask or Werkzeug."""
    return callable(getattr(result, "get_data", None)) and all(
        hasattr(result, name) for name in ("status_code", "headers")
    )


def _encode_row(row: Any) -> bytes:
    try:
        text = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return _compact(row)
    # orjson writes NaN and infinities as null.
    return _compact(row) if b"null" in text else text


def _compact(row: Any) -> bytes:
    return _dumped(row, separators=(",", ":"))


def _dumped(value: Any, **options: Any) -> bytes:
    try:
        return json.dumps(value, default=_plain, **options).encode()
    except RecursionError:
        raise TypeError("run() returned a value that is nested too deeply for JSON") from None
    except ValueError as error:
        if "Circular" in str(error):
            flaw = "a value that contains itself"
        elif "integer string" in str(error):
            flaw = "an integer of more digits than Python writes"
        else:
            raise
        raise TypeError(f"run() returned {flaw}, which JSON cannot hold") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"run() returned {type(value).__name__}, which JSON cannot hold")
