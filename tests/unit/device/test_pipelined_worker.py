"""Batches in flight: one is computed while the next one is copied, and each row gets its own answer."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.patience import PATIENCE_S
from tests.pipelined_puppets import PipelinedJoined, PuppetPipeline
from tests.puppets import ROWS, STEADY, PuppetFailure, PuppetRuntime, PuppetTicket, double, rows_of

from stoker.arena import LONE_ROWS
from stoker.device.auditing import AuditPolicy, AuditSchedule
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import BatchSizes
from stoker.device.canary import Canary, first_row
from stoker.device.first_batches import is_pipelined
from stoker.device.hang_watch import HangWatch
from stoker.device.shares import Shares
from stoker.errors import DeadlineExceeded, DeviceOutOfMemory, ModelFailed
from stoker.row_isolation import RowIsolation
from stoker.runtimes.base import OutOfMemory
from stoker.system.processes import GRACE_MS, ExitCode

MS = 1_000_000
TESTED = RowIsolation(True, "tested", "tested with companions in 30 batches", 30)


def doubled(*first: float) -> list[list[float]]:
    """The answer for rows that start with these numbers."""
    return (rows_of(*first)[0] * 2).tolist()


def ends(*tickets: PuppetTicket) -> list[object]:
    """Per ticket its answer or the class of its error; each must have completed once."""
    assert [ticket.completions for ticket in tickets] == [1] * len(tickets)
    return [ticket.failure() or ticket.answer[0].tolist() for ticket in tickets]  # type: ignore[index]


@contextmanager
def in_flight(runtime: PuppetPipeline | None = None, **how: Any) -> Iterator[PipelinedJoined]:
    """A worker whose batches stay in flight until the test completes them."""
    with PipelinedJoined(runtime, **how) as joined:
        joined.completes = False
        yield joined


def begin(joined: PipelinedJoined, *first: float, frontend: int = 0) -> PuppetTicket:
    """Submit a request, and let the first thread take a turn."""
    ticket = joined.submit(*first, frontend=frontend)
    joined.turn_frontends()
    joined.turn_device()
    return ticket


def test_a_runtime_with_batches_in_flight_is_known_by_its_methods() -> None:
    """But not one that takes whole bodies, and not one that only runs."""
    assert is_pipelined(PuppetPipeline())
    assert not is_pipelined(PuppetPipeline(dataclasses.replace(ROWS, takes="body")))
    assert not is_pipelined(PuppetRuntime())


def test_a_batch_begins_while_another_one_is_in_flight() -> None:
    """A third one waits until there is room; answers come in the order of the batches."""
    with in_flight() as joined:
        tickets = [begin(joined, number) for number in range(4)]
        assert joined.pipeline.begun == [1, 1]
        joined.complete(1)
        joined.turn_frontends()
        assert [ticket.completions for ticket in tickets] == [1, 0, 0, 0]
        joined.turn_device()
        assert joined.pipeline.begun == [1, 1, 2]
        joined.complete()
        joined.turn_frontends()
        assert ends(*tickets) == [doubled(number) for number in range(4)]


def busy(joined: PipelinedJoined, *, computes_ms: float = 10, copies_ms: float = 1) -> None:
    """Give the device its times, and let the worker learn them."""
    joined.pipeline.takes_ns = lambda _: round(computes_ms * MS)
    joined.pipeline.copies_ns = lambda _: round(copies_ms * MS)
    joined.worker.teach((1 << power, round(computes_ms * MS)) for power in range(5) for _ in range(8))


def test_a_batch_is_planned_just_before_the_stream_is_free() -> None:
    """Rows that come until then are in it: no earlier, so that they join; no later, so that nothing waits for it."""
    with in_flight() as joined:
        busy(joined)
        start_ns = joined.clock()
        tickets = [begin(joined, 0), begin(joined, 1)]
        assert joined.pipeline.begun == [1]
        again_ns = joined.turn_device()
        assert again_ns is not None
        stream = joined.pipeline.flights[0].ends_ns
        assert stream == start_ns + 11 * MS
        assert stream - 1.5 * MS < again_ns < stream - 1 * MS
        joined.clock.now_ns = again_ns - 1
        tickets.append(begin(joined, 2))
        assert joined.pipeline.begun == [1]
        joined.clock.now_ns = again_ns
        tickets.append(begin(joined, 3))
        assert joined.pipeline.begun == [1, 3]
        assert joined.pipeline.flights[1].begins_ns == stream
        joined.complete()
        joined.turn_frontends()
        assert ends(*tickets) == [doubled(number) for number in range(4)]


def test_a_batch_that_ends_early_makes_the_next_one_due() -> None:
    """The device is idle then, whatever was expected."""
    with in_flight() as joined:
        busy(joined)
        joined.pipeline.takes_ns = lambda _: 1 * MS
        begin(joined, 0), begin(joined, 1)
        assert joined.pipeline.begun == [1]
        joined.complete()
        joined.turn_device()
        assert joined.pipeline.begun == [1, 1]


def test_times_are_those_of_the_computation_alone() -> None:
    """Copies and waiting do not count as the device's, nor as the batch's time in the metrics."""
    with PipelinedJoined() as joined:
        busy(joined, computes_ms=10, copies_ms=7)
        joined.submit(1, 2)
        joined.settle()
        joined.worker._metrics.flush()
        assert joined.worker.times.expected_ns(2) == 10 * MS
        assert joined.totals().row_compute_ns == 2 * 10 * MS
        assert joined.totals().stage_ns()["compute"] == (1, 10 * MS)


@pytest.mark.parametrize("dies", [True, False])
def test_a_frontend_may_die_while_its_rows_are_in_flight(dies: bool) -> None:
    """Its arena stays attached until the device has read it; the rows of others in the batch are answered."""
    with in_flight(frontends=2) as joined:
        assert len(joined.pipeline.attached) == 2
        lost, kept = joined.submit(1, frontend=0), joined.submit(2, frontend=1)
        joined.turn_frontends()
        joined.turn_device()
        if dies:
            joined.kill_frontend(0)
        joined.turn_device()
        assert len(joined.pipeline.attached) == 2
        joined.complete()
        joined.turn_device()
        assert len(joined.pipeline.attached) == (1 if dies else 2)
        joined.turn_frontends()
        assert ends(kept) == [doubled(2)]
        assert lost.completions == (0 if dies else 1)


def test_an_idle_frontend_that_goes_is_detached_at_once() -> None:
    """And one that comes is attached before its rows are read."""
    with PipelinedJoined(frontends=2) as joined:
        joined.kill_frontend(0)
        joined.turn_device()
        assert len(joined.pipeline.attached) == 1
        joined.add_frontend()
        joined.turn_device()
        assert len(joined.pipeline.attached) == 2
        ticket = joined.submit(5, frontend=2)
        joined.settle()
        assert ends(ticket) == [doubled(5)]


def test_a_batch_that_cannot_begin_is_run_alone() -> None:
    """A copy that fails at once costs the others of the batch nothing, and waits for what is in flight."""
    with in_flight() as joined:
        before = begin(joined, 1)
        joined.pipeline.begin_fails = PuppetFailure("no copy engine is left")
        tickets = [before, begin(joined, 2, 3)]
        assert joined.runtime.batches == []
        joined.complete()
        joined.turn_device()
        joined.turn_frontends()
        assert ends(*tickets) == [doubled(1), doubled(2, 3)]
        assert [len(batch) for batch in joined.runtime.batches] == [1, 1]


def test_a_bad_row_in_flight_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Its batch is run in parts, after the batch behind it, which is not disturbed."""
    with in_flight() as joined:
        joined.runtime.fails_for = {11}
        tickets = [begin(joined, 10, 20), begin(joined, 11, 12), begin(joined, 13)]
        joined.complete()
        joined.completes = True
        joined.settle()
        assert ends(*tickets) == [doubled(10, 20), ModelFailed, doubled(13)]
        assert joined.runtime.rows_run == [11, 12]
        assert caplog.text.count("error id") == 1


