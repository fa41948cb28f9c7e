"""The description of a server in OpenAPI 3.1: how each model is scored, with examples, and the keys that it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from stoker import __version__
from stoker.gateway.describing.operations import describe_answer, describe_operation, json_content
from stoker.gateway.describing.schemas import ANYTHING, input_schema, output_schema
from stoker.gateway.describing.swagger import Naming
from stoker.gateway.describing.text_paths import text_paths
from stoker.gateway.model_directory import service_path
from stoker.gateway.scoring.service import Service
from stoker.samples.example_bodies import make_rows
from stoker.wire.images import IMAGE_TYPES

_ERRORS: Final = {
    "401": "The key is missing or wrong.",
    "422": "The body does not fit the inputs of the model.",
    "503": "The model cannot answer now.",
}
_ERROR: Final = {
    "type": "object",
    "properties": {"message": {"type": "string"}, "code": {"type": "string"}, "error_id": {"type": "string"}},
    "required": ["message", "code"],
}
_BEYOND: Final = {"float16": 65520.0, "float32": 3.4028235677973366e38, "bfloat16": 3.3895313892515355e38}
"""The least number that each dtype does not hold: smaller ones are rounded to its largest number."""
_KEY: Final = {
    "type": "http",
    "scheme": "bearer",
    "description": "The primary or secondary key of the model's service, a named key, or a token.",
}


def describe_server(
    services: Sequence[Service], leading: str | None, examples: Mapping[str, Any], naming: Naming
) -> dict[str, Any]:
    """Return the description of all models.

    Args:
        leading: The model that `/score` means; None if that path names no model.
        examples: Bodies by the names of the models that accept them.
    """
    paths: dict[str, Any] = {}
    for service in services:
        names = ["/score"] if service.name == leading else []
        for path in (*names, f"{service_path(service.name)}/score"):
            paths[path] = {"post": _scoring(service, path, examples.get(service.name))}
        if service.signature is not None and service.signature.callers is not None:
            for prefix in ("",) * (service.name == leading) + (service_path(service.name),):
                paths |= text_paths(service, prefix)
    for path, text in (
        ("/v2/health/live", "The server runs."),
        ("/v2/health/ready", "All models can score."),
    ):
        paths[path] = {"get": _health(path, text)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": naming.title or "Stoker",
            "version": naming.version,
            "description": f"The models of this server, Stoker {__version__}, which speaks further protocols too.",
        },
        "servers": [{"url": naming.path_prefix or "/"}],
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}, "securitySchemes": {"Key": _KEY}},
    }


def _scoring(service: Service, path: str, example: Any) -> dict[str, Any]:
    schema = _input(service)
    content = json_content(schema, example)
    if service.images is not None:
        content |= {kind: {"schema": {"type": "string", "format": "binary"}} for kind in IMAGE_TYPES}
    responses = {
        "200": describe_answer(
            "The scores.", json_content(_answer_schema(service), _answer_example(service))
        ),
        **{status: _error(text) for status, text in _ERRORS.items()},
        "default": _error("The request was refused, or the model failed; the code says why."),
    }
    name = "score" if path == "/score" else f"score_{service.name}"
    body = {"required": bool(schema), "content": content}
    scoring = describe_operation(service, name, f"Score {service.name}", body, responses)
    description = service.facts.description
    return {**scoring, "description": description} if description else scoring


def _error(text: str) -> dict[str, Any]:
    return describe_answer(text, json_content({"$ref": "#/components/schemas/Error"}))


def _health(path: str, text: str) -> dict[str, Any]:
    return {
        "operationId": path.rpartition("/")[2],
        "tags": ["health"],
        "summary": text,
        "responses": {"200": {"description": text}, "default": _error("That does not hold now.")},
    }


def _input(service: Service) -> dict[str, Any]:
    """Return the schema of a body, which is empty where only the model knows what it takes."""
    schema, signature = input_schema(service), service.signature
    if schema is ANYTHING:
        return {}
    if service.script is not None or signature is None or (signature.tensors and signature.tensors.table):
        return schema
    properties = schema["properties"]
    return {**schema, "properties": {**properties, "data": _bounded(properties["data"])}}


def _bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of rows with the bounds of their numbers, at least one row, and no other inputs."""
    if "properties" in schema:
        properties = {name: _bounded(one) for name, one in schema["properties"].items()}
        return {**schema, "properties": properties, "additionalProperties": False}
    if "items" in schema:
        return {**schema, "items": _bounded(schema["items"]), "minItems": schema.get("minItems", 1)}
    dtype = schema.get("format")
    if schema.get("type") == "integer":
        return {**schema, "minimum": int(np.iinfo(dtype).min), "maximum": int(np.iinfo(dtype).max)}
    if dtype not in _BEYOND:
        return schema
    return {**schema, "exclusiveMinimum": -_BEYOND[dtype], "exclusiveMaximum": _BEYOND[dtype]}


def _answer_schema(service: Service) -> dict[str, Any]:
    """Return the schema of an answer, with null where that stands for numbers that JSON cannot hold."""
    schema = output_schema(service)
    if schema is ANYTHING:
        return {}
    is_nullable = service.script is None and service.facts.non_finite == "null"
    return _nullable(schema) if is_nullable else schema


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if "items" in schema:
        return {**schema, "items": _nullable(schema["items"])}
    if "properties" in schema:
        return {**schema, "properties": {name: _nullable(one) for name, one in schema["properties"].items()}}
    return {**schema, "type": ["number", "null"]} if schema.get("type") == "number" else schema


def _answer_example(service: Service) -> Any:
    signature = service.signature
    if service.script is not None:
        return (service.script.output_schema or {}).get("example")
    if signature is None or signature.takes != "rows" or any(spec.variable for spec in signature.outputs):
        return None
    if any(spec.as_objects for spec in signature.outputs):
        return None
    if len(signature.outputs) == 1 and not signature.method:
        return make_rows(signature.outputs[0])
    return {spec.name: make_rows(spec) for spec in signature.outputs}
