"""Requests that are larger than half of their arena, and flow through it in slices."""

import pytest
from tests.puppets import Joined, PuppetTicket, answer_of, doubled

from stoker.errors import DeadlineExceeded, ModelFailed, Overloaded
from stoker.gateway.rows.ticket import Rows, SlicedAnswer, Ticket


def test_large_request_reports_the_turn_of_its_last_batch() -> None:
    """Its other times are those of the last batch too."""
    with Joined(capacity=16) as joined:
        arena = joined.exchange.arena
        large = joined.submit(*range(30))
        arena.turned[0] = True
        while not large.completions:
            arena.turn_ns[:] += 1_000_000
            joined.turn_frontends()
            joined.clock.advance_ms(1000)
            joined.turn_device()
        assert large.turn_ns == arena.turn_ns[0] > 1_000_000


def test_a_large_request_holds_a_quarter_of_the_arena() -> None:
    """A request that is larger than half of the arena flows through it and leaves room for others."""
    with Joined(capacity=64) as joined:
        large = joined.submit(*range(1000))
        most, singles = 0, []
        while not large.completions:
            singles.append(joined.submit(len(singles)))
            most = max(most, joined.exchange.leased_rows)
            joined.turn_frontends()
            joined.turn_device()
            joined.turn_frontends()
            assert singles[-1].completions == 1
        assert most <= 64 // 4 + 1
        assert answer_of(large) == doubled(*range(1000))
        assert [answer_of(single) for single in singles] == [doubled(n) for n in range(len(singles))]


def test_a_large_request_that_is_cancelled_stops_flowing() -> None:
    """None of its rows is fed after its caller has gone."""
    with Joined(capacity=64) as joined:
        large = joined.submit(*range(500))
        joined.turn_frontends()
        joined.turn_device()
        joined.turn_frontends()
        run = len(joined.runtime.rows_run)
        large.cancel()
        joined.settle()
        assert large.completions == 0
        assert len(joined.runtime.rows_run) == run <= 16
        assert joined.exchange.leased_rows == 0


def hungry_request(
    joined: Joined, timeout_ms: float | None = None
) -> tuple[PuppetTicket, list[PuppetTicket]]:
    """A large request that waits for rows between its slices, and the requests of one row that have taken them."""
    others: list[PuppetTicket] = []

    def take_every_row() -> None:
        while joined.exchange.free_rows:
            others.append(joined.submit(1000))

    greedy = joined.submit(1, ticket=PuppetTicket(then=take_every_row))
    large = joined.submit(*range(100, 150), timeout_ms=timeout_ms)
    greedy_too = joined.submit(2, ticket=PuppetTicket(then=take_every_row))
    joined.turn_frontends()
    joined.turn_device()
    joined.turn_frontends()
    assert (greedy.completions, large.completions, greedy_too.completions) == (1, 0, 1)
    assert len(joined.exchange.slices.waiting) > 0
    return large, others


def test_a_request_between_slices_gets_on_when_rows_come_free() -> None:
    """A large request that found no row for its next slice takes it as soon as there are enough."""
    with Joined(capacity=64) as joined:
        large, _ = hungry_request(joined)
        joined.settle()
        assert answer_of(large) == doubled(*range(100, 150))
        assert joined.exchange.leased_rows == 0


@pytest.mark.parametrize("slices", [1, 2])
def test_large_request_with_a_refused_slice_fails(slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice that cannot be queued, at once or later, fails its request: nobody else would ever end it."""
    with Joined(capacity=16) as joined:
        admit, queued = joined.exchange.admit, list[int]()

        def admit_first_slices(ticket: Ticket, rows: Rows) -> None:
            if len(queued) == slices:
                raise MemoryError("a fault of the test")
            admit(ticket, rows)
            queued.append(len(rows[0]))

        monkeypatch.setattr(joined.exchange, "admit", admit_first_slices)
        large, small = joined.submit(*range(100)), joined.submit(7)
        joined.settle()
        assert queued == [2] * slices
        assert (large.completions, large.failure()) == (1, Overloaded)
        assert answer_of(small) == doubled(7)
        assert joined.exchange.idle


def test_a_large_request_that_cannot_begin_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """`submit` raises the error of its first slice."""
    with Joined(capacity=16) as joined:
        with monkeypatch.context() as patched:
            patched.setattr(joined.exchange, "_lease", raise_memory_error)
            with pytest.raises(MemoryError):
                joined.submit(*range(100))
        assert joined.exchange.idle
        large = joined.submit(*range(100))
        joined.settle()
        assert answer_of(large) == doubled(*range(100))


def test_large_request_without_memory_for_its_answer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with an error, once, and its other slice does not run in vain for long."""
    with Joined(capacity=16) as joined:
        large = joined.submit(*range(100))
        monkeypatch.setattr(SlicedAnswer, "put", raise_memory_error)
        joined.settle()
        assert (large.completions, large.failure()) == (1, Overloaded)
        assert joined.runtime.rows_run == [0, 1, 2, 3]
        assert joined.exchange.idle


def raise_memory_error(*_: object) -> None:
    raise MemoryError("a fault of the test")


def test_a_request_between_slices_has_its_deadline() -> None:
    """A large request that holds no row at the moment is answered with 504 like any other."""
    with Joined(capacity=64) as joined:
        large, _ = hungry_request(joined, timeout_ms=100)
        joined.clock.advance_ms(100)
        joined.sweep()
        assert (large.completions, large.failure()) == (1, DeadlineExceeded)
        joined.settle()
        assert large.completions == 1
        assert joined.exchange.leased_rows == 0


def test_a_request_that_is_cancelled_between_slices_takes_no_more_rows() -> None:
    """It leaves the queue for rows once its caller has cancelled."""
    with Joined(capacity=64) as joined:
        large, _ = hungry_request(joined)
        run = {number for number in joined.runtime.rows_run if 100 <= number < 150}
        large.cancel()
        joined.settle()
        assert large.completions == 0
        assert {number for number in joined.runtime.rows_run if 100 <= number < 150} == run
        assert joined.exchange.leased_rows == 0


def test_a_row_that_fails_within_a_large_request_fails_it_once() -> None:
    """The other slices of the request end with it; a neighbour does not."""
    with Joined(capacity=64) as joined:
        joined.runtime.fails_for = {105}
        bad, good = joined.submit(*range(100, 200)), joined.submit(1)
        joined.settle()
        assert (bad.completions, bad.failure()) == (1, ModelFailed)
        assert answer_of(good) == doubled(1)
        assert max(joined.runtime.rows_run) < 132
        assert joined.exchange.leased_rows == 0