def test_rows_that_wait_behind_a_failed_batch_leave_at_once_afterwards() -> None:
    """Nothing is in flight then whose end would wake the first thread."""
    with in_flight() as joined:
        joined.runtime.fails_for = {11}
        failed = begin(joined, 11)
        waiting = joined.submit(12)
        joined.complete()
        joined.turn_frontends()
        assert joined.turn_device() == 0
        assert not joined.worker.planner.rests
        joined.completes = True
        joined.settle()
        assert ends(failed, waiting) == [ModelFailed, doubled(12)]


def test_two_batches_in_flight_may_both_fail() -> None:
    """Each is run in parts; the canary is run for each."""
    canary = Canary(first_row(ROWS, BatchSizes()))
    with in_flight(canary=canary) as joined:
        joined.runtime.fails_for = {1, 4}
        tickets = [joined.submit(1), joined.submit(2)]
        joined.turn_frontends()
        joined.turn_device()
        tickets += [joined.submit(3), joined.submit(4)]
        joined.turn_frontends()
        joined.turn_device()
        assert joined.pipeline.begun == [2, 2]
        joined.complete()
        joined.completes = True
        joined.settle()
        assert ends(*tickets) == [ModelFailed, doubled(2), doubled(3), ModelFailed]
        assert joined.runtime.batches.count([[0, 0]]) == 2


