"""Scoring bodies that are made up from a model's signature, for people to begin with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from stoker.tensors import Signature, TensorSpec


def make_body(signature: Signature) -> Any:
    """Return a body that the model accepts: the example of a script, else one row of zeros; None if unknown."""
    if signature.script is not None:
        return (signature.script.input_schema or {}).get("example")
    tensors = signature.model_tensors
    if tensors is None or any(-1 in info.shape[1:] for info in tensors.inputs):
        return None
    data: Any = {
        info.name: [json.loads(info.example)]
        if info.example
        else _zeros([max(size, 1) for size in info.shape], info.dtype)
        for info in tensors.inputs
    }
    if len(data) == 1:
        (data,) = data.values()
    elif tensors.table:
        data = [{name: value for name, (value,) in data.items()}]
    return {"data": data}


def make_rows(spec: TensorSpec) -> Any:
    """Return one row of zeros, as an answer has the rows of an output."""
    return _zeros([1, *spec.shape], spec.dtype)


def _zeros(shape: Sequence[int], dtype: str) -> Any:
    if not shape:
        return {"bool": False, "string": ""}.get(dtype, 0)
    return [_zeros(shape[1:], dtype) for _ in range(shape[0])]
