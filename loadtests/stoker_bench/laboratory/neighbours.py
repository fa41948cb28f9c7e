"""How a neighbour's load affects other callers and tiers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

import numpy as np

from stoker.device.planner import BatchPolicy
from stoker.settings.choices import Admission
from stoker.simulation.workload import Curve, Stream, joined
from stoker.simulation.world import Outcome
from stoker_bench.laboratory.suite import simulate_requests

__all__ = ["Neighbours", "beside"]

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
        kind: Which of the two cases.
        curve: The batch times.
        policy: The batching policy.
        target_ms: The latency target; ten times as long for the low tier.
        loads: Loads of the neighbour, relative to the throughput of full batches; 0 for no neighbour.
        seconds: Duration of the arrivals.
        seeds: Random seeds.
        admission: Which requests are admitted.

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
    in_time, worst, took_ms, had = [], [], [], []
    for outcome in outcomes:
        asked = outcome.requests
        theirs = (asked.caller != neighbour.caller) | (asked.tier != neighbour.tier)
        answered = outcome.done_ns <= asked.at_ns + asked.target_ns
        in_time.append(float(asked.rows[theirs & answered].sum() / asked.rows[theirs].sum()))
        worst.append(min(outcome.in_time(caller=other.caller, tier=other.tier) for other in others))
        done = theirs & (outcome.done_ns < outcome.end_ns + 1)
        took_ms.append((outcome.done_ns - asked.at_ns)[done] / 1e6)
        rows = asked.rows[outcome.done_ns <= outcome.end_ns].sum()
        had.append(float(asked.rows[~theirs & (outcome.done_ns <= outcome.end_ns)].sum() / max(1, rows)))
    everyone_ms = np.concatenate(took_ms)
    return {
        "in time": round(sum(in_time) / len(in_time), 4),
        "worst": round(min(worst), 4),
        "p50 ms": round(float(np.quantile(everyone_ms, 0.5)), 2),
        "p99 ms": round(float(np.quantile(everyone_ms, 0.99)), 2),
        "neighbour's part": round(sum(had) / len(had), 3),
    }
