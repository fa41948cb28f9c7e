"""What `run` returns, as the caller gets it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from stoker.scripts.stand_ins import stand_ins
from stoker.wire.script_requests import ScriptAnswer

__all__ = ["encode_result", "encode_rows", "is_response", "response_answer"]


def encode_result(result: Any) -> bytes:
    """Return what `run` returned as JSON, as the Azure inference server does.

    `None` becomes `{}`; a string is encoded again even if it holds JSON; NaN and infinities become the
    tokens `NaN`, `Infinity` and `-Infinity`; numpy arrays and numbers become lists and numbers.

    Raises:
        TypeError: JSON cannot hold the result.
        ValueError: It contains itself.
        RecursionError: It is nested too deeply.
    """
    if result is None:
        return b"{}"
    return json.dumps(result, default=_plain).encode()


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


def response_answer(response: Any, exec_ns: int) -> ScriptAnswer:
    """Return a response as it goes to the caller."""
    return dataclasses.replace(stand_ins().answer_from(response), exec_ns=exec_ns)


def _encode_row(row: Any) -> bytes:
    try:
        text = orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return _compact(row)
    # orjson writes what is not finite as null.
    return _compact(row) if b"null" in text else text


def _compact(row: Any) -> bytes:
    return json.dumps(row, default=_plain, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"run() returned {type(value).__name__}, which JSON cannot hold")
