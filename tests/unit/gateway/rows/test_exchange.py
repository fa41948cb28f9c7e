"""The frontend's side of an arena, joined with a worker by a real doorbell; every turn is the test's."""

import gc
import re
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from tests.puppets import (
    BODIES,
    FAR_NS,
    STEADY,
    TEXTS,
    Joined,
    PuppetRuntime,
    PuppetTicket,
    rows_of,
)

from stoker.arena import AWAKE_NS, LONE_ROWS
from stoker.device.batching import BatchPolicy
from stoker.errors import (
    BodyTooLarge,
    DeadlineExceeded,
    DeviceLost,
    InvalidInput,
    ModelFailed,
    OutputTooLarge,
    Overloaded,
    StokerError,
)
from stoker.gateway.rows.exchange import ArenaExchange
from stoker.gateway.rows.ticket import Rows, SlicedAnswer, Ticket
from stoker.tensors import Signature, TensorSpec

MIB = 1 << 20
SMALL_DOORBELL_BYTES = 1
"""The kernel rounds this up to the smallest buffer that it has: a few messages."""


def doubled(*first: float) -> list[list[float]]:
    """The answer for rows that start with these numbers."""
    return (rows_of(*first)[0] * 2).tolist()


def answer_of(ticket: PuppetTicket) -> list[list[float]]:
    """The only output of a ticket that was answered, once."""
    assert (ticket.completions, ticket.error) == (1, None)
    assert ticket.answer is not None
    (output,) = ticket.answer
    assert output.dtype == np.float32
    return output.tolist()


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 16, 17, 100])
def test_a_request_gets_its_own_answer(rows: int) -> None:
    """Whatever fits the arena of 16 rows, half of it, or not at all, comes back complete and in order."""
    with Joined(capacity=16) as joined:
        ticket = joined.submit(*range(rows))
        joined.settle()
        assert answer_of(ticket) == doubled(*range(rows))
        assert ticket.rows == rows
        assert joined.exchange.leased_rows == 0


def test_requests_of_one_turn_leave_as_one_batch() -> None:
    """A device that is busy or not yet awake gets what was queued meanwhile as one batch."""
    with Joined() as joined:
        tickets = [joined.submit(1), joined.submit(2, 3), joined.submit(4)]
        joined.turn_frontends()
        joined.turn_device()
        joined.turn_frontends()
        assert [answer_of(ticket) for ticket in tickets] == [doubled(1), doubled(2, 3), doubled(4)]
        assert joined.runtime.rows_run == [1, 2, 3, 4]
        assert len(joined.runtime.batches) == 1


def test_a_row_that_is_used_to_being_alone_does_not_wait_for_company() -> None:
    """After a few lone rows the next one rings at once; one with company waits for the end of the turn again."""
    with Joined() as joined:
        for number in range(LONE_ROWS):
            joined.submit(number)
            joined.settle()
        lone = joined.submit(50)
        joined.turn_device()
        assert joined.runtime.rows_run[-1] == 50
        joined.turn_frontends()
        assert answer_of(lone) == doubled(50)
        joined.submit(51)
        company = [joined.submit(52), joined.submit(53)]
        joined.turn_device()
        assert joined.runtime.rows_run[-1] == 51
        joined.settle()
        assert [answer_of(ticket) for ticket in company] == [doubled(52), doubled(53)]
        first = joined.submit(54)
        joined.turn_device()
        assert joined.runtime.rows_run[-1] == 53
        joined.settle()
        assert answer_of(first) == doubled(54)


class JoiningTicket(PuppetTicket):
    """A request that is completed together with others."""

    __slots__ = ("company",)

    joins = True

    def complete_together(self, tickets: list["JoiningTicket"], outputs: np.ndarray) -> None:
        """Keep the outputs and how many there were."""
        for ticket, row in zip(tickets, outputs, strict=True):
            ticket.completions += 1
            ticket.answer = [row[np.newaxis].copy()]
            ticket.company = len(tickets)
            ticket.then()


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
        """Fail before anybody has been completed."""
        raise MemoryError


def test_rows_that_cannot_be_completed_together_are_completed_one_by_one() -> None:
    """A fault in what is done for all of a batch costs nobody his answer, and leaks no rows."""
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


