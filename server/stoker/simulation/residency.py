"""Simulates which models are in memory: traces of requests to many models, and rules for the model that leaves.

A request to a model that is not loaded waits for its load, which makes room first. To compare rules, loads take no
time on the trace's clock: a request that comes during one counts as a hit. To predict a server, they run one after
the other, and a request that comes while its model waits or loads is a miss.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

import numpy as np

from stoker.residency.policy import ModelUse, choose_evicted
from stoker.residency.rates import RequestRates

_MB: Final = 1_000_000
_DAY_S: Final = 86_400.0
_HOUR_S: Final = 3600.0
_REQUESTS_PER_MODEL: Final = 40


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


def draw_sizes(models: int, rng: np.random.Generator) -> Sizes:
    """Draw models of 10 to 200 MB, evenly by their logarithm; a load takes 0.15 s and a second for each 150 MB."""
    size_bytes = np.exp(rng.uniform(np.log(10 * _MB), np.log(200 * _MB), models)).astype(int)
    return Sizes(size_bytes.tolist(), (0.15 + size_bytes / (150 * _MB)).tolist())


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival.

    Attributes:
        at_s: float64[requests].
        model: int64[requests]: a number of each.
    """

    at_s: np.ndarray
    model: np.ndarray


def _merge(*traces: Trace) -> Trace:
    at_s = np.concatenate([trace.at_s for trace in traces])
    order = at_s.argsort(kind="stable")
    return Trace(at_s[order], np.concatenate([trace.model for trace in traces])[order])


def _popularity(models: int, rng: np.random.Generator) -> np.ndarray:
    weights = 1 / np.arange(1, models + 1)
    return rng.permutation(weights / weights.sum())


def _zipf(models: int, rng: np.random.Generator, seconds: float = 2 * _HOUR_S) -> Trace:
    count = _REQUESTS_PER_MODEL * models
    at_s = np.sort(rng.uniform(0, seconds, count))
    return Trace(at_s, rng.choice(models, count, p=_popularity(models, rng)))


def _zipf_month(models: int, rng: np.random.Generator) -> Trace:
    return _zipf(models, rng, 30 * _DAY_S)


def _new_favourites(models: int, rng: np.random.Generator) -> Trace:
    days = [_zipf(models, rng, _DAY_S) for _ in range(3)]
    return _merge(*(Trace(day.at_s + number * _DAY_S, day.model) for number, day in enumerate(days)))


def _time_zones(models: int, rng: np.random.Generator) -> Trace:
    """Three regions of the earth: each is busy by day and rests at night."""
    popularity, phase = _popularity(models, rng), rng.integers(0, 3, models) / 3
    at_s = np.sort(rng.uniform(0, 3 * _DAY_S, 3 * _REQUESTS_PER_MODEL * models))
    quarter = (at_s / _HOUR_S * 4).astype(int)
    model = np.empty(len(at_s), int)
    for number in np.unique(quarter):
        busy = np.maximum(0.02, np.cos(2 * np.pi * (number / 96 - phase))) ** 2 * popularity
        at = quarter == number
        model[at] = rng.choice(models, int(at.sum()), p=busy / busy.sum())
    return Trace(at_s, model)


def _scans(models: int, rng: np.random.Generator) -> Trace:
    scans = (
        Trace(from_s + np.arange(models) * 0.2, rng.permutation(models))
        for from_s in (1200.0, 3600.0, 6000.0)
    )
    return _merge(_zipf(models, rng), *scans)


def _cycle(models: int, rng: np.random.Generator) -> Trace:
    return Trace(np.arange(20 * models, dtype=float), np.tile(rng.permutation(models), 20))


def _bursts(models: int, rng: np.random.Generator) -> Trace:
    parts = []
    for _ in range(models):
        count = int(rng.integers(5, 40))
        at_s = rng.uniform(0, 6 * _HOUR_S) + rng.exponential(60, count).cumsum()
        parts.append(Trace(at_s, np.full(count, rng.integers(models))))
    return _merge(*parts)


def _mixture(models: int, rng: np.random.Generator) -> Trace:
    scans = (
        Trace((day + 0.125) * _DAY_S + np.arange(models) * 2.0, rng.permutation(models)) for day in range(3)
    )
    return _merge(_new_favourites(models, rng), _bursts(models, rng), *scans)


TRACES: Final[Mapping[str, Callable[[int, np.random.Generator], Trace]]] = {
    "Zipf, two hours": _zipf,
    "Zipf, a month": _zipf_month,
    "new favourites each day": _new_favourites,
    "three time zones": _time_zones,
    "Zipf and three scans": _scans,
    "cycle over all": _cycle,
    "bursts": _bursts,
    "favourites, bursts, scans": _mixture,
}
"""Traces by name: each draws the requests to a number of models."""


