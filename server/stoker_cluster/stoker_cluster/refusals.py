"""What an API server says where it refuses, as an error."""

from __future__ import annotations

import json
from typing import Final

from stoker.errors import ClusterRefusal, FieldConflict

__all__ = ["refusal"]

_CONFLICT: Final = 409


def refusal(status: int, reason: str | None, body: str | bytes | None) -> ClusterRefusal:
    """Return the error.

    Args:
        status: The HTTP status of the answer.
        reason: The words of its status line.
        body: Its body: a Status, unless somebody in between has answered.
    """
    try:
        said = json.loads(body or "")
    except ValueError:
        said = {}
    message = f"the cluster refuses: {said.get('message') or reason or 'without a reason'}"
    causes = (said.get("details") or {}).get("causes") or []
    if status == _CONFLICT and any(one.get("reason") == "FieldManagerConflict" for one in causes):
        return FieldConflict(message, status, {str(one["field"]): str(one["message"]) for one in causes})
    return ClusterRefusal(message, status)
