"""How an entry script that takes whole bodies is called."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

Batching = Literal["merge", "handle", "requests", "none"]
"""How requests to a script that takes whole bodies are batched: by merging their bodies into one, by gathering their
calls of the model, by calling a script that takes several requests, or not at all."""


class ScriptForm(Struct, frozen=True):
    """The calling convention of a script that takes whole bodies.

    Attributes:
        kind: `string` gets the body as text, `schema` gets the arguments that its `inference_schema` decorators
            describe, `raw` gets a request object and handles every method.
        merge_key: The only key of the bodies that can be merged, if `batching` is `merge`.
        swagger_versions: The Swagger versions that can express them.
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
