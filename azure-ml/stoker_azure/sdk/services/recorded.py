"""A service as its record and its backend have it: addresses, labels and times, looked up when they are read."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from stoker_azure.config.deployment import fields_of
from stoker_azure.exceptions import WebserviceException
from stoker_azure.sdk.base import BaseWorkspace, none_in_workspace, raised_as
from stoker_azure.sdk.services.records import ServiceRecord, Services

if TYPE_CHECKING:
    from stoker_azure.sdk.services.backends import PodsBackend, ProcessBackend

# Attributes that Azure calls otherwise than the keywords.
_KEYWORDS: Final = {"max_concurrent_requests_per_container": "replica_max_concurrent_requests"}


class RecordedService:
    """The record of a service, and the process or pods that run it."""

    type_name: ClassVar[str]
    image = image_id = image_digest = created_by = None

    def __init__(self, workspace: BaseWorkspace, name: str) -> None:
        """Find a service.

        Raises:
            WebserviceException: The workspace has none of this name.
        """
        self.workspace = workspace
        self.name = name
        self._last = find_record(workspace, name)

    def __getattr__(self, name: str) -> Any:
        """Return a keyword's value of the deployment; None if it was not given."""
        keyword = _KEYWORDS.get(name, name)
        if name.startswith("_") or keyword not in {field.keyword for field in fields_of(self._record.kind)}:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._record.keywords.get(keyword)

    @property
    def compute_type(self) -> str:
        """`AKS`, `ACI` or `Local`: the type on Azure."""
        return self.type_name

    @property
    def compute_name(self) -> str | None:
        """The name of the compute target."""
        return self._record.compute_name

    @property
    def scoring_uri(self) -> str:
        """The URI to post rows to."""
        return f"{self._base_uri}/score"

    @property
    def swagger_uri(self) -> str:
        """The URI of the description."""
        return self.scoring_uri.removesuffix("score") + "swagger.json"

    @property
    def auth_enabled(self) -> bool:
        """Whether callers send a key."""
        return self._record.auth and not self._record.token_auth

    @property
    def token_auth_enabled(self) -> bool:
        """Whether callers send a token."""
        return self._record.token_auth

    @property
    def tags(self) -> dict[str, str]:
        """The tags."""
        return dict(self._record.tags)

    @property
    def properties(self) -> dict[str, str]:
        """The properties."""
        return dict(self._record.properties)

    @property
    def description(self) -> str | None:
        """The description."""
        return self._record.keywords.get("description")

    @property
    def num_replicas(self) -> int:
        """Number of device processes."""
        return self._record.replicas

    @property
    def created_time(self) -> datetime:
        """Time of the first deployment."""
        return datetime.fromisoformat(self._record.created_at)

    @property
    def updated_time(self) -> datetime:
        """Time of the latest change."""
        return datetime.fromisoformat(self._record.updated_at)

    @property
    def _base_uri(self) -> str:
        with raised_as(WebserviceException):
            return self._backend.base_uri()

    @property
    def _services(self) -> Services:
        return Services(self.workspace.local)

    def _found(self) -> ServiceRecord | None:
        with raised_as(WebserviceException):
            return self._services.find(self.name)

    @property
    def _record(self) -> ServiceRecord:
        """The record now; if the service has been deleted, the last one."""
        self._last = self._found() or self._last
        return self._last

    @property
    def _backend(self) -> ProcessBackend | PodsBackend:
        """The process or the pods that run the service."""
        from stoker_azure.sdk.services.backends import find_backend

        return find_backend(self.workspace.local, self._record)


def find_record(workspace: BaseWorkspace, name: str) -> ServiceRecord:
    """Return the record of a service.

    Raises:
        WebserviceException: There is no such service, or its record cannot be read.
    """
    with raised_as(WebserviceException):
        services = Services(workspace.local)
        record = services.find(name)
        if record is None:
            known = [found.name for found in services.list()]
            raise WebserviceException(none_in_workspace("WebserviceNotFound", "service", name, known))
        return record
