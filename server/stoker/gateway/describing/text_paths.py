"""The description of OpenAI's embeddings and of Cohere's and Jina's ranks, for models that take texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stoker.gateway.describing.operations import describe_answer, describe_operation, json_content

if TYPE_CHECKING:
    from stoker.gateway.scoring.service import Service

_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT, "minItems": 1}
_COUNT: Final = {"type": ["integer", "null"], "minimum": 1}
_DOCUMENT: Final = {"type": "object", "properties": {"text": _TEXT}, "required": ["text"]}
_EMBEDDINGS: Final = {
    "type": "object",
    "properties": {
        "input": {"anyOf": [_TEXT, _TEXTS]},
        "model": {"type": ["string", "null"]},
        "encoding_format": {"enum": ["float", "base64", None]},
        "dimensions": _COUNT,
    },
    "required": ["input"],
}
_RANKS: Final = {
    "type": "object",
    "properties": {
        "query": _TEXT,
        "documents": {"type": "array", "items": {"anyOf": [_TEXT, _DOCUMENT]}, "minItems": 1},
        "model": {"type": ["string", "null"]},
        "top_n": _COUNT,
        "return_documents": {"type": "boolean"},
    },
    "required": ["query", "documents"],
}
_EMBEDDINGS_EXAMPLE: Final = {"input": ["How far is it?"]}
_RANKS_EXAMPLE: Final = {"query": "How far is it?", "documents": ["Three miles.", "It is blue."]}
_SUMMARIES: Final = {"embeddings": "Embed texts", "rerank": "Rank documents"}
_ERROR: Final = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {"message": _TEXT, "type": _TEXT, "code": _TEXT},
            "required": ["message", "type", "code"],
        }
    },
    "required": ["error"],
}


def text_paths(service: Service, prefix: str) -> dict[str, Any]:
    """Return the paths behind a prefix, which is empty for the only model; ranks only where a text has one score."""
    signature = service.signature
    assert signature is not None, "its texts are known"
    paths = {
        f"{prefix}/v1/embeddings": _path(service, prefix, "embeddings", _EMBEDDINGS, _EMBEDDINGS_EXAMPLE)
    }
    if signature.outputs[0].elements == 1:
        paths[f"{prefix}/v1/rerank"] = _path(service, prefix, "rerank", _RANKS, _RANKS_EXAMPLE)
    return paths


def _path(service: Service, prefix: str, name: str, schema: dict[str, Any], example: Any) -> dict[str, Any]:
    responses = {
        "200": describe_answer("The answer.", json_content({"type": "object"})),
        "default": describe_answer("The request was refused.", json_content(_ERROR)),
    }
    body = {"required": True, "content": json_content(schema, example)}
    named = f"{name}_{service.name}" if prefix else name
    return {
        "post": describe_operation(service, named, f"{_SUMMARIES[name]} with {service.name}", body, responses)
    }
