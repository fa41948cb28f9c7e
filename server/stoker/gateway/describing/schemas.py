"""JSON schemas of the bodies that score a model and of its answers, by its signature or its entry script's form."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stoker.gateway.scoring.service import Service
from stoker.tensors import Signature, TensorInfo, TensorSpec

ANYTHING: Final = {"type": "object", "example": {}}
"""The schema where only the model knows what it takes or answers."""

_TYPES: Final = {"b": "boolean", "i": "integer", "u": "integer", "s": "string"}
"""The type by the first letter of a dtype; all others are numbers."""


def input_schema(service: Service) -> dict[str, Any]:
    """Return the schema of the body that scores a service."""
    if service.script is not None:
        return service.script.input_schema or ANYTHING
    signature = service.signature
    if signature is None or signature.takes == "body":
        return ANYTHING
    tensors = signature.tensors
    if tensors is not None and tensors.table:
        return _table(signature)
    if signature.callers is not None:
        data: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
    elif signature.takes == "rows":
        data = _by_name({spec.name: _rows(spec) for spec in signature.inputs})
    elif tensors is None or len(signature.signatures) > 1:
        return ANYTHING
    else:
        data = _by_name({info.name: _tensor(info) for info in tensors.inputs})
    named = {"method": {"type": "string", "enum": [signature.method]}} if signature.method else {}
    return {"type": "object", "properties": {"data": data, **named}, "required": ["data"]}


def output_schema(service: Service) -> dict[str, Any]:
    """Return the schema of the answer of a service."""
    if service.script is not None:
        return service.script.output_schema or ANYTHING
    signature = service.signature
    if signature is None or signature.takes == "body":
        return ANYTHING
    if signature.takes == "rows":
        if signature.outputs[0].variable:
            return ANYTHING
        return _by_name({spec.name: _rows(spec) for spec in signature.outputs}, always=bool(signature.method))
    tensors = signature.tensors
    if tensors is None or tensors.table or len(signature.signatures) > 1:
        return ANYTHING
    return _by_name({info.name: _tensor(info) for info in tensors.outputs})


def _by_name(schemas: Mapping[str, dict[str, Any]], *, always: bool = False) -> dict[str, Any]:
    """Return the schema of an object of values by name; a single value stands alone, unless `always`."""
    if len(schemas) == 1 and not always:
        return next(iter(schemas.values()))
    return {"type": "object", "properties": dict(schemas), "required": list(schemas)}


def _table(signature: Signature) -> dict[str, Any]:
    """Return the schema of an estimator fitted on a table with texts: rows as objects, with an example."""
    assert signature.tensors is not None, "only models that take tensors have a table"
    inputs = signature.tensors.inputs
    types = {"string": "string", "bool": "boolean"}
    properties = {info.name: {"type": types.get(info.dtype, "number")} for info in inputs}
    row = {"type": "object", "properties": properties, "required": list(properties)}
    method = {"type": "string", "enum": [named.name for named in signature.signatures]}
    return {
        "type": "object",
        "properties": {"data": {"type": "array", "items": row}, "method": method},
        "required": ["data"],
        "example": {"data": [{info.name: json.loads(info.example) for info in inputs if info.example}]},
    }


def _rows(spec: TensorSpec) -> dict[str, Any]:
    schema, sizes = _element(spec.dtype), spec.shape
    if spec.as_objects:
        schema, sizes = _by_name(dict.fromkeys(spec.labels, schema), always=True), sizes[:-1]
    return {"type": "array", "items": _nested(schema, sizes)}


def _tensor(info: TensorInfo) -> dict[str, Any]:
    return {} if info.any_rank else _nested(_element(info.dtype), info.shape)


def _element(dtype: str) -> dict[str, Any]:
    return {"type": _TYPES.get(dtype[0], "number"), "format": dtype}


def _nested(schema: dict[str, Any], sizes: Sequence[int]) -> dict[str, Any]:
    """Return the schema of lists of these sizes, -1 for any size, of elements with a schema."""
    for size in reversed(sizes):
        bounds = {} if size < 0 else {"minItems": size, "maxItems": size}
        schema = {"type": "array", "items": schema, **bounds}
    return schema
