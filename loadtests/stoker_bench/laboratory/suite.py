"""The open workloads, and the outcome of each scheduler on them."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stoker.device.arbiter import Arbiter
from stoker.device.planner import BatchPolicy, Offer
from stoker.settings import choices
from stoker.simulation.scheduler import AdmissionControl, Planned, Untargeted
from stoker.simulation.workload import CURVES, Curve, Jitter, Requests, Stream, joined
from stoker.simulation.world import Batch, Outcome, RowTable, Scheduler, row_tables, run

__all__ = [
    "BASELINES",
    "SCHEDULERS",
    "SUITE",
    "Clipper",
    "Clockwork",
    "Fifo",
    "Nexus",
    "Shared",
    "Symphony",
    "Workload",
    "simulate",
    "simulate_load",
    "simulate_requests",
]


# Simulates several models that share a device: the planner of each, and the arbiter between them.


class Shared:
    """The models of one device, which runs one batch at a time.

    Args:
        tables: The rows of each model.
        policies: The batching policy of each model.
        shares: Weights for device time under contention; equal by default.
        admits: Whether requests that are not expected to be in time are refused.
    """

    def __init__(
        self,
        tables: Sequence[RowTable],
        policies: Sequence[BatchPolicy],
        shares: Sequence[float] = (),
        *,
        admits: bool = False,
    ) -> None:
        self._models = [
            Planned(table, policy, admission=AdmissionControl(policy) if admits else None)
            for table, policy in zip(tables, policies, strict=True)
        ]
        names = [str(number) for number in range(len(tables))]
        self._arbiter = Arbiter(dict(zip(names, shares or [1.0] * len(names), strict=True)))

    def arrive(self, model: int, start: int, stop: int) -> None:
        """Queue arrived rows."""
        self._models[model].arrive(0, start, stop)

    def next_batch(self, now_ns: int) -> Batch:
        """The batch that the planner of the model chosen by the arbiter dispatches."""
        offers: dict[str, Offer] = {}
        look_again: list[int] = []
        for number, model in enumerate(self._models):
            offer = model.offer(now_ns)
            if offer is None:
                # Rows that have timed out are dropped all the same.
                model.next_batch(now_ns)
                continue
            offers[str(number)] = offer
            if offer.look_again_ns is not None:
                look_again.append(offer.look_again_ns)
        chosen = self._arbiter.choose(now_ns, offers)
        if chosen is None:
            self._tell(now_ns, now_ns, offers)
            return Batch(0, np.empty(0, np.int32), min(look_again, default=None))
        cost_ns = offers.pop(chosen).cost_ns
        self._arbiter.charge(chosen, cost_ns)
        rows = self._models[int(chosen)].next_batch(now_ns).rows
        self._tell(now_ns, now_ns + cost_ns, offers)
        return Batch(int(chosen), rows)

    @property
    def refused_rows(self) -> int:
        """Number of refused rows."""
        return sum(model.refused_rows for model in self._models)

    def _tell(self, now_ns: int, free_ns: int, offers: Mapping[str, Offer]) -> None:
        """Publish to the admission controls when the device is free, and what the other models offer."""
        for number, model in enumerate(self._models):
            others = (offer.cost_ns for name, offer in offers.items() if name != str(number))
            model.tell(now_ns, free_ns, max(others, default=0))

    def ran(self, model: int, rows: int, elapsed_ns: int) -> None:
        """Let the model's planner learn a batch's time."""
        self._models[model].ran(0, rows, elapsed_ns)


# Schedulers of other systems, after their papers and sources, for comparison: in order of arrival, one model.
#
# Nexus, Clockwork and Symphony are given the exact batch times plus an allowance of 8 %; they do not learn.


_ALLOWANCE: Final = 1.08


class Fifo:
    """Triton and TF Serving: batches in order of arrival; rows whose target has passed are dropped."""

    def __init__(self, table: RowTable, curve: Curve) -> None:
        self.due = table.due_ns.tolist()
        self.head = self.tail = 0
        self.cap = curve.max_batch_rows
        self.costs = [0, *(round(_ALLOWANCE * curve.batch_ns(rows)) for rows in range(1, self.cap + 1))]

    def arrive(self, model: int, start: int, stop: int) -> None:
        """Queue arrived rows."""
        del model, start
        self.tail = stop

    def next_batch(self, now_ns: int) -> Batch:
        """Return the next batch."""
        rows, look_again_ns = self.batch_rows(now_ns)
        start, self.head = self.head, self.head + rows
        return Batch(0, np.arange(start, self.head), look_again_ns)

    def batch_rows(self, now_ns: int) -> tuple[int, int | None]:
        """Drop late rows; returns the number of rows to dispatch, and when to look again if that is 0."""
        self.drop_until(now_ns)
        return min(self.cap, self.tail - self.head), None

    def drop_until(self, time_ns: int) -> None:
        """Drop rows from the head of the queue whose targets are before a time."""
        while self.head < self.tail and self.due[self.head] < time_ns:
            self.head += 1

    def ran(self, model: int, rows: int, elapsed_ns: int) -> None:
        """Record that a batch has ended."""
        del model, rows, elapsed_ns


class Clipper(Fifo):
    """Clipper (NSDI 2017): like `Fifo`, but the batch cap grows by one while batches are within the target."""

    def __init__(self, table: RowTable, curve: Curve) -> None:
        super().__init__(table, curve)
        self._objective_ns = int((table.due_ns - table.at_ns).min()) if len(table.at_ns) else 0
        self._most, self.cap = curve.max_batch_rows, 1

    def ran(self, model: int, rows: int, elapsed_ns: int) -> None:
        """Adapt the cap: additive increase, multiplicative decrease."""
        del model
        if elapsed_ns > self._objective_ns:
            self.cap = max(1, int(self.cap * 0.9))
        elif rows >= self.cap:
            self.cap = min(self._most, self.cap + 1)


class Nexus(Fifo):
    """Nexus (SOSP 2019): batches take at most half of the target; late rows at the head are dropped."""

    def __init__(self, table: RowTable, curve: Curve) -> None:
        super().__init__(table, curve)
        target_ns = int((table.due_ns - table.at_ns).min()) if len(table.at_ns) else 0
        self._window = max(1, bisect_right(self.costs, target_ns // 2) - 1)

    def batch_rows(self, now_ns: int) -> tuple[int, int | None]:
        """The first window of rows whose head is in time."""
        while self.head < self.tail:
            rows = min(self._window, self.tail - self.head)
            if self.due[self.head] >= now_ns + self.costs[rows]:
                # A cap below the largest batch size only determines how many rows are dropped.
                most = bisect_right(self.costs, self.due[self.head] - now_ns) - 1
                return min(most, self.cap, self.tail - self.head), None
            self.head += 1
        return 0, None


class Clockwork(Fifo):
    """Clockwork (OSDI 2020): the oldest row that can be in time, in the largest batch that its target allows."""

    def batch_rows(self, now_ns: int) -> tuple[int, int | None]:
        """The batch of the oldest row."""
        self.drop_until(now_ns + self.costs[1])
        if self.head == self.tail:
            return 0, None
        most = bisect_right(self.costs, self.due[self.head] - now_ns) - 1
        return min(most, self.tail - self.head), None


class Symphony(Nexus):
    """Symphony (arXiv 2308.07470): drops like Nexus, but dispatches when one more row would make the batch late."""

    def batch_rows(self, now_ns: int) -> tuple[int, int | None]:
        """The batch, if it is due."""
        rows, _ = super().batch_rows(now_ns)
        if not rows or rows == self.cap:
            return rows, None
        leaves_ns = self.due[self.head] - self.costs[rows + 1]
        return (0, leaves_ns) if now_ns < leaves_ns else (rows, None)


BASELINES: Final[Mapping[str, Callable[[RowTable, Curve], Fifo]]] = {
    "Triton": Fifo,
    "Clipper": Clipper,
    "Nexus": Nexus,
    "Clockwork": Clockwork,
    "Symphony": Symphony,
}
"""Schedulers by name."""


_SECONDS: Final = 4.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests for the models of one device.

    Attributes:
        curve: Name of the batch times in `CURVES`.
        load: Rate of arriving rows, relative to the throughput of full batches.
        stream: The requests, with a rate of 1.
        text: A short description.
        seconds: Duration of the arrivals.
        others: Loads of further models, with the same curve and kind of requests.
        beside: Further streams of requests for the same model, each with its load.
    """

    curve: str
    load: float
    stream: Stream
    text: str
    seconds: float = _SECONDS
    others: tuple[float, ...] = ()
    beside: tuple[tuple[float, Stream], ...] = ()

    @property
    def models(self) -> int:
        """Number of models."""
        return 1 + len(self.others)

    def draw(self, seed: int) -> Requests:
        """Draw its requests."""
        chance, peak = np.random.default_rng(seed), CURVES[self.curve].peak_rows_per_s
        streams = [
            dataclasses.replace(self.stream, rows_per_s=load * peak, model=model)
            for model, load in enumerate((self.load, *self.others))
        ]
        streams += [dataclasses.replace(stream, rows_per_s=load * peak) for load, stream in self.beside]
        return joined([stream.draw(self.seconds, chance) for stream in streams])

    def in_time_beside(self, outcome: Outcome) -> float | None:
        """The lowest share in time among those beside the first model or stream; None if there is only one."""
        parts = [outcome.in_time(model) for model in range(1, self.models)]
        parts += [outcome.in_time(caller=stream.caller, tier=stream.tier) for _, stream in self.beside]
        return min(parts, default=None)


