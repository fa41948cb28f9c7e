"""What a server knows of an entry script once it has been loaded."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Batching", "ScriptForm"]

Batching = Literal["merge", "handle", "none"]
"""How requests to a script that takes whole bodies are batched: their bodies are merged into one; their calls to
the model are gathered; not at all."""


@dataclass(frozen=True, slots=True)
class ScriptForm:
    """How a script that takes whole bodies is called.

    Attributes:
        kind: `string` gets the body as text, `schema` gets the arguments that its `inference_schema` decorators
            describe, `raw` gets a request object and handles every method.
        wants_head: Whether it is to see method, query and headers.
        batching: How its requests are batched.
        batching_reason: Why, for the operator.
        merge_key: The only key of the bodies that can be merged, if `batching` is `merge`.
        max_requests: Most requests that it is given at once.
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
        """Return it as JSON can hold it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ScriptForm:
        """Inverse of `to_json`."""
        return cls(**{**value, "swagger_versions": tuple(value["swagger_versions"])})
