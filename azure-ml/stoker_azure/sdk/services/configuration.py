"""The configuration of a deployment, as `Model.deploy` takes it."""

from __future__ import annotations

from typing import Any

from stoker_azure.config.deployment import DeploymentConfig, Kind, fields_of
from stoker_azure.exceptions import WebserviceException
from stoker_azure.sdk.base import raised_as
from stoker_azure.sdk.services.records import FirstVersion


class WebserviceDeploymentConfiguration:
    """A configuration for `Model.deploy`: an attribute for each keyword, None if unset, which may be changed."""

    first_version: FirstVersion | None = None
    """The first version of an endpoint; None for services without versions."""

    def __init__(self, kind: Kind, **keywords: Any) -> None:
        """Check the keywords.

        Raises:
            WebserviceException: A keyword is unknown, has a bad value, or contradicts another.
        """
        self.kind = kind
        self.compute_target_name: str | None = None
        with raised_as(WebserviceException):
            DeploymentConfig.from_keywords(kind, **keywords)
        for known in fields_of(kind):
            setattr(self, known.keyword, keywords.get(known.keyword))

    def __repr__(self) -> str:
        shown = {name: value for name, value in self.keywords.items() if not name.endswith("_key")}
        return f"{self.kind.capitalize()}Webservice.deploy_configuration({shown})"

    @property
    def keywords(self) -> dict[str, Any]:
        """The keywords that have a value."""
        values = {field.keyword: getattr(self, field.keyword) for field in fields_of(self.kind)}
        return {name: value for name, value in values.items() if value is not None}

    def print_deploy_configuration(self) -> None:
        """Print the configuration."""
        print(self)

    def validate_configuration(self) -> None:
        """Check the keywords again.

        Raises:
            WebserviceException: As above.
        """
        with raised_as(WebserviceException):
            DeploymentConfig.from_keywords(self.kind, **self.keywords)
