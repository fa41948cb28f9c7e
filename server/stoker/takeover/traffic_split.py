"""The split of a model's requests among its versions: round robin with exact shares, or sticky by a header."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

_PLACES: Final = 1 << 64


class RoundRobin:
    """Smooth weighted round robin: weights of 75 and 25 give the sequence a, a, b, a."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = {name: weight for name, weight in weights.items() if weight}
        self._credits = dict.fromkeys(self._weights, 0)
        self._total = sum(self._weights.values())

    def next(self) -> str | None:
        """Return the next name; None if no weight is above 0."""
        if not self._weights:
            return None
        for name, weight in self._weights.items():
            self._credits[name] += weight
        chosen = max(self._credits, key=self._credits.__getitem__)
        self._credits[chosen] -= self._total
        return chosen


class Split:
    """How a model's requests are split among its versions; some weight has to be above 0.

    Attributes:
        weights: By version, in the given order.
        header: The header whose value sticks to a version, in lower case; empty for round robin alone.
    """

    def __init__(self, weights: Mapping[str, int], header: bytes = b"") -> None:
        self.weights = {name: weight for name, weight in weights.items() if weight}
        self.header = header
        self._round_robin = RoundRobin(self.weights)
        self._total = sum(self.weights.values())

    def next(self, value: bytes = b"") -> str:
        """Return the version for a request with this value of the header; without a value, the next one in turn."""
        if value and self.header:
            return self._version_for(value)
        chosen = self._round_robin.next()
        assert chosen is not None, "some weight is above 0"
        return chosen

    def _version_for(self, value: bytes) -> str:
        """Return the version at the place of a value.

        Places are in the order of the versions: while the weight of the last one grows, those who have it keep it.
        """
        place = int.from_bytes(blake2b(value, digest_size=8).digest()) * self._total // _PLACES
        for name, weight in self.weights.items():
            place -= weight
            if place < 0:
                return name
        raise AssertionError("every place is before the sum of the weights")

    def equals(self, other: Split | None) -> bool:
        """Return whether another split is equal, so that it can continue."""
        return (
            other is not None
            and list(self.weights.items()) == list(other.weights.items())
            and self.header == other.header
        )
