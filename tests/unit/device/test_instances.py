"""Several instances of a model: threads that take turns at leading, and run batches at the same time."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.patience import PATIENCE_S
from tests.puppets import STEADY, Joined, PuppetRuntime, PuppetTicket, double, rows_of

from stoker.device.batch_decisions import BatchPolicy
from stoker.errors import ModelFailed


def doubled(*first: float) -> list[list[float]]:
    """The answer for rows that start with these numbers."""
    return (rows_of(*first)[0] * 2).tolist()


@contextmanager
def serving(joined: Joined) -> Iterator[list[threading.Thread]]:
    """All instances of a worker on threads of their own, until the end."""
    worker = joined.worker
    threads = [
        threading.Thread(target=worker.serve, args=(instance,), daemon=True) for instance in worker.instances
    ]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        worker.stop()
        for thread in threads:
            thread.join(PATIENCE_S)


@contextmanager
def joined_and_served(*further: PuppetRuntime, **settings_: Any) -> Iterator[Joined]:
    """A worker whose instances serve; unlike `Joined` alone, its threads close what it has opened."""
    joined = Joined(further=further, **settings_)
    try:
        with serving(joined):
            yield joined
    finally:
        for exchange in joined.exchanges:
            exchange.close()
        joined.loop.close()


def test_two_batches_run_at_the_same_time() -> None:
    """While one instance runs a batch, the other one takes the next rows and runs them: each waits for the other."""
    begun, both = threading.Event(), threading.Barrier(2)

    def answer(inputs: Any) -> Any:
        begun.set()
        both.wait(PATIENCE_S)
        return double(inputs)

    runtimes = [PuppetRuntime(answer=answer) for _ in range(2)]
    with joined_and_served(runtimes[1], runtime=runtimes[0]) as joined:
        first = joined.submit(1)
        joined.turn_frontends()
        assert begun.wait(PATIENCE_S)
        second = joined.submit(2)
        joined.wait_for(first, second)
        assert [ticket.answer and ticket.answer[0].tolist() for ticket in (first, second)] == [
            doubled(1),
            doubled(2),
        ]
    assert [len(runtime.batches) for runtime in runtimes] == [1, 1]
    assert joined.totals().dispatches()["idle"] == 2


def test_requests_during_busy_instances_form_the_next_batch() -> None:
    """While all instances run, requests wait together and form one batch."""
    entered, go = threading.Semaphore(0), threading.Event()

    def answer(inputs: Any) -> Any:
        entered.release()
        assert go.wait(PATIENCE_S)
        return double(inputs)

    runtimes = [PuppetRuntime(answer=answer) for _ in range(2)]
    with joined_and_served(runtimes[1], runtime=runtimes[0]) as joined:
        tickets = []
        for number in (0, 1):
            tickets.append(joined.submit(number))
            joined.turn_frontends()
            assert entered.acquire(timeout=PATIENCE_S)
        tickets += [joined.submit(number) for number in (2, 3, 4)]
        joined.turn_frontends()
        go.set()
        joined.wait_for(*tickets)
        assert [ticket.answer and ticket.answer[0].tolist() for ticket in tickets] == [
            doubled(number) for number in range(5)
        ]
    assert sorted(len(batch) for runtime in runtimes for batch in runtime.batches) == [1, 1, 3]


def test_batches_that_run_out_of_memory_together_are_run_in_turn() -> None:
    """Each is tried again in parts while the other one waits; nobody waits for ever, and all are answered."""
    begun, both = threading.Event(), threading.Barrier(2)
    running, most = list[int](), list[int]()

    def meanwhile(runtime: PuppetRuntime) -> None:
        if len(runtime.batches) == 1:
            begun.set()
            both.wait(PATIENCE_S)
            return
        running.append(1)
        most.append(len(running))
        running.pop()

    runtimes = [PuppetRuntime() for _ in range(2)]
    for runtime in runtimes:
        runtime.fits_rows = 1
        runtime.during = partial(meanwhile, runtime)
    with joined_and_served(runtimes[1], runtime=runtimes[0]) as joined:
        tickets = [joined.submit(1, 2)]
        joined.turn_frontends()
        assert begun.wait(PATIENCE_S)
        tickets.append(joined.submit(3, 4))
        joined.wait_for(*tickets)
        assert [ticket.answer and ticket.answer[0].tolist() for ticket in tickets] == [
            doubled(1, 2),
            doubled(3, 4),
        ]
    assert most == [1] * 4
    assert joined.totals().batch_cap_rows == 128


def test_all_threads_end_when_the_worker_is_stopped() -> None:
    """One waits for rows, the others for their turn to lead; the last one closes the doorbells."""
    joined = Joined(further=[PuppetRuntime(), PuppetRuntime()])
    lanes = joined.lanes
    with serving(joined) as threads:
        ticket = joined.submit(1)
        joined.wait_for(ticket)
    assert not any(thread.is_alive() for thread in threads)
    assert [lane.doorbell.fileno() for lane in lanes] == [-1]
    joined.worker.stop()
    joined.turn_frontends()
    assert joined.lost == [0]
    joined.loop.close()


def test_an_error_in_one_instance_leaves_the_other_alone() -> None:
    """Each instance splits its own batch."""
    further = PuppetRuntime()
    with Joined(further=[further]) as joined:
        joined.runtime.fails_for = {2}
        others: list[PuppetTicket] = []

        def meanwhile() -> None:
            if not others:
                others.append(joined.submit(2))
                joined.turn_frontends()
                joined.turn_device(1)

        joined.runtime.during = meanwhile
        tickets = [joined.submit(number) for number in (1, 2, 3)]
        joined.settle()
        assert [ticket.failure() for ticket in (*tickets, *others)] == [None, ModelFailed, None, None]
        assert further.batches == [rows_of(2)[0].tolist()]


def test_a_lane_may_be_dropped_while_its_rows_run(caplog: pytest.LogCaptureFixture) -> None:
    """The other instance sees its frontend die; a new one whose doorbell gets the same number hears nothing of it."""
    with Joined(frontends=2, further=[PuppetRuntime()]) as joined:
        newcomers: list[PuppetTicket] = []

        def meanwhile() -> None:
            if newcomers:
                return
            dead = joined.lanes[0].doorbell.fileno()
            joined.kill_frontend(0)
            joined.turn_device(1)
            assert len(joined.open_lanes) == 1
            os.dup2(joined.exchanges[1].doorbell.socket.fileno(), dead)
            joined.add_frontend()
            lane = joined.lanes[2]
            os.dup2(lane.doorbell.fileno(), dead)
            lane.doorbell.close()
            lane.doorbell = socket.socket(fileno=dead)
            joined.turn_device(1)
            # A row of the same number as the one that the dead frontend had.
            newcomers.append(joined.submit(9, frontend=2))

        joined.runtime.during = meanwhile
        joined.submit(1, 2, frontend=0)
        kept = joined.submit(3, frontend=1)
        joined.settle()
        assert len(joined.runtime.batches[0]) == 3
        assert kept.answer is not None
        assert kept.answer[0].tolist() == doubled(3)
        assert [ticket.completions for ticket in newcomers] == [1]
        assert newcomers[0].answer is not None
        assert newcomers[0].answer[0].tolist() == doubled(9)
        assert "handed back" not in caplog.text


def test_rows_left_by_a_full_doorbell_are_sent_by_the_other_instance() -> None:
    """If a frontend does not read, another instance sends the waiting rows once it reads again."""
    with Joined(capacity=1024, policy=BatchPolicy(1), doorbell_bytes=1, further=[PuppetRuntime()]) as joined:
        (lane,) = joined.lanes
        tickets = [joined.submit(number) for number in range(600)]
        joined.turn_frontends()
        for _ in range(600):
            joined.turn_device(0)
        assert lane.unsent
        while lane.unsent:
            joined.turn_frontends()
            joined.turn_device(1)
        joined.turn_frontends()
        assert [ticket.completions for ticket in tickets] == [1] * 600


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "turn", "turn", "cancel", "kill", "join", "tick"]),
        st.integers(0, 4),
        st.integers(1, 9),
    ),
    max_size=40,
)


class Play:
    """Steps that happen between and during the batches of several instances, all on one thread.

    A batch that runs is a call of its puppet; whatever happens meanwhile, happens in the middle of that call. So two
    batches overlap when an instance takes its turn in the middle of another one's.
    """

    def __init__(self, joined: Joined, steps: list[Step]) -> None:
        self._joined = joined
        self._steps = iter(steps)
        self._busy: set[int] = set()
        self._next_number = 1
        self.submitted: list[tuple[int, range, PuppetTicket]] = []
        self.cancelled: set[int] = set()
        self.completed_before_kill: set[int] = set()
        self.most_busy = 0
        self.runtimes = joined.runtimes
        for runtime in self.runtimes:
            runtime.during = self._meanwhile

    def step(self) -> bool:
        """Do what is next; False if nothing is left to do."""
        step = next(self._steps, None)
        if step is None:
            return False
        action, index, count = step
        joined = self._joined
        frontend = index % len(joined.exchanges)
        if action == "submit" and not joined.exchanges[frontend].lost:
            first = range(self._next_number, self._next_number + count)
            self._next_number += count
            self.submitted.append((frontend, first, joined.submit(*first, frontend=frontend)))
            joined.turn_frontends()
        elif action == "turn":
            self.turn(index % len(self.runtimes))
        elif action == "cancel" and self.submitted:
            place = count % len(self.submitted)
            ticket = self.submitted[place][2]
            if not ticket.completions and not joined.exchanges[self.submitted[place][0]].lost:
                ticket.cancel()
                self.cancelled.add(place)
        elif action == "kill" and len(joined.exchanges) > 1 and not joined.exchanges[frontend].lost:
            self.completed_before_kill |= {
                n for n, (of, _, ticket) in enumerate(self.submitted) if of == frontend and ticket.completions
            }
            joined.kill_frontend(frontend)
        elif action == "join" and len(joined.exchanges) < 5:
            joined.add_frontend()
        else:
            joined.clock.advance_ms(count)
        return True

    def _meanwhile(self) -> None:
        for _ in range(3):
            self.step()

    def turn(self, index: int) -> None:
        """A turn of an instance, unless it is in the middle of one."""
        if index not in self._busy:
            self._busy.add(index)
            self.most_busy = max(self.most_busy, len(self._busy))
            self._joined.turn_device(index)
            self._busy.discard(index)


@settings(STEADY, max_examples=150)
@given(st.integers(2, 3), st.sampled_from([BatchPolicy(4), BatchPolicy(16, max_delay_ms=3)]), STEPS)
def test_every_row_is_run_once_and_handed_back_once(
    instances: int, policy: BatchPolicy, steps: list[Step]
) -> None:
    """Batches overlap, and callers and frontends come and go meanwhile: no row is lost or runs twice."""
    further = [PuppetRuntime() for _ in range(instances - 1)]
    with Joined(capacity=512, frontends=2, policy=policy, further=further) as joined:
        play = Play(joined, steps)
        while play.step():
            pass
        for _ in range(100):
            joined.clock.advance_ms(10)
            joined.turn_frontends()
            joined.turn_device()
            joined.turn_frontends()
        ran = [row for runtime in play.runtimes for row in runtime.rows_run]
        assert len(ran) == len(set(ran)), "no row runs twice"
        for index, (frontend, first, ticket) in enumerate(play.submitted):
            if joined.exchanges[frontend].lost or index in play.cancelled:
                assert ticket.completions == (index in play.completed_before_kill)
                continue
            assert ticket.completions == 1
            assert ticket.answer is not None
            assert ticket.answer[0].tolist() == doubled(*first)
            assert set(first) <= set(ran)
        alive = [exchange for exchange in joined.exchanges if not exchange.lost]
        assert [exchange.leased_rows for exchange in alive] == [0] * len(alive)
        assert len(joined.open_lanes) == len(alive)
        assert joined.worker.queue.rows == 0


def test_the_play_makes_batches_overlap() -> None:
    """The property above relies on it: a turn in the middle of a batch runs another one."""
    with Joined(further=[PuppetRuntime()]) as joined:
        play = Play(joined, [("submit", 0, 2), ("turn", 0, 1), ("submit", 0, 3), ("turn", 1, 1)])
        while play.step():
            pass
        assert play.most_busy == 2
        assert [len(batch) for runtime in play.runtimes for batch in runtime.batches] == [2, 3]