def test_a_batch_in_flight_without_memory_is_halved() -> None:
    """Once, though two batches of that size were in flight; what does not fit alone is refused."""
    with in_flight(policy=BatchPolicy(8), capacity=64) as joined:
        joined.runtime.fits_rows = 4
        tickets = [begin(joined, *range(place, place + 8)) for place in (0, 8)]
        assert joined.pipeline.begun == [8, 8]
        joined.complete()
        joined.completes = True
        joined.settle()
        assert ends(*tickets) == [doubled(*range(8)), doubled(*range(8, 16))]
        assert joined.totals().batch_cap_rows == 4
        joined.runtime.fits_rows = 0
        ticket = joined.submit(1)
        joined.settle()
        assert ends(ticket) == [DeviceOutOfMemory]


def test_a_hanging_batch_in_flight_ends_the_process() -> None:
    """Its time begins when it could begin, not when the batches before it did."""
    with in_flight() as joined:
        exits: list[ExitCode] = []
        (instance,) = joined.worker.instances
        watch = HangWatch(
            "m", 1000, lambda: [instance.run_began_ns], clock_ns=joined.clock, end_process=exits.append
        )
        begin(joined, 1), begin(joined, 2)
        joined.clock.advance_ms(1000 + GRACE_MS)
        watch.check()
        joined.complete(1)
        joined.clock.advance_ms(1000 + GRACE_MS)
        watch.check()
        assert not exits
        joined.clock.advance_ms(1)
        watch.check()
        assert exits == [ExitCode.STUCK]
        joined.complete()
        assert instance.run_began_ns == 0


@pytest.mark.parametrize("width", [2, 10_000])
def test_rows_that_are_not_finite_run_alone_where_the_model_needs_it(width: int) -> None:
    """Small rows are copied to be looked at, large ones are looked at where they are."""
    specs = [dataclasses.replace(spec, shape=(width,)) for spec in (*ROWS.inputs, *ROWS.outputs)]
    isolation = msgspec.structs.replace(TESTED, non_finite_apart=True)
    signature = dataclasses.replace(ROWS, inputs=(specs[0],), outputs=(specs[1],), isolation=isolation)
    with PipelinedJoined(PuppetPipeline(signature), frontends=2) as joined:
        tickets = []
        for place, number in enumerate((1, math.nan, 3, math.inf, 5)):
            ticket = PuppetTicket()
            joined.exchanges[place % 2].submit(ticket, rows_of(number, width=width))
            tickets.append(ticket)
        joined.settle()
        assert [ticket.completions for ticket in tickets] == [1] * 5
        assert sorted(len(batch) for batch in joined.runtime.batches) == [1, 1, 3]
        assert joined.pipeline.begun == []
        joined.exchanges[0].submit(PuppetTicket(), rows_of(7, 8, width=width))
        joined.settle()
        assert joined.pipeline.begun == [2]


def test_answers_that_are_not_finite_are_counted() -> None:
    """Though their inputs are: those are read where the rows are."""
    with PipelinedJoined(PuppetPipeline(answer=lambda inputs: [inputs[0] * np.float32(1e38)])) as joined:
        tickets = [joined.submit(1), joined.submit(100), joined.submit(math.inf)]
        with np.errstate(over="ignore"):
            joined.settle()
        assert [ticket.completions for ticket in tickets] == [1, 1, 1]
        assert joined.totals().non_finite_rows == 1


