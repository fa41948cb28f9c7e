"""`azureml.ai.monitoring.context`: what joins the rows of several collectors."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

__all__ = ["BasicCorrelationContext", "CorrelationContext", "get_context"]


class CorrelationContext:
    """What rows have in common; scripts may have classes of their own."""

    def get_id(self) -> str:
        """The id that the rows get."""
        return ""

    def __str__(self) -> str:
        return self.get_id()

    __repr__ = __str__


class BasicCorrelationContext(CorrelationContext):
    """An id with a time and headers.

    Args:
        id: The id; a new one if it is empty.
        timestamp: Seconds since 1970; now by default.
        headers: Kept, and not collected.
    """

    def __init__(
        self,
        id: str | None = None,  # noqa: A002  # Azure's name
        timestamp: int | None = None,
        headers: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = str(id) if id else str(uuid.uuid4())
        self.timestamp = timestamp or int(time.time())
        self.headers = dict(headers or {})

    def get_id(self) -> str:
        """The id that the rows get."""
        return self.id

    def get_timestamp(self) -> int:
        """Seconds since 1970."""
        return self.timestamp

    def get_headers(self) -> dict[str, Any]:
        """The headers."""
        return self.headers


def get_context() -> CorrelationContext:
    """A new context."""
    return BasicCorrelationContext()
