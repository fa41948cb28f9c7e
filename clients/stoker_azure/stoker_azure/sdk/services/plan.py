"""What a service is to be: as it was asked for, as it is, and with what an update changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from stoker_azure.config.fields import Kind
from stoker_azure.sdk.services.endpoint_versions import FirstVersion
from stoker_azure.sdk.services.records import ServiceRecord

__all__ = ["Plan"]

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
        name: Its name.
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
