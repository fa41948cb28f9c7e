"""The planner of a model: the scheduler without turns, the turns of the device with others."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from tests.puppets import HandClock, metric_memory

from stoker.device.batch_cap import BatchCap
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import BatchSizes
from stoker.device.device_page import DevicePage, SlotFacts
from stoker.device.device_turns import DeviceTurns
from stoker.device.planner import Planner

FACTS = SlotFacts(threads=1, wants_turns=True)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def turns(clock: HandClock) -> Iterator[DeviceTurns]:
    fd = os.memfd_create("turns", os.MFD_CLOEXEC)
    page = DevicePage(fd, "cuda:0")
    os.close(fd)
    turns = DeviceTurns(page, clock)
    yield turns
    turns.stop()
    page.close()


def make_planner(clock: HandClock, turn: object = None, target_ms: float | None = None) -> Planner:
    """A planner of batches of up to four rows."""
    cap = BatchCap(BatchPolicy(4, target_ms=target_ms), BatchSizes(), metric_memory().page(0).model(0))
    return Planner(cap, clock, turn, [None])  # type: ignore[arg-type]


def push(planner: Planner, rows: int, now_ns: int) -> None:
    """Queue requests of one row each."""
    zeros = np.zeros(rows, np.int64)
    planner.queue.push(0, np.arange(rows, dtype=np.int32), zeros, zeros + now_ns, zeros + now_ns + 10**12)


def test_without_turns_waiting_rows_leave_at_once(clock: HandClock) -> None:
    """At most as many as a batch may have; there is no turn to give back, and no report without a target."""
    planner = make_planner(clock)
    push(planner, 6, clock())
    decision, turn = planner.plan()
    assert (sum(block.rows for block in decision.batch), turn) == (4, None)
    assert planner.queue.rows == 2
    assert planner.reporter is None


def test_a_batch_waits_for_the_turn_of_another_model(clock: HandClock, turns: DeviceTurns) -> None:
    """It leaves with the turn that the other model gives back."""
    other = turns.join(1, FACTS)
    planner = make_planner(clock, turns.join(1, FACTS))
    push(planner, 1, clock())
    decision, number = planner.plan()
    assert (len(decision.batch), number) == (1, 0)
    assert number is not None
    push(planner, 2, clock())
    planner.end_turn_and_propose(number, 1000)
    assert planner.turn is not None
    assert planner.turn.given
    decision, number = planner.plan()
    assert (sum(block.rows for block in decision.batch), decision.reason) == (2, "turn")
    assert number is not None
    planner.end_turn(number, 1000)
    assert not planner.turn.given
    other.leave()


def test_a_model_with_a_target_reports_its_queue(clock: HandClock) -> None:
    """Frontends refuse requests by the report."""
    planner = make_planner(clock, target_ms=50)
    assert planner.reporter is not None
    reports: list[tuple[int, int]] = []
    planner.reporter.report = lambda queue, leaving, now_ns, *_: reports.append((len(leaving), now_ns))  # type: ignore[method-assign]
    push(planner, 1, clock())
    planner.plan()
    assert reports == [(1, clock())]
