"""What is known of a deployed service: the attributes of Azure's `Webservice`, looked up when they are asked."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar, Final

from stoker_azure.config.fields import fields_of
from stoker_azure.exceptions import WebserviceException
from stoker_azure.sdk import deferred
from stoker_azure.sdk.failures import none_in_workspace, raised_as
from stoker_azure.sdk.models.model import Model
from stoker_azure.sdk.services.records import ServiceRecord, Services
from stoker_azure.sdk.workspace import Workspace

__all__ = ["ServiceFacts", "record_of"]

# Of attributes that are called otherwise.
_KEYWORDS: Final = {"max_concurrent_requests_per_container": "replica_max_concurrent_requests"}


class ServiceFacts:
    """A service of the workspace, whether its process lives or not.

    Attributes:
        workspace: Its workspace.
        name: Its name.
        image: None, like the others that are known of services on Azure: none here is made of an image.

    Keywords of `deploy_configuration` are attributes too: what it was deployed with, or None.
    """

    type_name: ClassVar[str]
    image = image_id = image_digest = created_by = None

    def __init__(self, workspace: Workspace, name: str) -> None:
        """Find a service.

        Raises:
            WebserviceException: The workspace has none of this name.
        """
        self.workspace = workspace
        self.name = name
        self._last = record_of(workspace, name)

    def __getattr__(self, name: str) -> Any:
        """What a keyword was when it was deployed; None where it was not given."""
        keyword = _KEYWORDS.get(name, name)
        if name.startswith("_") or keyword not in {field.keyword for field in fields_of(self._record.kind)}:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._record.keywords.get(keyword)

    @property
    def compute_type(self) -> str:
        """`AKS`, `ACI` or `Local`: what it would be on Azure."""
        return self.type_name

    @property
    def compute_name(self) -> str | None:
        """The compute target that it was deployed to."""
        return self._record.compute_name

    @property
    def scoring_uri(self) -> str:
        """Where rows are posted to."""
        return f"{self._base_uri}/score"

    @property
    def swagger_uri(self) -> str:
        """Where its description is."""
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
        """Its tags."""
        return dict(self._record.tags)

    @property
    def properties(self) -> dict[str, str]:
        """Its properties."""
        return dict(self._record.properties)

    @property
    def description(self) -> str | None:
        """Its description."""
        return self._record.keywords.get("description")

    @property
    def num_replicas(self) -> int:
        """How many device processes serve it."""
        return self._record.replicas

    @property
    def models(self) -> Sequence[Model]:
        """Its models."""
        return [Model(self.workspace, id=reference) for reference in self._record.models]

    @property
    def created_time(self) -> datetime:
        """When it was first deployed."""
        return datetime.fromisoformat(self._record.created_at)

    @property
    def updated_time(self) -> datetime:
        """When it was last changed."""
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
        """What is known of it now; what was known of it last if it has been deleted."""
        self._last = self._found() or self._last
        return self._last

    @property
    def _backend(self) -> deferred.backends.Backend:
        """What runs it."""
        return deferred.backends.backend_of(self.workspace.local, self._record)


def record_of(workspace: Workspace, name: str) -> ServiceRecord:
    """What is known of a service.

    Raises:
        WebserviceException: There is none of this name, or its record cannot be read.
    """
    with raised_as(WebserviceException):
        services = Services(workspace.local)
        record = services.find(name)
        if record is None:
            known = [found.name for found in services.list()]
            raise WebserviceException(none_in_workspace("WebserviceNotFound", "service", name, known))
        return record
