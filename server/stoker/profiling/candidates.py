"""The settings that a search tries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from stoker.device.batch_decisions import BatchPolicy
from stoker.profiling.curves import MeasuredCurve
from stoker.settings.choices import Admission

_SPARSE: Final = 2
"""Every n-th of the measured buckets, from the largest on, forms a sparser set."""
_MOST_INSTANCES: Final = 2


class Candidate(Struct, frozen=True):
    """Settings to serve a model with.

    Attributes:
        max_batch_rows: Limit of rows per batch.
        instances: Number of concurrent batches.
        batch_buckets: The sizes that batches are padded to; empty for no padding.
        execution: How batches get to a GPU and back.
        requests: Whether batches consist of whole requests, whose number no setting limits.
        admission: Which requests are admitted: the model's own setting, which the search does not change.
    """

    max_batch_rows: int
    instances: int = 1
    batch_buckets: tuple[int, ...] = ()
    execution: str = "auto"
    requests: bool = False
    admission: Admission = "target"

    def policy(self, target_ms: float) -> BatchPolicy:
        """The corresponding policy of the scheduler."""
        return BatchPolicy(self.max_batch_rows, buckets=self.batch_buckets, target_ms=target_ms)

    def settings(self) -> dict[str, Any]:
        """The model's settings in a deployment file, without defaults that need not be written."""
        settings: dict[str, Any] = {} if self.requests else {"max_batch_rows": self.max_batch_rows}
        settings["instances"] = self.instances
        if self.batch_buckets:
            settings["batch_buckets"] = list(self.batch_buckets)
        if self.execution != "auto":
            settings["execution"] = self.execution
        return settings


class Space(Struct, frozen=True):
    """The choices for a model on its device.

    Attributes:
        curves: The batch times by execution.
        default: The settings without any choice.
        forks: Whether it can have several instances.
    """

    curves: Mapping[str, MeasuredCurve]
    default: Candidate
    forks: bool = False

    def candidates(self) -> list[Candidate]:
        """All candidates, the default first, without those that are equivalent to another one."""
        found = dict.fromkeys([self.default])
        for execution, curve in self.curves.items():
            for most in self._caps(curve):
                for buckets in self._buckets(curve, most):
                    for instances in self._instances(curve, most):
                        candidate = msgspec.structs.replace(
                            self.default,
                            max_batch_rows=most,
                            instances=instances,
                            batch_buckets=buckets,
                            execution=execution,
                        )
                        found[candidate] = None
        return list(found)

    def curve(self, candidate: Candidate) -> MeasuredCurve:
        """The batch times of a candidate."""
        return self.curves[candidate.execution]

    def _caps(self, curve: MeasuredCurve) -> list[int]:
        if self.default.requests:
            return [self.default.max_batch_rows]
        return list(curve.sizes)

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
        # If two concurrent batches gain too little, one runs at a time whatever the number of instances.
        return [
            instances
            for instances in range(1, _MOST_INSTANCES + 1)
            if curve.at_once(instances, most) == instances
        ]
