"""`azureml.core.model` and `azureml.core.webservice`: models, and the services that they are deployed as.

Azure's classes know each other: a model is deployed as a service, and a service has its models. Each service is a
process of this machine, or pods of the cluster that its compute target stands for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Struct

from stoker_azure.config.deployment import Kind
from stoker_azure.exceptions import ModelNotFoundException, WebserviceException
from stoker_azure.sdk.base import BaseWorkspace, Filter, has_labels, raised_as
from stoker_azure.sdk.compute import ComputeTarget
from stoker_azure.sdk.inference_config import InferenceConfig
from stoker_azure.sdk.registered_model import RegisteredModel, model_ids
from stoker_azure.sdk.services.access import WebServiceAccessToken
from stoker_azure.sdk.services.configuration import WebserviceDeploymentConfiguration
from stoker_azure.sdk.services.recorded import find_record
from stoker_azure.sdk.services.records import (
    Endpoint,
    FirstVersion,
    Plan,
    ServiceRecord,
    Services,
    VersionChange,
)
from stoker_azure.sdk.services.service import DeployedService

if TYPE_CHECKING:
    from stoker_azure.sdk.profile import ModelProfile

__all__ = [
    "AciWebservice",
    "AksEndpoint",
    "AksWebservice",
    "EndpointVersion",
    "InferenceConfig",
    "LocalWebservice",
    "Model",
    "ModelNotFoundException",
    "WebServiceAccessToken",
    "Webservice",
    "WebserviceException",
]

_FIRST: Final = "v1"


class Model(RegisteredModel):
    """A registered model, which can be deployed."""

    @staticmethod
    def deploy(
        workspace: BaseWorkspace,
        name: str,
        models: Sequence[Model],
        inference_config: InferenceConfig | None = None,
        deployment_config: WebserviceDeploymentConfiguration | None = None,
        deployment_target: ComputeTarget | None = None,
        overwrite: bool = False,
        show_output: bool = False,
    ) -> Webservice:
        """Deploy a service: a process of this machine that outlives this one, or pods of a cluster.

        Args:
            models: The models, which the script finds by AZUREML_MODEL_DIR.
            inference_config: Script and environment; without it, the one model is served by itself.
            deployment_config: By default `AksWebservice`'s if there is a target, else `AciWebservice`'s.
            overwrite: Replace a service of the same name that runs.
            show_output: Not used: lines are always printed.

        Raises:
            WebserviceException: The service exists, or a setting, file or model cannot be used.
        """
        from stoker_azure.sdk.services.deploying import deploy

        del show_output
        if deployment_config is None:
            kind: Kind = "aci" if deployment_target is None else "aks"
            deployment_config = WebserviceDeploymentConfiguration(kind)
        plan = Plan(
            name=name,
            kind=deployment_config.kind,
            keywords=deployment_config.keywords,
            models=tuple(model_ids(models)),
            compute_name=deployment_config.compute_target_name
            if deployment_target is None
            else deployment_target.name,
            inference=None if inference_config is None else inference_config.to_json(),
            first_version=deployment_config.first_version,
        )
        with raised_as(WebserviceException):
            deploy(workspace.local, plan, overwrite=overwrite)
        return Webservice(workspace, name)

    @staticmethod
    def profile(
        workspace: BaseWorkspace,
        profile_name: str,
        models: Sequence[Model],
        inference_config: InferenceConfig | None,
        input_dataset: Any,
        cpu: float | None = None,
        memory_in_gb: float | None = None,
        description: str | None = None,
    ) -> ModelProfile:
        """Measure on this machine the load that a service can sustain, and with which settings.

        The arguments are those of `deploy`; `input_dataset` has a file that is a request, or is its path, or None for
        the model's sample. `cpu` and `memory_in_gb` limit nothing here.

        Raises:
            UserErrorException: The name is none, or the data set has no file.
            WebserviceException: A model or file cannot be used.
        """
        from stoker_azure.sdk.profile import start_profile

        settings = {"cpu": cpu, "memory_in_gb": memory_in_gb, "description": description}
        return start_profile(
            workspace, profile_name, model_ids(models), inference_config, input_dataset, settings
        )


class Webservice(DeployedService):
    """A service of the workspace; `Webservice(workspace, name)` finds one."""

    def __new__(cls, workspace: BaseWorkspace, name: str, **_others: Any) -> Self:
        """Make an object of the class with which the service was deployed."""
        found: Any = super().__new__(_class_of(find_record(workspace, name)))
        if not isinstance(found, cls):
            # Python initializes only objects of the class that was called.
            found.__init__(workspace, name)
        return found  # type: ignore[no-any-return]  # a subclass

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(workspace={self.workspace!r}, name={self.name!r}, state={self.state!r})"
        )

    @property
    def models(self) -> Sequence[Model]:
        """The models of the service."""
        return [Model(self.workspace, id=reference) for reference in self._record.models]

    @staticmethod
    def list(
        workspace: BaseWorkspace,
        compute_type: str | None = None,
        image_name: str | None = None,
        image_id: str | None = None,
        model_name: str | None = None,
        model_id: str | None = None,
        tags: Filter | None = None,
        properties: Filter | None = None,
        image_digest: str | None = None,
    ) -> Sequence[Webservice]:
        """Return the services of the workspace to which all arguments apply, by name.

        Args:
            compute_type: `AKS`, `ACI` or `Local`.
            image_name: No service here has an image.
            image_id: The same.
            image_digest: The same.
            model_name: Name of a model that it uses.
            model_id: `NAME:VERSION` of a model that it uses.

        Raises:
            WebserviceException: A record cannot be read, or there is no such type.
        """
        types = sorted({found.type_name for found in _CLASSES.values()})
        kind = (
            None if compute_type is None else {name.upper(): name for name in types}.get(compute_type.upper())
        )
        if compute_type is not None and kind is None:
            raise WebserviceException(
                f"there is no compute_type {compute_type!r}: it is one of {', '.join(types)}"
            )
        if (image_name, image_id, image_digest) != (None, None, None):
            return []
        with raised_as(WebserviceException):
            records = Services(workspace.local).list()
        return [
            Webservice(workspace, record.name)
            for record in records
            if kind in (None, _CLASSES[record.kind].type_name)
            and (model_id is None or model_id in record.models)
            and (model_name is None or model_name in [model.partition(":")[0] for model in record.models])
            and has_labels(record.tags, tags)
            and has_labels(record.properties, properties)
        ]


class AksWebservice(Webservice):
    """A service for Azure Kubernetes Service."""

    type_name = "AKS"

    @staticmethod
    def deploy_configuration(**keywords: Any) -> WebserviceDeploymentConfiguration:
        """Return a configuration for `Model.deploy`; the keywords are Azure's.

        Raises:
            WebserviceException: One is unknown, has a bad value, or contradicts another.
        """
        return WebserviceDeploymentConfiguration("aks", **keywords)

    @property
    def scoring_uri(self) -> str:
        """The URI to post rows to."""
        return f"{self._base_uri}/api/v1/service/{self.name}/score"


class AksEndpoint(AksWebservice):
    """Versions of a service behind one address: a Deployment for each, and exact shares of the requests."""

    @staticmethod
    def deploy_configuration(
        version_name: str | None = None, traffic_percentile: float | None = None, **keywords: Any
    ) -> WebserviceDeploymentConfiguration:
        """Return a configuration for an endpoint with its first version; other keywords are those of `AksWebservice`.

        Args:
            version_name: Name of the version, `v1` by default; the default version and the control.
            traffic_percentile: Share of the requests in percent; the version gets the rest too.

        Raises:
            WebserviceException: One is unknown, has a bad value, or contradicts another.
        """
        configuration = WebserviceDeploymentConfiguration("aks", **keywords)
        configuration.first_version = FirstVersion(version_name or _FIRST, float(traffic_percentile or 0.0))
        return configuration

    class VersionType:
        """Types of versions."""

        CONTROL = "Control"
        TREATMENT = "Treatment"

    @property
    def versions(self) -> dict[str, EndpointVersion]:
        """The versions, by name."""
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

    def create_version(self, version_name: str, *arguments: Any, **keywords: Any) -> None:
        """Add a version; wait until its pods can score, then give it its share of the requests.

        Args:
            arguments: Those of `_version_change`.

        Raises:
            WebserviceException: The version exists, or a setting, model or share is not allowed.
        """
        from stoker_azure.sdk.services.endpoint_deploying import create_version

        change = _version_change(*arguments, **keywords)
        with raised_as(WebserviceException):
            create_version(self.workspace.local, self.name, version_name, change)

    def update_version(self, version_name: str, *arguments: Any, **keywords: Any) -> None:
        """Change a version: arguments as in `create_version`, None changes nothing. Shares and default change no pod.

        Raises:
            WebserviceException: There is no such version, or a setting, model or share is not allowed.
        """
        from stoker_azure.sdk.services.endpoint_deploying import update_version

        change = _version_change(*arguments, **keywords)
        with raised_as(WebserviceException):
            update_version(self.workspace.local, self.name, version_name, change)

    def delete_version(self, version_name: str) -> None:
        """Give the share of a version to the default version, and delete it.

        Raises:
            WebserviceException: There is no such version, or it is the default one.
        """
        from stoker_azure.sdk.services.endpoint_deploying import delete_version

        with raised_as(WebserviceException):
            delete_version(self.workspace.local, self.name, version_name)

    def update(  # type: ignore[override]  # Azure's own differs so
        self, **keywords: Any
    ) -> None:
        """Change what all versions share: authentication, tags, properties, the description.

        Raises:
            WebserviceException: A keyword is one of a version, see `update_version`, or cannot be.
        """
        from stoker_azure.sdk.services.endpoint_deploying import update

        changed = {name: value for name, value in keywords.items() if value is not None}
        with raised_as(WebserviceException):
            update(self.workspace.local, self.name, changed)

    def _deploy(self, plan: Plan) -> None:
        given = {name: plan.keywords[name] for name in ("tags", "properties") if plan.keywords.get(name)}
        self.update(**given)


class EndpointVersion(Struct, frozen=True, kw_only=True):
    """A version of an endpoint.

    Attributes:
        traffic_percentile: Requested share of the requests, in percent.
        is_default: Whether the version gets the rest of the requests.
        version_type: `Control`, or `Treatment`, which is compared with the control.
        state: State of the pods, as the `state` of a service.
        model_ids: `NAME:VERSION` of each of its models.
    """

    version_name: str
    traffic_percentile: float
    is_default: bool
    version_type: str
    state: str
    model_ids: Sequence[str]


def _version_change(
    models: Sequence[Model] | None = None,
    inference_config: InferenceConfig | None = None,
    traffic_percentile: float | None = None,
    is_default: bool | None = None,
    is_control_version_type: bool | None = None,
    **keywords: Any,
) -> VersionChange:
    """Read the arguments of `create_version` and `update_version`.

    Args:
        traffic_percentile: Share of the requests in percent; the default version gets the rest.
        is_default: Make this version the default one.
        is_control_version_type: Compare the others with this version.
        keywords: Keywords of `AksWebservice.deploy_configuration` that are not of the whole endpoint.
    """
    return VersionChange(
        keywords={name: value for name, value in keywords.items() if value is not None},
        models=None if models is None else model_ids(models),
        inference=None if inference_config is None else inference_config.to_json(),
        traffic_percentile=traffic_percentile,
        is_default=bool(is_default),
        is_control=bool(is_control_version_type),
    )


class AciWebservice(Webservice):
    """A service for Azure Container Instances."""

    type_name = "ACI"

    @staticmethod
    def deploy_configuration(
        cpu_cores: float | None = None, memory_gb: float | None = None, **keywords: Any
    ) -> WebserviceDeploymentConfiguration:
        """Return a configuration for `Model.deploy`; the keywords are Azure's.

        Raises:
            WebserviceException: One is unknown, has a bad value, or contradicts another.
        """
        return WebserviceDeploymentConfiguration("aci", cpu_cores=cpu_cores, memory_gb=memory_gb, **keywords)


class LocalWebservice(Webservice):
    """A service for a container of this machine; it runs without the container."""

    type_name = "Local"

    STATE_DELETED = "deleted"
    STATE_DEPLOYING = "deploying"
    STATE_FAILED = "failed"
    STATE_RUNNING = "running"
    STATE_UNKNOWN = "unknown"

    @staticmethod
    def deploy_configuration(port: int | None = None) -> WebserviceDeploymentConfiguration:
        """Return a configuration for `Model.deploy`.

        Args:
            port: Its port; a free one by default.

        Raises:
            WebserviceException: That is no port.
        """
        return WebserviceDeploymentConfiguration("local", port=port)

    def __init__(self, workspace: BaseWorkspace, name: str, must_exist: bool = True) -> None:
        """Find a service.

        Args:
            must_exist: Not used: a service that is not there is always an error.

        Raises:
            WebserviceException: The workspace has none of this name.
        """
        del must_exist
        super().__init__(workspace, name)

    @staticmethod
    def list(  # type: ignore[override]  # Azure's own differs so
        workspace: BaseWorkspace,
        model_name: str | None = None,
        model_id: str | None = None,
        all: bool = False,  # noqa: A002  # Azure's name
        **others: Any,
    ) -> Sequence[Webservice]:
        """Return the local services of the workspace to which all arguments apply; see `Webservice.list`.

        Args:
            all: Not used: services that do not run are listed too.
        """
        del all
        return Webservice.list(workspace, "Local", model_name=model_name, model_id=model_id, **others)

    def delete(
        self, delete_cache: bool = True, delete_image: bool = False, delete_volume: bool = True
    ) -> None:
        """Delete the service, with its keys. The arguments are about its container, which it has not.

        Raises:
            WebserviceException: The record cannot be read.
        """
        del delete_cache, delete_image, delete_volume
        super().delete()

    @property
    def port(self) -> int:
        """The port."""
        return self._record.port

    @property
    def state(self) -> str:
        """`deploying`, `running`, `failed`, `unknown` or `deleted`: local services have their own words."""
        states = {
            "Transitioning": self.STATE_DEPLOYING,
            "Healthy": self.STATE_RUNNING,
            "Failed": self.STATE_FAILED,
            "Unhealthy": self.STATE_UNKNOWN,
            "Deleted": self.STATE_DELETED,
        }
        return states[self._state()]

    def reload(self, wait: bool = False) -> None:
        """Restart the service with its script and files as they are now.

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
        """Redeploy the service with changed settings; arguments that are None change nothing.

        Raises:
            WebserviceException: A setting, file or model cannot be used; the service goes on as it was.
        """
        keywords = {} if deployment_config is None else deployment_config.keywords
        super().update(image_config, models=models, inference_config=inference_config, **keywords)
        if wait:
            self.wait_for_deployment()


_CLASSES: Final[Mapping[Kind, type[Webservice]]] = {
    "aks": AksWebservice,
    "aci": AciWebservice,
    "local": LocalWebservice,
}
"""The class of each kind."""


def _class_of(record: ServiceRecord) -> type[Webservice]:
    """Return the class of a service."""
    return _CLASSES[record.kind] if record.versions is None else AksEndpoint
