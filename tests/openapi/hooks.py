"""Limits on schemathesis' bodies that a schema cannot express."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Write whole numbers without a point: with one they are integers for a schema, and floats for the server."""
    del context
    return _write_whole(body)


def _write_whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _write_whole(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_write_whole(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
