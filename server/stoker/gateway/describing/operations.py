"""One operation of a model in the description of a server: its name, its body, its answers and its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stoker.gateway.scoring.service import Service


def json_content(schema: dict[str, Any], example: Any = None) -> dict[str, Any]:
    """Return JSON by its media type, with an example unless that is None."""
    content = {"schema": schema}
    if example is not None:
        content["example"] = example
    return {"application/json": content}


def describe_answer(text: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with its content by media type."""
    return {"description": text, "content": content}


def describe_operation(
    service: Service, name: str, summary: str, body: dict[str, Any], responses: dict[str, Any]
) -> dict[str, Any]:
    """Return the operation of a model; `name` is its id, and `responses` are its answers by status."""
    security: dict[str, Any] = {} if service.access.open else {"security": [{"Key": []}]}
    return {
        "operationId": name,
        "summary": summary,
        "tags": [service.name],
        "requestBody": body,
        "responses": responses,
        **security,
    }
