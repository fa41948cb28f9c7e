"""The open workloads, and the outcome of each scheduler on them."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, Literal

import numpy as np

from stoker.device.batching import BatchPolicy, Proposal
from stoker.device.device_sharing import Arbiter
from stoker.keys.buckets import Bucket
from stoker.settings import choices
from stoker.settings.choices import Admission
from stoker.simulation.scheduler import AdmissionControl, PlannedScheduler, UntargetedScheduler
from stoker.simulation.workload import CURVES, Curve, Jitter, Requests, Stream, joined
from stoker.simulation.world import Batch, Outcome, RowTable, Scheduler, row_tables, run

# Simulates several models that share a device: the scheduler of each, and the arbiter between them.


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
        self.models = [
            PlannedScheduler(table, policy, admission=AdmissionControl(policy) if admits else None)
            for table, policy in zip(tables, policies, strict=True)
        ]
        names = [str(number) for number in range(len(tables))]
        self._arbiter = Arbiter(dict(zip(names, shares or [1.0] * len(names), strict=True)))

    def arrive(self, model: int, start: int, stop: int) -> None:
        """Queue arrived rows."""
        self.models[model].arrive(0, start, stop)

    def next_batch(self, now_ns: int) -> Batch:
        """The batch that the scheduler of the model chosen by the arbiter dispatches."""
        proposals: dict[str, Proposal] = {}
        check_again: list[int] = []
        for number, model in enumerate(self.models):
            proposal = model.propose(now_ns)
            if proposal is None:
                # Rows that have timed out are dropped all the same.
                model.next_batch(now_ns)
                continue
            proposals[str(number)] = proposal
            if proposal.check_again_ns is not None:
                check_again.append(proposal.check_again_ns)
        chosen = self._arbiter.choose(now_ns, proposals)
        if chosen is None:
            self._publish(now_ns, now_ns, proposals)
            return Batch(0, np.empty(0, np.int32), min(check_again, default=None))
        cost_ns = proposals.pop(chosen).cost_ns
        self._arbiter.charge(chosen, cost_ns)
        rows = self.models[int(chosen)].next_batch(now_ns).rows
        self._publish(now_ns, now_ns + cost_ns, proposals)
        return Batch(int(chosen), rows)

    @property
    def refused_rows(self) -> int:
        """Number of refused rows."""
        return sum(model.refused_rows for model in self.models)

    def _publish(self, now_ns: int, free_ns: int, proposals: Mapping[str, Proposal]) -> None:
        for number, model in enumerate(self.models):
            others = (offer.cost_ns for name, offer in proposals.items() if name != str(number))
            model.tell(now_ns, free_ns, max(others, default=0))

    def ran(self, model: int, rows: int, elapsed_ns: int) -> None:
        """Let the model's scheduler learn a batch's time."""
        self.models[model].ran(0, rows, elapsed_ns)


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
        rows, check_again_ns = self.batch_rows(now_ns)
        start, self.head = self.head, self.head + rows
        return Batch(0, np.arange(start, self.head), check_again_ns)

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
    return PlannedScheduler(table, _policy(curve))


def _untargeted(table: RowTable, curve: Curve) -> Scheduler:
    return UntargetedScheduler(table, _policy(curve))


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
        scheduler: One of `SCHEDULERS`.
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
    planned = PlannedScheduler(
        table, policy, admission=AdmissionControl(policy) if admission == "target" else None
    )
    outcome = run(requests, [curve], [table], planned, _jitter(seed, hiccups))
    return dataclasses.replace(outcome, refused_rows=planned.refused_rows)


def _jitter(seed: int, hiccups: float) -> Jitter:
    return Jitter(np.random.default_rng(seed + 1), hiccups=hiccups)


Neighbours = Literal["callers", "tiers"]

_OTHERS: Final = 5
_EACH: Final = 0.1
_HIGH: Final = 0.3
_LOW_TARGETS: Final = 10
"""The low tier's target as a multiple of the high tier's."""


def beside(
    kind: Neighbours,
    curve: Curve,
    policy: BatchPolicy,
    target_ms: float,
    loads: Sequence[float],
    seconds: float,
    seeds: Sequence[int],
    admission: Admission = "target",
) -> Iterator[dict[str, object]]:
    """Simulate five callers of load 0.1 beside a caller of each load, or a high tier of load 0.3 beside a low tier.

    Args:
        target_ms: The latency target; ten times as long for the low tier.
        loads: Loads of the neighbour, relative to the throughput of full batches; 0 for no neighbour.
        seconds: Duration of the arrivals.

    Yields:
        For each load the share of the others' rows in time, that of the worst of them, their latency, and the
        neighbour's share of the device time.
    """
    peak = curve.peak_rows_per_s
    if kind == "callers":
        others = [Stream(_EACH * peak, target_ms, caller=2 + number) for number in range(_OTHERS)]
        neighbour = Stream(peak, target_ms, caller=1)
    else:
        others = [Stream(_HIGH * peak, target_ms, tier=0)]
        neighbour = Stream(peak, _LOW_TARGETS * target_ms, tier=2)
    for load in loads:
        outcomes = []
        for seed in seeds:
            chance = np.random.default_rng(seed)
            # The others' requests are the same for every load of the neighbour.
            parts = [stream.draw(seconds, chance) for stream in others]
            if load:
                parts.append(_times(neighbour, load).draw(seconds, chance))
            requests = joined(parts)
            outcomes.append(simulate_requests(curve, policy, requests, 1, seed, admission=admission))
        yield {"neighbour": load} | _facts(outcomes, others, neighbour)


def _times(stream: Stream, load: float) -> Stream:
    return Stream(load * stream.rows_per_s, stream.target_ms, tier=stream.tier, caller=stream.caller)


def _facts(outcomes: Sequence[Outcome], others: Sequence[Stream], neighbour: Stream) -> dict[str, object]:
    in_time, worst, took_ms, device_shares = [], [], [], []
    for outcome in outcomes:
        asked = outcome.requests
        theirs = (asked.caller != neighbour.caller) | (asked.tier != neighbour.tier)
        answered = outcome.done_ns <= asked.at_ns + asked.target_ns
        in_time.append(float(asked.rows[theirs & answered].sum() / asked.rows[theirs].sum()))
        worst.append(min(outcome.in_time(caller=other.caller, tier=other.tier) for other in others))
        done = theirs & (outcome.done_ns < outcome.end_ns + 1)
        took_ms.append((outcome.done_ns - asked.at_ns)[done] / 1e6)
        rows = asked.rows[outcome.done_ns <= outcome.end_ns].sum()
        device_shares.append(
            float(asked.rows[~theirs & (outcome.done_ns <= outcome.end_ns)].sum() / max(1, rows))
        )
    everyone_ms = np.concatenate(took_ms)
    return {
        "in time": round(sum(in_time) / len(in_time), 4),
        "worst": round(min(worst), 4),
        "p50 ms": round(float(np.quantile(everyone_ms, 0.5)), 2),
        "p99 ms": round(float(np.quantile(everyone_ms, 0.99)), 2),
        "neighbour's part": round(sum(device_shares) / len(device_shares), 3),
    }


def let_in(requests: Requests, rows_per_s: float, burst_s: float) -> Requests:
    """Filter requests by a quota of rows per second for each caller, as enforced by one frontend.

    Args:
        requests: All requests; refused ones are not retried.
        burst_s: Number of seconds of the quota that a caller may use at once.
    """
    buckets: dict[int, Bucket] = {}
    drawn: dict[int, int] = {}
    taken = np.zeros(len(requests.at_ns), bool)
    columns = (requests.at_ns.tolist(), requests.rows.tolist(), requests.caller.tolist())
    for place, (at_ns, rows, caller) in enumerate(zip(*columns, strict=True)):
        bucket = buckets.get(caller)
        if bucket is None:
            bucket = buckets[caller] = Bucket(rows_per_s, burst_s, 0, at_ns)
        bucket.update(at_ns, drawn.get(caller, 0))
        if not bucket.wait_ns(rows):
            bucket.draw(rows)
            drawn[caller] = drawn.get(caller, 0) + rows
            taken[place] = True
    return dataclasses.replace(
        requests,
        **{field.name: getattr(requests, field.name)[taken] for field in dataclasses.fields(requests)},
    )


_STEPS: Final = 200
_UNREACHED: Final = -(1 << 30)


def fluid(requests: Requests, curve: Curve) -> float:
    """Upper bound of the share of rows answered in time, with rows and batches divisible at will.

    Each row takes its share of the time of the most efficient batch, and rows are processed in order of their due
    times, which is optimal.
    """
    row_ns = min(curve.batch_ns(rows) / rows for rows in range(1, curve.max_batch_rows + 1))
    due_ns = (requests.at_ns + requests.target_ns).tolist()
    waiting: list[tuple[int, float]] = []
    now_ns, done_ns = 0.0, 0.0
    at_ns = requests.at_ns.tolist()
    until = (*at_ns[1:], float("inf"))
    for begins_ns, until_ns, due, rows in zip(at_ns, until, due_ns, requests.rows.tolist(), strict=True):
        now_ns = max(now_ns, begins_ns)
        heappush(waiting, (due, rows * row_ns))
        while waiting and now_ns < until_ns:
            first_due, work_ns = heappop(waiting)
            spent_ns = min(work_ns, first_due - now_ns, until_ns - now_ns)
            if spent_ns <= 0:
                continue
            now_ns += spent_ns
            done_ns += spent_ns
            if work_ns > spent_ns and first_due > now_ns:
                heappush(waiting, (first_due, work_ns - spent_ns))
    return float(done_ns / row_ns / max(1, requests.rows.sum()))


def has_exact(requests: Requests) -> bool:
    """Whether `exact` applies: requests of one row each, for one model, with one target."""
    one_row = bool((requests.rows == 1).all()) and not requests.model.any()
    return one_row and len(set(requests.target_ns.tolist())) <= 1


def exact(requests: Requests, curve: Curve, step_ns: int | None = None) -> float:
    """The share of rows answered in time by the optimal sequence of batches.

    Dynamic programming over the time at which the device is free and the number of leading rows that are gone: a
    batch of *n* takes *n* consecutive rows that have arrived and are in time; rows before them are lost.

    Args:
        step_ns: The step of the time grid, by default a two hundredth of a full batch. Times are rounded in favour of
            the bound; if all are multiples of the step, the bound is attained.
    """
    costs = np.array([curve.batch_ns(rows) for rows in range(1, curve.max_batch_rows + 1)])
    step_ns = min(curve.full_ns // _STEPS if step_ns is None else step_ns, int(costs[0]))
    lasts = (costs // step_ns).tolist()
    at_ns = requests.at_ns
    due_ns = at_ns + requests.target_ns
    if not len(at_ns):
        return 0.0
    # By step modulo the ring's length, and by the number of leading rows that are gone: the most rows answered.
    ring = np.full((lasts[-1] + 1, len(at_ns) + 1), _UNREACHED, np.int32)
    steps = np.arange(int(due_ns[-1]) // step_ns + 1)
    come = at_ns.searchsorted((steps + 1) * step_ns).tolist()
    # By step and longest batch: the number of leading rows gone for states that end at the step.
    gone = [0] * lasts[-1]
    ring[0, 0] = 0
    most = 0
    for step, last in enumerate(come):
        now, after = ring[step % len(ring)], ring[(step + 1) % len(ring)]
        first_rows = due_ns.searchsorted(step * step_ns + costs).tolist()
        begin = gone[step]
        gone.append(first_rows[0])
        # A state with fewer rows gone may drop more of them.
        best = np.maximum.accumulate(now[begin : last + 1])
        most = max(most, int(best[-1]))
        now[begin : last + 1] = _UNREACHED
        waits = slice(first_rows[0], last + 1)
        np.maximum(after[waits], best[first_rows[0] - begin :], out=after[waits])
        for rows, (first, lasting) in enumerate(zip(first_rows, lasts, strict=True), 1):
            stop = last - rows + 1
            if first >= stop:
                break
            ends = ring[(step + lasting) % len(ring)][first + rows : stop + rows]
            np.maximum(ends, best[first - begin : stop - begin] + rows, out=ends)
    return max(most, int(ring.max())) / len(at_ns)
