"""Which deployment of an endpoint gets a request: by the header that names it, else by the shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stoker.settings.endpoint import Endpoint

__all__ = ["DEPLOYMENT_HEADER", "Traffic"]

DEPLOYMENT_HEADER: Final = b"azureml-model-deployment"
"""Names a deployment in a request, and the one that has answered in its answer; as on Azure."""
_ALL: Final = 100


class Traffic:
    """The sequence of an endpoint's deployments: each has its share of any hundred requests, evenly spread.

    It is the smooth weighted round robin: with shares of 75 and 25 the sequence is a, a, b, a. Each frontend has a
    sequence of its own.

    Attributes:
        endpoint: The endpoint.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._shares = {name: share for name, share in endpoint.shares.items() if share}
        self._credits = dict.fromkeys(self._shares, 0)
        self._total = sum(self._shares.values())
        self._mirrors = dict.fromkeys(endpoint.mirrors, 0)

    @property
    def undivided(self) -> bool:
        """Whether there is one deployment, which gets everything."""
        return len(self.endpoint.shares) == 1 and bool(self._shares)

    def next(self) -> str | None:
        """Return the deployment of the next request; None if none has a share."""
        if not self._shares:
            return None
        for name, share in self._shares.items():
            self._credits[name] += share
        chosen = max(self._credits, key=self._credits.__getitem__)
        self._credits[chosen] -= self._total
        return chosen

    def next_mirror(self) -> str | None:
        """Return the deployment that gets a copy of the next request; mostly None."""
        for name, percent in self.endpoint.mirrors.items():
            self._mirrors[name] += percent
            if self._mirrors[name] >= _ALL:
                self._mirrors[name] -= _ALL
                return name
        return None
