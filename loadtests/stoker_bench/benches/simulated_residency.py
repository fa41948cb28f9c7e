"""Simulates which models are in memory for a trace of requests, by the server's own rule for the models that leave.

A request to a model that is not loaded waits for its load, which makes room first. A request that comes meanwhile is
a miss too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stoker.residency.policy import ModelUse, choose_evicted
from stoker.residency.rates import RequestRates


@dataclass(frozen=True, slots=True)
class Sizes:
    """Models, by number.

    Attributes:
        bytes: Memory of each.
        load_s: Time of a load.
        spare_bytes: Memory that only the load of each needs, beside its own.
    """

    bytes: list[int]
    load_s: list[float]
    spare_bytes: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival.

    Attributes:
        at_s: float64[requests].
        model: int64[requests]: a number of each.
    """

    at_s: np.ndarray
    model: np.ndarray


class _Eviction:
    """The server's rule for the models that leave."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._rates = RequestRates(0.0)
        self._names = [str(model) for model in range(len(sizes.bytes))]
        self._used_s = [0.0] * len(sizes.bytes)

    def use(self, model: int, now_s: float) -> None:
        """Note a request, after its model has been loaded."""
        self._rates.observe(self._names[model], 1, now_s)
        self._used_s[model] = now_s

    def choose(self, loaded: Collection[int], needed_bytes: int, now_s: float) -> list[int]:
        """Return the models that leave, whose bytes suffice."""
        sizes = self._sizes
        uses = (
            ModelUse(
                self._names[model],
                sizes.bytes[model],
                sizes.load_s[model],
                self._used_s[model],
                self._rates.rate(self._names[model], now_s),
            )
            for model in loaded
        )
        return [int(name) for name in choose_evicted(uses, needed_bytes, now_s) or ()]


@dataclass(frozen=True, slots=True)
class ResidencyOutcome:
    """The outcome of a trace.

    Attributes:
        hits: Requests to a loaded model.
        loads: How often a model was loaded; requests that wait for the same load share it.
        waited_s: Sum of what requests waited for loads.
        peak_bytes: Largest memory of all loaded models.
    """

    requests: int
    hits: int
    loads: int
    waited_s: float
    peak_bytes: int


class _Load(NamedTuple):
    model: int
    begins_s: float
    ends_s: float


class _Memory:
    """The models in memory and the loads that are asked for, in their order."""

    def __init__(self, sizes: Sizes, budget_bytes: int, eviction: _Eviction) -> None:
        self._sizes, self._budget_bytes, self._eviction = sizes, budget_bytes, eviction
        self._loads: deque[_Load] = deque()
        self._begun = False
        self._used_bytes = self.peak_bytes = 0
        self.free_s = 0.0
        self.loaded: set[int] = set()
        self.ends_s: dict[int, float] = {}
        """By model when its load ends."""

    def ask(self, model: int, begins_s: float, ends_s: float) -> None:
        self._loads.append(_Load(model, begins_s, ends_s))
        self.ends_s[model] = self.free_s = ends_s

    def advance(self, now_s: float) -> None:
        """Begin and end the loads whose time has come."""
        while self._loads and self._loads[0].begins_s <= now_s:
            model, begins_s, ends_s = self._loads[0]
            if not self._begun:
                self._make_room(model, begins_s)
                self._begun = True
            if ends_s > now_s:
                break
            self._loads.popleft()
            self._begun = False
            self.loaded.add(model)
            del self.ends_s[model]

    def _make_room(self, model: int, now_s: float) -> None:
        sizes = self._sizes
        spare_bytes = sizes.spare_bytes[model] if sizes.spare_bytes else 0
        needed_bytes = self._used_bytes + sizes.bytes[model] + spare_bytes - self._budget_bytes
        for evicted in self._eviction.choose(self.loaded, needed_bytes, now_s) if needed_bytes > 0 else ():
            self.loaded.remove(evicted)
            self._used_bytes -= sizes.bytes[evicted]
        self._used_bytes += sizes.bytes[model]
        self.peak_bytes = max(self.peak_bytes, self._used_bytes)


def simulate_residency(trace: Trace, sizes: Sizes, budget_bytes: int) -> ResidencyOutcome:
    """Serve a trace from a memory of `budget_bytes`, in which each model has room.

    Loads run one after the other, in the order in which they are asked for.
    """
    eviction = _Eviction(sizes)
    memory = _Memory(sizes, budget_bytes, eviction)
    hits = loads = 0
    waited_s = 0.0
    for now_s, model in zip(trace.at_s.tolist(), trace.model.tolist(), strict=True):
        memory.advance(now_s)
        if model in memory.loaded:
            hits += 1
        elif model in memory.ends_s:
            waited_s += memory.ends_s[model] - now_s
        else:
            loads += 1
            begins_s = max(now_s, memory.free_s)
            ends_s = begins_s + sizes.load_s[model]
            waited_s += ends_s - now_s
            memory.ask(model, begins_s, ends_s)
            memory.advance(now_s)
        eviction.use(model, now_s)
    return ResidencyOutcome(len(trace.at_s), hits, loads, waited_s, memory.peak_bytes)
