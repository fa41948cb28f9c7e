"""Finds the settings with the highest load within a latency target by simulation with the server's scheduler.

Uses no clock and no device; deterministic.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np

from stoker.device.batch_sizes import ServiceTimes, timed_first
from stoker.device.batching import BatchPolicy
from stoker.device.overlap import WORTH
from stoker.settings.choices import Admission
from stoker.simulation.scheduler import AdmissionControl, PlannedScheduler, run_instances
from stoker.simulation.workload import Jitter, Requests, Stream
from stoker.simulation.world import Outcome, row_tables

_IN_TIME: Final = 0.99
"""The share of rows that have to be answered within the target."""
_LEVELS: Final = 64
"""Loads are multiples of this fraction of the highest throughput of any candidate, or of the frontends' limit."""
_FINALISTS: Final = 3
_NEAR: Final = 3
"""The result of one seed differs from that of several by at most this many levels, in practice."""
_LIGHT: Final = 0.3
_AT_LIMIT: Final = 0.98
_BATCHES: Final = 300
_ROWS: Final = 10_000
_KNOWN_TIMES: Final = 8

Step = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Load:
    """The expected requests.

    Attributes:
        target_ms: The latency target.
        rows: Number of rows of each request.
        seeds: Random seeds, one simulation each.
        targets: Duration of the arrivals as a multiple of the target, so that growing queues are detected; it is less
            if that would be very many requests.
        requests: Minimum number of requests.
        most_rows_per_s: No higher loads are tried: what the frontends have time for.
    """

    target_ms: float
    rows: int = 1
    seeds: tuple[int, ...] = (101, 102, 103)
    targets: float = 20.0
    requests: int = 300
    most_rows_per_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Estimate:
    """The simulated performance of a candidate.

    Attributes:
        peak_rows_per_s: Throughput in rows per second of the best batches within the target.
        load_rows_per_s: The highest load at which 99 % of the rows are in time; 0 if there is none.
        p50_ms, p99_ms: Latency at half of that load.
        light_ms: Median latency at a light load, the same load for all candidates.
        limit: `device` or `frontends`: which of them allows no higher load.
    """

    candidate: Candidate
    peak_rows_per_s: float
    load_rows_per_s: float
    p50_ms: float
    p99_ms: float
    light_ms: float
    limit: str = "device"

    def to_json(self) -> dict[str, Any]:
        """Return it in JSON types."""
        figures = {name: round(getattr(self, name), 3) for name in ("peak_rows_per_s", "load_rows_per_s")}
        figures |= {name: round(getattr(self, name), 3) for name in ("p50_ms", "p99_ms", "light_ms")}
        return {"settings": self.candidate.settings(), **figures, "limit": self.limit}


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    Attributes:
        ranked: The best candidates, the chosen one first.
        default: The performance of the default settings.
    """

    ranked: tuple[Estimate, ...]
    default: Estimate


def search(space: Space, load: Load, step: Step = lambda _done, _of: None) -> SearchResult:
    """Find the settings with the highest load at which 99 % of the rows are in time.

    Among equal ones (within a 64th of the highest load that is tried) the order is: lower latency at a light
    load, fewer instances, the default settings, smaller batches.

    Args:
        space: The choices.
        load: The expected requests.
        step: Called with the number of simulated candidates and the total.
    """
    evaluator = _Evaluator(space, load)
    coarse = _coarse(evaluator, step)
    best = sorted(coarse, key=lambda one: (-coarse[one], one.instances, one.max_batch_rows))[:_FINALISTS]
    finalists = dict.fromkeys([space.default, *best])
    levels = {}
    for number, candidate in enumerate(finalists):
        levels[candidate] = evaluator.level(candidate, load.seeds, coarse.get(candidate))
        step(len(coarse) + number + 1, len(coarse) + len(finalists))
    light = _LIGHT * max(levels.values()) * evaluator.quantum
    estimates = {
        candidate: evaluator.expected(candidate, level, light) for candidate, level in levels.items()
    }
    ranked = sorted(estimates, key=lambda one: _order(estimates[one], levels[one], space.default))
    return SearchResult(tuple(estimates[one] for one in ranked), estimates[space.default])


def _coarse(evaluator: _Evaluator, step: Step) -> dict[Candidate, int]:
    """Find levels with one seed; candidates whose upper bound is too low are skipped."""
    levels: dict[Candidate, int] = {}
    best = 0
    inviting = sorted(evaluator.space.candidates(), key=evaluator.peak, reverse=True)
    for number, candidate in enumerate(inviting):
        # The throughput of its best batches is an upper bound.
        if evaluator.upper(candidate) < best:
            break
        levels[candidate] = evaluator.level(candidate, evaluator.load.seeds[:1])
        best = max(best, levels[candidate])
        step(number + 1, len(inviting) + _FINALISTS)
    return levels


def _order(estimate: Estimate, level: int, default: Candidate) -> tuple[Any, ...]:
    candidate = estimate.candidate
    return (
        -level,
        # Differences of a few percent are ignored.
        round(np.log(max(estimate.light_ms, 1e-3)) * 50),
        candidate.instances,
        candidate.execution != "auto",
        candidate.batch_buckets != default.batch_buckets,
        candidate != default,
        candidate.max_batch_rows,
    )


class _Evaluator:
    """Simulates candidates at the same loads for all."""

    def __init__(self, space: Space, load: Load) -> None:
        self.space = space
        self.load = load
        candidates = space.candidates()
        best = max(candidates, key=self.peak)
        self.quantum = min(self.peak(best), load.most_rows_per_s) / _LEVELS
        full_s = space.curve(best).alone(best.max_batch_rows) / 1e9
        most_s = _ROWS / (_LEVELS * self.quantum) if self.quantum else 0.0
        self._seconds = min(load.targets * load.target_ms / 1e3, _BATCHES * full_s, most_s)

    def peak(self, candidate: Candidate) -> float:
        """The highest throughput of its batches, in rows per second."""
        curve = self.space.curve(candidate)
        return curve.peak_rows_per_s(self.load.target_ms, candidate.max_batch_rows, candidate.instances)

    def upper(self, candidate: Candidate) -> int:
        """The upper bound of its level."""
        most = min(self.peak(candidate), self.load.most_rows_per_s)
        return int(most / self.quantum + 1e-9) if self.quantum else 0

    def level(self, candidate: Candidate, seeds: Sequence[int], near: int | None = None) -> int:
        """The highest level at which 99 % of the rows are in time; 0 for none.

        Args:
            seeds: Random seeds.
            near: A level close to the result, if known.
        """
        high = self.upper(candidate) + 1
        if near is not None:
            high = min(high, near + _NEAR)
        # Most candidates get close to the throughput of their batches.
        low, stride = high - 1, 1
        while low > 0 and not self._good(candidate, low, seeds):
            low, high, stride = low - stride, low, 2 * stride
        low = max(0, low)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._good(candidate, middle, seeds) else (low, middle)
        return low

    def _good(self, candidate: Candidate, level: int, seeds: Sequence[int]) -> bool:
        outcomes = [self.at(candidate, level * self.quantum, seed) for seed in seeds]
        return sum(outcome.in_time() for outcome in outcomes) >= _IN_TIME * len(outcomes)

    def expected(self, candidate: Candidate, level: int, light_rows_per_s: float) -> Estimate:
        """Its performance at half of a level, and at a light load."""
        rows_per_s = level * self.quantum
        half = self.at(candidate, rows_per_s / 2, self.load.seeds[0]) if level else None
        light = self.at(candidate, light_rows_per_s, self.load.seeds[0]) if light_rows_per_s else None
        return Estimate(
            candidate,
            self.peak(candidate),
            rows_per_s,
            half.latency_ms(0.5) if half else 0.0,
            half.latency_ms(0.99) if half else 0.0,
            light.latency_ms(0.5) if light else 0.0,
            "frontends" if rows_per_s >= _AT_LIMIT * self.load.most_rows_per_s else "device",
        )

    def at(self, candidate: Candidate, rows_per_s: float, seed: int) -> Outcome:
        """Simulate requests of this rate."""
        seconds = max(self._seconds, self.load.requests * self.load.rows / rows_per_s)
        return simulated(self.space.curve(candidate), candidate, self.load, rows_per_s, seconds, seed)


def simulated(
    curve: MeasuredCurve, candidate: Candidate, load: Load, rows_per_s: float, seconds: float, seed: int
) -> Outcome:
    """Simulate Poisson arrivals to a server with these settings.

    Args:
        candidate: The settings.
        load: The expected requests.
        rows_per_s: The rate of arriving rows.
        seconds: Duration of the arrivals.
        seed: Random seed.
    """
    chance = np.random.default_rng(seed)
    requests = _with_rows(Stream(rows_per_s / load.rows, load.target_ms).draw(seconds, chance), load.rows)
    (table,) = row_tables(requests, 1)
    sizes = PaddedCurve(curve, candidate.batch_buckets)
    at_once = curve.at_once(candidate.instances, candidate.max_batch_rows)
    policy = candidate.policy(load.target_ms)
    admission = AdmissionControl(policy, instances=at_once) if candidate.admission == "target" else None
    planned = PlannedScheduler(table, policy, times=_known(sizes, candidate, at_once), admission=admission)
    jitter = Jitter(np.random.default_rng(seed + 1), curve.spread)
    return run_instances(requests, sizes, table, planned, jitter, at_once, sizes.speed)


def _with_rows(requests: Requests, rows: int) -> Requests:
    return dataclasses.replace(requests, rows=np.full(len(requests.at_ns), rows))


def _known(sizes: PaddedCurve, candidate: Candidate, at_once: int) -> ServiceTimes:
    """The batch times that a server has learned before it serves."""
    times = ServiceTimes(candidate.batch_buckets)
    known = timed_first(candidate.batch_buckets, candidate.max_batch_rows)
    for beside in range(at_once):
        for _ in range(max(2, -(-_KNOWN_TIMES // len(known)))):
            for size in known:
                took_ns = sizes.batch_ns(size) / (sizes.speed(size) if beside else 1)
                times.learn(size, round(took_ns), beside)
    return times


# Curves: batch times by number of rows.


Timed = Sequence[tuple[int, int]]
"""Rows and nanoseconds of timed batches."""

_LEAST_SPREAD: Final = 0.01
_MOST_SPREAD: Final = 0.5
# The median of the absolute value of a normal variable, and the distance of its 90th percentile from that, in sigmas.
_MEDIAN: Final = 0.6745
_TO_NINETY: Final = 1.6449 - _MEDIAN


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """Batch times by number of rows.

    Attributes:
        sizes: Numbers of rows of the timed batches, ascending.
        alone_ns: Undisturbed time of each size, never decreasing.
        beside_ns: Time of each size beside another batch; empty if only one batch runs at a time.
        filled: Whether only these sizes run, and smaller batches are padded to them.
        spread: Standard deviation of the random lengthening, relative to the time.
    """

    sizes: tuple[int, ...]
    alone_ns: tuple[int, ...]
    beside_ns: tuple[int, ...] = ()
    filled: bool = False
    spread: float = 0.03

    @classmethod
    def fitted(cls, alone: Timed, beside: Timed = (), *, filled: bool = False) -> Self:
        """Fit a curve to timed batches.

        Args:
            alone: Batches that ran alone; several of each size.
            beside: Batches that ran beside another one of the same size.
            filled: Whether only these sizes run, and smaller batches are padded to them.
        """
        sizes = tuple(sorted({rows for rows, _ in alone}))
        times = ServiceTimes(sizes, quantile=0.5)
        for rows, elapsed_ns in alone:
            times.learn(rows, elapsed_ns)
        for rows, elapsed_ns in beside:
            times.learn(rows, elapsed_ns, beside=1)
        spread = _spread(alone)
        # Jitter only lengthens batches: the undisturbed time is below the median.
        least = 1 / (1 + _MEDIAN * spread)
        return cls(
            sizes,
            tuple(round(times.expected_ns(size) * least) for size in sizes),
            tuple(round(times.expected_ns(size, 1) * least) for size in sizes) if beside else (),
            filled,
            round(spread, 3),
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Inverse of `to_json`."""
        return cls(
            tuple(value["rows"]),
            tuple(round(ms * 1e6) for ms in value["ms"]),
            tuple(round(ms * 1e6) for ms in value["ms_beside_another"]),
            value["filled"],
            value["spread"],
        )

    def to_json(self) -> dict[str, Any]:
        """Return it in JSON types, with times in milliseconds."""
        return {
            "rows": list(self.sizes),
            "ms": [round(elapsed_ns / 1e6, 4) for elapsed_ns in self.alone_ns],
            "ms_beside_another": [round(elapsed_ns / 1e6, 4) for elapsed_ns in self.beside_ns],
            "filled": self.filled,
            "spread": self.spread,
        }

    def alone(self, rows: int) -> float:
        """Time of a batch alone in nanoseconds, interpolated between the timed sizes."""
        return _between(self.sizes, self.alone_ns, rows)

    def beside(self, rows: int) -> float:
        """Time in ns of a batch beside another one of its size; twice the time alone if one runs at a time."""
        if not self.beside_ns:
            return 2 * self.alone(rows)
        return max(self.alone(rows), _between(self.sizes, self.beside_ns, rows))

    def gain(self, rows: int) -> float:
        """Throughput of two concurrent batches of this many rows, relative to two consecutive ones."""
        return 2 * self.alone(rows) / self.beside(rows) - 1

    def at_once(self, instances: int, max_batch_rows: int) -> int:
        """Number of concurrent batches that a server would choose from these measurements of its largest batches."""
        return 2 if instances > 1 and self.gain(max_batch_rows) >= WORTH else 1

    def peak_rows_per_s(self, target_ms: float, max_batch_rows: int, instances: int = 1) -> float:
        """Throughput in rows per second of the best batches within a target; 0 if no batch fits.

        Args:
            max_batch_rows: Limit of rows per batch.
            instances: Number of instances of the model.
        """
        beside = self.at_once(instances, max_batch_rows) > 1
        best = 0.0
        for size in {*self.sizes, max_batch_rows}:
            if size > max_batch_rows:
                continue
            for took_ns, batches in ((self.alone(size), 1), (self.beside(size), 2))[: 1 + beside]:
                if took_ns <= target_ms * 1e6:
                    best = max(best, batches * size / took_ns * 1e9)
        return best


