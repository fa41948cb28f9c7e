"""Requests of all sizes, callers who go away, deadlines, and processes that die, in any order."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from tests.puppets import FAR_NS, SMALL_DOORBELL_BYTES, STEADY, Joined, PuppetTicket, answer_of, doubled

from stoker.device.batch_decisions import BatchPolicy
from stoker.errors import DeadlineExceeded, DeviceLost, ModelFailed, Overloaded, StokerError


@dataclass
class SubmittedRequest:
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
        self.requests: list[SubmittedRequest] = []
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
        request = SubmittedRequest(PuppetTicket(deadline_ns), first, frontend, poison)
        leased, lost = exchange.leased_rows, exchange.lost
        request.ticket.then = lambda: self.note_end(request)
        try:
            self.joined.submit(*first, frontend=frontend, ticket=request.ticket)
        except (Overloaded, DeviceLost) as error:
            refused = (type(error), exchange.leased_rows, request.ticket.completions)
            assert refused == (DeviceLost if lost else Overloaded, leased, 0)
            return
        if poison:
            self.joined.runtime.fails_for.add(first[size // 2])
        self.requests.append(request)

    def note_end(self, request: SubmittedRequest) -> None:
        if request.given_up_after is None:
            request.given_up_after = len(self.joined.runtime.rows_run)

    @precondition(lambda self: self.requests)
    @rule(index=st.integers(0, 1000))
    def cancel(self, index: int) -> None:
        request = self.requests[index % len(self.requests)]
        if request.frontend not in self.dead_frontends:
            self.note_end(request)
            request.ticket.cancel()

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

    @precondition(lambda self: not self.device_killed and len(self.requests) > 5)
    @rule(sure=st.integers(0, 5))
    def kill_device(self, sure: int) -> None:
        if sure == 0:
            self.device_killed = True
            self.joined.kill_device()

    @precondition(lambda self: not self.device_killed and len(self.requests) > 3)
    @rule(frontend=st.integers(0, 8))
    def kill_frontend(self, frontend: int) -> None:
        if frontend < len(self.joined.exchanges) and frontend not in self.dead_frontends:
            self.dead_frontends.add(frontend)
            self.joined.kill_frontend(frontend)

    @invariant()
    def nobody_is_answered_twice(self) -> None:
        assert all(request.ticket.completions <= 1 for request in self.requests)

    @invariant()
    def rows_are_neither_lost_nor_invented(self) -> None:
        for exchange in self.joined.exchanges if hasattr(self, "joined") else []:
            assert len(set(exchange._leases.free)) == len(exchange._leases.free)
            if not exchange.lost:
                held = sum(ticket is not None for ticket in exchange._leases.tickets)
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
            for request in self.requests:
                self.check_end(request)
            if not self.device_killed:
                assert joined.worker.queue.rows == 0
                alive = set(range(len(joined.exchanges))) - self.dead_frontends
                assert len(joined.open_lanes) == len(alive)
                assert [joined.exchanges[frontend].leased_rows for frontend in alive] == [0] * len(alive)

    def check_end(self, request: SubmittedRequest) -> None:
        ticket = request.ticket
        cancelled = request.given_up_after is not None and ticket.completions == 0
        if request.frontend not in self.dead_frontends:
            assert ticket.completions == (0 if cancelled else 1)
        if request.given_up_after is not None:
            run_in_vain = set(request.first) & set(self.joined.runtime.rows_run[request.given_up_after :])
            assert not run_in_vain
        if ticket.completions == 1:
            self.check_result(request, ticket.error)

    def check_result(self, request: SubmittedRequest, error: StokerError | None) -> None:
        match error:
            case None:
                assert answer_of(request.ticket) == doubled(*request.first)
                assert not request.poisoned
            case ModelFailed():
                assert request.poisoned
            case DeadlineExceeded():
                assert request.ticket.deadline_ns <= self.joined.clock()
            case DeviceLost():
                assert self.device_killed
            case _:
                pytest.fail(f"nothing in this test leads to {error!r}")


@pytest.mark.hypothesis
def test_each_request_ends_once_under_random_events() -> None:
    """Each request gets its own right answer or a named error, once; given up rows do not run; none is lost."""
    run_machine(RowsInFlight, settings=settings(STEADY, max_examples=60, stateful_step_count=40))
