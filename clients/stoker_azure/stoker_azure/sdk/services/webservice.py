"""`azureml.core.webservice`: deployed services, each a process of this machine, by what they would be on Azure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stoker_azure.config.fields import Kind
from stoker_azure.exceptions import WebserviceException
from stoker_azure.sdk import deferred
from stoker_azure.sdk.failures import raised_as
from stoker_azure.sdk.models.inference_config import InferenceConfig
from stoker_azure.sdk.models.model import Model
from stoker_azure.sdk.models.references import ids_of
from stoker_azure.sdk.services.access_token import WebServiceAccessToken
from stoker_azure.sdk.services.deploy_configuration import WebserviceDeploymentConfiguration
from stoker_azure.sdk.services.deployed import Webservice
from stoker_azure.sdk.services.endpoint_versions import Endpoint, FirstVersion
from stoker_azure.sdk.services.plan import Plan
from stoker_azure.sdk.services.records import ServiceRecord

__all__ = [
    "CLASSES",
    "AciWebservice",
    "AksEndpoint",
    "AksWebservice",
    "EndpointVersion",
    "LocalWebservice",
    "WebServiceAccessToken",
    "Webservice",
    "WebserviceException",
    "class_of",
]

_FIRST: Final = "v1"


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


class AksEndpoint(AksWebservice):
    """Several versions of a service behind one address: a Deployment each, and exact shares of the requests."""

    @staticmethod
    def deploy_configuration(
        version_name: str | None = None, traffic_percentile: float | None = None, **keywords: Any
    ) -> WebserviceDeploymentConfiguration:
        """How an endpoint is deployed with its first version; the other keywords are those of `AksWebservice`.

        Args:
            version_name: The version, `v1` by default. It is the default one and the control.
            traffic_percentile: Its share of the requests, in percent; it gets also what others leave.
            keywords: The others.

        Raises:
            WebserviceException: One is unknown, has a bad value, or contradicts another.
        """
        configuration = WebserviceDeploymentConfiguration("aks", **keywords)
        configuration.first_version = FirstVersion(version_name or _FIRST, float(traffic_percentile or 0.0))
        return configuration

    @property
    def versions(self) -> dict[str, EndpointVersion]:
        """Its versions, by name."""
        endpoint = self._endpoint
        with raised_as(WebserviceException):
            backend: Any = self._backend
            return {
                name: EndpointVersion(
                    version_name=name,
                    traffic_percentile=version.traffic_percentile,
                    is_default=name == endpoint.default,
                    version_type=version.kind.capitalize(),
                    state=backend.state_of(name),
                    model_ids=tuple(version.models),
                )
                for name, version in endpoint.versions.items()
            }

    @property
    def _endpoint(self) -> Endpoint:
        with raised_as(WebserviceException):
            return Endpoint.of(self._record)

    def create_version(
        self,
        version_name: str,
        models: Sequence[Model] | None = None,
        inference_config: InferenceConfig | None = None,
        traffic_percentile: float | None = None,
        is_default: bool | None = None,
        is_control_version_type: bool | None = None,
        **keywords: Any,
    ) -> None:
        """Add a version. It gets its share once its pods can score, which is waited for unless it gets none.

        Args:
            version_name: Its name.
            models: Its models.
            inference_config: Its script and environment.
            traffic_percentile: Its share of the requests, in percent; what all leave goes to the default version.
            is_default: Whether that is this one from now on.
            is_control_version_type: Whether the others are compared with it from now on.
            keywords: Keywords of `AksWebservice.deploy_configuration`, but those of the whole endpoint.

        Raises:
            WebserviceException: There is such a version, or a setting, model or share cannot be.
        """
        change = _change(
            models, inference_config, traffic_percentile, is_default, is_control_version_type, keywords
        )
        with raised_as(WebserviceException):
            deferred.endpoint_deploying.create_version(self.workspace.local, self.name, version_name, change)

    def update_version(
        self,
        version_name: str,
        models: Sequence[Model] | None = None,
        inference_config: InferenceConfig | None = None,
        traffic_percentile: float | None = None,
        is_default: bool | None = None,
        is_control_version_type: bool | None = None,
        **keywords: Any,
    ) -> None:
        """Change a version; what is not given stays. Shares and its place among the others change no pod.

        Args:
            version_name: Its name.
            models: Other models.
            inference_config: Another script or environment.
            traffic_percentile: Another share, in percent.
            is_default: Whether it gets from now on what all shares leave.
            is_control_version_type: Whether the others are compared with it from now on.
            keywords: Keywords of `AksWebservice.deploy_configuration`, but those of the whole endpoint.

        Raises:
            WebserviceException: There is no such version, or a setting, model or share cannot be.
        """
        change = _change(
            models, inference_config, traffic_percentile, is_default, is_control_version_type, keywords
        )
        with raised_as(WebserviceException):
            deferred.endpoint_deploying.update_version(self.workspace.local, self.name, version_name, change)

    def delete_version(self, version_name: str) -> None:
        """Give its share to the default version, and delete it.

        Raises:
            WebserviceException: There is no such version, or it is the default one.
        """
        with raised_as(WebserviceException):
            deferred.endpoint_deploying.delete_version(self.workspace.local, self.name, version_name)

    def update(  # type: ignore[override]  # Azure's own differs so
        self, **keywords: Any
    ) -> None:
        """Change what all versions share: whether keys or tokens are asked for, tags, properties, the description.

        Raises:
            WebserviceException: A keyword is one of a version, see `update_version`, or cannot be.
        """
        changed = {name: value for name, value in keywords.items() if value is not None}
        with raised_as(WebserviceException):
            deferred.endpoint_deploying.update(self.workspace.local, self.name, changed)

    def _deploy(self, plan: Plan) -> None:
        given = {name: plan.keywords[name] for name in ("tags", "properties") if plan.keywords.get(name)}
        self.update(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointVersion:
    """A version of an endpoint.

    Attributes:
        version_name: Its name.
        traffic_percentile: Its share of the requests as it was asked for, in percent.
        is_default: Whether it gets what all shares leave.
        version_type: `Control`, or `Treatment`: one that is compared with that.
        state: How its pods stand, as the `state` of a service.
        model_ids: `NAME:VERSION` of each of its models.
    """

    version_name: str
    traffic_percentile: float
    is_default: bool
    version_type: str
    state: str
    model_ids: Sequence[str]


def _change(
    models: Sequence[Model] | None,
    inference_config: InferenceConfig | None,
    traffic_percentile: float | None,
    is_default: bool | None,
    is_control: bool | None,
    keywords: Mapping[str, Any],
) -> deferred.endpoint_deploying.Change:
    return deferred.endpoint_deploying.Change(
        keywords={name: value for name, value in keywords.items() if value is not None},
        models=None if models is None else ids_of(models),
        inference=None if inference_config is None else inference_config.to_json(),
        traffic_percentile=traffic_percentile,
        is_default=bool(is_default),
        is_control=bool(is_control),
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


def class_of(record: ServiceRecord) -> type[Webservice]:
    """Return the class of a service."""
    return CLASSES[record.kind] if record.versions is None else AksEndpoint
