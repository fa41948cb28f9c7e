"""The services that deployment code has started: a folder for each in the workspace, found again by later code.

services/NAME/service.json      what is known of it
services/NAME/REVISION/…        what its process was started from, its log and its lock; see `process`
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from stoker.errors import InvalidSettings
from stoker.settings.names import is_name
from stoker.settings.workspace import Workspace
from stoker.system.durable import locked, private_folder, replace_file
from stoker_azure.config.deployment import Kind
from stoker_cluster.readers import read_object_name
from stoker_cluster.routing import effective_weights

__all__ = [
    "ENDPOINT_KEYWORDS",
    "Endpoint",
    "FirstVersion",
    "Plan",
    "ServiceRecord",
    "Services",
    "Version",
    "VersionChange",
    "now",
]

_RECORD: Final = "service.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRecord:
    """What is known of a service. Its keys are not in it.

    Attributes:
        kind: What it would be on Azure.
        compute_name: The compute target that it was deployed to.
        keywords: Keywords of `deploy_configuration`, without keys, tags and properties.
        properties: Labels that are given once.
        models: References of its registered models, `NAME:VERSION`.
        inference: What `InferenceConfig.to_json` gave; None if the model is served without a script.
        revision: Number of its latest start.
        pid: Number of that process.
        host: Address at which it is reached.
        auth: Whether callers send keys.
        token_auth: Whether callers send tokens.
        replicas: How many device processes serve it.
        made_keys: Whether its keys were made for it, and end with it.
        created_at: Time of its first deployment, RFC 3339 in UTC.
        updated_at: Time of its latest change.
        cluster: The context and the namespace of the cluster that it is in; None for a process of this machine.
        versions: The versions of an endpoint, by name; None for a service without versions.
        default_version: The one of them that gets what all shares leave.
    """

    name: str
    kind: Kind
    compute_name: str | None
    keywords: Mapping[str, Any]
    tags: Mapping[str, str]
    properties: Mapping[str, str]
    models: Sequence[str]
    inference: Mapping[str, Any] | None
    revision: int
    pid: int
    host: str
    port: int
    auth: bool
    token_auth: bool
    replicas: int
    made_keys: bool
    created_at: str
    updated_at: str
    cluster: Mapping[str, str] | None = None
    versions: Mapping[str, Mapping[str, Any]] | None = None
    default_version: str | None = None

    @property
    def base_uri(self) -> str:
        """Where its server answers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Take what `to_json` gave."""
        return cls(**content)

    def to_json(self) -> dict[str, Any]:
        """The record as its file has it."""
        return dataclasses.asdict(self)


class Services:
    """The services of a workspace.

    Args:
        workspace: The workspace on this machine.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._root = workspace.services_dir

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Keep others from deploying, changing and deleting services in the body."""
        with locked(private_folder(self._root) / ".lock"):
            yield

    def find(self, name: str) -> ServiceRecord | None:
        """What is known of a service; None if it was never deployed, or was deleted.

        Raises:
            InvalidSettings: Its record cannot be read.
        """
        if not is_name(name):
            return None
        file = self._root / name / _RECORD
        try:
            return ServiceRecord.from_json(json.loads(file.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise InvalidSettings(
                f"the record {file} cannot be read: {error}; delete {file.parent} and deploy the service again"
            ) from error

    def list(self) -> Sequence[ServiceRecord]:
        """All services, by name."""
        names = sorted(folder.name for folder in self._root.glob("*"))
        return [record for name in names if (record := self.find(name)) is not None]

    def write(self, record: ServiceRecord) -> None:
        """Keep what is known of a service."""
        content = json.dumps(record.to_json(), indent=2).encode() + b"\n"
        replace_file(private_folder(self._root / record.name) / _RECORD, content)

    def folder(self, record: ServiceRecord) -> Path:
        """Folder of its latest start."""
        return self._root / record.name / str(record.revision)

    def new_folder(self, name: str) -> Path:
        """Make the folder of its next start."""
        parent = private_folder(self._root / name)
        used = [int(entry.name) for entry in parent.iterdir() if entry.name.isdecimal()]
        return private_folder(parent / str(1 + max(used, default=0)))

    def remove(self, name: str) -> None:
        """Forget a service."""
        shutil.rmtree(self._root / name, ignore_errors=True)


def now() -> str:
    """The time, RFC 3339 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, slots=True)
