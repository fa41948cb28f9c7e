"""What `deploy_configuration` of the services returns: the keywords of a deployment, checked."""

from __future__ import annotations

from typing import Any

from stoker_azure.config import DeploymentConfig
from stoker_azure.config.fields import Kind, fields_of
from stoker_azure.exceptions import WebserviceException
from stoker_azure.sdk.failures import raised_as
from stoker_azure.sdk.services.endpoint_versions import FirstVersion

__all__ = ["WebserviceDeploymentConfiguration"]


class WebserviceDeploymentConfiguration:
    """How a service is deployed: an attribute for each keyword, None where nothing was said. They may be changed."""

    first_version: FirstVersion | None = None
    """The version that an endpoint begins with; None for services without versions."""

    def __init__(self, kind: Kind, **keywords: Any) -> None:
        """Check the keywords.

        Raises:
            WebserviceException: One is unknown, has a bad value, or contradicts another.
        """
        self.kind = kind
        self.compute_target_name: str | None = None
        with raised_as(WebserviceException):
            DeploymentConfig.from_keywords(kind, **keywords)
        for field in fields_of(kind):
            setattr(self, field.keyword, keywords.get(field.keyword))

    def __repr__(self) -> str:
        shown = {name: value for name, value in self.keywords.items() if not name.endswith("_key")}
        return f"{self.kind.capitalize()}Webservice.deploy_configuration({shown})"

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords that have a value."""
        values = {field.keyword: getattr(self, field.keyword) for field in fields_of(self.kind)}
        return {name: value for name, value in values.items() if value is not None}

    def print_deploy_configuration(self) -> None:
        """Print it."""
        print(self)

    def validate_configuration(self) -> None:
        """Check the keywords again.

        Raises:
            WebserviceException: As above.
        """
        with raised_as(WebserviceException):
            DeploymentConfig.from_keywords(self.kind, **self.keywords)
