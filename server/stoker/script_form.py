"""The properties of an entry script that the server learns by loading it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Batching", "ScriptForm"]

Batching = Literal["merge", "handle", "none"]
"""How requests to a script that takes whole bodies are batched: by merging their bodies into one, by gathering their
calls of the model, or not at all."""


@dataclass(frozen=True, slots=True)
class ScriptForm:
    """The calling convention of a script that takes whole bodies.

    Attributes:
        kind: `string` gets the body as text, `schema` gets the arguments that its `inference_schema` decorators
            describe, `raw` gets a request object and handles every method.
        wants_head: Whether it needs method, query and headers.
        batching: How its requests are batched.
        batching_reason: The reason for that, for the operator.
        merge_key: The only key of the bodies that can be merged, if `batching` is `merge`.
        max_requests: Limit of requests per call.
        input_schema: Swagger schema of the body, if the script declares one.
        output_schema: Swagger schema of the answer, if the script declares one.
        swagger_versions: The Swagger versions that can express them.
        yields: Whether `run` yields its answer piece by piece.
    """

    kind: Literal["string", "schema", "raw"] = "string"
    wants_head: bool = False
    batching: Batching = "none"
    batching_reason: str = ""
    merge_key: str = "data"
    max_requests: int = 1
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    swagger_versions: tuple[str, ...] = ("2", "3", "3.1")
    yields: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it in JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ScriptForm:
        """Inverse of `to_json`."""
        return cls(**{**value, "swagger_versions": tuple(value["swagger_versions"])})
