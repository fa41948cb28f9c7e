"""Figures of simulated loads: one row of a table for each load, as means over seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from stoker.device.batch_decisions import BatchPolicy
from stoker.settings.choices import Admission
from stoker.simulation.scheduler import AdmissionControl, PlannedScheduler
from stoker.simulation.workload import Curve, Jitter, Requests, Stream
from stoker.simulation.world import Outcome, row_tables, run

Row = dict[str, object]
"""Figures by column."""


def simulate_load(
    curve: Curve,
    policy: BatchPolicy,
    stream: Stream,
    seconds: float,
    seeds: Sequence[int],
    admission: Admission,
) -> Row:
    """Simulate a stream of requests to one model of a device that follows a curve."""
    outcomes = [
        simulate_requests(curve, policy, stream.draw(seconds, np.random.default_rng(seed)), seed, admission)
        for seed in seeds
    ]
    batches = sum(outcome.batches for outcome in outcomes)
    answered = sum(outcome.answered_rows for outcome in outcomes)
    row: Row = {
        "rows": sum(int(outcome.requests.rows.sum()) for outcome in outcomes),
        "in time": _mean([outcome.in_time() for outcome in outcomes], 3),
        "p50 ms": _mean([outcome.latency_ms(0.5) for outcome in outcomes], 2),
        "p99 ms": _mean([outcome.latency_ms(0.99) for outcome in outcomes], 2),
        "rows a batch": round(answered / max(1, batches), 1),
        "busy": _mean([sum(outcome.busy_ns) / outcome.end_ns for outcome in outcomes], 3),
    }
    if admission == "target":
        refused = [outcome.refused_rows / max(1, int(outcome.requests.rows.sum())) for outcome in outcomes]
        row["refused"] = _mean(refused, 3)
    return row


def simulate_requests(
    curve: Curve,
    policy: BatchPolicy,
    requests: Requests,
    seed: int,
    admission: Admission = "target",
    hiccups: float = 0.001,
) -> Outcome:
    """Simulate requests to one model.

    Args:
        hiccups: The share of batches that take several times as long.
    """
    (table,) = row_tables(requests, 1)
    admits = AdmissionControl(policy) if admission == "target" else None
    planned = PlannedScheduler(table, policy, admission=admits)
    jitter = Jitter(np.random.default_rng(seed + 1), hiccups=hiccups)
    outcome = run(requests, [curve], [table], planned, jitter)
    return dataclasses.replace(outcome, refused_rows=planned.refused_rows)


def _mean(numbers: Sequence[float], digits: int) -> float:
    return round(float(np.mean(numbers)), digits)
