"""The bench's errors."""

from __future__ import annotations

from stoker.errors import OperatorError


class BenchedServerError(OperatorError):
    """A server under load did not start, ended early, or answers wrongly."""

    code = "server_failed"
