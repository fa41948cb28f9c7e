"""The versions of a model in a frontend: which are served, which is the default, and what the labels mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from stoker.settings.versions import VersionStatus
from stoker.takeover.traffic_split import Split

if TYPE_CHECKING:
    from stoker.gateway.scoring.service import Service


class ServedVersion(Struct, frozen=True):
    """One version of a model; its service is None before it is loaded and after it has been unloaded."""

    status: VersionStatus
    service: Service | None = None

    @property
    def has_counters(self) -> bool:
        """Whether its slot of the metrics is its own: versions share one while they wait to be loaded on demand."""
        return not self.status.waits


class ServedModel(Struct, frozen=True):
    """All that a frontend knows of the versions of one model; replaced as a whole on each change.

    Attributes:
        versions: By number, in ascending order, including those that have been unloaded.
        default: The version for requests that name none; None if no version is served.
        split: The weights for requests that name no version; None if they all go to the default.
    """

    versions: Mapping[str, ServedVersion]
    default: str | None
    labels: Mapping[str, str] = field(default_factory=dict)
    split: Split | None = None

    @classmethod
    def of(cls, service: Service, slot: int) -> ServedModel:
        """A model of which one version is served."""
        return cls(
            {service.version: ServedVersion(VersionStatus(slot, "AVAILABLE"), service)}, service.version
        )

    def has_services_of(self, other: ServedModel) -> bool:
        """Whether names mean the same services here and there."""
        return (
            self.default == other.default
            and self.labels == other.labels
            and self.split is other.split
            and [(number, one.service) for number, one in self.versions.items()]
            == [(number, one.service) for number, one in other.versions.items()]
        )

    @property
    def services(self) -> Iterator[Service]:
        """The services of all served versions."""
        for version in self.versions.values():
            if version.service is not None:
                yield version.service

    @property
    def served(self) -> list[str]:
        """The served versions, in ascending order."""
        return [number for number, version in self.versions.items() if version.service is not None]