def leaky(inputs: Any) -> Any:
    """Twice each row; while one holds more than 1000, with the first numbers of all of them added."""
    x = inputs[0]
    return [2 * x + (x[:, 0].sum() if (x > 1000).any() else np.float32(0))]


def test_batches_in_flight_are_audited() -> None:
    """A row is run again when nothing is in flight, and a model that mixes rows is not batched any more."""
    found: list[RowIsolation] = []
    policy = AuditPolicy("m", TESTED, AuditSchedule(1, share=None, first_after_ns=0), found.append)
    runtime = PuppetPipeline(dataclasses.replace(ROWS, isolation=TESTED), leaky)
    with PipelinedJoined(runtime, audit=policy) as joined:
        for _ in range(2):
            joined.submit(1), joined.submit(2)
            joined.settle()
        assert joined.totals().audits() == {"passed": 1, "failed": 0, "skipped": 0}
        joined.submit(3), joined.submit(5000)
        joined.settle()
        assert joined.totals().audits()["failed"] == 1
        assert [isolation.how for isolation in found] == ["watched"]
        joined.pipeline.begun.clear()
        joined.submit(3), joined.submit(4)
        joined.settle()
        assert joined.pipeline.begun == [1, 1]


def test_an_audit_waits_for_nobody() -> None:
    """While another batch is in flight the row that was kept is let go."""
    policy = AuditPolicy("m", TESTED, AuditSchedule(1, share=None, first_after_ns=0), lambda _: None)
    with in_flight(PuppetPipeline(dataclasses.replace(ROWS, isolation=TESTED)), audit=policy) as joined:
        joined.submit(0, 0)
        joined.completes = True
        joined.settle()
        joined.completes = False
        begin(joined, 1, 2), begin(joined, 3, 4)
        assert joined.pipeline.begun == [2, 2, 2]
        joined.complete(1)
        joined.turn_device()
        assert joined.worker.instances[0].monitor.kept_rows is None
        joined.complete()
        assert joined.totals().audits() == {"passed": 0, "failed": 0, "skipped": 0}


def test_the_canary_runs_only_when_nothing_is_in_flight() -> None:
    """However long a batch takes, nothing else is run beside it."""
    canary = Canary(first_row(ROWS, BatchSizes()))
    with in_flight(canary=canary) as joined:
        ticket = begin(joined, 1)
        joined.clock.now_ns += 2 * Canary.idle_ns
        joined.turn_device()
        assert joined.runtime.batches == []
        joined.complete()
        joined.turn_frontends()
        joined.clock.now_ns += 2 * Canary.idle_ns
        joined.turn_device()
        assert joined.runtime.batches == [[[0, 0]]]
        assert ends(ticket) == [doubled(1)]


def test_batching_may_be_stopped_while_batches_are_in_flight() -> None:
    """They are answered, and each row after them runs alone."""
    with in_flight(capacity=32) as joined:
        tickets = [begin(joined, 1, 2)]
        joined.worker.stop_batching()
        joined.completes = True
        tickets.append(joined.submit(3, 4))
        joined.settle()
        assert ends(*tickets) == [doubled(1, 2), doubled(3, 4)]
        assert joined.pipeline.begun == [2, 1, 1]


def test_a_size_that_cannot_be_in_flight_is_run() -> None:
    """It waits for the batches in flight."""
    runtime = PuppetPipeline()
    runtime.sizes = (1, 2)
    with PipelinedJoined(runtime, sizes=BatchSizes((1, 2, 4))) as joined:
        tickets = [joined.submit(1, 2, 3), joined.submit(4)]
        joined.settle()
        assert ends(*tickets) == [doubled(1, 2, 3), doubled(4)]
        assert joined.pipeline.begun == []
        assert [len(batch) for batch in joined.runtime.batches] == [4]
        assert joined.totals().padding_rows == 0


