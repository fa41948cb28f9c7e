"""The description of a service: Swagger 2.0 and OpenAPI 3, with the operation names of Azure Machine Learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from stoker.errors import NotFound, cut
from stoker.gateway.describing.schemas import input_schema, output_schema
from stoker.gateway.scoring.service import Service
from stoker.wire.images import IMAGE_TYPES

_VERSIONS: Final = ("2", "3", "3.1")
"""The versions of descriptions, as requests name them."""

_ALIASES: Final = {"2.0": "2", "3.0": "3"}
_ERROR: Final = {
    "type": "object",
    "properties": {"message": {"type": "string"}, "code": {"type": "string"}, "error_id": {"type": "string"}},
}
_FAILED: Final = "The service could not answer; the message says why."
_INPUT: Final = "The input of the model."


class Naming(Struct, frozen=True):
    """The names of a service in its description.

    Attributes:
        title: Title of the description; None is the service's name.
        path_prefix: The prefix that a proxy puts before the paths `/`, `/score` and `/swagger.json`.
    """

    title: str | None = None
    version: str = "1.0"
    path_prefix: str = ""


def describe(service: Service, naming: Naming, prefix: str, version: str | None) -> dict[str, Any]:
    """Return the description of a service; `version` is `2` (the default), `3` or `3.1`."""
    requested = "2" if version is None else version
    number = _ALIASES.get(requested, requested)
    supported = _supported(service)
    if number not in _VERSIONS:
        shown = ", ".join(supported)
        raise NotFound(f"Swagger version [{cut(requested)}] is not valid. Supported versions: [{shown}].")
    if number in service.facts.swagger:
        return service.facts.swagger[number]
    if number not in supported:
        raise NotFound(
            f"Swagger version [{cut(requested)}] is not supported for the scoring script. "
            f"Supported swagger versions: [{', '.join(supported)}]."
        )
    title = naming.title or service.name
    info = {
        "title": title,
        "description": service.facts.description
        or f"API specification for the Azure Machine Learning service {title}",
        "version": naming.version,
    }
    if number == "2":
        return _swagger_2(service, info, prefix)
    return _openapi("3.0.3" if number == "3" else "3.1.0", service, info, prefix)


def _supported(service: Service) -> list[str]:
    of_schema = _VERSIONS if service.script is None else service.script.swagger_versions
    return [version for version in _VERSIONS if version in of_schema or version in service.facts.swagger]


def _swagger_2(service: Service, info: dict[str, Any], prefix: str) -> dict[str, Any]:
    def refer(name: str) -> dict[str, Any]:
        return {"schema": {"$ref": f"#/definitions/{name}"}}

    text = {"schema": {"type": "string"}}
    payload = {"name": "serviceInputPayload", "in": "body", "description": _INPUT, **refer("ServiceInput")}
    version = {"name": "version", "in": "query", "required": False, "type": "number", "enum": [2, 3, 3.1]}
    healthy = {**text, "examples": {"application/json": "Healthy"}}
    return {
        "swagger": "2.0",
        "info": info,
        "schemes": ["http", "https"],
        "consumes": ["application/json", *_image_types(service)],
        "produces": ["application/json"],
        "securityDefinitions": {"Bearer": _bearer()},
        "paths": _paths(
            prefix,
            health=_responses(healthy, refer("ErrorResponse")),
            score={"parameters": [payload], **_responses(refer("ServiceOutput"), refer("ErrorResponse"))},
            swagger={"parameters": [version], **_responses(text, refer("ErrorResponse"))},
        ),
        "definitions": _schemas(service),
    }


def _openapi(number: str, service: Service, info: dict[str, Any], prefix: str) -> dict[str, Any]:
    def content(media_type: str, schema: dict[str, Any]) -> dict[str, Any]:
        return {"content": {media_type: {"schema": schema}}}

    def refer(name: str) -> dict[str, Any]:
        return content("application/json", {"$ref": f"#/components/schemas/{name}"})

    payload = {"description": _INPUT, **refer("ServiceInput")}
    for media_type in _image_types(service):
        payload["content"] |= content(media_type, {"type": "string", "format": "binary"})["content"]
    version_schema = {"type": "number", "enum": [2, 3, 3.1]}
    version = {"name": "version", "in": "query", "required": False, "schema": version_schema}
    healthy = content("text/html", {"type": "string", "example": "Healthy"})
    described = content("application/json", {"type": "object"})
    return {
        "openapi": number,
        "info": info,
        "security": [{"Bearer": []}],
        "paths": _paths(
            prefix,
            health=_responses(healthy, refer("ErrorResponse")),
            score={"requestBody": payload, **_responses(refer("ServiceOutput"), refer("ErrorResponse"))},
            swagger={"parameters": [version], **_responses(described, refer("ErrorResponse"))},
        ),
        "components": {"schemas": _schemas(service), "securitySchemes": {"Bearer": _bearer()}},
    }


def _image_types(service: Service) -> Sequence[str]:
    return () if service.images is None else IMAGE_TYPES


def _bearer() -> dict[str, str]:
    return {
        "type": "apiKey",
        "name": "Authorization",
        "in": "header",
        "description": "For example: Bearer abc123",
    }


def _responses(good: dict[str, Any], bad: dict[str, Any]) -> dict[str, Any]:
    return {
        "responses": {
            "200": {"description": "The answer.", **good},
            "default": {"description": _FAILED, **bad},
        }
    }


def _paths(
    prefix: str, *, health: dict[str, Any], score: dict[str, Any], swagger: dict[str, Any]
) -> dict[str, Any]:
    return {
        f"{prefix}/": {
            "get": {
                "operationId": "ServiceHealthCheck",
                "description": "Says Healthy while the server runs.",
                **health,
            }
        },
        f"{prefix}/score": {
            "post": {
                "operationId": "RunMLService",
                "description": "Runs the model.",
                "security": [{"Bearer": []}],
                **score,
            }
        },
        f"{prefix}/swagger.json": {
            "get": {"operationId": "GetSwaggerSpec", "description": "This description.", **swagger}
        },
    }


def _schemas(service: Service) -> dict[str, Any]:
    return {
        "ServiceInput": input_schema(service),
        "ServiceOutput": output_schema(service),
        "ErrorResponse": _ERROR,
    }
