"""The division of an endpoint's requests among its deployments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stoker.takeover.traffic_split import RoundRobin

if TYPE_CHECKING:
    from stoker.settings.traffic import Endpoint

DEPLOYMENT_HEADER: Final = b"azureml-model-deployment"
"""Header that names a deployment, in a request and in the answer; as on Azure."""
_ALL: Final = 100


class Traffic:
    """Divides requests among an endpoint's deployments: each gets its share of any hundred requests, evenly spread.

    Each frontend divides its requests on its own.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._turns = RoundRobin(endpoint.shares)
        self._mirrors = dict.fromkeys(endpoint.mirrors, 0)

    @property
    def undivided(self) -> bool:
        """Whether there is only one deployment."""
        return len(self.endpoint.shares) == 1 and any(self.endpoint.shares.values())

    def next(self) -> str | None:
        """Return the deployment for the next request; None if none has a share."""
        return self._turns.next()

    def next_mirror(self) -> str | None:
        """Return the deployment that gets a copy of the next request; None for most requests."""
        for name, percent in self.endpoint.mirrors.items():
            self._mirrors[name] += percent
            if self._mirrors[name] >= _ALL:
                self._mirrors[name] -= _ALL
                return name
        return None