class Rule(Protocol):
    """A rule for the models that leave."""

    def use(self, model: int, now_s: float, /) -> None:
        """Note a request, after its model has been loaded."""

    def choose(self, loaded: Collection[int], needed_bytes: int, now_s: float, /) -> list[int]:
        """Return the models that leave, whose bytes suffice."""


class _Use(NamedTuple):
    """A request to a model, as rules see it.

    Attributes:
        requests: All to this model so far.
        worth: Load time per byte of the model, in s/B.
        age: The highest rank of a model that has left.
    """

    at_s: float
    requests: int
    worth: float
    age: float


_RANKS: Final[Mapping[str, Callable[[_Use], float]]] = {
    "LRU": lambda use: use.at_s,
    "LFU": lambda use: use.requests,
    # GreedyDual-Size (Cao and Irani, 1997).
    "GreedyDual": lambda use: use.age + use.worth,
    # GreedyDual-Size-Frequency (Cherkasova, 1998); here a model that leaves keeps its requests.
    "GDSF": lambda use: use.age + use.requests * use.worth,
}


class _Ranked:
    """Models leave from the lowest rank on, which is that of their last request."""

    def __init__(self, sizes: Sizes, rank: Callable[[_Use], float]) -> None:
        self._sizes = sizes
        self._rank_of = rank
        self._rank = [0.0] * len(sizes.bytes)
        self._requests = [0] * len(sizes.bytes)
        self._age = 0.0

    def use(self, model: int, now_s: float, /) -> None:
        self._requests[model] += 1
        worth = self._sizes.load_s[model] / self._sizes.bytes[model]
        self._rank[model] = self._rank_of(_Use(now_s, self._requests[model], worth, self._age))

    def choose(self, loaded: Collection[int], needed_bytes: int, _now_s: float, /) -> list[int]:
        evicted: list[int] = []
        for model in sorted(loaded, key=self._rank.__getitem__):
            if needed_bytes <= 0:
                break
            evicted.append(model)
            needed_bytes -= self._sizes.bytes[model]
            self._age = max(self._age, self._rank[model])
        return evicted


class _Stoker:
    """The server's own."""

    def __init__(self, sizes: Sizes) -> None:
        self._sizes = sizes
        self._rates = RequestRates(0.0)
        self._names = [str(model) for model in range(len(sizes.bytes))]
        self._used_s = [0.0] * len(sizes.bytes)

    def use(self, model: int, now_s: float, /) -> None:
        self._rates.observe(self._names[model], 1, now_s)
        self._used_s[model] = now_s

    def choose(self, loaded: Collection[int], needed_bytes: int, now_s: float, /) -> list[int]:
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


RULES: Final[Mapping[str, Callable[[Sizes], Rule]]] = {
    **{name: partial(_Ranked, rank=rank) for name, rank in _RANKS.items()},
    "Stoker": _Stoker,
}


@dataclass(frozen=True, slots=True)
class ResidencyOutcome:
    """What became of a trace.

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

    def __init__(self, sizes: Sizes, budget_bytes: int, rule: Rule) -> None:
        self._sizes, self._budget_bytes, self._rule = sizes, budget_bytes, rule
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
        for evicted in self._rule.choose(self.loaded, needed_bytes, now_s) if needed_bytes > 0 else ():
            self.loaded.remove(evicted)
            self._used_bytes -= sizes.bytes[evicted]
        self._used_bytes += sizes.bytes[model]
        self.peak_bytes = max(self.peak_bytes, self._used_bytes)


def simulate_residency(
    trace: Trace, sizes: Sizes, budget_bytes: int, rule: Rule, *, loads_take_time: bool = False
) -> ResidencyOutcome:
    """Serve a trace from a memory of `budget_bytes`, in which each model has room.

    Args:
        loads_take_time: Whether loads take `load_s` on the trace's clock, one after the other as they are asked for.
    """
    memory = _Memory(sizes, budget_bytes, rule)
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
            begins_s = max(now_s, memory.free_s) if loads_take_time else now_s
            ends_s = begins_s + sizes.load_s[model] if loads_take_time else now_s
            waited_s += ends_s - now_s if loads_take_time else sizes.load_s[model]
            memory.ask(model, begins_s, ends_s)
            memory.advance(now_s)
        rule.use(model, now_s)
    return ResidencyOutcome(len(trace.at_s), hits, loads, waited_s, memory.peak_bytes)
