"""The description of OpenAI's embeddings and of Cohere's and Jina's ranks, for models that take texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stoker.gateway.describing.operations import describe_answer, describe_operation, json_content

if TYPE_CHECKING:
    from stoker.gateway.scoring.service import Service

_TEXT: Final = {"type": "string"}
_DOCUMENT: Final = {"type": "object", "properties": {"text": _TEXT}, "required": ["text"]}
_COUNT: Final = {"type": ["integer", "null"], "minimum": 1}
_MODEL: Final = {"type": ["string", "null"]}
_EMBEDDINGS: Final = {
    "input": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]},
    "model": _MODEL,
    "encoding_format": {"enum": ["float", "base64", None]},
    "dimensions": _COUNT,
}
_RANKS: Final = {
    "query": _TEXT,
    "documents": {"type": "array", "items": {"anyOf": [_TEXT, _DOCUMENT]}, "minItems": 1},
    "model": _MODEL,
    "top_n": _COUNT,
    "return_documents": {"type": "boolean"},
}
_EMBEDDINGS_EXAMPLE: Final = {"input": ["How far is it?"]}
_RANKS_EXAMPLE: Final = {"query": "How far is it?", "documents": ["Three miles.", "It is blue."]}
_ERROR: Final = {"type": "object", "properties": {"error": {"type": "object"}}, "required": ["error"]}


def text_paths(service: Service, prefix: str) -> dict[str, Any]:
    """Return the paths behind a prefix, which is empty for the only model; ranks only where a text has one score."""
    signature = service.signature
    assert signature is not None, "its texts are known"
    paths = {"embeddings": _path(service, prefix, "embeddings", _EMBEDDINGS, _EMBEDDINGS_EXAMPLE)}
    if signature.outputs[0].elements == 1:
        paths["rerank"] = _path(service, prefix, "rerank", _RANKS, _RANKS_EXAMPLE)
    return {f"{prefix}/v1/{name}": path for name, path in paths.items()}


def _path(
    service: Service, prefix: str, name: str, fields: dict[str, Any], example: dict[str, Any]
) -> dict[str, Any]:
    """Describe a path whose requests have these fields; those of the example are required."""
    schema = {"type": "object", "properties": fields, "required": [*example]}
    body = {"required": True, "content": json_content(schema, example)}
    responses = {
        "200": describe_answer("The answer.", json_content({"type": "object"})),
        "default": describe_answer("The request was refused.", json_content(_ERROR)),
    }
    named = f"{name}_{service.name}" if prefix else name
    return {"post": describe_operation(service, named, f"{name} by {service.name}", body, responses)}