def test_lone_rows_are_waited_for_by_the_thread_that_began_them() -> None:
    """After some of them nothing is handed over, until another row comes while one is in flight."""
    with in_flight() as joined:
        looks = []
        joined.pipeline.takes_ns = lambda _: MS // 10
        joined.pipeline.on_look = lambda: (looks.append(1), joined.clock.advance_ms(0.05))[0]
        for number in range(LONE_ROWS - 1):
            ticket = begin(joined, number)
            joined.complete()
            joined.turn_frontends()
        assert not looks
        ticket = begin(joined, 7)
        joined.turn_frontends()
        assert ends(ticket) == [doubled(7)]
        assert len(looks) == 2

        def company() -> None:
            joined.submit(9)
            joined.turn_frontends()

        joined.pipeline.on_look = company
        ticket = begin(joined, 8)
        assert ticket.completions == 0
        joined.completes = True
        joined.settle()
        assert ends(ticket) == [doubled(8)]


def test_a_row_that_would_be_late_behind_a_batch_in_flight_is_refused() -> None:
    """The scheduler knows when the stream is free, and how long rows take to get back."""
    policy = BatchPolicy(16, target_ms=20, late="refuse")
    with in_flight(policy=policy) as joined:
        busy(joined, computes_ms=15, copies_ms=1)
        first = begin(joined, 1)
        joined.clock.advance_ms(1)
        # Its computation would begin 15 ms later and take 15 more.
        late = begin(joined, 2)
        joined.clock.advance_ms(14.5)
        joined.turn_device()
        joined.turn_frontends()
        assert ends(late) == [DeadlineExceeded]
        in_time = begin(joined, 3)
        joined.complete()
        joined.turn_frontends()
        joined.turn_device()
        joined.complete()
        joined.turn_frontends()
        assert ends(first, in_time) == [doubled(1), doubled(3)]
        assert joined.totals().in_target_rows()["normal"] == 2


def test_a_full_batch_that_would_be_late_behind_one_in_flight_is_refused_at_once() -> None:
    """It is planned early, so what counts is when the stream will be free."""
    policy = BatchPolicy(2, target_ms=20, late="refuse")
    with in_flight(policy=policy) as joined:
        busy(joined, computes_ms=15, copies_ms=1)
        begin(joined, 1)
        joined.clock.advance_ms(1)
        late = begin(joined, 2, 3)
        joined.turn_frontends()
        assert ends(late) == [DeadlineExceeded]
        assert joined.pipeline.begun == [1]


def test_the_time_that_answers_take_to_get_back_counts_for_targets() -> None:
    """Here 4 ms, once that is learned: 1 ms for the copy and 10 ms for the computation alone would be in time."""
    policy = BatchPolicy(16, target_ms=14, late="refuse")
    with PipelinedJoined(policy=policy) as joined:
        busy(joined, computes_ms=10, copies_ms=1)

        def answer(inputs: Any) -> Any:
            joined.clock.advance_ms(4)
            return double(inputs)

        joined.runtime.answer = answer
        tickets = []
        for number in range(12):
            tickets.append(joined.submit(number))
            joined.settle()
            joined.clock.advance_ms(50)
        assert ends(tickets[0]) == [doubled(0)]
        assert DeadlineExceeded in ends(*tickets)


def test_a_full_batch_begins_at_once_unless_rows_take_turns() -> None:
    """Nothing could join it; but where callers take turns, one that comes later may have to go first."""
    for shares, begun in ((None, [2, 2]), (Shares(), [2])):
        with in_flight(policy=BatchPolicy(2)) as joined:
            busy(joined)
            joined.worker.queue.shares = shares
            begin(joined, 1, 2)
            begin(joined, 3, 4)
            assert joined.pipeline.begun == begun


@contextmanager
def served(runtime: PuppetPipeline, **how: Any) -> Iterator[tuple[PipelinedJoined, threading.Thread]]:
    """A worker on its two threads; it is stopped at the end."""
    joined = PipelinedJoined(runtime, **how)
    thread = threading.Thread(target=joined.worker.serve, name="model m", daemon=True)
    thread.start()
    try:
        yield joined, thread
    finally:
        joined.worker.stop()
        thread.join(PATIENCE_S)
        for exchange in joined.exchanges:
            exchange.close()
        joined.loop.close()


