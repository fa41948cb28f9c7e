"""A deployed service: its state, its keys and tokens, scoring, and changing it."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from stoker_azure.config.deployment import DeploymentConfig, Kind, fields_of
from stoker_azure.exceptions import NotOffered, WebserviceException
from stoker_azure.sdk.base import BaseWorkspace, none_in_workspace, raised_as, text_labels
from stoker_azure.sdk.inference_config import InferenceConfig
from stoker_azure.sdk.registered_model import RegisteredModel, model_ids
from stoker_azure.sdk.services.records import FirstVersion, Plan, ServiceRecord, Services, now
from stoker_azure.sdk.unoffered import with_unoffered_names

if TYPE_CHECKING:
    from stoker.keys.keyring import Slot
    from stoker_azure.sdk.services.backends import PodsBackend, ProcessBackend
    from stoker_azure.sdk.services.process import Caller

# Attributes that Azure calls otherwise than the keywords.
_KEYWORDS: Final = {"max_concurrent_requests_per_container": "replica_max_concurrent_requests"}
_DOT_EVERY_S: Final = 1.0
_OK: Final = 200
_SLOTS: Final[Mapping[str, Slot]] = {"Primary": "primary", "Secondary": "secondary"}
_LABELS: Final = {"tags", "properties"}


@dataclass(frozen=True, slots=True)
class WebServiceAccessToken:
    """A token of a service.

    Attributes:
        token_type: `Bearer`.
        refresh_after: Time at which to fetch a new token.
        expiry_on: Time at which the token expires.
    """

    access_token: str = field(repr=False)
    token_type: str
    refresh_after: datetime
    expiry_on: datetime


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


@with_unoffered_names
class DeployedService:
    """A service of the workspace. Attributes are looked up when they are read.

    Attributes:
        image: None, as no service here is made of an image.

    Keywords of `deploy_configuration` are attributes too: the values that were deployed, or None.
    """

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

    def serialize(self) -> dict[str, Any]:
        """Return the service as JSON with Azure's names, without its keys."""
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
        """`Transitioning`, `Healthy`, `Unhealthy`, `Failed` or `Deleted`."""
        return self._state()

    @property
    def error(self) -> Any:
        """Why the service does not run, with the end of its log; in a cluster `code` and `message`."""
        with raised_as(WebserviceException):
            return None if self._found() is None else self._backend.error()

    def update_deployment_state(self, must_exist: bool = False) -> None:
        """Do nothing: attributes are looked up when they are read.

        Args:
            must_exist: Raise if the service has been deleted.

        Raises:
            WebserviceException: It has been deleted, and must not have been.
        """
        if must_exist:
            find_record(self.workspace, self.name)

    def wait_for_deployment(self, show_output: bool = False, timeout_sec: float | None = None) -> None:
        """Wait until the service can score.

        Args:
            timeout_sec: Seconds after which to stop waiting; the deployment continues.

        Raises:
            WebserviceException: The process has ended; the message has the end of its log. Or the time is over.
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
            time.sleep(self._backend.poll_s)
        _show(show_output, f"\n{'Succeeded' if state == 'Healthy' else 'Failed'}\n")
        if state != "Healthy":
            raise WebserviceException(f"{self.name} is not deployed, its state is {state}: {self.error}")
        print(f'{self.type_name} service creation operation finished, operation "Succeeded"')

    def _state(self) -> str:
        with raised_as(WebserviceException):
            return "Deleted" if self._found() is None else self._backend.state()

    def _has_started(self) -> bool:
        """Wait while the service starts, at most as long as a model may load; return whether it can score."""
        state = self._state()
        while state == "Transitioning":
            time.sleep(self._backend.poll_s)
            state = self._state()
        return state == "Healthy"

    def get_logs(self, num_lines: int = 5000, init: bool = False, raw: bool = False) -> str:
        """Return the last lines of the log.

        Args:
            init: Not used: there is no init container.
            raw: Not used: lines are always as they were written.

        Raises:
            WebserviceException: `num_lines` is not a whole number above 0, or the log cannot be read.
        """
        del init, raw
        if not isinstance(num_lines, int) or num_lines < 1:
            raise WebserviceException(f"num_lines must be a whole number above 0, got {num_lines!r}")
        with raised_as(WebserviceException):
            return "" if self._found() is None else self._backend.log(num_lines)

    # --- keys, tokens, scoring ---

    def get_keys(self) -> tuple[str, str]:
        """Return the primary and the secondary key.

        Raises:
            WebserviceException: The service takes none.
        """
        if not self.auth_enabled:
            instead = "get_token()" if self.token_auth_enabled else "none, auth_enabled is off"
            raise WebserviceException(f"{self.name} takes no keys: callers send {instead}")
        with raised_as(WebserviceException):
            keys = self._backend.keys()
        return keys.primary, keys.secondary

    def regen_key(self, key: str, set_key: str | None = None) -> None:
        """Replace a key; the running service uses the new one from its next request.

        Args:
            key: `Primary` or `Secondary`.
            set_key: The new key; a random one by default.

        Raises:
            WebserviceException: There is no such key, the service takes no keys, or the new key is not allowed.
        """
        slot = _SLOTS.get(key.capitalize())
        if slot is None:
            raise WebserviceException(f"there are the keys Primary and Secondary, not {key!r}")
        self.get_keys()
        with raised_as(WebserviceException):
            self._backend.regenerate(slot, set_key)

    def get_token(self) -> tuple[str, datetime]:
        """Return a token, and the time at which to fetch a new one.

        Raises:
            WebserviceException: The service takes none.
        """
        token = self.get_access_token()
        return token.access_token, token.refresh_after

    def get_access_token(self) -> WebServiceAccessToken:
        """Return a token with its times.

        Raises:
            WebserviceException: The service takes none.
        """
        from stoker.keys.tokens import issue_token

        if not self.token_auth_enabled:
            raise WebserviceException(f"{self.name} takes no tokens: deploy it with token_auth_enabled=True")
        with raised_as(WebserviceException):
            secret = self._backend.signing_secret()
        token = issue_token(secret, self.name, now_s=time.time())
        refresh_after, expiry_on = (
            datetime.fromtimestamp(at_s, UTC) for at_s in (token.refresh_after_s, token.expires_s)
        )
        return WebServiceAccessToken(token.text, "Bearer", refresh_after, expiry_on)

    def run(self, input_data: str | bytes) -> Any:
        """Post a body to the service, with a key or token if it takes one, and return the JSON response.

        A key or token is fetched once, and again when the service refuses it. `run` waits while the service starts.

        Raises:
            WebserviceException: The service responds with an error, or cannot be reached.
        """
        if not isinstance(input_data, str | bytes):
            raise WebserviceException(
                f"input_data must be the body, a str or bytes as json.dumps gives, not {type(input_data).__name__}"
            )
        try:
            answer = self._caller.post(input_data)
        except ConnectionError as error:
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

    @cached_property
    def _caller(self) -> Caller:
        from stoker_azure.sdk.services.process import Caller

        return Caller(lambda: self.scoring_uri, self._fetch_bearer, self._has_started)

    def _fetch_bearer(self) -> str | None:
        if self.token_auth_enabled:
            return self.get_token()[0]
        return self.get_keys()[0] if self.auth_enabled else None

    # --- changing it ---

    def update(
        self,
        image: Any = None,
        *,
        models: Sequence[RegisteredModel] | None = None,
        inference_config: InferenceConfig | None = None,
        **keywords: Any,
    ) -> None:
        """Redeploy the service with changed settings; arguments that are None change nothing.

        Tags and properties change while the service runs. All other changes restart the process, which
        answers no requests until it is ready.

        Raises:
            WebserviceException: A setting, file or model cannot be used; the service goes on as it was.
        """
        if image is not None:
            raise NotOffered("services are not made of images here; give models and inference_config")
        changed = {name: value for name, value in keywords.items() if value is not None}
        plan = Plan.of(self._record).updated(
            changed,
            None if models is None else model_ids(models),
            None if inference_config is None else inference_config.to_json(),
        )
        if models is None and inference_config is None and changed.keys() <= _LABELS:
            self._relabel(**{name: plan.keywords[name] for name in changed})
        else:
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
        """Delete the service, with its keys.

        Raises:
            WebserviceException: The record cannot be read.
        """
        from stoker_azure.sdk.services.deploying import delete

        with raised_as(WebserviceException):
            delete(self.workspace.local, self.name)

    def _deploy(self, plan: Plan) -> None:
        from stoker_azure.sdk.services.deploying import deploy

        with raised_as(WebserviceException):
            deploy(self.workspace.local, plan, overwrite=True)

    def _relabel(self, **changed: Mapping[str, Any]) -> None:
        given: dict[str, Any] = {name: text_labels(value) for name, value in changed.items()}
        if self._record.cluster is not None:
            plan = Plan.of(self._record)
            self._deploy(dataclasses.replace(plan, keywords={**plan.keywords, **given}))
            return
        with raised_as(WebserviceException), self._services.changing():
            self._services.write(dataclasses.replace(self._record, **given, updated_at=now()))


def _show(wanted: bool, text: str) -> None:
    if wanted:
        sys.stdout.write(text)
        sys.stdout.flush()


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