def test_each_frontend_gets_its_own_rows() -> None:
    """One batch is filled from several arenas, whose row numbers are the same, and taken apart again."""
    with Joined(frontends=3) as joined:
        tickets = [joined.submit(10 * frontend, 1, frontend=frontend) for frontend in range(3)]
        joined.turn_frontends()
        joined.turn_device()
        joined.turn_frontends()
        assert [answer_of(ticket) for ticket in tickets] == [doubled(0, 1), doubled(10, 1), doubled(20, 1)]
        assert len(joined.runtime.batches) == 1


def test_stage_times_are_those_of_the_clock() -> None:
    """A ticket knows when it was queued, when its batch left, and when it came back."""
    with Joined() as joined:
        joined.runtime.during = lambda: joined.clock.advance_ms(3)
        ticket = joined.submit(1, 2)
        joined.clock.advance_ms(5)
        joined.settle()
        begun_ns = ticket.enqueued_ns
        assert begun_ns == joined.clock() - 8_000_000
        assert (ticket.started_ns - begun_ns, ticket.finished_ns - begun_ns) == (5_000_000, 8_000_000)


def test_a_full_arena_refuses_with_a_retry_after() -> None:
    """Without a free row a request is refused at once, keeps nothing, and is told how long the queue takes."""
    with Joined(capacity=16) as joined:
        held = [joined.submit(number) for number in range(13)]
        with pytest.raises(Overloaded, match="All 16 rows") as refused:
            joined.submit(1, 2, 3, 4)
        assert refused.value.retry_after_s is not None
        assert refused.value.retry_after_s >= 1
        assert joined.exchange.leased_rows == 13
        assert joined.exchange.free_rows
        held.append(joined.submit(13, 14, 15))
        assert not joined.exchange.free_rows
        with pytest.raises(Overloaded):
            joined.submit(1)
        with pytest.raises(Overloaded):
            joined.submit(*range(100))
        joined.settle()
        assert all(ticket.completions == 1 for ticket in held)
        assert joined.exchange.leased_rows == 0