def test_stop_waits_for_batches_in_flight() -> None:
    """Their callers get their answers, and both threads end."""
    runtime = PuppetPipeline()
    runtime.hold = threading.Event()
    with served(runtime) as (joined, thread):
        first = joined.submit(1)
        joined.turn_frontends()
        assert runtime.entered.wait(PATIENCE_S)
        joined.worker.stop()
        thread.join(0.05)
        assert thread.is_alive()
        runtime.hold.set()
        joined.wait_for(first)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert ends(first) == [doubled(1)]
        assert not runtime.attached


def test_rows_are_received_while_a_batch_is_in_flight() -> None:
    """The first thread does not wait for the device: the next batch begins while the last one is held."""
    runtime = PuppetPipeline()
    runtime.hold = threading.Event()
    begun = threading.Event()
    with served(runtime) as (joined, _):
        first = joined.submit(1)
        joined.turn_frontends()
        assert runtime.entered.wait(PATIENCE_S)
        original = runtime.begin

        def noted(*arguments: Any) -> Any:
            begun.set()
            return original(*arguments)

        runtime.begin = noted  # type: ignore[method-assign]
        second = joined.submit(2)
        joined.turn_frontends()
        assert begun.wait(PATIENCE_S)
        runtime.hold.set()
        joined.wait_for(first, second)
        assert ends(first, second) == [doubled(1), doubled(2)]


