"""Who gets a request: by turns, so that shares are kept exactly, or by a value that sticks to its place."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

__all__ = ["Split", "Turns"]

_PLACES: Final = 1 << 64


class Turns:
    """The smooth weighted round robin: with weights of 75 and 25 the sequence is a, a, b, a."""

    def __init__(self, weights: Mapping[str, int]) -> None:
        """Begin the sequence of those with a weight above 0."""
        self._weights = {name: weight for name, weight in weights.items() if weight}
        self._credits = dict.fromkeys(self._weights, 0)
        self._total = sum(self._weights.values())

    def next(self) -> str | None:
        """Return whose turn it is; None if nobody has a weight."""
        if not self._weights:
            return None
        for name, weight in self._weights.items():
            self._credits[name] += weight
        chosen = max(self._credits, key=self._credits.__getitem__)
        self._credits[chosen] -= self._total
        return chosen


class Split:
    """How the requests to a model go to its versions.

    Attributes:
        weights: By version, in the order in which they were given.
        header: The header whose value sticks to a version, in lower case; empty for turns alone.
    """

    def __init__(self, weights: Mapping[str, int], header: bytes = b"") -> None:
        """Begin; some weight has to be above 0."""
        self.weights = {name: weight for name, weight in weights.items() if weight}
        self.header = header
        self._turns = Turns(self.weights)
        self._total = sum(self.weights.values())

    def next(self, value: bytes = b"") -> str:
        """Return the version that gets a request, given the value of its header; without one it is by turns."""
        if value and self.header:
            return self._at(value)
        chosen = self._turns.next()
        assert chosen is not None, "some weight is above 0"
        return chosen

    def _at(self, value: bytes) -> str:
        """The version at the place of a value.

        Places are in the order of the versions: while the weight of the last one grows, who has it keeps it.
        """
        place = int.from_bytes(blake2b(value, digest_size=8).digest()) * self._total // _PLACES
        for name, weight in self.weights.items():
            place -= weight
            if place < 0:
                return name
        raise AssertionError("every place is before the sum of the weights")

    def alike(self, other: Split | None) -> bool:
        """Whether it sends everybody where another one does, so that that one can go on."""
        return (
            other is not None
            and list(self.weights.items()) == list(other.weights.items())
            and self.header == other.header
        )