def keep_busy(joined: Joined, rows_per_s: int, seconds: float = 4) -> None:
    """Let the device do so many rows a second, with always something left to do."""
    joined.submit(0)
    for _ in range(round(seconds * 40)):
        for number in range(rows_per_s // 40):
            joined.submit(number)
        joined.turn_frontends()
        # The last row of each round is still leased while the rate is looked at.
        joined.turn_device()
        joined.clock.advance_ms(25)
        joined.sweep()
        joined.turn_frontends()


def test_retry_after_follows_the_measured_service_rate() -> None:
    """64 rows at 20 rows a second take a good three seconds."""
    with Joined(capacity=64) as joined:
        keep_busy(joined, rows_per_s=40)
        joined.settle()
        for number in range(64):
            joined.submit(number)
        assert joined.exchange.overloaded().retry_after_s in (2, 3)
        joined.settle()


def test_retry_after_survives_an_idle_spell() -> None:
    """That nobody asked for an hour does not make the device slow."""
    with Joined(capacity=64) as joined:
        keep_busy(joined, rows_per_s=1600)
        joined.settle()
        for _ in range(1000):
            joined.clock.advance_ms(3600)
            joined.sweep()
        for number in range(64):
            joined.submit(number)
        assert joined.exchange.overloaded().retry_after_s in (1, 2)
        joined.settle()


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_number_that_overflows_the_input_is_refused(dtype: str, rows: int) -> None:
    """A cast that would yield infinity is an error of the caller, and takes no row."""
    signature = Signature((TensorSpec("x", dtype, (2,)),), (TensorSpec("y", dtype, (2,)),))
    with np.errstate(over="raise"), Joined(PuppetRuntime(signature), capacity=16) as joined:
        with pytest.raises(InvalidInput, match="too large"):
            joined.submit(*[1e300] * rows)
        assert joined.exchange.leased_rows == 0
        ticket = joined.submit(*range(rows))
        joined.settle()
        assert ticket.answer is not None
        assert ticket.answer[0].tolist() == doubled(*range(rows))


def test_an_exchange_is_not_made_where_numbers_would_overflow_unnoticed() -> None:
    """Whether numpy raises belongs to the thread and the context; one that only warns would score infinities."""
    with Joined() as joined:
        exchange, near = joined.exchange, joined.exchange.doorbell.socket
        with np.errstate(over="warn"), pytest.raises(RuntimeError, match="seterr"):
            ArenaExchange(
                exchange.arena, near, clock_ns=joined.clock, on_lost=lambda _: None, loop=joined.loop
            )


@pytest.mark.parametrize("rows", [1, 3])
def test_a_fault_while_rows_are_stored_leaks_none(rows: int) -> None:
    """Whatever stops it, the request has taken nothing."""
    with Joined(capacity=16) as joined:
        with pytest.raises(ValueError, match="could not convert"):
            joined.exchange.submit(PuppetTicket(), [np.array([["a", "b"]] * rows)])
        assert joined.exchange.leased_rows == 0
        ticket = joined.submit(*range(rows))
        joined.settle()
        assert answer_of(ticket) == doubled(*range(rows))


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize(
    ("dtype", "bad"), [("int8", 128), ("int8", -129), ("uint8", 256), ("int16", 1 << 40), ("uint32", 1 << 32)]
)
def test_an_integer_that_does_not_fit_the_input_is_refused(dtype: str, bad: int, rows: int) -> None:
    """Integers do not wrap around, not even in the last row."""
    signature = Signature((TensorSpec("k", dtype, ()),), (TensorSpec("y", dtype, ()),))
    values = np.zeros(rows, np.int64 if dtype.startswith("i") else np.uint64)
    values[-1] = bad
    with Joined(PuppetRuntime(signature), capacity=16) as joined:
        with pytest.raises(InvalidInput, match=f"'k' does not fit {dtype}"):
            joined.exchange.submit(PuppetTicket(), [values])
        assert joined.exchange.leased_rows == 0


def test_integers_of_the_inputs_own_dtype_are_not_looked_through() -> None:
    """They fit: a body of bytes, an image say, is copied and nothing else."""

    class Untouched(np.ndarray[Any, np.dtype[Any]]):
        def min(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("somebody looks through them")

    signature = Signature((TensorSpec("k", "uint8", ()),), (TensorSpec("y", "uint8", ()),))
    with Joined(PuppetRuntime(signature), capacity=16) as joined:
        ticket = PuppetTicket()
        joined.exchange.submit(ticket, [np.array([0, 255], np.uint8).view(Untouched)])
        joined.settle()
        assert joined.runtime.batches == [[0, 255]]


def test_several_inputs_and_outputs_stay_together() -> None:
    """Inputs of different dtypes and shapes reach the model as one row each, and so do the outputs."""
    signature = Signature(
        (
            TensorSpec("image", "float32", (2, 3)),
            TensorSpec("kind", "int64", ()),
            TensorSpec("on", "bool", (2,)),
        ),
        (TensorSpec("sum", "float64", ()), TensorSpec("mask", "bool", (2,))),
    )

    def answer(inputs: list[np.ndarray]) -> list[np.ndarray]:
        image, kind, on = inputs
        return [image.sum(axis=(1, 2), dtype=np.float64) + kind, ~on]

    with Joined(PuppetRuntime(signature, answer), capacity=16) as joined:
        for rows in (1, 3, 40):
            image = np.arange(rows * 6, dtype=np.float64).reshape(rows, 2, 3)
            kind, on = np.arange(rows) * 100, np.arange(rows * 2).reshape(rows, 2) % 3 == 0
            ticket = PuppetTicket()
            joined.exchange.submit(ticket, [image, kind, on])
            joined.settle()
            assert ticket.answer is not None
            assert ticket.answer[0].tolist() == (image.sum(axis=(1, 2)) + kind).tolist()
            assert ticket.answer[1].tolist() == (~on).tolist()


def test_a_large_request_is_told_how_long_its_last_batch_waited_for_its_turn() -> None:
    """As its other times are those of the last batch."""
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


def test_cancelling_twice_and_after_the_answer_harms_nobody() -> None:
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


def test_a_body_that_is_being_run_is_told_from_those_that_wait() -> None:
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


def test_nothing_is_said_of_rows_of_numbers() -> None:
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


def take_every_row(joined: Joined) -> None:
    """Submit one-row requests until the arena is full."""
    while joined.exchange.free_rows:
        joined.submit(1000)


def hungry_request(joined: Joined, timeout_ms: float | None = None) -> PuppetTicket:
    """A large request that waits for rows between its slices: others took those that came free."""
    greedy = joined.submit(1, ticket=PuppetTicket(then=lambda: take_every_row(joined)))
    large = joined.submit(*range(100, 150), timeout_ms=timeout_ms)
    greedy_too = joined.submit(2, ticket=PuppetTicket(then=lambda: take_every_row(joined)))
    joined.turn_frontends()
    joined.turn_device()
    joined.turn_frontends()
    assert (greedy.completions, large.completions, greedy_too.completions) == (1, 0, 1)
    assert len(joined.exchange.slices.waiting) > 0
    return large


def test_a_request_between_slices_gets_on_when_rows_come_free() -> None:
    """A large request that found no row for its next slice takes it as soon as there are enough."""
    with Joined(capacity=64) as joined:
        large = hungry_request(joined)
        joined.settle()
        assert answer_of(large) == doubled(*range(100, 150))
        assert joined.exchange.leased_rows == 0


@pytest.mark.parametrize("slices", [1, 2])
def test_a_large_request_that_cannot_go_on_is_told(slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice that cannot be queued, at once or later, fails its request: nobody else would ever end it."""
    with Joined(capacity=16) as joined:
        admit, queued = joined.exchange.admit, list[int]()

        def admit_some(ticket: Ticket, rows: Rows) -> None:
            if len(queued) == slices:
                raise MemoryError("a fault of the test")
            admit(ticket, rows)
            queued.append(len(rows[0]))

        monkeypatch.setattr(joined.exchange, "admit", admit_some)
        large, small = joined.submit(*range(100)), joined.submit(7)
        joined.settle()
        assert queued == [2] * slices
        assert (large.completions, large.failure()) == (1, Overloaded)
        assert answer_of(small) == doubled(7)
        assert joined.exchange.idle


def test_a_large_request_that_cannot_begin_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stops its first slice is the error of `submit`."""
    with Joined(capacity=16) as joined:
        with monkeypatch.context() as patched:
            patched.setattr(joined.exchange, "_lease", raise_memory_error)
            with pytest.raises(MemoryError):
                joined.submit(*range(100))
        assert joined.exchange.idle
        large = joined.submit(*range(100))
        joined.settle()
        assert answer_of(large) == doubled(*range(100))


def test_a_large_request_whose_answer_cannot_be_kept_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
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
        large = hungry_request(joined, timeout_ms=100)
        joined.clock.advance_ms(100)
        joined.sweep()
        assert (large.completions, large.failure()) == (1, DeadlineExceeded)
        joined.settle()
        assert large.completions == 1
        assert joined.exchange.leased_rows == 0


def test_a_request_that_is_cancelled_between_slices_takes_no_more_rows() -> None:
    """What waits for rows and has nobody who waits for it is forgotten."""
    with Joined(capacity=64) as joined:
        large = hungry_request(joined)
        run = {number for number in joined.runtime.rows_run if 100 <= number < 150}
        large.cancel()
        joined.settle()
        assert large.completions == 0
        assert {number for number in joined.runtime.rows_run if 100 <= number < 150} == run
        assert joined.exchange.leased_rows == 0


def test_everybody_hears_that_the_device_is_gone() -> None:
    """Requests that wait, run, flow, or wait between slices each get one DeviceLost; cancelled ones nothing."""
    with Joined(capacity=64) as joined:
        large = hungry_request(joined)
        joined.turn_frontends()
        cancelled, single = PuppetTicket(), PuppetTicket()
        held = [ticket for ticket in joined.exchange._tickets if isinstance(ticket, PuppetTicket)]
        held[0].cancel()
        joined.kill_device()
        joined.turn_frontends()
        assert joined.lost == [0]
        assert (large.completions, large.failure()) == (1, DeviceLost)
        assert held[0].completions == 0
        assert {(ticket.completions, ticket.failure()) for ticket in held[1:]} == {(1, DeviceLost)}
        for ticket, first in ((cancelled, [1]), (single, range(60))):
            with pytest.raises(DeviceLost) as refused:
                joined.submit(*first, ticket=ticket)
            assert refused.value.retry_after_s == 1
            assert ticket.completions == 0


def test_an_idle_exchange_notices_that_the_device_is_gone() -> None:
    """EOF is seen without a request; the owner hears of it once."""
    with Joined() as joined:
        joined.kill_device()
        joined.turn_frontends()
        joined.exchange.close()
        joined.turn_frontends()
        assert (joined.lost, joined.exchange.lost) == ([0], True)


@pytest.mark.parametrize("rows", [1, 3, 60])
def test_a_request_to_a_device_that_has_just_died_is_lost_not_stuck(rows: int) -> None:
    """Between the death of the device and the EOF a request is taken and then completed with DeviceLost."""
    with Joined() as joined:
        joined.kill_device()
        ticket = joined.submit(*range(rows))
        joined.turn_frontends()
        assert (ticket.completions, ticket.failure(), joined.lost) == (1, DeviceLost, [0])


def test_answers_that_were_sent_before_the_device_died_still_count() -> None:
    """What lies in the doorbell is read before the EOF."""
    with Joined() as joined:
        done = joined.submit(1)
        joined.turn_frontends()
        joined.turn_device()
        open_ = joined.submit(2)
        joined.kill_device()
        joined.turn_frontends()
        joined.turn_frontends()
        assert answer_of(done) == doubled(1)
        assert open_.failure() is DeviceLost


def test_closing_completes_what_is_in_flight() -> None:
    """A frontend that leaves the arena tells its callers; the owner, who closed it, is not told."""
    with Joined() as joined:
        tickets = [joined.submit(1), joined.submit(2, 3), joined.submit(*range(40))]
        joined.exchange.close()
        joined.exchange.close()
        assert {(ticket.completions, ticket.failure()) for ticket in tickets} == {(1, DeviceLost)}
        assert joined.lost == []


def boom() -> None:
    """A completion that raises."""
    raise RuntimeError("a fault of ours")


@pytest.mark.parametrize("fate", ["answer", "deadline", "device"])
def test_a_completion_that_raises_harms_no_other_request(fate: str, caplog: pytest.LogCaptureFixture) -> None:
    """A fault in one completion is logged; every other request completes, and the rows come back."""
    with Joined() as joined:
        tickets = [
            joined.submit(
                number, ticket=PuppetTicket(joined.clock() + 5_000_000, then=boom if number < 2 else int)
            )
            for number in range(4)
        ]
        match fate:
            case "deadline":
                joined.clock.advance_ms(5)
                joined.sweep()
            case "device":
                joined.kill_device()
        joined.settle()
        assert [ticket.completions for ticket in tickets] == [1, 1, 1, 1]
        assert caplog.text.count("RuntimeError: a fault of ours") == 2
        if fate == "device":
            assert joined.lost == [0]
        else:
            assert joined.exchange.leased_rows == 0


@pytest.mark.parametrize("number", [-16, -1, 16, 1 << 20])
def test_an_unknown_row_number_is_logged_and_ignored(number: int, caplog: pytest.LogCaptureFixture) -> None:
    """A number that the arena does not have completes nobody, and does not swallow those behind it."""
    with Joined(capacity=16) as joined:
        ticket = joined.submit(1)
        joined.turn_frontends()
        (lane,) = joined.worker._lanes.values()
        lane.doorbell.send(np.array([number], np.int32).tobytes())
        joined.turn_device()
        joined.turn_frontends()
        assert answer_of(ticket) == doubled(1)
        assert f"row {number}, which nobody had queued" in caplog.text


def test_a_row_that_is_handed_back_twice_is_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """The second time nobody has queued it."""
    with Joined() as joined:
        joined.submit(1)
        joined.turn_frontends()
        joined.turn_device()
        (lane,) = joined.worker._lanes.values()
        lane.send(np.array([0], np.int32))
        joined.settle()
        assert joined.exchange.leased_rows == 0
        assert "row 0, which nobody had queued" in caplog.text


def test_a_full_doorbell_to_the_device_loses_nothing() -> None:
    """Numbers that the doorbell did not take wait in the frontend until it is writable."""
    with Joined(capacity=1024, doorbell_bytes=SMALL_DOORBELL_BYTES) as joined:
        tickets = []
        for number in range(600):
            tickets.append(joined.submit(number))
            joined.turn_frontends()
        assert len(joined.exchange.doorbell.unsent) > 0
        joined.settle()
        assert [answer_of(ticket) for ticket in tickets] == [doubled(number) for number in range(600)]
        assert joined.exchange.leased_rows == 0
        watched = joined.loop.remove_writer(joined.exchange.doorbell.socket.fileno())
        assert not watched, "a loop that watches a writable doorbell never sleeps"


def test_a_full_doorbell_to_the_frontend_loses_nothing() -> None:
    """A frontend that does not read stops neither the device nor its answers to other frontends."""
    with Joined(
        capacity=1024, policy=BatchPolicy(1), doorbell_bytes=SMALL_DOORBELL_BYTES, frontends=2
    ) as joined:
        tickets = [joined.submit(number, frontend=number % 2) for number in range(600)]
        joined.turn_frontends()
        for _ in range(600):
            joined.turn_device()
        assert all(len(lane.unsent) > 0 for lane in joined.worker._lanes.values())
        joined.settle()
        assert [answer_of(ticket) for ticket in tickets] == [doubled(number) for number in range(600)]
        assert [exchange.leased_rows for exchange in joined.exchanges] == [0, 0]


def test_a_doorbell_that_is_full_when_the_device_dies_is_no_trouble() -> None:
    """Numbers that never went out belong to requests that are told."""
    with Joined(capacity=4096, doorbell_bytes=SMALL_DOORBELL_BYTES) as joined:
        tickets = []
        while not joined.exchange.doorbell.unsent:
            tickets.append(joined.submit(len(tickets)))
            joined.turn_frontends()
        joined.kill_device()
        joined.turn_frontends()
        assert {(ticket.completions, ticket.failure()) for ticket in tickets} == {(1, DeviceLost)}


def test_row_numbers_may_arrive_in_pieces() -> None:
    """A stream cuts where it likes: the bytes of a number that has not arrived whole are kept."""
    with Joined() as joined:
        tickets = [joined.submit(number) for number in range(3)]
        joined.turn_frontends()
        (lane,) = joined.worker._lanes.values()
        sent = lane.doorbell
        joined.turn_device()
        whole = joined.exchange.doorbell.socket.recv(100)
        assert len(whole) == 12
        for piece in (whole[:1], whole[1:6], whole[6:8], whole[8:]):
            sent.send(piece)
            joined.turn_frontends()
        assert [answer_of(ticket) for ticket in tickets] == [doubled(number) for number in range(3)]


def test_json_rows_come_back_as_they_were_written() -> None:
    """A variable output gives one text per row, through slices too."""
    runtime = PuppetRuntime(TEXTS, lambda inputs: [[b'{"x":%d}' % row[0] for row in inputs[0]]])
    with Joined(runtime) as joined:
        for rows in (1, 3, 40):
            ticket = joined.submit(*range(rows))
            joined.settle()
            assert ticket.texts == [b'{"x":%d}' % number for number in range(rows)]


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_text_that_does_not_fit_its_row_fails_its_request_alone(rows: int) -> None:
    """64 bytes fit, 65 do not."""
    runtime = PuppetRuntime(TEXTS, lambda inputs: [[b"x" * int(row[0]) for row in inputs[0]]])
    with Joined(runtime) as joined:
        good, bad = joined.submit(64), joined.submit(*[1] * (rows - 1), 65)
        joined.settle()
        assert good.texts == [b"x" * 64]
        assert (bad.completions, bad.failure()) == (1, OutputTooLarge)
        assert joined.exchange.leased_rows == 0


def test_bodies_travel_whole_and_give_their_memory_back() -> None:
    """A body of megabytes comes back as an answer of megabytes; then the row's memory is free."""
    runtime = PuppetRuntime(BODIES, lambda inputs: [[body[::-1] for body in inputs[0]]])
    with Joined(runtime) as joined:
        bodies = [b"", b"{}", b"ab" * MIB, b"c" * (4 * MIB)]
        tickets = [PuppetTicket() for _ in bodies]
        for ticket, body in zip(tickets, bodies, strict=True):
            joined.exchange.submit_body(ticket, body)
        joined.settle()
        assert [ticket.texts for ticket in tickets] == [[body[::-1]] for body in bodies]
        arena = joined.exchange.arena
        assert all(not arena.inputs[0][number].any() for number in (2, 3))
        assert all(not arena.outputs[0][number].any() for number in (2, 3))


def test_a_body_that_is_longer_than_a_row_is_refused() -> None:
    """Its caller is told so, and it takes no row, however often it comes."""
    runtime = PuppetRuntime(BODIES, lambda inputs: [[body[:2] for body in inputs[0]]])
    with Joined(runtime, capacity=2) as joined:
        for _ in range(3):
            with pytest.raises(BodyTooLarge, match=r"5 MiB as the model's input; 4 MiB fit"):
                joined.exchange.submit_body(PuppetTicket(), bytes(5 * MIB))
        assert joined.exchange.idle
        ticket = PuppetTicket()
        joined.exchange.submit_body(ticket, b"fits")
        joined.settle()
        assert ticket.texts == [b"fi"]


def test_memory_of_a_burst_is_given_back() -> None:
    """Small bodies keep their memory, but of rows that nobody needs 64 do, the others lose it one by one."""
    runtime = PuppetRuntime(BODIES, lambda inputs: [[b"y" for _ in inputs[0]]])
    with Joined(runtime, capacity=200) as joined:
        arena = joined.exchange.arena

        def score(count: int) -> None:
            for _ in range(count):
                joined.exchange.submit_body(PuppetTicket(), b"x")
            joined.sweep()
            joined.settle()

        def rows_that_hold_something() -> int:
            held = [arena.inputs[0][:, 0], arena.outputs[0][:, 0]]
            assert np.array_equal(*(column != 0 for column in held))
            return int(np.count_nonzero(held[0]))

        score(190)
        joined.clock.advance_ms(1000)
        joined.sweep()
        assert rows_that_hold_something() == 190, "all of them were in use since the last look"
        score(3)
        joined.clock.advance_ms(1000)
        for left in (189, 188, 187):
            joined.sweep()
            assert rows_that_hold_something() == left
        for _ in range(200):
            joined.sweep()
        assert rows_that_hold_something() == 64 + 3
        score(190)
        joined.clock.advance_ms(1000)
        joined.sweep()
        assert rows_that_hold_something() == 190


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_device_that_dies_leaves_no_arena_mapped(rows: int) -> None:
    """Its requests know their exchange; a frontend rarely collects garbage, so they must not be in a circle."""
    with Joined() as joined:
        ticket = joined.submit(*range(rows))
        arena = weakref.ref(joined.exchange.arena)
        gc.disable()
        try:
            joined.kill_device()
            joined.turn_frontends()
            assert ticket.failure() is DeviceLost
            joined.exchanges.clear()
            del ticket
            assert arena() is None
        finally:
            gc.enable()


def test_a_failed_request_names_the_error_id_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets an id, the log has it beside the traceback, and nothing of that reaches the caller."""
    with Joined() as joined:
        joined.runtime.fails_for = {2}
        bad, good = joined.submit(1, 2), joined.submit(3)
        joined.settle()
        assert answer_of(good) == doubled(3)
        assert (bad.completions, bad.failure()) == (1, ModelFailed)
        assert isinstance(bad.error, ModelFailed)
        assert re.fullmatch("[0-9a-f]{16}", bad.error.error_id)
        assert caplog.text.count(bad.error.error_id) == 1
        assert "a secret of the log" in caplog.text
        assert "secret" not in str(bad.error)


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


@dataclass
class Asked:
    """A request of the machine below, and what may become of it."""

    ticket: PuppetTicket
    first: list[int]
    frontend: int
    poisoned: bool
    given_up_after: int | None = None
    """How many rows the model had run when nobody waited for this request any more."""


class RowsInFlight(RuleBasedStateMachine):
    """Requests of all sizes, callers who go away, deadlines, and processes that die, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Asked] = []
        self.numbers = iter(range(1 << 24))
        self.device_killed = False
        self.dead_frontends: set[int] = set()

    @initialize(
        capacity=st.sampled_from([8, 16, 64]),
        max_batch_rows=st.integers(1, 24),
        max_delay_ms=st.sampled_from([0, 0, 4]),
        frontends=st.integers(1, 3),
        doorbell_bytes=st.sampled_from([None, SMALL_DOORBELL_BYTES]),
    )
    def join(
        self,
        capacity: int,
        max_batch_rows: int,
        max_delay_ms: float,
        frontends: int,
        doorbell_bytes: int | None,
    ) -> None:
        self.capacity = capacity
        self.joined = Joined(
            capacity=capacity,
            policy=BatchPolicy(max_batch_rows, max_delay_ms),
            frontends=frontends,
            doorbell_bytes=doorbell_bytes,
        )

    @rule(
        frontend=st.integers(0, 2),
        size=st.one_of(st.integers(1, 3), st.integers(1, 100)),
        timeout_ms=st.sampled_from([None, None, 3, 20]),
        poison=st.sampled_from([False, False, False, True]),
    )
    def submit(self, frontend: int, size: int, timeout_ms: float | None, poison: bool) -> None:
        frontend %= len(self.joined.exchanges)
        if frontend in self.dead_frontends:
            return
        exchange = self.joined.exchanges[frontend]
        first = [next(self.numbers) for _ in range(size)]
        deadline_ns = FAR_NS if timeout_ms is None else self.joined.clock() + round(timeout_ms * 1e6)
        asked = Asked(PuppetTicket(deadline_ns), first, frontend, poison)
        leased, lost = exchange.leased_rows, exchange.lost
        asked.ticket.then = lambda: self.note_end(asked)
        try:
            self.joined.submit(*first, frontend=frontend, ticket=asked.ticket)
        except (Overloaded, DeviceLost) as error:
            refused = (type(error), exchange.leased_rows, asked.ticket.completions)
            assert refused == (DeviceLost if lost else Overloaded, leased, 0)
            return
        if poison:
            self.joined.runtime.fails_for.add(first[size // 2])
        self.asked.append(asked)

    def note_end(self, asked: Asked) -> None:
        if asked.given_up_after is None:
            asked.given_up_after = len(self.joined.runtime.rows_run)

    @precondition(lambda self: self.asked)
    @rule(which=st.integers(0, 1000))
    def cancel(self, which: int) -> None:
        asked = self.asked[which % len(self.asked)]
        if asked.frontend not in self.dead_frontends:
            self.note_end(asked)
            asked.ticket.cancel()

    @rule(elapsed_ms=st.sampled_from([1, 5, 25]))
    def pass_time(self, elapsed_ms: float) -> None:
        self.joined.clock.advance_ms(elapsed_ms)

    @rule()
    def sweep(self) -> None:
        self.joined.sweep()

    @rule()
    def turn_frontends(self) -> None:
        self.joined.turn_frontends()

    @rule(turns=st.integers(1, 4))
    def turn_device(self, turns: int) -> None:
        for _ in range(turns):
            self.joined.turn_device()

    @precondition(lambda self: not self.device_killed and len(self.asked) > 5)
    @rule(sure=st.integers(0, 5))
    def kill_device(self, sure: int) -> None:
        if sure == 0:
            self.device_killed = True
            self.joined.kill_device()

    @precondition(lambda self: not self.device_killed and len(self.asked) > 3)
    @rule(frontend=st.integers(0, 8))
    def kill_frontend(self, frontend: int) -> None:
        if frontend < len(self.joined.exchanges) and frontend not in self.dead_frontends:
            self.dead_frontends.add(frontend)
            self.joined.kill_frontend(frontend)

    @invariant()
    def nobody_is_answered_twice(self) -> None:
        assert all(asked.ticket.completions <= 1 for asked in self.asked)

    @invariant()
    def rows_are_neither_lost_nor_invented(self) -> None:
        for exchange in self.joined.exchanges if hasattr(self, "joined") else []:
            assert len(set(exchange._free)) == len(exchange._free)
            if not exchange.lost:
                held = sum(ticket is not None for ticket in exchange._tickets)
                assert held == exchange.leased_rows

    def teardown(self) -> None:
        if not hasattr(self, "joined"):
            return
        with self.joined as joined:
            # A large request with small slices waits for company again and again.
            for _ in range(200):
                joined.settle()
                joined.clock.advance_ms(4)
                if not any(exchange.leased_rows and not exchange.lost for exchange in joined.exchanges):
                    break
            for asked in self.asked:
                self.check_end(asked)
            if not self.device_killed:
                assert joined.worker._queue.rows == 0
                alive = set(range(len(joined.exchanges))) - self.dead_frontends
                assert len(joined.worker._lanes) == len(alive)
                assert [joined.exchanges[frontend].leased_rows for frontend in alive] == [0] * len(alive)

    def check_end(self, asked: Asked) -> None:
        ticket = asked.ticket
        cancelled = asked.given_up_after is not None and ticket.completions == 0
        if asked.frontend not in self.dead_frontends:
            assert ticket.completions == (0 if cancelled else 1)
        if asked.given_up_after is not None:
            run_in_vain = set(asked.first) & set(self.joined.runtime.rows_run[asked.given_up_after :])
            assert not run_in_vain
        if ticket.completions == 1:
            self.check_result(asked, ticket.error)

    def check_result(self, asked: Asked, error: StokerError | None) -> None:
        match error:
            case None:
                assert answer_of(asked.ticket) == doubled(*asked.first)
                assert not asked.poisoned
            case ModelFailed():
                assert asked.poisoned
            case DeadlineExceeded():
                assert asked.ticket.deadline_ns <= self.joined.clock()
            case DeviceLost():
                assert self.device_killed
            case _:
                pytest.fail(f"nothing in this test leads to {error!r}")


@pytest.mark.hypothesis
def test_each_request_ends_once_whatever_happens() -> None:
    """Each request gets its own right answer or a named error, once; given up rows do not run; none is lost."""
    run_machine(RowsInFlight, settings=settings(STEADY, max_examples=60, stateful_step_count=40))


def test_a_request_without_rows_tells_no_batch() -> None:
    """It was not run; nor was one whose answer was known, or is put together from slices."""
    ticket = PuppetTicket()
    ticket.rows = 0
    assert ticket.batch is None
    ticket.rows, ticket.sliced = 1, SlicedAnswer(Signature((), ()), 1)
    assert ticket.batch is None
