"""The fields of log records about a request: its ids, its trace and its model, never its body or its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from stoker.system.logs import with_facts

if TYPE_CHECKING:
    from stoker.gateway.http.request_ids import RequestIds

__all__ = ["facts_of"]


class _Named(Protocol):
    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def version(self) -> str:
        """The model's version."""


def facts_of(ids: RequestIds, service: _Named, **more: Any) -> dict[str, dict[str, Any]]:
    """Return `extra` for a log record about a request to a service."""
    request_id = ids.request_id.decode("latin-1")
    return with_facts(
        request_id=request_id, trace_id=ids.trace_id, model=service.name, version=service.version, **more
    )
