"""An endpoint in Azure's sense: deployments behind one scoring path, with their shares of its requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Endpoint", "keys_owner"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What the supervisor and the frontends know of an endpoint.

    Attributes:
        name: Its name, under which the keys of all its deployments are kept.
        shares: Percent of its requests by deployment, in the order in which they were given; 0 is reached by the
            header alone. The deployments are services of these names.
        mirrors: Percent of its requests that a deployment gets a copy of; its answers go nowhere.
    """

    name: str
    shares: Mapping[str, int]
    mirrors: Mapping[str, int] = field(default_factory=dict)

    @property
    def leading(self) -> str:
        """The deployment with the largest share, which stands for the endpoint where no request is scored."""
        return max(self.shares, key=lambda name: self.shares[name])


def keys_owner(endpoint: Endpoint | None, service: str) -> str:
    """Return the name under which the keys of a service are kept: those of an endpoint open all its deployments."""
    return endpoint.name if endpoint is not None and service in endpoint.shares else service
