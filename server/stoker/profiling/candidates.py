"""Settings of batching that are tried, and which of them there are for a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stoker.device.planner import BatchPolicy
from stoker.profiling.curves import MeasuredCurve
from stoker.settings.lateness import Admission

__all__ = ["Candidate", "Space"]

_SPARSE: Final = 2
"""Of the buckets that were measured every so many-th makes another set of them, from the largest on."""
_MOST_INSTANCES: Final = 2


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a model may be served with.

    Attributes:
        max_batch_rows: Most rows in a batch.
        instances: Batches that run at once.
        batch_buckets: Sizes that batches are filled up to; empty if they run as they come.
        execution: How batches get to a GPU and back.
        hold: For which part of its slack a batch waits for company.
        requests: Whether its batches are of whole requests, of which no setting says how many are the most.
        admission: Which requests are taken. It is the model's own setting, which nothing here changes.
    """

    max_batch_rows: int
    instances: int = 1
    batch_buckets: tuple[int, ...] = ()
    execution: str = "auto"
    hold: float = 0.0
    requests: bool = False
    admission: Admission = "target"

    def policy(self, target_ms: float) -> BatchPolicy:
        """How the planner is told of it."""
        return BatchPolicy(
            self.max_batch_rows, buckets=self.batch_buckets, target_ms=target_ms, hold=self.hold
        )

    def settings(self) -> dict[str, Any]:
        """The settings of a model in a deployment file; those that are not needed are left out."""
        told: dict[str, Any] = {} if self.requests else {"max_batch_rows": self.max_batch_rows}
        told["instances"] = self.instances
        if self.batch_buckets:
            told["batch_buckets"] = list(self.batch_buckets)
        if self.execution != "auto":
            told["execution"] = self.execution
        if self.hold:
            told["hold"] = self.hold
        return told


@dataclass(frozen=True, slots=True)
class Space:
    """What there is to choose from for a model on its device.

    Attributes:
        curves: What its batches take, by execution.
        default: What it is served with where nothing is said.
        forks: Whether it can have several instances.
    """

    curves: Mapping[str, MeasuredCurve]
    default: Candidate
    forks: bool = False

    def candidates(self) -> list[Candidate]:
        """All candidates, the default first, without those that are as good as another by their rules."""
        found = dict.fromkeys([self.default])
        for execution, curve in self.curves.items():
            for most in self._caps(curve):
                for buckets in self._buckets(curve, most):
                    for instances in self._instances(curve, most):
                        candidate = dataclasses.replace(
                            self.default,
                            max_batch_rows=most,
                            instances=instances,
                            batch_buckets=buckets,
                            execution=execution,
                        )
                        found[candidate] = None
        return list(found)

    def holding(self, candidate: Candidate) -> list[Candidate]:
        """The candidate with other values of `hold`."""
        return [dataclasses.replace(candidate, hold=hold) for hold in (0.0, 0.5) if hold != candidate.hold]

    def curve(self, candidate: Candidate) -> MeasuredCurve:
        """What its batches take."""
        return self.curves[candidate.execution]

    def _caps(self, curve: MeasuredCurve) -> list[int]:
        if self.default.requests:
            return [self.default.max_batch_rows]
        return [size for size in curve.sizes if size <= self.default.max_batch_rows]

    def _buckets(self, curve: MeasuredCurve, most: int) -> Iterator[tuple[int, ...]]:
        if not curve.filled:
            yield ()
            return
        sizes = tuple(size for size in curve.sizes if size <= most)
        yield sizes
        if len(sizes) > _SPARSE:
            yield tuple(sorted({1, *sizes[::-_SPARSE]}))

    def _instances(self, curve: MeasuredCurve, most: int) -> list[int]:
        if not self.forks:
            return [self.default.instances]
        # Where two batches gain too little at once, one runs at a time whatever the instances.
        return [
            instances
            for instances in range(1, _MOST_INSTANCES + 1)
            if curve.at_once(instances, most) == instances
        ]