@dataclass(frozen=True, slots=True)
class PaddedCurve:
    """A curve with batches padded to certain sizes.

    Attributes:
        buckets: The sizes, ascending; empty for no padding.
    """

    curve: MeasuredCurve
    buckets: tuple[int, ...] = ()

    def batch_ns(self, rows: int) -> int:
        """The time of a batch of `rows`."""
        return round(self.curve.alone(self._size(rows)))

    def speed(self, rows: int) -> float:
        """The relative speed of a batch of `rows` beside another one."""
        size = self._size(rows)
        return self.curve.alone(size) / self.curve.beside(size)

    def _size(self, rows: int) -> int:
        place = bisect_left(self.buckets, rows)
        return self.buckets[place] if place < len(self.buckets) else rows


def _between(sizes: tuple[int, ...], times_ns: tuple[int, ...], rows: int) -> float:
    if rows > sizes[-1]:
        return times_ns[-1] * rows / sizes[-1]
    return float(np.interp(rows, sizes, times_ns))


def _spread(timed: Timed) -> float:
    """Estimate the relative deviation of batch times from their median and 90th percentile, over all sizes."""
    by_size: dict[int, list[int]] = {}
    for rows, elapsed_ns in timed:
        by_size.setdefault(rows, []).append(elapsed_ns)
    parts = [np.quantile(times, 0.9) / max(1.0, float(np.median(times))) - 1 for times in by_size.values()]
    return min(_MOST_SPREAD, max(_LEAST_SPREAD, float(np.median(parts)) / _TO_NINETY))


# Candidates: settings to try.


_SPARSE: Final = 2
"""Every n-th of the measured buckets, from the largest on, forms a sparser set."""
_MOST_INSTANCES: Final = 2


@dataclass(frozen=True, slots=True)
class Candidate:
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


@dataclass(frozen=True, slots=True)
class Space:
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
                        candidate = dataclasses.replace(
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
