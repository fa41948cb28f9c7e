"""Callers who come back when they are told, under a virtual clock."""

from __future__ import annotations

import numpy as np
import pytest
from tests.closed_loop import ClosedLoop
from tests.simulated_device import A100 as CURVE
from tests.simulated_device import run_alone

from stoker.device.batch_decisions import BatchPolicy
from stoker.simulation.scheduler import AdmissionControl, PlannedScheduler
from stoker.simulation.workload import Jitter, Stream
from stoker.simulation.world import Outcome, row_table


@pytest.mark.parametrize(("target_ms", "think_ms"), [(50, 0), (50, 50)])
def test_caller_that_retries_as_advised_is_admitted(target_ms: float, think_ms: float) -> None:
    """Under twice the sustainable load 95 of 100 retries are admitted and the device stays busy."""
    counts = ClosedLoop(CURVE, target_ms, think_ms).run(3.0)
    assert counts.retries > 500
    assert counts.retries_refused <= 0.05 * counts.retries
    assert counts.refused <= 1.3 * counts.excess
    assert counts.in_time >= 0.9 * counts.could


def outcome(load: float, *, admitted: bool) -> tuple[Outcome, int]:
    """Simulate a second of requests with a target of 50 ms; returns the outcome and the number of refusals."""
    requests = Stream(load * CURVE.peak_rows_per_s, 50).draw(1.0, np.random.default_rng(101))
    table = row_table(requests)
    policy = BatchPolicy(CURVE.max_batch_rows)
    admission = AdmissionControl(policy, lambda: 0.0)
    planned = PlannedScheduler(table, policy, admission=admission if admitted else None)
    return run_alone(requests, CURVE, table, planned, Jitter(np.random.default_rng(102))), admission.refused


def test_admission_hardly_lowers_the_rows_in_time() -> None:
    """Under overload many requests are refused at once; without overload none is."""
    (without, _), (with_it, refused) = outcome(2.0, admitted=False), outcome(2.0, admitted=True)
    assert with_it.in_time() >= 0.99 * without.in_time()
    assert refused >= 0.1 * len(with_it.requests.at_ns)
    assert outcome(0.5, admitted=True)[1] == 0