class FirstVersion:
    """The version that an endpoint is deployed with."""

    name: str
    traffic_percentile: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version.

    Attributes:
        keywords: Keywords of `deploy_configuration` that are its own.
        models: References of its registered models.
        inference: What `InferenceConfig.to_json` gave; None serves its model without a script.
        traffic_percentile: Its share of the requests, in percent; what all shares leave goes to the default version.
        is_control: Whether others, the treatments, are compared with it.
    """

    keywords: Mapping[str, Any] = field(default_factory=dict)
    models: Sequence[str] = ()
    inference: Mapping[str, Any] | None = None
    traffic_percentile: float = 0.0
    is_control: bool = False

    @property
    def kind(self) -> str:
        """What it is in a comparison, as a label has it."""
        return "control" if self.is_control else "treatment"


ENDPOINT_KEYWORDS: Final = (
    *("auth_enabled", "token_auth_enabled", "primary_key", "secondary_key"),
    *("namespace", "compute_target_name", "tags", "properties", "description"),
)
"""Keywords of a whole endpoint, which a version cannot set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChange:
    """What a version is to be; what is not given stays.

    Attributes:
        keywords: Keywords of `deploy_configuration`.
        models: References of its registered models.
        inference: What `InferenceConfig.to_json` gave.
        traffic_percentile: Its share of the requests, in percent.
        is_default: Whether it gets from now on what all shares leave.
        is_control: Whether the others are compared with it from now on.
    """

    keywords: Mapping[str, Any] = field(default_factory=dict)
    models: Sequence[str] | None = None
    inference: Mapping[str, Any] | None = None
    traffic_percentile: float | None = None
    is_default: bool = False
    is_control: bool = False

    @property
    def is_of_its_pods(self) -> bool:
        """Whether more than its place among the versions changes."""
        return bool(self.keywords) or self.models is not None or self.inference is not None

    def over(self, version: Version) -> Version:
        """The version with it.

        Raises:
            InvalidSettings: A keyword is one of the whole endpoint.
        """
        for name in self.keywords:
            if name in ENDPOINT_KEYWORDS:
                raise InvalidSettings(f"{name} is said of the endpoint, not of a version; use update()")
        plan = Plan(name="", kind="aks", keywords=version.keywords).updated(self.keywords)
        share = version.traffic_percentile if self.traffic_percentile is None else self.traffic_percentile
        return dataclasses.replace(
            version,
            keywords=plan.keywords,
            models=version.models if self.models is None else list(self.models),
            inference=version.inference if self.inference is None else self.inference,
            traffic_percentile=float(share),
        )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The versions of an endpoint.

    Attributes:
        versions: They, by name; never none.
        default: The one that gets what is left of 100 percent.

    Raises:
        InvalidSettings: The shares are not what can be kept exactly.
    """

    versions: Mapping[str, Version]
    default: str

    def __post_init__(self) -> None:
        for name in self.versions:
            try:
                read_object_name(name)
            except ValueError as error:
                raise InvalidSettings(f"the name of a version {error}, got {name!r}") from None
        effective_weights(self.traffic, self.default)

    @classmethod
    def of(cls, record: ServiceRecord) -> Self:
        """The endpoint as its record has it.

        Raises:
            InvalidSettings: It is a service without versions.
        """
        if record.versions is None or record.default_version is None:
            raise InvalidSettings(f"{record.name} is a service without versions; deploy it as an AksEndpoint")
        return cls(
            {name: Version(**content) for name, content in record.versions.items()}, record.default_version
        )

    @property
    def traffic(self) -> dict[str, float]:
        """The share of each version in percent, as it was asked for."""
        return {name: float(version.traffic_percentile) for name, version in self.versions.items()}

    @property
    def weights(self) -> dict[str, int]:
        """The share of each version in hundredths of a percent, as it is."""
        return effective_weights(self.traffic, self.default)

    def waiting(self, name: str, version: Version) -> Endpoint:
        """The endpoint with a version that gets nothing yet.

        Raises:
            InvalidSettings: It has such a version.
        """
        if name in self.versions:
            raise InvalidSettings(f"there is a version {name} already; change it with update_version()")
        silent = dataclasses.replace(version, traffic_percentile=0.0, is_control=False)
        return Endpoint({**self.versions, name: silent}, self.default)

    def changed(
        self, name: str, version: Version, *, is_default: bool = False, is_control: bool = False
    ) -> Endpoint:
        """The endpoint with another version of this name; a new default or control takes the place of the old one.

        Raises:
            InvalidSettings: There is no such version, or the shares cannot be.
        """
        self.version(name)
        others = {
            other: dataclasses.replace(one, is_control=one.is_control and not is_control)
            for other, one in self.versions.items()
        }
        new = dataclasses.replace(version, is_control=version.is_control or is_control)
        return Endpoint({**others, name: new}, name if is_default else self.default)

    def without(self, name: str) -> Endpoint:
        """The endpoint without a version.

        Raises:
            InvalidSettings: There is no such version, or it is the default one.
        """
        self.version(name)
        if name == self.default:
            raise InvalidSettings(
                f"{name} is the default version; make another one that with update_version(…, is_default=True), or "
                "delete() the endpoint"
            )
        return Endpoint({other: one for other, one in self.versions.items() if other != name}, self.default)

    def version(self, name: str) -> Version:
        """A version.

        Raises:
            InvalidSettings: There is none of this name.
        """
        if name not in self.versions:
            raise InvalidSettings(f"there is no version {name}; there are {', '.join(self.versions)}")
        return self.versions[name]

    def into(self, record: ServiceRecord) -> ServiceRecord:
        """The record of the endpoint, with these versions."""
        content = {name: dataclasses.asdict(version) for name, version in self.versions.items()}
        models = dict.fromkeys(model for version in self.versions.values() for model in version.models)
        return dataclasses.replace(
            record, versions=content, default_version=self.default, models=list(models)
        )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a service is to be.

    Attributes:
        kind: What it would be on Azure.
        keywords: Keywords of `deploy_configuration`.
        models: References of its registered models.
        compute_name: The compute target that it is deployed to.
        inference: What `InferenceConfig.to_json` of the SDK gave; None serves its model without a script.
        first_version: The version that it begins with, if it is an endpoint with versions.
    """

    name: str
    kind: Kind
    keywords: Mapping[str, Any] = field(default_factory=dict, repr=False)
    models: tuple[str, ...] = ()
    compute_name: str | None = None
    inference: Mapping[str, Any] | None = None
    first_version: FirstVersion | None = None

    @classmethod
    def of(cls, record: ServiceRecord) -> Plan:
        """The plan of a service that is there, without the keys that it was given."""
        return cls(
            name=record.name,
            kind=record.kind,
            keywords={
                **record.keywords,
                "tags": record.tags or None,
                "properties": record.properties or None,
            },
            models=tuple(record.models),
            compute_name=record.compute_name,
            inference=record.inference,
        )

    def updated(
        self,
        keywords: Mapping[str, Any],
        models: Sequence[str] | None = None,
        inference: Mapping[str, Any] | None = None,
    ) -> Plan:
        """The plan with other settings; those that are not given stay.

        Args:
            keywords: Keywords of `deploy_configuration`. One takes the place of those that contradict it; properties
                are added to those that are there.
            models: References of other models.
            inference: Another `InferenceConfig.to_json`.
        """
        kept = {name: value for name, value in self.keywords.items() if value is not None}
        for name, value in keywords.items():
            if value is not False:
                for other in _INSTEAD.get(name, ()):
                    kept.pop(other, None)
        changed = {
            name: {**kept.get(name, {}), **value} if name == "properties" else value
            for name, value in keywords.items()
        }
        return dataclasses.replace(
            self,
            keywords={**kept, **changed},
            models=self.models if models is None else tuple(models),
            inference=self.inference if inference is None else inference,
        )