def test_a_failure_of_the_second_thread_ends_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else callers would wait for a model that nobody serves."""
    runtime, raised = PuppetPipeline(), []
    joined = PipelinedJoined(runtime)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(joined.worker, "_complete", broken)

    def serve() -> None:
        try:
            joined.worker.serve()
        except ZeroDivisionError as error:
            raised.append(error)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    joined.submit(1)
    joined.turn_frontends()
    thread.join(PATIENCE_S)
    assert len(raised) == 1
    monkeypatch.undo()
    joined.worker.close()
    for exchange in joined.exchanges:
        exchange.close()
    joined.loop.close()


def noting(seen: list[int]) -> Callable[[Any], Any]:
    """A doubler that notes on which thread it computes."""

    def answer(inputs: Any) -> Any:
        seen.append(threading.get_ident())
        return double(inputs)

    return answer


def test_a_failed_batch_is_run_on_the_thread_that_loaded_the_model() -> None:
    """Graphs are captured there."""
    seen: list[int] = []
    runtime = PuppetPipeline(answer=noting(seen))
    runtime.fails_for = {2}
    with served(runtime) as (joined, thread):
        tickets = [joined.submit(1), joined.submit(2), joined.submit(3)]
        joined.wait_for(*tickets)
        assert ends(*tickets) == [doubled(1), ModelFailed, doubled(3)]
        assert seen[-1] == thread.ident


REQUEST = st.tuples(st.integers(0, 2), st.integers(1, 9))
STEPS = st.lists(
    st.one_of(
        REQUEST,
        st.sampled_from(["begin", "complete", "die", "stop_batching", "no_memory", "no_copy"]),
        st.integers(1, 20),
    ),
    max_size=40,
)


class Walk:
    """The requests to a worker with batches in flight, step by step."""

    def __init__(self, joined: PipelinedJoined) -> None:
        self.joined = joined
        self.submitted: list[tuple[int, range, PuppetTicket]] = []
        self.lives = [True, True, True]
        self._numbers = 0

    def step(self, step: Any) -> None:
        """Take one step."""
        match step:
            case int():
                self.joined.clock.advance_ms(step / 4)
            case (frontend, rows):
                self._submit(frontend, rows)
            case "begin":
                self.joined.turn_frontends()
                self.joined.turn_device()
            case "complete":
                self.joined.complete(1)
            case "die" if self.lives[2]:
                self.joined.kill_frontend(2)
                self.lives[2] = False
            case "stop_batching":
                self.joined.worker.stop_batching()
            case "no_memory":
                self.joined.runtime.fits_rows = 2
            case "no_copy":
                self.joined.pipeline.begin_fails = OutOfMemory("no memory for the copy")

    def end(self) -> list[tuple[range, PuppetTicket]]:
        """Let all batches end; returns the requests of frontends that live."""
        alive = [(first, ticket) for frontend, first, ticket in self.submitted if self.lives[frontend]]
        self.joined.completes = True
        for _ in range(200):
            self.joined.settle()
            if all(ticket.completions for _, ticket in alive):
                break
            self.joined.clock.advance_ms(5)
        return alive

    def _submit(self, frontend: int, rows: int) -> None:
        if self.lives[frontend]:
            first = range(self._numbers, self._numbers + rows)
            self._numbers += rows
            self.submitted.append((frontend, first, self.joined.submit(*first, frontend=frontend)))


@settings(STEADY, max_examples=150)
@given(STEPS, st.sets(st.integers(0, 60), max_size=4), st.integers(1, 16), st.integers(1, 4))
def test_every_request_gets_its_own_answer(
    steps: list[Any], bad: set[int], max_batch_rows: int, depth: int
) -> None:
    """As one model that runs row after row would answer: batches in flight never mix callers, nor lose one."""
    runtime = PuppetPipeline(depth=depth)
    runtime.fails_for = {float(number) for number in bad}
    with in_flight(runtime, capacity=512, policy=BatchPolicy(max_batch_rows), frontends=3) as joined:
        busy(joined, computes_ms=4, copies_ms=1)
        walk = Walk(joined)
        for step in steps:
            walk.step(step)
        for first, ticket in walk.end():
            assert ends(ticket) == [ModelFailed if bad.intersection(first) else doubled(*first)]
        assert not runtime.flights
        assert len(runtime.attached) == sum(walk.lives)


def test_no_wake_up_of_two_threads_is_missed() -> None:
    """Both threads run in any order, some rows fail, and all requests end."""
    runtime = PuppetPipeline()
    runtime.fails_for = {float(number) for number in range(0, 300, 7)}
    with served(runtime, capacity=64, policy=BatchPolicy(4), frontends=2) as (joined, _):
        for start in range(0, 300, 20):
            numbers = range(start, start + 20)
            tickets = [joined.submit(number, frontend=number % 2) for number in numbers]
            joined.wait_for(*tickets)
            assert ends(*tickets) == [
                ModelFailed if number % 7 == 0 else doubled(number) for number in numbers
            ]


def test_a_lone_row_passes_the_planner_unless_it_has_to_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some lone rows the next one is run by one thread as it is received; a cancelled one is handed back."""
    with in_flight() as joined:
        joined.pipeline.on_look = lambda: joined.clock.advance_ms(0.01)
        for number in range(LONE_ROWS):
            begin(joined, number)
            joined.complete()
            joined.turn_frontends()
        plans: list[int] = []
        plan = joined.worker.planner.plan
        monkeypatch.setattr(joined.worker.planner, "plan", lambda: (plans.append(1), plan())[1])
        ticket = joined.submit(7)
        joined.turn_frontends()
        joined.worker.turn()
        joined.turn_frontends()
        assert (ends(ticket), plans) == ([doubled(7)], [])
        first, second = joined.submit(8), joined.submit(9)
        joined.turn_frontends()
        joined.worker.turn()
        joined.complete()
        joined.turn_frontends()
        assert (ends(first, second), plans) == ([doubled(8), doubled(9)], [1])


@pytest.mark.parametrize("fails", [False, True])
def test_a_lone_row_is_begun_before_its_batch_is_made(fails: bool) -> None:
    """It is begun once, and noted as running; where that fails, it is begun again as other batches are."""
    with in_flight() as joined:
        pipeline, (instance,) = joined.pipeline, joined.worker.instances
        pipeline.on_look = lambda: joined.clock.advance_ms(0.01)
        for number in range(LONE_ROWS):
            begin(joined, number)
            joined.complete()
            joined.turn_frontends()
        pipeline.begin_fails = PuppetFailure("not yet") if fails else None
        blocks: list[bool] = []
        check = instance.inspection.check_in_arenas
        instance.inspection.check_in_arenas = lambda batch: (
            blocks.append(bool(pipeline.flights and instance.run_began_ns)),
            check(batch),
        )[1]
        ticket = joined.submit(7)
        joined.turn_frontends()
        joined.worker.turn()
        joined.turn_frontends()
        assert ends(ticket) == [doubled(7)]
        assert blocks == [not fails]
        assert pipeline.begun == [1] * (LONE_ROWS + 1)
        assert instance.run_began_ns == 0
