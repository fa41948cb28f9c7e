"""The description of a service: Swagger 2.0 and OpenAPI 3, with the operation names of Azure Machine Learning."""

from __future__ import annotations

from typing import Any, Final

from stoker.errors import NotFound
from stoker.gateway.service import Service
from stoker.tensors import TensorSpec

__all__ = ["describe"]

_VERSIONS: Final = {"2": "2.0", "2.0": "2.0", "3": "3.0.3", "3.0": "3.0.3", "3.1": "3.1.0"}
_ERROR: Final = {
    "type": "object",
    "properties": {"message": {"type": "string"}, "code": {"type": "string"}},
}


def describe(service: Service, path: str, version: str | None) -> dict[str, Any]:
    """Return the description that `path` (ending in `swagger.json`) serves.

    Args:
        service: The service.
        path: Path of the request; the scoring path is its sibling.
        version: `2` (default), `3` or `3.1`.

    Raises:
        NotFound: There is no such version.
    """
    number = _VERSIONS.get(version or "2")
    if number is None:
        raise NotFound(f"Swagger version [{version}] is not valid. Supported versions: [2, 3, 3.1].")
    score_path = path.removesuffix("swagger.json") + "score"
    info = {
        "title": service.name,
        "version": "1.0",
        "description": f"API specification for the Azure Machine Learning service {service.name}",
    }
    schemas = {"ServiceInput": _input(service), "ServiceOutput": _output(service), "ErrorResponse": _ERROR}
    bearer = {
        "type": "apiKey", "name": "Authorization", "in": "header", "description": "For example: Bearer abc123",
    }  # fmt: skip
    if number == "2.0":
        return {
            "swagger": number,
            "info": info,
            "schemes": ["http", "https"],
            "consumes": ["application/json"],
            "produces": ["application/json"],
            "securityDefinitions": {"Bearer": bearer},
            "paths": _paths(score_path, path, _body_v2),
            "definitions": schemas,
        }
    return {
        "openapi": number,
        "info": info,
        "paths": _paths(score_path, path, _body_v3),
        "components": {"securitySchemes": {"Bearer": bearer}, "schemas": schemas},
    }


def _paths(score_path: str, path: str, body: Any) -> dict[str, Any]:
    request, response = body
    return {
        "/": {"get": {"operationId": "ServiceHealthCheck", "responses": {"200": {"description": "Healthy"}}}},
        score_path: {
            "post": {
                "operationId": "RunMLService",
                "security": [{"Bearer": []}],
                **request("ServiceInput"),
                "responses": {
                    "200": {"description": "The answer, one entry per row", **response("ServiceOutput")},
                    "default": {"description": "An error", **response("ErrorResponse")},
                },
            }
        },
        path: {"get": {"operationId": "GetSwaggerSpec", "responses": {"200": {"description": "This text"}}}},
    }


def _request_v2(name: str) -> dict[str, Any]:
    schema = {"$ref": f"#/definitions/{name}"}
    return {"parameters": [{"name": "serviceInputPayload", "in": "body", "required": True, "schema": schema}]}


def _response_v2(name: str) -> dict[str, Any]:
    return {"schema": {"$ref": f"#/definitions/{name}"}}


def _content_v3(name: str) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}


def _request_v3(name: str) -> dict[str, Any]:
    return {"requestBody": {"required": True, **_content_v3(name)}}


_body_v2: Final = (_request_v2, _response_v2)
_body_v3: Final = (_request_v3, _content_v3)


def _input(service: Service) -> dict[str, Any]:
    signature = service.signature
    if signature is None or signature.takes == "body":
        return {"type": "object", "example": {}}
    if len(signature.inputs) == 1:
        data = _rows(signature.inputs[0])
    else:
        properties = {spec.name: _rows(spec) for spec in signature.inputs}
        data = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _output(service: Service) -> dict[str, Any]:
    signature = service.signature
    if signature is None or signature.takes == "body" or signature.outputs[0].variable:
        return {"type": "object", "example": {}}
    if len(signature.outputs) == 1:
        return _rows(signature.outputs[0])
    return {"type": "object", "properties": {spec.name: _rows(spec) for spec in signature.outputs}}


def _rows(spec: TensorSpec) -> dict[str, Any]:
    kind = {"b": "boolean", "i": "integer", "u": "integer"}.get(spec.dtype[0], "number")
    schema: dict[str, Any] = {"type": kind, "format": spec.dtype}
    for size in reversed(spec.shape):
        schema = {"type": "array", "items": schema, "minItems": size, "maxItems": size}
    return {"type": "array", "items": schema}
