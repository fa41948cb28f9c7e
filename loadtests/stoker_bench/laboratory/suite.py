"""The open workloads, and the outcome of each scheduler on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from stoker.device.planner import BatchPolicy
from stoker.settings import lateness
from stoker.simulation.admitted import Admission
from stoker.simulation.arrivals import Requests, Stream, joined
from stoker.simulation.devices import CURVES, Curve, Jitter
from stoker.simulation.planned import Planned, Untargeted
from stoker.simulation.world import Outcome, RowTable, Scheduler, row_tables, run
from stoker_bench.laboratory.baselines import BASELINES
from stoker_bench.laboratory.shared import Shared

__all__ = ["SCHEDULERS", "SUITE", "Workload", "simulate", "simulate_load", "simulate_requests"]

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
    admission: lateness.Admission = "target",
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
    admission: lateness.Admission = "target",
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
    admission: lateness.Admission = "target",
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
    admission: lateness.Admission,
) -> Outcome:
    (table,) = row_tables(requests, 1)
    planned = Planned(table, policy, admission=Admission(policy) if admission == "target" else None)
    outcome = run(requests, [curve], [table], planned, _jitter(seed, hiccups))
    return dataclasses.replace(outcome, refused_rows=planned.refused_rows)


def _jitter(seed: int, hiccups: float) -> Jitter:
    return Jitter(np.random.default_rng(seed + 1), hiccups=hiccups)
