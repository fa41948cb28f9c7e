"""`azureml.core.webservice`: deployed services, each a process of this machine."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from stoker.azure.exceptions import NotOffered, WebserviceException
from stoker.azure_config.fields import Kind, fields_of
from stoker.azure_sdk.failures import raised_as
from stoker.azure_sdk.labels import Wanted, carries, labels
from stoker.azure_sdk.services.deploy_configuration import WebserviceDeploymentConfiguration
from stoker.azure_sdk.unoffered import NotAClass, UnofferedByWebservice
from stoker.azure_sdk.workspace import Workspace

if TYPE_CHECKING:
    from stoker.azure_sdk.models.inference_config import InferenceConfig
    from stoker.azure_sdk.models.model import Model
    from stoker.azure_sdk.services.deploying import Plan
    from stoker.azure_sdk.services.records import ServiceRecord
    from stoker.keys.keyring import Slot

__all__ = [
    "AciWebservice",
    "AksEndpoint",
    "AksWebservice",
    "LocalWebservice",
    "WebServiceAccessToken",
    "Webservice",
    "WebserviceException",
]

_LOOK_EVERY_S: Final = 0.1
_DOT_EVERY_S: Final = 1.0
_TAIL_LINES: Final = 60
_UNAUTHORIZED: Final = 401
_OK: Final = 200
_SLOTS: Final[Mapping[str, Slot]] = {"Primary": "primary", "Secondary": "secondary"}
# Of attributes that are called otherwise.
_KEYWORDS: Final = {"max_concurrent_requests_per_container": "replica_max_concurrent_requests"}
# Settings of which only one can be given: a new one takes the place of an old other one.
_INSTEAD: Final[Mapping[str, Sequence[str]]] = {
    "auth_enabled": ["token_auth_enabled"],
    "token_auth_enabled": ["auth_enabled"],
    "autoscale_enabled": ["num_replicas"],
    "num_replicas": [
        *("autoscale_enabled", "autoscale_min_replicas", "autoscale_max_replicas"),
        *("autoscale_refresh_seconds", "autoscale_target_utilization"),
    ],
}


@dataclass(frozen=True, slots=True)
class WebServiceAccessToken:
    """A token of a service.

    Attributes:
        access_token: Its text.
        token_type: `Bearer`.
        refresh_after: When another one should be fetched.
        expiry_on: From then on it is refused.
    """

    access_token: str = dataclasses.field(repr=False)
    token_type: str
    refresh_after: datetime
    expiry_on: datetime


class Webservice(UnofferedByWebservice):
    """A service of the workspace; `Webservice(workspace, name)` finds one, whoever has deployed it.

    Attributes:
        workspace: Its workspace.
        name: Its name.
        image: None, like the others that are known of services on Azure: none here is made of an image.

    Keywords of `deploy_configuration` are attributes too: what it was deployed with, or None.
    """

    type_name: ClassVar[str]
    image = image_id = image_digest = created_by = None

    def __new__(cls, workspace: Workspace, name: str) -> Self:
        """The class of a service follows from how it was deployed."""
        found: Any = super().__new__(_CLASSES[_record(workspace, name).kind])
        return found  # type: ignore[no-any-return]  # a subclass

    def __init__(self, workspace: Workspace, name: str) -> None:
        """Find a service.

        Raises:
            WebserviceException: The workspace has none of this name.
        """
        self.workspace = workspace
        self.name = name
        self._last = _record(workspace, name)
        self._bearer: str | None = None

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(workspace={self.workspace!r}, name={self.name!r}, state={self.state!r})"
        )

    def __getattr__(self, name: str) -> Any:
        """What a keyword was when it was deployed; None where it was not given."""
        keyword = _KEYWORDS.get(name, name)
        if name.startswith("_") or keyword not in {field.keyword for field in fields_of(self._record.kind)}:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self._record.keywords.get(keyword)

    @staticmethod
    def list(
        workspace: Workspace,
        compute_type: str | None = None,
        image_name: str | None = None,
        image_id: str | None = None,
        model_name: str | None = None,
        model_id: str | None = None,
        tags: Wanted | None = None,
        properties: Wanted | None = None,
    ) -> Sequence[Webservice]:
        """The services of the workspace to which all of it applies, by name.

        Args:
            workspace: The workspace.
            compute_type: `AKS`, `ACI` or `Local`.
            image_name: No service here has an image.
            image_id: The same.
            model_name: Name of a model that it uses.
            model_id: `NAME:VERSION` of a model that it uses.
            tags: Tags that they have.
            properties: Properties that they have.

        Raises:
            WebserviceException: A record cannot be read.
        """
        from stoker.azure_sdk.services.records import Services

        if image_name is not None or image_id is not None:
            return []
        with raised_as(WebserviceException):
            records = Services(workspace.local).list()
        return [
            Webservice(workspace, record.name)
            for record in records
            if compute_type in (None, _CLASSES[record.kind].type_name)
            and (model_id is None or model_id in record.models)
            and (model_name is None or model_name in [model.partition(":")[0] for model in record.models])
            and carries(record.tags, tags)
            and carries(record.properties, properties)
        ]

    # --- what it is ---

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
        return f"{self._record.base_uri}/score"

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
        from stoker.azure_sdk.models.model import Model

        return [Model(self.workspace, id=reference) for reference in self._record.models]

    @property
    def created_time(self) -> datetime:
        """When it was first deployed."""
        return datetime.fromisoformat(self._record.created_at)

    @property
    def updated_time(self) -> datetime:
        """When it was last changed."""
        return datetime.fromisoformat(self._record.updated_at)

    def serialize(self) -> dict[str, Any]:
        """The service as JSON, with Azure's names; its keys are not in it."""
        record = self._record
        return {
            "name": self.name,
            "computeType": self.compute_type,
            "computeName": self.compute_name,
            "state": self.state,
            "error": self.error,
            "scoringUri": self.scoring_uri,
            "swaggerUri": self.swagger_uri,
            "authEnabled": self.auth_enabled,
            "aadAuthEnabled": self.token_auth_enabled,
            "numReplicas": self.num_replicas,
            "description": self.description,
            "tags": self.tags,
            "properties": self.properties,
            "modelIds": [*record.models],
            "createdTime": record.created_at,
            "updatedTime": record.updated_at,
        }

    # --- how it stands ---

    @property
    def state(self) -> str:
        """`Transitioning`, `Healthy`, `Unhealthy` or `Failed`, as it is now; `Deleted` once it is."""
        return self._state()

    @property
    def error(self) -> str | None:
        """Why it does not run, with the end of its log; None while it does."""
        from stoker.azure_sdk.services import process as service_process

        folder = self._folder
        if folder is None or service_process.is_running(folder):
            return None
        return f"the process of {self.name} has ended; its log ends with:\n{self.get_logs(_TAIL_LINES)}"

    def update_deployment_state(self) -> None:
        """Nothing is to be done: all that this object tells is looked up when it is asked."""

    def wait_for_deployment(self, show_output: bool = False, timeout_sec: float | None = None) -> None:
        """Wait until the service can score.

        Args:
            show_output: Print how it goes.
            timeout_sec: Give up after this time; it goes on in the background.

        Raises:
            WebserviceException: Its process has ended, with the end of its log; or the time is over.
        """
        begun_s = time.monotonic()
        dots = 0
        _show(show_output, "Running")
        # One that was ready before, and whose process lives, is on its way to be so again.
        while (state := self._state()) == "Transitioning" or (state == "Unhealthy" and self.error is None):
            waited_s = time.monotonic() - begun_s
            if timeout_sec is not None and waited_s > timeout_sec:
                _show(show_output, "\n")
                raise WebserviceException(
                    f"{self.name} is not deployed after {timeout_sec:g} s; it goes on, see state and get_logs()"
                )
            if waited_s > dots * _DOT_EVERY_S:
                _show(show_output, ".")
                dots += 1
            time.sleep(_LOOK_EVERY_S)
        _show(show_output, f"\n{'Succeeded' if state == 'Healthy' else 'Failed'}\n")
        if state != "Healthy":
            raise WebserviceException(f"{self.name} is not deployed, its state is {state}: {self.error}")
        print(f'{self.type_name} service creation operation finished, operation "Succeeded"')

    def _state(self) -> str:
        from stoker.azure_sdk.services import process as service_process
        from stoker.azure_sdk.services.records import Services

        record = self._found()
        if record is None:
            return "Deleted"
        folder = Services(self.workspace.local).folder(record)
        return service_process.state(folder, record.base_uri, self.name)

    def _has_started(self) -> bool:
        """Whether it can score; one that starts is waited for, which the server's time for loading bounds."""
        state = self._state()
        while state == "Transitioning":
            time.sleep(_LOOK_EVERY_S)
            state = self._state()
        return state == "Healthy"

    def get_logs(self, num_lines: int = 5000, init: bool = False) -> str:
        """The last lines of its log.

        Args:
            num_lines: How many at most.
            init: Not used: there is no init container.
        """
        from stoker.azure_sdk.services import process as service_process

        del init
        folder = self._folder
        return "" if folder is None else service_process.log_tail(folder, num_lines)

    # --- keys, tokens, scoring ---

    def get_keys(self) -> tuple[str, str]:
        """Its primary and its secondary key.

        Raises:
            WebserviceException: It takes none.
        """
        from stoker.keys.keyring import Keyring

        if not self.auth_enabled:
            instead = "get_token()" if self.token_auth_enabled else "none, auth_enabled is off"
            raise WebserviceException(f"{self.name} takes no keys: callers send {instead}")
        with raised_as(WebserviceException):
            keys = Keyring(self.workspace.local.keys_dir, self.name).show()
        return keys.primary, keys.secondary

    def regen_key(self, key: str, set_key: str | None = None) -> None:
        """Replace a key; the running service follows with its next request.

        Args:
            key: `Primary` or `Secondary`.
            set_key: The new key, else a random one.

        Raises:
            WebserviceException: It is neither, the service takes no keys, or the new key cannot be one.
        """
        from stoker.keys.keyring import Keyring

        slot = _SLOTS.get(key.capitalize())
        if slot is None:
            raise WebserviceException(f"there are the keys Primary and Secondary, not {key!r}")
        self.get_keys()
        with raised_as(WebserviceException):
            Keyring(self.workspace.local.keys_dir, self.name).regenerate(slot, set_key)

    def get_token(self) -> tuple[str, datetime]:
        """A token, and when another one should be fetched.

        Raises:
            WebserviceException: It takes none.
        """
        token = self.get_access_token()
        return token.access_token, token.refresh_after

    def get_access_token(self) -> WebServiceAccessToken:
        """A token with its times.

        Raises:
            WebserviceException: It takes none.
        """
        from stoker.keys.keyring import read_signing_secret
        from stoker.keys.tokens import issue

        if not self.token_auth_enabled:
            raise WebserviceException(f"{self.name} takes no tokens: deploy it with token_auth_enabled=True")
        with raised_as(WebserviceException):
            secret = read_signing_secret(self.workspace.local.keys_dir, self.name)
        token = issue(secret, self.name, now_s=time.time())
        refresh_after, expiry_on = (
            datetime.fromtimestamp(at_s, UTC) for at_s in (token.refresh_after_s, token.expires_s)
        )
        return WebServiceAccessToken(token.text, "Bearer", refresh_after, expiry_on)

    def run(self, input_data: str | bytes) -> Any:
        """Post a body to the service, with a key or token if it takes one, and return its JSON answer.

        A key or token is fetched once, and again when the service refuses it. A service that starts is waited for.

        Args:
            input_data: The body.

        Raises:
            WebserviceException: The service answers with an error, or cannot be reached.
        """
        import httpx

        from stoker.azure_sdk.services.plain_http import plain_http

        if not isinstance(input_data, str | bytes):
            raise WebserviceException(
                f"input_data must be the body, a str or bytes as json.dumps gives, not {type(input_data).__name__}"
            )
        try:
            # A request may take as long as the server allows.
            with plain_http(None) as client:
                try:
                    answer = client.post(self.scoring_uri, content=input_data, headers=self._headers())
                except httpx.ConnectError:
                    if not self._has_started():
                        raise
                    answer = client.post(self.scoring_uri, content=input_data, headers=self._headers())
                if answer.status_code == _UNAUTHORIZED:
                    self._bearer = None
                    answer = client.post(self.scoring_uri, content=input_data, headers=self._headers())
        except httpx.HTTPError as error:
            raise WebserviceException(
                f"{self.name} cannot be reached at {self.scoring_uri}: {error}; its state is {self.state}"
                f"{f': {reason}' if (reason := self.error) else ''}"
            ) from error
        if answer.status_code != _OK:
            raise WebserviceException(
                f"{self.name} answered {answer.status_code}: {answer.text}. get_logs() may tell more.\n"
                f"Headers: {dict(answer.headers)}",
                answer.status_code,
            )
        return answer.json()

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self._bearer is None and self.token_auth_enabled:
            self._bearer = self.get_token()[0]
        elif self._bearer is None and self.auth_enabled:
            self._bearer = self.get_keys()[0]
        return headers if self._bearer is None else {**headers, "Authorization": f"Bearer {self._bearer}"}

    # --- changing it ---

    def update(
        self,
        image: Any = None,
        *,
        models: Sequence[Model] | None = None,
        inference_config: InferenceConfig | None = None,
        **keywords: Any,
    ) -> None:
        """Deploy the service anew with other settings; those that are not given stay. It is waited for as ever.

        Tags and properties alone change while it runs. For all else its process is ended and another one started,
        and nobody is answered until that one is ready.

        Args:
            image: Not offered.
            models: Other models.
            inference_config: Another script or environment.
            keywords: Keywords of `deploy_configuration`.

        Raises:
            WebserviceException: A setting, file or model cannot be used; the service goes on as it was.
        """
        from stoker.azure_sdk.services.deploying import Plan

        if image is not None:
            raise NotOffered("services are not made of images here; give models and inference_config")
        plan = Plan.of(self._record)
        kept = {name: value for name, value in plan.keywords.items() if value is not None}
        changed = {name: value for name, value in keywords.items() if value is not None}
        for name in changed:
            if changed[name] is not False:
                for other in _INSTEAD.get(name, ()):
                    kept.pop(other, None)
        changed = {
            name: {**kept.get(name, {}), **value} if name == "properties" else value
            for name, value in changed.items()
        }
        with raised_as(WebserviceException):
            if models is None and inference_config is None and changed.keys() <= {"tags", "properties"}:
                self._relabel(**changed)
                return
        plan = dataclasses.replace(plan, keywords={**kept, **changed})
        if models is not None:
            plan = dataclasses.replace(plan, models=tuple(model.id for model in models))
        if inference_config is not None:
            plan = dataclasses.replace(plan, inference=inference_config.to_json())
        self._deploy(plan)

    def add_tags(self, tags: Mapping[str, Any]) -> None:
        """Add tags, or change them."""
        self._relabel(tags={**self.tags, **tags})

    def remove_tags(self, tags: Sequence[str]) -> None:
        """Remove tags by their names."""
        self._relabel(tags={name: value for name, value in self.tags.items() if name not in tags})

    def add_properties(self, properties: Mapping[str, Any]) -> None:
        """Add properties."""
        self._relabel(properties={**self.properties, **properties})

    def delete(self) -> None:
        """End the service and forget it, with its keys.

        Raises:
            WebserviceException: Its record cannot be read.
        """
        from stoker.azure_sdk.services.deploying import delete

        with raised_as(WebserviceException):
            delete(self.workspace.local, self.name)

    def _deploy(self, plan: Plan) -> None:
        from stoker.azure_sdk.services.deploying import deploy

        with raised_as(WebserviceException):
            deploy(self.workspace.local, plan, overwrite=True)

    def _relabel(self, **changed: Mapping[str, Any]) -> None:
        from stoker.azure_sdk.services.records import Services, now

        services = Services(self.workspace.local)
        with services.changing():
            given: dict[str, Any] = {name: labels(value) for name, value in changed.items()}
            services.write(dataclasses.replace(self._record, **given, updated_at=now()))

    def _found(self) -> ServiceRecord | None:
        from stoker.azure_sdk.services.records import Services

        with raised_as(WebserviceException):
            return Services(self.workspace.local).find(self.name)

    @property
    def _record(self) -> ServiceRecord:
        """What is known of it now; what was known of it last if it has been deleted."""
        self._last = self._found() or self._last
        return self._last

    @property
    def _folder(self) -> Path | None:
        from stoker.azure_sdk.services.records import Services

        record = self._found()
        return None if record is None else Services(self.workspace.local).folder(record)


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
        return f"{self._record.base_uri}/api/v1/service/{self.name}/score"


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
        from stoker.azure_sdk.services.deploying import Plan

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


_CLASSES: Final[Mapping[Kind, type[Webservice]]] = {
    "aks": AksWebservice,
    "aci": AciWebservice,
    "local": LocalWebservice,
}


def _record(workspace: Workspace, name: str) -> ServiceRecord:
    from stoker.azure_sdk.services.records import Services

    with raised_as(WebserviceException):
        services = Services(workspace.local)
        record = services.find(name)
        if record is None:
            known = ", ".join(found.name for found in services.list()) or "none"
            raise WebserviceException(
                f"WebserviceNotFound: there is no service {name!r} in the workspace; there are: {known}"
            )
        return record


def _show(wanted: bool, text: str) -> None:
    if wanted:
        sys.stdout.write(text)
        sys.stdout.flush()
