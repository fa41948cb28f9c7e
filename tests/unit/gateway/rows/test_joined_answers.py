"""Rows of several requests that come back in one turn, and the wakes of the loop."""

import numpy as np
from tests.puppets import Joined, JoiningTicket, PuppetTicket, answer_of, doubled, rows_of

from stoker.arena import AWAKE_NS, LONE_ROWS
from stoker.errors import ModelFailed


def submit_joining(joined: Joined, *first: float) -> JoiningTicket:
    """A joining request with these rows."""
    ticket = JoiningTicket()
    joined.exchange.submit(ticket, rows_of(*first))
    return ticket


def test_rows_that_are_done_at_once_are_completed_together() -> None:
    """Requests of one row join; one of several rows, one that failed and one that was given up do not."""
    with Joined() as joined:
        joined.runtime.fails_for = {13}
        single = [submit_joining(joined, number) for number in (1, 2)]
        wide = submit_joining(joined, 3, 4)
        failed = submit_joining(joined, 13)
        cancelled = submit_joining(joined, 5)
        plain = joined.submit(6)
        joined.turn_frontends()
        joined.turn_device()
        cancelled.cancel()
        joined.settle()
        assert [answer_of(ticket) for ticket in single] == [doubled(1), doubled(2)]
        assert [ticket.company for ticket in single] == [2, 2]
        assert answer_of(wide) == doubled(3, 4)
        assert failed.failure() is ModelFailed
        assert cancelled.completions == 0
        assert answer_of(plain) == doubled(6)
        assert joined.exchange.leased_rows == 0


def test_a_slice_of_one_row_does_not_join() -> None:
    """The last slice of a large request may have one row; it belongs to its request."""
    with Joined(capacity=16) as joined:
        large = submit_joining(joined, *range(17))
        joined.settle()
        assert answer_of(large) == doubled(*range(17))


class ClumsyTicket(JoiningTicket):
    """A request that cannot be completed together with others."""

    __slots__ = ()

    def complete_together(self, tickets: list[JoiningTicket], outputs: np.ndarray) -> None:
        """Fail before any request has been completed."""
        raise MemoryError


def test_rows_that_cannot_be_completed_together_are_completed_one_by_one() -> None:
    """A fault in the work for a whole batch costs no caller an answer, and leaks no rows."""
    with Joined() as joined:
        tickets = [ClumsyTicket() for _ in range(3)]
        for number, ticket in enumerate(tickets):
            joined.exchange.submit(ticket, rows_of(number))
        joined.settle()
        assert [answer_of(ticket) for ticket in tickets] == [doubled(number) for number in range(3)]
        assert joined.exchange.leased_rows == 0


def test_rows_are_free_again_when_a_completion_raises() -> None:
    """A fault in one answer leaks no rows."""

    def fail() -> None:
        raise RuntimeError("a fault of the test")

    with Joined() as joined:
        ticket = joined.submit(1)
        ticket.then = fail
        joined.settle()
        assert ticket.completions == 1
        assert joined.exchange.leased_rows == 0


def asleep(joined: Joined) -> bool:
    """Whether the frontends' loop would sleep now: nothing is left that it could call."""
    joined.turn_frontends()
    joined.turn_frontends()
    return not joined.loop._ready  # type: ignore[attr-defined]


def test_the_loop_stays_awake_only_while_a_quick_answer_is_expected() -> None:
    """A loop that polls saves a wake-up; it sleeps once the answer is there, late, or out of reach."""
    with Joined() as joined:

        def alone() -> PuppetTicket:
            ticket = joined.submit(1)
            joined.turn_frontends()
            return ticket

        for _ in range(LONE_ROWS):
            alone()
            joined.settle()
            assert asleep(joined)
        alone()
        assert not asleep(joined)
        joined.turn_device()
        assert asleep(joined)
        alone()
        joined.clock.now_ns += AWAKE_NS
        assert asleep(joined)
        joined.settle()
        alone()
        assert asleep(joined), "the last answer was slow, so the next one is expected to be"
        joined.kill_device()
        assert asleep(joined)
