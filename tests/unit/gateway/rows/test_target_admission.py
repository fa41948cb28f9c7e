"""A device and its frontends: the device reports its queue, and frontends refuse requests by it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.puppets import Joined, PuppetTicket

from stoker.arena import BoardPage
from stoker.device.batch_decisions import BatchPolicy
from stoker.errors import DeadlineExceeded, Overloaded
from stoker.gateway.rows.urgency import DEFAULT_URGENCY
from stoker.keys.callers import CallerTerms

POLICY = BatchPolicy(4, target_ms=100)
"""Batches of up to 4 rows, of which each takes 10 ms."""


def with_known_times(joined: Joined) -> Joined:
    joined.worker.teach((rows, rows * 10_000_000) for rows in (1, 2, 4) for _ in range(3))
    joined.runtime.during = lambda: joined.clock.advance_ms(10 * len(joined.runtime.batches[-1]))
    joined.turn_device()
    return joined


def ticket(joined: Joined, patience_ms: float = 100) -> PuppetTicket:
    return PuppetTicket(joined.clock() + round(patience_ms * 1e6))


def board(joined: Joined, frontend: int = 0) -> BoardPage:
    page = BoardPage(joined.exchanges[frontend].arena.words("board"))
    page.look()
    return page


def test_waiting_rows_are_reported_to_all_frontends() -> None:
    """Each frontend knows how many rows are left behind a batch, and when that batch ends."""
    with Joined(frontends=2, policy=POLICY) as joined:
        with_known_times(joined)
        for number in range(6):
            joined.submit(number)
        joined.turn_frontends()
        begins_ns = joined.clock()
        joined.turn_device()
        for frontend in range(2):
            reported = board(joined, frontend)
            assert (reported.cap, reported.lanes, reported.waiting) == (4, 2, [0, 2, 0])
            assert reported.batch_ns(4) == pytest.approx(40_000_000, rel=0.01)
            assert reported.free_ns - begins_ns == pytest.approx(40_000_000, rel=0.01)
        joined.settle()


def test_late_request_is_refused_until_the_queue_is_served() -> None:
    """Rows that a frontend has admitted count before the device has seen them."""
    with Joined(policy=POLICY) as joined:
        with_known_times(joined)
        taken = 0
        while (refused := joined.exchange.refusal(ticket(joined))) is None:
            joined.submit(taken)
            taken += 1
            assert taken < 100
        assert isinstance(refused, Overloaded)
        assert refused.refusal is not None
        # 100 ms and a quarter, at 10 ms a row.
        assert taken == 12
        assert refused.refusal.rows_ahead == 12
        joined.settle()
        assert joined.exchange.refusal(ticket(joined)) is None


def test_request_of_many_rows_is_admitted_to_an_idle_device() -> None:
    """However long it takes; and refused where somebody does."""
    with Joined(policy=POLICY) as joined:
        with_known_times(joined)
        large = ticket(joined)
        assert joined.exchange.refusal(large) is None
        joined.exchange.submit(large, [np.zeros((20, 2), np.float32)])
        another = ticket(joined, 1000)
        assert joined.exchange.refusal(another) is None
        hasty = ticket(joined, 230)
        assert joined.exchange.refusal(hasty) is None
        with pytest.raises(Overloaded, match="too late"):
            joined.exchange.submit(hasty, [np.zeros((20, 2), np.float32)])
        joined.settle()


def test_deadline_shorter_than_one_row_is_refused() -> None:
    """A deadline below the time of one row is refused; a request that missed it learns when to retry."""
    with Joined(policy=POLICY) as joined:
        with_known_times(joined)
        assert isinstance(joined.exchange.refusal(ticket(joined, 5)), DeadlineExceeded)
        assert joined.exchange.refusal(ticket(joined, 20)) is None
        missed = joined.exchange.missed(100_000_000, 1)
        assert missed.retry_after_ms is not None


def of(joined: Joined, caller: CallerTerms) -> PuppetTicket:
    made = ticket(joined, 60_000)
    made.urgency = DEFAULT_URGENCY._replace(caller=caller)
    return made


def test_no_caller_takes_the_last_third_of_the_rows() -> None:
    """With several callers, one beside a flood finds free rows; a lone caller may have all."""
    with Joined(capacity=96) as joined:
        for _ in range(96):
            assert joined.exchange.refusal(ticket(joined)) is None
            joined.submit(1)
        joined.settle()
        flood, other = CallerTerms("flood", 1), CallerTerms("other", 2)
        taken = 0
        while joined.exchange.refusal(request := of(joined, flood)) is None:
            joined.submit(1, ticket=request)
            taken += 1
        assert 64 <= taken <= 66
        assert isinstance(joined.exchange.refusal(of(joined, flood)), Overloaded)
        assert joined.exchange.refusal(of(joined, other)) is None
        joined.settle()
        assert joined.exchange.refusal(of(joined, flood)) is None


def test_board_stays_unused_without_a_target() -> None:
    """Devices do not write it and frontends do not read it."""
    with Joined() as joined:
        tickets = [joined.submit(number) for number in range(3)]
        joined.settle()
        assert [one.completions for one in tickets] == [1, 1, 1]
        assert not joined.exchange.arena.board.any()
        assert joined.exchange.admission is None
        assert joined.exchange.missed(1, 1).retry_after_ms is None
