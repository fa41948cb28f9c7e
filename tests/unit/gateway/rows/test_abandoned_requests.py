"""Requests that are cancelled, or whose deadline passes."""

import pytest
from tests.puppets import BODIES, Joined, PuppetRuntime, PuppetTicket, answer_of, doubled

from stoker.device.batch_decisions import BatchPolicy
from stoker.errors import DeadlineExceeded, StokerError


def test_a_cancelled_request_is_not_completed_and_frees_its_rows() -> None:
    """Rows that the device has not read do not run; they are free when it has handed them back."""
    with Joined() as joined:
        gone, kept = joined.submit(1, 2), joined.submit(3)
        gone.cancel()
        assert joined.exchange.leased_rows == 3
        joined.settle()
        assert gone.completions == 0
        assert answer_of(kept) == doubled(3)
        assert joined.runtime.rows_run == [3]
        assert joined.exchange.leased_rows == 0


def test_cancelling_twice_or_after_the_answer_has_no_effect() -> None:
    """A ticket whose rows belong to somebody else by now cannot cancel them."""
    with Joined() as joined:
        first = joined.submit(1)
        joined.settle()
        second = joined.submit(2)
        first.cancel()
        joined.settle()
        first.cancel()
        assert answer_of(second) == doubled(2)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_a_request_past_its_deadline_is_answered_at_once(rows: int) -> None:
    """A device that hangs does not keep its callers: they get a 504, the rows come back later."""
    with Joined() as joined:
        late = joined.submit(*range(rows), timeout_ms=20)
        kept = joined.submit(7, timeout_ms=21)
        joined.clock.advance_ms(20)
        joined.sweep()
        joined.sweep()
        assert (late.completions, late.failure(), kept.completions) == (1, DeadlineExceeded, 0)
        held = joined.exchange.leased_rows
        assert held == min(rows, 4) + 1
        joined.settle()
        assert late.completions == 1
        assert answer_of(kept) == doubled(7)
        assert joined.runtime.rows_run == [7]
        assert joined.exchange.leased_rows == 0


def test_an_answer_that_comes_too_late_is_dropped() -> None:
    """Rows that ran before their caller's deadline and came back after it complete nothing a second time."""
    with Joined() as joined:
        late = joined.submit(1, 2, timeout_ms=20)
        joined.turn_frontends()
        joined.turn_device()
        joined.clock.advance_ms(20)
        joined.sweep()
        joined.settle()
        assert (late.completions, late.failure()) == (1, DeadlineExceeded)
        assert joined.runtime.rows_run == [1, 2]
        assert joined.exchange.leased_rows == 0


def test_the_device_hands_expired_rows_back_unrun() -> None:
    """Where the device sees the deadline before the frontend does, the caller gets the same error."""
    with Joined() as joined:
        late = joined.submit(1, timeout_ms=5)
        joined.clock.advance_ms(5)
        joined.settle()
        assert (late.completions, late.failure()) == (1, DeadlineExceeded)
        assert joined.runtime.batches == []


class _LateTicket(PuppetTicket):
    """A request that keeps whether the device had begun when its deadline passed."""

    __slots__ = ("begun",)

    def timeout_error(self, *, begun: bool) -> StokerError:
        self.begun = begun
        return super().timeout_error(begun=begun)


def test_deadline_says_whether_the_body_was_running() -> None:
    """While one body runs, its caller's deadline and that of the next one pass; so does that of a row used again."""
    runtime = PuppetRuntime(BODIES, lambda inputs: [[b"done"] for _ in inputs])
    with Joined(runtime, capacity=4, policy=BatchPolicy(max_batch_rows=1)) as joined:

        def submit(body: bytes) -> _LateTicket:
            ticket = _LateTicket(joined.clock() + 20_000_000)
            joined.exchange.submit_body(ticket, body)
            return ticket

        def pass_the_deadline() -> None:
            joined.clock.advance_ms(20)
            joined.sweep()

        running, waiting = submit(b"1"), submit(b"2")
        runtime.during = pass_the_deadline
        joined.settle()
        joined.clock.advance_ms(1)
        again = submit(b"3")
        pass_the_deadline()
        assert [running.begun, waiting.begun, again.begun] == [True, False, False]
        assert {ticket.failure() for ticket in (running, waiting, again)} == {DeadlineExceeded}
        assert runtime.batches == [[b"1"]]


def test_a_deadline_that_is_put_off_passes_later() -> None:
    """Of a body that is being run, whose answer comes in pieces; of one that has been answered nothing changes."""
    runtime = PuppetRuntime(BODIES, lambda inputs: [[b"done"] for _ in inputs])
    with Joined(runtime, capacity=4, policy=BatchPolicy(max_batch_rows=1)) as joined:
        ticket = _LateTicket(joined.clock() + 20_000_000)
        joined.exchange.submit_body(ticket, b"1")

        def last_long() -> None:
            ticket.extend(joined.clock() + 60_000_000)
            joined.clock.advance_ms(50)
            joined.sweep()

        runtime.during = last_long
        joined.settle()
        assert ticket.error is None
        assert not ticket.is_open
        ticket.extend(0)
        assert ticket.deadline_ns != 0


def test_rows_of_numbers_never_count_as_begun() -> None:
    """Only scripts that take whole requests have a `run` for each."""
    with Joined() as joined:
        ticket = _LateTicket(joined.clock() + 20_000_000)
        joined.submit(1, ticket=ticket)

        def pass_the_deadline() -> None:
            joined.clock.advance_ms(20)
            joined.sweep()

        joined.runtime.during = pass_the_deadline
        joined.settle()
        assert (ticket.begun, ticket.failure()) == (False, DeadlineExceeded)
