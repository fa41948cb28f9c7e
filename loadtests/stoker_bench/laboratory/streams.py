"""What a simulated GPU with one compute stream answers: to callers in a closed loop, and to arriving requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from stoker.device.batching import BatchPolicy
from stoker.simulation.stream import ArrivingRequests, StreamDevice, StreamUse, WaitingCallers, run_stream
from stoker.simulation.workload import Jitter, Stream
from stoker.simulation.world import NEVER_NS

_SPREAD: Final = 0.003
"""Standard deviation of batch times: little, as nothing else runs on the GPU."""
_SETTLING: Final = 0.1
"""The share of the time after which callers in a closed loop are counted."""


def facts_of_callers(
    device: StreamDevice, policy: BatchPolicy, callers: int, seconds: float, seeds: Sequence[int]
) -> dict[str, object]:
    """A line for callers that each send a row once the last one is answered."""
    took_ns, uses = [], []
    for seed in seeds:
        waiting = WaitingCallers(callers, seconds, device.transport_ms, np.random.default_rng(seed))
        uses.append(run_stream(device, policy, waiting, _jitter(seed)))
        took_ns.append(waiting.took_ns(_SETTLING * seconds))
    rows_per_s = sum(map(len, took_ns)) / len(seeds) / ((1 - _SETTLING) * seconds)
    return {"callers": callers} | _facts(device, rows_per_s, took_ns, uses)


def facts_of_arrivals(
    device: StreamDevice, policy: BatchPolicy, stream: Stream, seconds: float, seeds: Sequence[int]
) -> dict[str, object]:
    """A line for requests that arrive whatever becomes of earlier ones, each with a target."""
    took_ns, uses, in_time = [], [], []
    for seed in seeds:
        requests = stream.draw(seconds, np.random.default_rng(seed))
        arriving = ArrivingRequests(requests, targets=True)
        uses.append(run_stream(device, policy, arriving, _jitter(seed)))
        done_ns = arriving.done_ns()
        timely = done_ns <= requests.at_ns + requests.target_ns
        in_time.append(requests.rows[timely].sum() / requests.rows.sum())
        took_ns.append((done_ns - requests.at_ns)[done_ns < NEVER_NS])
    rows_per_s = sum(use.rows for use in uses) / sum(use.end_ns for use in uses) * 1e9
    load = {"load": round(stream.rows_per_s / device.peak_rows_per_s, 3)}
    return load | {"in time": round(float(np.mean(in_time)), 3)} | _facts(device, rows_per_s, took_ns, uses)


def _jitter(seed: int) -> Jitter:
    return Jitter(np.random.default_rng(seed + 1), _SPREAD, hiccups=0)


def _facts(
    device: StreamDevice, rows_per_s: float, took_ns: Sequence[np.ndarray], uses: Sequence[StreamUse]
) -> dict[str, object]:
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
