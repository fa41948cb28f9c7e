"""Which deployment of an endpoint gets a request: by the header that names it, else by the shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stoker.takeover.weights import Turns

if TYPE_CHECKING:
    from stoker.settings.endpoint import Endpoint

__all__ = ["DEPLOYMENT_HEADER", "Traffic"]

DEPLOYMENT_HEADER: Final = b"azureml-model-deployment"
"""Names a deployment in a request, and the one that has answered in its answer; as on Azure."""
_ALL: Final = 100


class Traffic:
    """The sequence of an endpoint's deployments: each has its share of any hundred requests, evenly spread.

    Each frontend has a sequence of its own.

    Attributes:
        endpoint: The endpoint.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._turns = Turns(endpoint.shares)
        self._mirrors = dict.fromkeys(endpoint.mirrors, 0)

    @property
    def undivided(self) -> bool:
        """Whether there is one deployment, which gets everything."""
        return len(self.endpoint.shares) == 1 and any(self.endpoint.shares.values())

    def next(self) -> str | None:
        """Return the deployment of the next request; None if none has a share."""
        return self._turns.next()

    def next_mirror(self) -> str | None:
        """Return the deployment that gets a copy of the next request; mostly None."""
        for name, percent in self.endpoint.mirrors.items():
            self._mirrors[name] += percent
            if self._mirrors[name] >= _ALL:
                self._mirrors[name] -= _ALL
                return name
        return None
