"""Finds the settings with the highest load within a latency target by simulation with the server's scheduler.

Uses no clock and no device; deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from stoker.device.batch_sizes import ServiceTimes, timed_first
from stoker.profiling.candidates import Candidate, Space
from stoker.profiling.curves import MeasuredCurve, PaddedCurve
from stoker.simulation.scheduler import AdmissionControl, PlannedScheduler, run_instances
from stoker.simulation.workload import Jitter, Requests, Stream
from stoker.simulation.world import Outcome, row_table

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


class Load(Struct, frozen=True):
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


class Estimate(Struct, frozen=True):
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


class SearchResult(Struct, frozen=True):
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
    coarse = _search_coarsely(evaluator, step)
    best = sorted(coarse, key=lambda one: (-coarse[one], one.instances, one.max_batch_rows))[:_FINALISTS]
    finalists = dict.fromkeys([space.default, *best])
    levels = {}
    for number, candidate in enumerate(finalists):
        levels[candidate] = evaluator.find_level(candidate, load.seeds, coarse.get(candidate))
        step(len(coarse) + number + 1, len(coarse) + len(finalists))
    light = _LIGHT * max(levels.values()) * evaluator.quantum
    estimates = {
        candidate: evaluator.estimate(candidate, level, light) for candidate, level in levels.items()
    }
    ranked = sorted(estimates, key=lambda one: _order(estimates[one], levels[one], space.default))
    return SearchResult(tuple(estimates[one] for one in ranked), estimates[space.default])


def _search_coarsely(evaluator: _Evaluator, step: Step) -> dict[Candidate, int]:
    """Find levels with one seed; candidates whose upper bound is too low are skipped."""
    levels: dict[Candidate, int] = {}
    best = 0
    by_peak = sorted(evaluator.space.candidates(), key=evaluator.peak, reverse=True)
    for number, candidate in enumerate(by_peak):
        if evaluator.highest_level(candidate) < best:
            break
        levels[candidate] = evaluator.find_level(candidate, evaluator.load.seeds[:1])
        best = max(best, levels[candidate])
        step(number + 1, len(by_peak) + _FINALISTS)
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
        """The highest throughput of the batches of a candidate, in rows per second."""
        curve = self.space.curve(candidate)
        return curve.peak_rows_per_s(self.load.target_ms, candidate.max_batch_rows, candidate.instances)

    def highest_level(self, candidate: Candidate) -> int:
        """The upper bound of the level of a candidate."""
        most = min(self.peak(candidate), self.load.most_rows_per_s)
        return int(most / self.quantum + 1e-9) if self.quantum else 0

    def find_level(self, candidate: Candidate, seeds: Sequence[int], near: int | None = None) -> int:
        """The highest level at which 99 % of the rows are in time; 0 for none.

        Args:
            seeds: Random seeds.
            near: A level close to the result, if known.
        """
        high = self.highest_level(candidate) + 1
        if near is not None:
            high = min(high, near + _NEAR)
        # Most candidates get close to the throughput of their batches.
        low, stride = high - 1, 1
        while low > 0 and not self._is_in_time(candidate, low, seeds):
            low, high, stride = low - stride, low, 2 * stride
        low = max(0, low)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._is_in_time(candidate, middle, seeds) else (low, middle)
        return low

    def _is_in_time(self, candidate: Candidate, level: int, seeds: Sequence[int]) -> bool:
        outcomes = [self.simulate(candidate, level * self.quantum, seed) for seed in seeds]
        return sum(outcome.in_time() for outcome in outcomes) >= _IN_TIME * len(outcomes)

    def estimate(self, candidate: Candidate, level: int, light_rows_per_s: float) -> Estimate:
        """Estimate the performance of a candidate at half of a level, and at a light load."""
        rows_per_s = level * self.quantum
        half = self.simulate(candidate, rows_per_s / 2, self.load.seeds[0]) if level else None
        light = self.simulate(candidate, light_rows_per_s, self.load.seeds[0]) if light_rows_per_s else None
        return Estimate(
            candidate,
            self.peak(candidate),
            rows_per_s,
            half.latency_ms(0.5) if half else 0.0,
            half.latency_ms(0.99) if half else 0.0,
            light.latency_ms(0.5) if light else 0.0,
            "frontends" if rows_per_s >= _AT_LIMIT * self.load.most_rows_per_s else "device",
        )

    def simulate(self, candidate: Candidate, rows_per_s: float, seed: int) -> Outcome:
        """Simulate requests to a candidate at this rate."""
        seconds = max(self._seconds, self.load.requests * self.load.rows / rows_per_s)
        return simulate(self.space.curve(candidate), candidate, self.load, rows_per_s, seconds, seed)


def simulate(
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
    table = row_table(requests)
    sizes = PaddedCurve(curve, candidate.batch_buckets)
    at_once = curve.at_once(candidate.instances, candidate.max_batch_rows)
    policy = candidate.policy(load.target_ms)
    admission = AdmissionControl(policy, instances=at_once) if candidate.admission == "target" else None
    planned = PlannedScheduler(
        table, policy, times=_learn_times(sizes, candidate, at_once), admission=admission
    )
    jitter = Jitter(np.random.default_rng(seed + 1), curve.spread)
    return run_instances(requests, sizes, table, planned, jitter, at_once, sizes.speed)


def _with_rows(requests: Requests, rows: int) -> Requests:
    return msgspec.structs.replace(requests, rows=np.full(len(requests.at_ns), rows))


def _learn_times(sizes: PaddedCurve, candidate: Candidate, at_once: int) -> ServiceTimes:
    """Return the batch times that a server has learned before it serves."""
    times = ServiceTimes(candidate.batch_buckets)
    known = timed_first(candidate.batch_buckets, candidate.max_batch_rows)
    for beside in range(at_once):
        for _ in range(max(2, -(-_KNOWN_TIMES // len(known)))):
            for size in known:
                took_ns = sizes.batch_ns(size) / (sizes.speed(size) if beside else 1)
                times.learn(size, round(took_ns), beside)
    return times
