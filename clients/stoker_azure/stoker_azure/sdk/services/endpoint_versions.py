"""The versions of an endpoint: what each runs, and which share of the requests it gets, as plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from stoker.errors import InvalidSettings
from stoker_azure.sdk.services.records import ServiceRecord
from stoker_cluster.readers import read_object_name
from stoker_cluster.routing import effective_weights

__all__ = ["Endpoint", "FirstVersion", "Version"]


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
