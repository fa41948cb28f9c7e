"""Errors of the API server, read from its answers."""

from __future__ import annotations

import json
from typing import Final

from stoker_cluster.errors import ClusterRefusal, FieldConflict

_CONFLICT: Final = 409


def read_refusal(status: int, reason: str | None, body: str | bytes | None) -> ClusterRefusal:
    """Return the error for an answer of the API server.

    Args:
        body: Its body: a Status, unless a proxy has answered.
    """
    try:
        content = json.loads(body or "")
    except ValueError:
        content = {}
    message = f"the cluster refuses: {content.get('message') or reason or 'without a reason'}"
    causes = (content.get("details") or {}).get("causes") or []
    if status == _CONFLICT and any(one.get("reason") == "FieldManagerConflict" for one in causes):
        return FieldConflict(message, status, {str(one["field"]): str(one["message"]) for one in causes})
    return ClusterRefusal(message, status)
