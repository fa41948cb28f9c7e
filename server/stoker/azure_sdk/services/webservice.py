"""`azureml.core.webservice`: deployed services, each a process of this machine, by what they would be on Azure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stoker.azure.exceptions import WebserviceException
from stoker.azure_config.fields import Kind
from stoker.azure_sdk.models.inference_config import InferenceConfig
from stoker.azure_sdk.models.model import Model
from stoker.azure_sdk.services.access_token import WebServiceAccessToken
from stoker.azure_sdk.services.deploy_configuration import WebserviceDeploymentConfiguration
from stoker.azure_sdk.services.deployed import Webservice
from stoker.azure_sdk.services.plan import Plan
from stoker.azure_sdk.unoffered import NotAClass

__all__ = [
    "CLASSES",
    "AciWebservice",
    "AksEndpoint",
    "AksWebservice",
    "LocalWebservice",
    "WebServiceAccessToken",
    "Webservice",
    "WebserviceException",
]


class AksWebservice(Webservice):
    """A service that would run in Azure Kubernetes Service."""

    type_name = "AKS"

    @staticmethod
    def deploy_configuration(**keywords: Any) -> WebserviceDeploymentConfiguration:
        """How a service is deployed; the keywords are those of Azure.

        Raises:
            WebserviceException: One is unknown, has a bad value, or contradicts another.
        """
        return WebserviceDeploymentConfiguration("aks", **keywords)

    @property
    def scoring_uri(self) -> str:
        """Where rows are posted to."""
        return f"{self._base_uri}/api/v1/service/{self.name}/score"


class AksEndpoint(metaclass=NotAClass):
    """Several versions of a service behind one address."""

    INSTEAD = (
        "deploy each version as a service of its own, or serve the versions of a model together ('stoker serve "
        "--config' with versions and labels, which callers name)"
    )


class AciWebservice(Webservice):
    """A service that would run in Azure Container Instances."""

    type_name = "ACI"

    @staticmethod
    def deploy_configuration(
        cpu_cores: float | None = None, memory_gb: float | None = None, **keywords: Any
    ) -> WebserviceDeploymentConfiguration:
        """How a service is deployed; the keywords are those of Azure.

        Raises:
            WebserviceException: One is unknown, has a bad value, or contradicts another.
        """
        return WebserviceDeploymentConfiguration("aci", cpu_cores=cpu_cores, memory_gb=memory_gb, **keywords)


class LocalWebservice(Webservice):
    """A service that would run in a container of this machine; here without one."""

    type_name = "Local"

    STATE_DELETED = "deleted"
    STATE_DEPLOYING = "deploying"
    STATE_FAILED = "failed"
    STATE_RUNNING = "running"
    STATE_UNKNOWN = "unknown"

    @staticmethod
    def deploy_configuration(port: int | None = None) -> WebserviceDeploymentConfiguration:
        """How a service is deployed.

        Args:
            port: Its port; a free one by default.

        Raises:
            WebserviceException: That is no port.
        """
        return WebserviceDeploymentConfiguration("local", port=port)

    @property
    def port(self) -> int:
        """Its port."""
        return self._record.port

    @property
    def state(self) -> str:
        """`deploying`, `running`, `failed`, `unknown` or `deleted`: local services say it in their own words."""
        states = {
            "Transitioning": self.STATE_DEPLOYING,
            "Healthy": self.STATE_RUNNING,
            "Failed": self.STATE_FAILED,
            "Unhealthy": self.STATE_UNKNOWN,
            "Deleted": self.STATE_DELETED,
        }
        return states[self._state()]

    def reload(self, wait: bool = False) -> None:
        """Start it anew, with what its script and files have become.

        Args:
            wait: Wait until it is ready.

        Raises:
            WebserviceException: A setting, file or model cannot be used.
        """
        self._deploy(Plan.of(self._record))
        if wait:
            self.wait_for_deployment()

    def update(  # type: ignore[override]  # Azure's own differs so
        self,
        models: Sequence[Model] | None = None,
        image_config: Any = None,
        deployment_config: WebserviceDeploymentConfiguration | None = None,
        wait: bool = False,
        inference_config: InferenceConfig | None = None,
    ) -> None:
        """Deploy the service anew with other settings; those that are not given stay.

        Raises:
            WebserviceException: A setting, file or model cannot be used; the service goes on as it was.
        """
        keywords = {} if deployment_config is None else deployment_config.keywords
        super().update(image_config, models=models, inference_config=inference_config, **keywords)
        if wait:
            self.wait_for_deployment()


CLASSES: Final[Mapping[Kind, type[Webservice]]] = {
    "aks": AksWebservice,
    "aci": AciWebservice,
    "local": LocalWebservice,
}
"""The class of each kind."""
