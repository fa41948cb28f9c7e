"""The headers of rows, on an arena without a device process."""

from __future__ import annotations

import os

import numpy as np
import pytest
from tests.puppets import ROWS, HandClock, PuppetTicket

from stoker.arena import Arena, Outcome
from stoker.errors import DeviceOutOfMemory, ModelFailed, OutputTooLarge, StokerError
from stoker.gateway.rows.row_headers import AnswerHeaders, RequestHeaders


@pytest.fixture
def arena() -> Arena:
    """An arena of four rows."""
    fd = Arena.create(ROWS, 4)
    try:
        return Arena(fd, ROWS, 4)
    finally:
        os.close(fd)


def ticket_of(*numbers: int, deadline_ns: int = 5_000_000_000) -> PuppetTicket:
    """A request that holds these rows."""
    ticket = PuppetTicket(deadline_ns)
    ticket.rows, ticket.row_numbers = len(numbers), list(numbers)
    return ticket


def test_request_headers_of_one_row_and_of_several_are_the_same(arena: Arena) -> None:
    """The short path for one row writes the same header, and both set the time of the request."""
    clock = HandClock()
    headers = RequestHeaders(arena, clock)
    assert headers.write_one(ticket_of(1), 1) == clock()
    headers.write(ticket_of(2, 3), np.array([2, 3]))
    assert arena.queued[1:, :3].tolist() == [[5_000_000_000, clock(), place] for place in (0, 0, 1)]


def test_rows_past_their_deadline_or_withdrawn_are_expired(arena: Arena) -> None:
    """A row without a request has no deadline."""
    headers = RequestHeaders(arena, HandClock())
    headers.write_one(ticket_of(0), 0)
    headers.write_one(ticket_of(2), 2)
    headers.withdraw(2)
    assert headers.expired(1) == [2]
    assert headers.expired(5_000_000_000) == [0, 2]
    headers.clear_deadline(2)
    assert headers.expired(1) == []


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome.TOO_LARGE, OutputTooLarge),
        (Outcome.OUT_OF_MEMORY, DeviceOutOfMemory),
        (Outcome.FAILED, ModelFailed),
    ],
)
def test_answer_headers_failed_row_gives_its_request_the_error(
    arena: Arena, outcome: int, error: type[StokerError]
) -> None:
    """One row that has failed is enough; the times are those of the last one."""
    arena.started_ns[3], arena.finished_ns[3], arena.outcome[1] = 7, 9, outcome
    ticket = ticket_of(0, 1, 3)
    ticket.enqueued_ns = 5
    headers = AnswerHeaders(arena)
    headers.read(ticket)
    assert (ticket.started_ns, ticket.finished_ns, ticket.failure()) == (7, 9, error)
    assert headers.has_begun(ticket, 3)
    assert not headers.has_begun(ticket, 0)


def test_answer_headers_read_together_gives_each_request_its_times(arena: Arena) -> None:
    """The wait for the device counts from when the request was queued."""
    arena.started_ns[:2], arena.finished_ns[:2], arena.turned[0] = (10, 20), (11, 22), 1
    arena.turn_ns[:2] = (4, 400)
    tickets = [ticket_of(0), ticket_of(1)]
    for ticket in tickets:
        ticket.enqueued_ns = 2
    AnswerHeaders(arena).read_together(tickets, [0, 1])
    times = [(ticket.started_ns, ticket.finished_ns, ticket.turn_ns) for ticket in tickets]
    assert times == [(10, 11, 4), (20, 22, 18)]
