"""The leased and the free rows of an arena, without an arena."""

from tests.puppets import PuppetTicket

from stoker.gateway.rows.row_leases import RowLeases


def test_row_leases_freed_row_is_taken_next() -> None:
    """Few rows are touched under low load: the one that was freed last is leased first."""
    leases = RowLeases(4)
    assert leases.take(2) == [1, 0]
    assert leases.leased_rows == 2
    leases.release([0])
    assert leases.take(1) == [0]


def test_row_leases_recorded_ticket_is_found_until_its_rows_are_released() -> None:
    """Each row leads to the request that holds it."""
    leases, ticket = RowLeases(4), PuppetTicket()
    ticket.row_numbers = leases.take(2)
    leases.record(ticket)
    assert [number for number, holder in enumerate(leases.tickets) if holder is ticket] == [0, 1]
    leases.release(ticket.row_numbers)
    assert not any(leases.tickets)
    assert leases.leased_rows == 0


def test_row_leases_forgotten_tickets_leave_their_rows_leased() -> None:
    """After the loss of a device nothing leads to the requests, and no row is given to others."""
    leases, ticket = RowLeases(4), PuppetTicket()
    ticket.row_numbers = leases.take(3)
    leases.record(ticket)
    leases.forget_tickets()
    assert not any(leases.tickets)
    assert leases.leased_rows == 3
