"""Figures of simulated loads: one row of a table for each load or number of callers, as means over seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np

from stoker.device.batch_decisions import BatchPolicy
from stoker.settings.choices import Admission
from stoker.simulation.scheduler import AdmissionControl, PlannedScheduler
from stoker.simulation.workload import Curve, Jitter, Requests, Stream
from stoker.simulation.world import NEVER_NS, Outcome, row_tables, run
from stoker_bench.simulated_stream import (
    ArrivingRequests,
    StreamDevice,
    StreamUse,
    WaitingCallers,
    run_stream,
)

Row = dict[str, object]
"""Figures by column."""

_SPREAD: Final = 0.003
"""Standard deviation of batch times on a device with copies: little, as nothing else runs on the GPU."""
_SETTLING: Final = 0.1
"""The share of the time after which callers in a closed loop are counted."""


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


def simulate_callers(
    device: StreamDevice, policy: BatchPolicy, callers: int, seconds: float, seeds: Sequence[int]
) -> Row:
    """Simulate callers that each send a row once the last one is answered, on a device with copies."""
    took_ns, uses = [], []
    for seed in seeds:
        waiting = WaitingCallers(callers, seconds, device.transport_ms, np.random.default_rng(seed))
        uses.append(run_stream(device, policy, waiting, _steady(seed)))
        took_ns.append(waiting.took_ns(_SETTLING * seconds))
    rows_per_s = sum(map(len, took_ns)) / len(seeds) / ((1 - _SETTLING) * seconds)
    return _stream_row(device, rows_per_s, took_ns, uses)


def simulate_arrivals(
    device: StreamDevice, policy: BatchPolicy, stream: Stream, seconds: float, seeds: Sequence[int]
) -> Row:
    """Simulate requests with a target that arrive whatever becomes of earlier ones, on a device with copies."""
    took_ns, uses, in_time = [], [], []
    for seed in seeds:
        requests = stream.draw(seconds, np.random.default_rng(seed))
        arriving = ArrivingRequests(requests, targets=True)
        uses.append(run_stream(device, policy, arriving, _steady(seed)))
        done_ns = arriving.done_ns()
        timely = done_ns <= requests.at_ns + requests.target_ns
        in_time.append(requests.rows[timely].sum() / requests.rows.sum())
        took_ns.append((done_ns - requests.at_ns)[done_ns < NEVER_NS])
    rows_per_s = sum(use.rows for use in uses) / sum(use.end_ns for use in uses) * 1e9
    return {"in time": _mean(in_time, 3)} | _stream_row(device, rows_per_s, took_ns, uses)


def _stream_row(
    device: StreamDevice, rows_per_s: float, took_ns: Sequence[np.ndarray], uses: Sequence[StreamUse]
) -> Row:
    p50_ms, p99_ms = np.quantile(np.concatenate(took_ns), (0.5, 0.99)) / 1e6
    rows, padding = sum(use.rows for use in uses), sum(use.padding_rows for use in uses)
    return {
        "rows/s": round(rows_per_s),
        "of the ceiling": round(rows_per_s / device.peak_rows_per_s, 3),
        "p50 ms": round(float(p50_ms), 2),
        "p99 ms": round(float(p99_ms), 2),
        "rows a batch": round(rows / sum(use.batches for use in uses), 1),
        "padding": round(padding / (rows + padding), 3),
        "busy": round(sum(use.busy_ns for use in uses) / sum(use.end_ns for use in uses), 3),
    }


def _steady(seed: int) -> Jitter:
    return Jitter(np.random.default_rng(seed + 1), _SPREAD, hiccups=0)


def _mean(numbers: Sequence[float], digits: int) -> float:
    return round(float(np.mean(numbers)), digits)
