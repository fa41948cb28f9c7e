"""Answers of the Open Inference Protocol v2: JSON, binary tensor data after it, and classification.

Sources: those of `wire.oip_requests`. Sans-I/O: arrays in, bytes out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson

from stoker.errors import InvalidInput
from stoker.settings.choices import WORDS, NonFinite
from stoker.tensors import number_kind
from stoker.wire.json_bodies import rewrite_non_finite
from stoker.wire.oip_requests import InferRequest, RegionOutput, WantedOutput
from stoker.wire.oip_tensors import datatype_of, to_raw

_MAX_CLASSIFIED: Final = 1_000_000
_MAX_CLASSES: Final = 100_000


def encode_infer(
    model: str,
    version: str,
    request: InferRequest,
    outputs: Mapping[str, np.ndarray],
    *,
    batched: bool,
    non_finite: NonFinite = WORDS,
) -> tuple[int | None, bytes]:
    """Encode an answer.

    Args:
        request: The request; outputs for regions have been written there, and are only described.

    Returns:
        The length of the JSON if binary data follows it (`Inference-Header-Content-Length`), else None; and the body.
    """
    entries, binaries = [], []
    for wanted in request.wanted:
        array = classified(wanted, outputs[wanted.name], batched=batched)
        entry: dict[str, Any] = {
            "name": wanted.name, "shape": list(array.shape), "datatype": datatype_of(array),
        }  # fmt: skip
        if isinstance(wanted, RegionOutput):
            # No parameters, as from Triton: its C++ client would take them for those of binary data.
            pass
        elif wanted.binary:
            content = to_raw(array)
            entry["parameters"] = {"binary_data_size": len(content)}
            binaries.append(content)
        else:
            entry["data"] = _to_json(wanted.name, array)
        entries.append(entry)
    answer: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id:
        answer["id"] = request.id
    answer["outputs"] = entries
    text = _dump(answer, [entry.get("data") for entry in entries], non_finite)
    if not any(binaries):
        return None, text
    return len(text), b"".join((text, *binaries))


def _to_json(name: str, array: np.ndarray) -> Any:
    if array.dtype == object:
        return [_text(name, element) for element in array.reshape(-1).tolist()]
    if array.dtype == np.float16:
        raise InvalidInput(f"output '{name}' is FP16: ask for it as binary data")
    if array.dtype.kind == "V":
        # orjson does not write bfloat16; float32 holds each of its numbers.
        array = array.astype(np.float32)
    return np.ascontiguousarray(array.reshape(-1))


def _text(name: str, element: bytes) -> str:
    try:
        return element.decode()
    except UnicodeDecodeError:
        raise InvalidInput(
            f"output '{name}' holds bytes that are not UTF-8: ask for it as binary data"
        ) from None


def _dump(answer: Mapping[str, Any], data: Sequence[Any], non_finite: NonFinite) -> bytes:
    arrays = [array for array in data if isinstance(array, np.ndarray) and number_kind(array.dtype) == "f"]
    text = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    if all(np.isfinite(array).all() for array in arrays):
        return text
    return rewrite_non_finite(text, answer, np.ndarray.tolist, non_finite, (",", ":"))


def classified(wanted: WantedOutput, array: np.ndarray, *, batched: bool) -> np.ndarray:
    """Return an output in its requested form: as it is, or its classes; see `classify`."""
    if not wanted.classes:
        return array
    return classify(wanted.name, array, wanted.classes, wanted.labels, batched=batched)


def classify(
    name: str, array: np.ndarray, classes: int, labels: Sequence[str] = (), *, batched: bool
) -> np.ndarray:
    """Return the `classes` largest values of each row as `value:index`, the largest first.

    Args:
        array: Numbers, `[rows, classes]` or of any shape without a batch axis; flattened except for the batch axis.
        labels: Names by index, appended as `value:index:label`; none for empty names and beyond the last one.
    """
    if array.dtype == object or array.dtype == np.float16:
        raise InvalidInput(f"output '{name}' cannot be classified: it is {datatype_of(array)}")
    if array.size > _MAX_CLASSIFIED:
        raise InvalidInput(
            f"output '{name}' cannot be classified: it has more than {_MAX_CLASSIFIED} elements"
        )
    rows = array.reshape((len(array), math.prod(array.shape[1:])) if batched else (1, array.size))
    classes = min(classes, rows.shape[1])
    if len(rows) * classes > _MAX_CLASSES:
        raise InvalidInput(
            f"output '{name}' cannot be classified: {classes} classes for each of {len(rows)} rows are more than "
            f"the {_MAX_CLASSES} that are given at once"
        )
    # Stable: of equal values the one with the lower index comes first. NaN sorts last.
    keys = np.where(np.isnan(rows), -np.inf, rows) if number_kind(rows.dtype) == "f" else rows
    places = (rows.shape[1] - 1 - np.argsort(keys[:, ::-1], axis=1, kind="stable")[:, ::-1])[:, :classes]
    largest = rows[np.arange(len(rows))[:, None], places].reshape(-1).tolist()
    pattern = "%.6f:%d" if number_kind(rows.dtype) == "f" else "%d:%d"
    answer = np.empty(len(largest), object)
    answer[:] = [
        (pattern % (value, index) + _label(labels, index)).encode()
        for value, index in zip(largest, places.reshape(-1).tolist(), strict=True)
    ]
    return answer.reshape(places.shape if batched else -1)


def _label(labels: Sequence[str], index: int) -> str:
    return f":{labels[index]}" if index < len(labels) and labels[index] else ""
