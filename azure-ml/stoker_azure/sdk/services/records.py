"""Records of deployed services, the versions of endpoints, and plans for deploying, as plain values.

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

import msgspec
from msgspec import Struct

from stoker.errors import InvalidSettings
from stoker.settings.names import is_name
from stoker.settings.workspace import Workspace
from stoker.system.durable import locked, private_folder, replace_file
from stoker_azure.config.deployment import Kind
from stoker_cluster.readers import read_object_name
from stoker_cluster.traffic_shares import effective_weights

_RECORD: Final = "service.json"
_NOT_KEPT: Final = {"primary_key", "secondary_key", "tags", "properties"}
"""Keywords that are no keywords of a record: keys are in no file, and labels have fields of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRecord:
    """The record of a service, without its keys.

    Attributes:
        keywords: Keywords of `deploy_configuration`, without keys, tags and properties.
        models: References of the registered models, `NAME:VERSION`.
        inference: Result of `InferenceConfig.to_json`; None if the model is served without a script.
        made_keys: Whether the keys were created for the service, and are deleted with it.
        cluster: Context and namespace of the cluster; None for a process of this machine.
        versions: The versions of an endpoint, by name; None for a service without versions.
        default_version: The version that gets the rest of the requests.
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
        """The URI of the server."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class Services:
    """The services of a workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._root = workspace.services_dir

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Lock the services: others wait before they deploy, change or delete one."""
        with locked(private_folder(self._root) / ".lock"):
            yield

    def find(self, name: str) -> ServiceRecord | None:
        """Return the record of a service; None if it was never deployed, or was deleted."""
        if not is_name(name):
            return None
        file = self._root / name / _RECORD
        try:
            return ServiceRecord(**json.loads(file.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise InvalidSettings(
                f"the record {file} cannot be read: {error}; delete {file.parent} and deploy the service again"
            ) from error

    def list(self) -> Sequence[ServiceRecord]:
        """Return the records of all services, by name."""
        names = sorted(folder.name for folder in self._root.glob("*"))
        return [record for name in names if (record := self.find(name)) is not None]

    def write(self, record: ServiceRecord) -> None:
        """Write the record of a service."""
        content = json.dumps(dataclasses.asdict(record), indent=2).encode() + b"\n"
        replace_file(private_folder(self._root / record.name) / _RECORD, content)

    def folder(self, record: ServiceRecord) -> Path:
        """Return the folder of the latest start."""
        return self._root / record.name / str(record.revision)

    def new_folder(self, name: str) -> Path:
        """Create the folder of the next start."""
        parent = private_folder(self._root / name)
        used = [int(entry.name) for entry in parent.iterdir() if entry.name.isdecimal()]
        return private_folder(parent / str(1 + max(used, default=0)))

    def remove(self, name: str) -> None:
        """Delete the folder of a service."""
        shutil.rmtree(self._root / name, ignore_errors=True)


def now() -> str:
    """Return the time, RFC 3339 in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class FirstVersion(Struct, frozen=True):
    """The version that an endpoint is deployed with."""

    name: str
    traffic_percentile: float


class Version(Struct, frozen=True, kw_only=True):
    """A version of an endpoint.

    Attributes:
        inference: Result of `InferenceConfig.to_json`; None if the model is served without a script.
        traffic_percentile: Share of the requests in percent; the default version gets the rest.
        is_control: Whether the others, the treatments, are compared with this version.
    """

    keywords: Mapping[str, Any] = msgspec.field(default_factory=dict)
    models: Sequence[str] = ()
    inference: Mapping[str, Any] | None = None
    traffic_percentile: float = 0.0
    is_control: bool = False

    @property
    def kind(self) -> str:
        """`control` or `treatment`, the value of a label."""
        return "control" if self.is_control else "treatment"


ENDPOINT_KEYWORDS: Final = (
    *("auth_enabled", "token_auth_enabled", "primary_key", "secondary_key"),
    *("namespace", "compute_target_name", "tags", "properties", "description"),
)
"""Keywords of a whole endpoint, which a version cannot set."""


class VersionChange(Struct, frozen=True, kw_only=True):
    """A change of a version; attributes that are None change nothing.

    Attributes:
        is_default: Make the version the default one, which gets the rest of the requests.
        is_control: Compare the others with this version.
    """

    keywords: Mapping[str, Any] = msgspec.field(default_factory=dict)
    models: Sequence[str] | None = None
    inference: Mapping[str, Any] | None = None
    traffic_percentile: float | None = None
    is_default: bool = False
    is_control: bool = False

    @property
    def changes_pods(self) -> bool:
        """Whether the change needs other pods."""
        return bool(self.keywords) or self.models is not None or self.inference is not None

    def apply_to(self, version: Version) -> Version:
        """Return the changed version.

        Raises:
            InvalidSettings: A keyword belongs to the whole endpoint.
        """
        for name in self.keywords:
            if name in ENDPOINT_KEYWORDS:
                raise InvalidSettings(f"{name} is said of the endpoint, not of a version; use update()")
        plan = Plan(name="", kind="aks", keywords=version.keywords).updated(self.keywords)
        share = version.traffic_percentile if self.traffic_percentile is None else self.traffic_percentile
        return msgspec.structs.replace(
            version,
            keywords=plan.keywords,
            models=version.models if self.models is None else list(self.models),
            inference=version.inference if self.inference is None else self.inference,
            traffic_percentile=float(share),
        )


class Endpoint(Struct, frozen=True):
    """The versions of an endpoint.

    Attributes:
        versions: The versions by name; at least one.

    Raises:
        InvalidSettings: The shares cannot be kept exactly.
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
        """Return the endpoint of a record."""
        if record.versions is None or record.default_version is None:
            raise InvalidSettings(f"{record.name} is a service without versions; deploy it as an AksEndpoint")
        return cls(
            {name: Version(**content) for name, content in record.versions.items()}, record.default_version
        )

    @property
    def traffic(self) -> dict[str, float]:
        """The requested share of each version, in percent."""
        return {name: float(version.traffic_percentile) for name, version in self.versions.items()}

    @property
    def weights(self) -> dict[str, int]:
        """The actual share of each version, in hundredths of a percent."""
        return effective_weights(self.traffic, self.default)

    def with_new_version(self, name: str, version: Version) -> Endpoint:
        """Return the endpoint with a new version that gets no requests yet."""
        if name in self.versions:
            raise InvalidSettings(f"there is a version {name} already; change it with update_version()")
        silent = msgspec.structs.replace(version, traffic_percentile=0.0, is_control=False)
        return Endpoint({**self.versions, name: silent}, self.default)

    def with_version(
        self, name: str, version: Version, *, is_default: bool = False, is_control: bool = False
    ) -> Endpoint:
        """Return the endpoint with a version replaced; a new default or control replaces the old one.

        Raises:
            InvalidSettings: There is no such version, or the shares are not allowed.
        """
        self.version(name)
        others = {
            other: msgspec.structs.replace(one, is_control=one.is_control and not is_control)
            for other, one in self.versions.items()
        }
        new = msgspec.structs.replace(version, is_control=version.is_control or is_control)
        return Endpoint({**others, name: new}, name if is_default else self.default)

    def without_version(self, name: str) -> Endpoint:
        """Return the endpoint without a version.

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
        """A version of an endpoint."""
        if name not in self.versions:
            raise InvalidSettings(f"there is no version {name}; there are {', '.join(self.versions)}")
        return self.versions[name]

    def update_record(self, record: ServiceRecord) -> ServiceRecord:
        """Return the record with the versions of this endpoint."""
        content = {name: msgspec.structs.asdict(version) for name, version in self.versions.items()}
        models = dict.fromkeys(model for version in self.versions.values() for model in version.models)
        return dataclasses.replace(
            record, versions=content, default_version=self.default, models=list(models)
        )


# Settings that exclude each other: setting one removes the others.
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
    """A request to deploy a service.

    Attributes:
        inference: Result of the SDK's `InferenceConfig.to_json`; None if the model is served without a script.
    """

    name: str
    kind: Kind
    keywords: Mapping[str, Any] = field(default_factory=dict, repr=False)
    models: tuple[str, ...] = ()
    compute_name: str | None = None
    inference: Mapping[str, Any] | None = None
    first_version: FirstVersion | None = None

    def record(self, values: Mapping[str, Any], old: ServiceRecord | None, **own: Any) -> ServiceRecord:
        """Return the record of the service that was deployed.

        Args:
            values: The checked keywords.
            old: The record that it replaces.
            own: Fields that tell where and how it runs.
        """
        time = now()
        return ServiceRecord(
            name=self.name,
            kind=self.kind,
            compute_name=self.compute_name,
            keywords={name: value for name, value in values.items() if name not in _NOT_KEPT},
            tags=values.get("tags", {}),
            properties=values.get("properties", {}),
            models=list(self.models),
            inference=self.inference,
            created_at=old.created_at if old is not None else time,
            updated_at=time,
            **own,
        )

    @classmethod
    def of(cls, record: ServiceRecord) -> Plan:
        """Return the plan of an existing service, without its keys."""
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
        """Return the plan with changed settings; arguments that are None change nothing.

        Args:
            keywords: Keywords of `deploy_configuration`. A keyword replaces those that contradict it; properties are
                added to the existing ones.
            inference: Result of `InferenceConfig.to_json`.
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
