"""The versions of a model as a frontend sees them: which are served, which is the default, what the labels mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stoker.takeover.weights import Split
from stoker.versions import Standing

if TYPE_CHECKING:
    from stoker.gateway.scoring.service import Service

__all__ = ["ServedModel", "ServedVersion"]


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """One version of a model.

    Attributes:
        standing: What has become of it.
        service: What scores with it; None before it is loaded and after it has been unloaded.
    """

    standing: Standing
    service: Service | None = None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """All that a frontend knows of the versions of one model; replaced as a whole when something changes.

    Attributes:
        versions: By number, in ascending order; those that have been unloaded too.
        default: The version that is meant where none is named; None if nothing of the model is served.
        labels: Versions by label.
        split: How requests that name no version go to versions; None if all mean the default.
    """

    versions: Mapping[str, ServedVersion]
    default: str | None
    labels: Mapping[str, str] = field(default_factory=dict)
    split: Split | None = None

    @classmethod
    def of(cls, service: Service, slot: int) -> ServedModel:
        """A model of which one version is served."""
        return cls({service.version: ServedVersion(Standing(slot, "AVAILABLE"), service)}, service.version)

    @property
    def services(self) -> Iterator[Service]:
        """The services of all versions that are served."""
        for version in self.versions.values():
            if version.service is not None:
                yield version.service

    @property
    def served(self) -> list[str]:
        """The versions that are served, in ascending order."""
        return [number for number, version in self.versions.items() if version.service is not None]
