"""Trials of versions that get a part of the requests: a version that fails or is slow loses its weight."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from stoker.metrics.layout import STAGE_BOUNDS_S
from stoker.metrics.memory import MetricMemory
from stoker.metrics.totals import ModelTotals
from stoker.supervisor.catalogue import Catalogue, Model
from stoker.supervisor.rollout import Rollout
from stoker.takeover.rollback import Counters, Trial

_FAILED: Final = (500, 503, 504)

_Key = tuple[str, str, int, int]
"""Model, label, and the slots of the version that others are held against and of the one with the label."""


class Trials:
    """The trials of a server: one for each label but the first that has a weight."""

    def __init__(
        self,
        catalogue: Catalogue,
        rollout: Rollout,
        memory: MetricMemory,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalogue = catalogue
        self._rollout = rollout
        self._memory = memory
        self._clock_s = clock_s
        self._trials: dict[_Key, Trial] = {}

    async def check(self) -> bool:
        """Check all versions that have a weight; returns True, for the next call."""
        under_way = {key: model for model in self._catalogue.models.values() for key in _keys(model)}
        self._trials = {key: trial for key, trial in self._trials.items() if key in under_way}
        if not under_way:
            return True
        totals, now_s = self._memory.totals(), self._clock_s()
        for key, model in under_way.items():
            _, label, old_slot, new_slot = key
            number = model.meant_by(label)
            served = None if number is None else model.versions[number].served
            if number is None or served is None or served.rollback is None:
                continue
            trial = self._trials.setdefault(key, Trial(served.rollback, STAGE_BOUNDS_S))
            old, new = (_counters(totals.model(slot)) for slot in (old_slot, new_slot))
            if (reason := trial.check(now_s, old, new)) is not None:
                self._rollout.roll_back(model, label, number, reason)
        return True


def _keys(model: Model) -> Iterator[_Key]:
    """The trials of a model: its labels with a weight, against the first one."""
    meant = {label: model.meant_by(label) for label, weight in model.canary.weights.items() if weight}
    slots = {number: model.versions[number].status.slot for number in model.available}
    first, *others = meant.values() or (None,)
    if first not in slots or not others:
        return
    for label, number in meant.items():
        if number in slots and number != first:
            yield model.name, label, slots[first], slots[number]


def _counters(totals: ModelTotals) -> Counters:
    requests = totals.requests()
    failed = sum(requests[status] for status in _FAILED)
    return Counters(requests[200], failed, tuple(totals.stage_seconds()["total"].counts))