SUITE: Final[Mapping[str, Workload]] = {
    "O1": Workload("resnet50-a100", 0.95, Stream(1, 25), "25 ms, load 0.95"),
    "O2": Workload(
        "resnet50-a100", 0.9, Stream(1, 50, pattern="gamma", cv=4), "50 ms, gamma of CV 4, load 0.9"
    ),
    "O3": Workload("bert-h200", 0.8, Stream(1, 30, pattern="gamma", cv=8), "30 ms, gamma of CV 8, load 0.8"),
    "O4": Workload("resnet50-a100", 2.0, Stream(1, 50), "50 ms, load 2"),
    "O5": Workload("resnet50-a100", 2.0, Stream(1, 25), "25 ms, load 2"),
    "O6": Workload("resnet50-a100", 0.9, Stream(1, 150, most_rows=256), "150 ms, Pareto rows, load 0.9"),
    "O7": Workload(
        "resnet50-a100", 0.2125, Stream(1, 50), "four models, 50 ms, load 0.85 in all", others=(0.2125,) * 3
    ),
    "O8": Workload(
        "resnet50-a100", 1.5, Stream(1, 50), "four models, 50 ms, one 1.5, three 0.12", others=(0.12,) * 3
    ),
    "O9": Workload(
        "resnet50-a100",
        3.0,
        Stream(1, 50, caller=1),
        "50 ms, one caller 3, five 0.1",
        beside=tuple((0.1, Stream(1, 50, caller=caller)) for caller in range(2, 7)),
    ),
    "O10": Workload(
        "resnet50-a100",
        3.0,
        Stream(1, 500, tier=2),
        "low 3 (500 ms), high 0.3 (50 ms)",
        beside=((0.3, Stream(1, 50, tier=0)),),
    ),
}
"""The open workloads by name."""


