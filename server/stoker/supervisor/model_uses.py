"""The uses of versions that are loaded on demand: their requests, and the memory and time of their loads."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct

from stoker.deployment import Deployment
from stoker.metrics.memory import MetricMemory
from stoker.residency.footprints import Footprint, Footprints
from stoker.residency.policy import ModelUse
from stoker.residency.rates import RequestRates
from stoker.supervisor.backoff import Backoff

Key = tuple[str, int]
"""Name and version of a model."""


class Use(Struct):
    """The use of one version.

    Attributes:
        requests: The count of its requests that was read last.
        error: Why it could not be loaded; it is not tried again before `retry_s`.
        begun_s: When its last load began.
    """

    footprint: Footprint
    since_s: float = 0.0
    last_used_s: float = 0.0
    requests: int = 0
    verified: int = -1
    error: str = ""
    retry_s: float = 0.0
    begun_s: float = 0.0
    backoff: Backoff = msgspec.field(default_factory=Backoff)


class ModelUses:
    """The uses of all versions that are loaded on demand, and their expected requests."""

    def __init__(self, footprints: Footprints, memory: MetricMemory, clock_s: Callable[[], float]) -> None:
        """Begin without uses.

        Args:
            footprints: The memory and time of earlier loads.
            memory: The metrics, which count the requests to each model.
        """
        self.footprints = footprints
        self._memory, self._clock_s = memory, clock_s
        self._rates = RequestRates(clock_s())
        self._uses: dict[Key, Use] = {}

    def find(self, key: Key) -> Use | None:
        """Return the use of a version; None for a version that was not looked at yet."""
        return self._uses.get(key)

    def provide(self, key: Key, deployed: Deployment, place: str) -> Use:
        """Return the use of a version that is loaded in this place; a new one has the footprint of earlier loads."""
        use = self._uses.get(key)
        if use is None:
            use = self._uses[key] = Use(self.footprints.find(deployed, place))
        return use

    def forget(self, key: Key) -> None:
        """Drop a version that is no longer served."""
        self._uses.pop(key, None)
        self._rates.forget(_name(key))

    def begin_slot(self, use: Use, slot: int) -> None:
        """Count requests from now on by the counters of this slot of the metrics."""
        use.requests = self._count(slot)

    def count_waiting(self, key: Key, use: Use) -> None:
        """Count the request for which a version was loaded.

        It is in the metrics when it is answered: until then nobody must take the model for unused.
        """
        use.requests += 1
        self._rates.observe(_name(key), 1, use.last_used_s)

    def learn(self, key: Key, use: Use, slot: int) -> None:
        """Learn of the requests since the last look at the counters of this slot."""
        requests, now_s = self._count(slot), self._clock_s()
        if requests > use.requests:
            self._rates.observe(_name(key), requests - use.requests, now_s)
            use.last_used_s, use.requests = now_s, requests

    def describe(self, key: Key, use: Use, min_residence_s: float, *, leased: bool) -> ModelUse:
        """Return a loaded version as the choice of evictions sees it."""
        return ModelUse(
            _name(key),
            use.footprint.size_bytes,
            use.footprint.load_s,
            use.last_used_s,
            self._rates.rate(_name(key), self._clock_s()),
            use.since_s + min_residence_s,
            leased=leased,
        )

    def _count(self, slot: int) -> int:
        return sum(self._memory.model_totals(slot).requests().values())


def _name(key: Key) -> str:
    return f"{key[0]}:{key[1]}"