def _planned(table: RowTable, curve: Curve) -> Scheduler:
    return Planned(table, _policy(curve))


def _untargeted(table: RowTable, curve: Curve) -> Scheduler:
    return Untargeted(table, _policy(curve))


def _policy(curve: Curve) -> BatchPolicy:
    return BatchPolicy(curve.max_batch_rows, buckets=curve.buckets)


SCHEDULERS: Final[Mapping[str, Callable[[RowTable, Curve], Scheduler]]] = {
    **BASELINES,
    "timeouts": _untargeted,
    "Stoker": _planned,
}
"""Schedulers by name: the baselines; Stoker with `timeout_ms` for a target; Stoker."""


def simulate(
    workload: Workload,
    scheduler: str,
    seeds: Sequence[int],
    hiccups: float = 0.0,
    admission: choices.Admission = "target",
) -> list[Outcome] | None:
    """Simulate a workload with a scheduler, once per seed; None if the scheduler supports only one model.

    Args:
        workload: The requests.
        scheduler: One of `SCHEDULERS`.
        seeds: Random seeds.
        hiccups: The share of batches that take several times as long.
        admission: Which requests Stoker admits; other schedulers admit all.
    """
    curve = CURVES[workload.curve]
    drawn = [(workload.draw(seed), seed) for seed in seeds]
    if scheduler == "Stoker":
        policy, models = _policy(curve), workload.models
        return [
            simulate_requests(curve, policy, requests, models, seed, hiccups, admission)
            if models > 1
            else _simulate_alone(curve, policy, requests, seed, hiccups, admission)
            for requests, seed in drawn
        ]
    if workload.others:
        return None
    outcomes = []
    for requests, seed in drawn:
        (table,) = row_tables(requests, 1)
        scheduled = SCHEDULERS[scheduler](table, curve)
        outcomes.append(run(requests, [curve], [table], scheduled, _jitter(seed, hiccups)))
    return outcomes


def simulate_load(
    curve: Curve,
    policy: BatchPolicy,
    stream: Stream,
    seconds: float,
    seed: int,
    hiccups: float = 0.001,
    admission: choices.Admission = "target",
) -> Outcome:
    """Simulate a stream of requests with Stoker and these settings."""
    requests = stream.draw(seconds, np.random.default_rng(seed))
    return _simulate_alone(curve, policy, requests, seed, hiccups, admission)


def simulate_requests(
    curve: Curve,
    policy: BatchPolicy,
    requests: Requests,
    models: int,
    seed: int,
    hiccups: float = 0.001,
    admission: choices.Admission = "target",
) -> Outcome:
    """Simulate requests with Stoker for models that share a device, all with the same curve and settings."""
    tables = row_tables(requests, models)
    shared = Shared(tables, [policy] * models, admits=admission == "target")
    outcome = run(requests, [curve] * models, tables, shared, _jitter(seed, hiccups))
    return dataclasses.replace(outcome, refused_rows=shared.refused_rows)


def _simulate_alone(
    curve: Curve,
    policy: BatchPolicy,
    requests: Requests,
    seed: int,
    hiccups: float,
    admission: choices.Admission,
) -> Outcome:
    (table,) = row_tables(requests, 1)
    planned = Planned(table, policy, admission=AdmissionControl(policy) if admission == "target" else None)
    outcome = run(requests, [curve], [table], planned, _jitter(seed, hiccups))
    return dataclasses.replace(outcome, refused_rows=planned.refused_rows)


def _jitter(seed: int, hiccups: float) -> Jitter:
    return Jitter(np.random.default_rng(seed + 1), hiccups=hiccups)
