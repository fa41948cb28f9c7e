"""The device's side of the arenas: from doorbells to batches, and back."""

import asyncio
import select
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.patience import PATIENCE_S
from tests.puppets import (
    BODIES,
    STEADY,
    TEXTS,
    Joined,
    PuppetFailure,
    PuppetRuntime,
    PuppetTicket,
    double,
    rows_of,
)

from stoker.arena import AWAKE_NS
from stoker.device.batch_decisions import BatchPolicy
from stoker.errors import DeadlineExceeded, DeviceLost, InvalidInput, ModelFailed, ScoringTimeout
from stoker.metrics.counters import BatchFacts
from stoker.metrics.layout import BATCH_BOUNDS_ROWS, TARGET_REASONS
from stoker.runtimes.base import RowFailure
from stoker.tensors import Signature, TensorSpec

MS = 1_000_000


def doubled(*first: float) -> list[list[float]]:
    """The answer for rows that start with these numbers."""
    return (rows_of(*first)[0] * 2).tolist()


def ends(*tickets: PuppetTicket) -> list[object]:
    """Per ticket its answer or the class of its error; each must have completed once."""
    assert [ticket.completions for ticket in tickets] == [1] * len(tickets)
    return [ticket.failure() or ticket.answer[0].tolist() for ticket in tickets]  # type: ignore[index]


@pytest.mark.parametrize("failure", [PuppetFailure, asyncio.CancelledError, KeyboardInterrupt, SystemExit])
def test_one_bad_row_among_sixteen_fails_alone(
    caplog: pytest.LogCaptureFixture, failure: type[BaseException]
) -> None:
    """The batch is split until the row is alone: fifteen answers, one error, logged once with its traceback.

    An error that is no Exception does not end the model's thread, and with it the process, either.
    """
    with Joined() as joined:
        joined.runtime.fails_for, joined.runtime.failure = {11}, failure
        tickets = [joined.submit(number) for number in range(16)]
        joined.settle()
        expected = [ModelFailed if number == 11 else doubled(number) for number in range(16)]
        assert ends(*tickets) == expected
        assert len(joined.runtime.batches[0]) == 16
        assert len(joined.runtime.batches) == 9
        assert caplog.text.count("error id") == 1
        assert caplog.text.count("Traceback") == 1


@settings(STEADY, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 12)), min_size=1, max_size=10),
    st.sets(st.integers(0, 60), max_size=6),
    st.integers(1, 32),
)
def test_only_requests_with_a_bad_row_fail(
    requests: list[tuple[int, int]], bad: set[int], max_batch_rows: int
) -> None:
    """Requests without a bad row get their own answers, wherever bad rows are in the batch."""
    with Joined(capacity=128, policy=BatchPolicy(max_batch_rows), frontends=3) as joined:
        joined.runtime.fails_for = {float(number) for number in bad}
        submitted, start = [], 0
        for frontend, size in requests:
            first = range(start, start + size)
            submitted.append((first, joined.submit(*first, frontend=frontend)))
            start += size
        joined.settle()
        expected = [ModelFailed if bad.intersection(first) else doubled(*first) for first, _ in submitted]
        assert ends(*(ticket for _, ticket in submitted)) == expected
        assert all(len(batch) <= max_batch_rows for batch in joined.runtime.batches)
        assert [exchange.leased_rows for exchange in joined.exchanges] == [0, 0, 0]


def one_short(inputs: Any) -> Any:
    return [inputs[0][:-1] * 2]


def one_too_many(inputs: Any) -> Any:
    return [np.repeat(inputs[0], 2, axis=0)]


def transposed(inputs: Any) -> Any:
    return [inputs[0].reshape(2, -1)] if len(inputs[0]) != 2 else [inputs[0][:, :1]]


def no_output(_: Any) -> Any:
    return []


def two_outputs(inputs: Any) -> Any:
    return [inputs[0], inputs[0]]


def text(inputs: Any) -> Any:
    return [np.full((len(inputs[0]), 2), "text")]


def complex_numbers(inputs: Any) -> Any:
    return [inputs[0] * 1j]


def no_array(inputs: Any) -> Any:
    return [inputs[0].tolist()]


def nothing(_: Any) -> Any:
    return None


@pytest.mark.parametrize(
    "answer",
    [one_short, one_too_many, transposed, no_output, two_outputs, text, complex_numbers, no_array, nothing],
)
def test_outputs_that_break_the_signature_fail_their_batch(answer: Callable[[Any], Any]) -> None:
    """A model that returns other rows than it was given never mixes callers up, and the next batch is fine."""
    with Joined(PuppetRuntime(answer=answer)) as joined:
        tickets = [joined.submit(1), joined.submit(2, 3, 4)]
        joined.settle()
        assert ends(*tickets) == [ModelFailed, ModelFailed]
        joined.runtime.answer = double
        again = joined.submit(5)
        joined.settle()
        assert ends(again) == [doubled(5)]


def test_a_model_that_gets_only_single_rows_right_still_answers() -> None:
    """Splitting ends at single rows, and what they give counts."""
    with Joined(PuppetRuntime(answer=lambda inputs: [inputs[0][:1] * 2])) as joined:
        tickets = [joined.submit(1, 2, 3), joined.submit(4)]
        joined.settle()
        assert ends(*tickets) == [doubled(1, 2, 3), doubled(4)]


def test_a_wider_dtype_is_cast_to_the_promised_one() -> None:
    """A model that computes in float64 serves the float32 of its signature."""
    with Joined(PuppetRuntime(answer=lambda inputs: [inputs[0].astype(np.float64) * 2])) as joined:
        ticket = joined.submit(1, 2)
        joined.settle()
        assert ends(ticket) == [doubled(1, 2)]


@pytest.mark.parametrize("texts", [[], [b"1"], [b"1", b"2", b"3", b"4"]])
def test_a_wrong_number_of_texts_fails_only_its_batch(texts: list[bytes]) -> None:
    """JSON rows are counted before any of them is stored."""
    with Joined(PuppetRuntime(TEXTS, lambda _: [texts])) as joined:
        ticket = joined.submit(1, 2, 3)
        joined.settle()
        assert (ticket.completions, ticket.failure()) == (1, None if texts == [b"1"] else ModelFailed)
        joined.runtime.answer = lambda inputs: [[b"5"] * len(inputs[0])]
        again = joined.submit(4)
        joined.settle()
        assert again.texts == [b"5"]


def test_a_row_failure_fails_its_request_alone(caplog: pytest.LogCaptureFixture) -> None:
    """A runtime may fail single rows of a variable output; the batch is not run again."""
    failure = RowFailure(ValueError("a secret of the log"))

    def answer(inputs: Any) -> Any:
        return [[failure if row[0] == 2 else b"%d" % row[0] for row in inputs[0]]]

    with Joined(PuppetRuntime(TEXTS, answer)) as joined:
        tickets = [joined.submit(1, 3), joined.submit(4, 2, 5), joined.submit(6)]
        joined.settle()
        assert [ticket.texts for ticket in tickets] == [[b"1", b"3"], None, [b"6"]]
        assert tickets[1].failure() is ModelFailed
        assert len(joined.runtime.batches) == 1
        assert caplog.text.count("error id") == 1
        assert "a secret of the log" in caplog.text


def test_a_refused_row_gets_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    """A fault of the caller reaches the caller as text, cut to a sane length, and is no error of the log."""
    failure = RowFailure(InvalidInput("3 by 4 é" + 2000 * "."))
    picky = PuppetRuntime(BODIES, lambda inputs: [[failure if body == b"2" else body for body in inputs[0]]])
    with Joined(picky) as joined:
        tickets = [PuppetTicket(), PuppetTicket()]
        for ticket, body in zip(tickets, (b"1", b"2"), strict=True):
            joined.exchange.submit_body(ticket, body)
        joined.settle()
        assert tickets[0].texts == [b"1"]
        assert tickets[1].failure() is InvalidInput
        assert str(tickets[1].error).startswith("3 by 4 é...")
        assert len(str(tickets[1].error)) < 1001
        assert "error id" not in caplog.text


def raise_timeout() -> None:
    raise ScoringTimeout(5)


def test_a_batch_that_took_too_long_is_not_tried_in_parts() -> None:
    """Its callers hear what they hear at their deadline; all of its rows are handed back, others run."""
    with Joined(frontends=2) as joined:
        joined.runtime.during = raise_timeout
        late = [joined.submit(1, 2), joined.submit(3, frontend=1)]
        joined.settle()
        joined.runtime.during = lambda: None
        next_one = joined.submit(4)
        joined.settle()
        assert ends(*late, next_one) == [DeadlineExceeded, DeadlineExceeded, doubled(4)]
        assert joined.runtime.batches[0] == [[1, 1.5], [2, 2.5], [3, 3.5]]
        assert len(joined.runtime.batches) == 2
        assert [exchange.leased_rows for exchange in joined.exchanges] == [0, 0]


def test_a_row_that_failed_is_fine_for_its_next_owner() -> None:
    """The outcome of a row is set anew by each batch."""
    with Joined(capacity=8) as joined:
        joined.runtime.fails_for = {1}
        bad = joined.submit(1)
        joined.settle()
        good = [joined.submit(number) for number in range(2, 10)]
        joined.settle()
        assert ends(bad, *good) == [ModelFailed, *(doubled(number) for number in range(2, 10))]


def test_a_batch_is_gathered_in_one_contiguous_array() -> None:
    """The model gets C-contiguous arrays of its own dtype and shape, rows in the order of their blocks."""
    seen: list[np.ndarray] = []
    signature = Signature((TensorSpec("x", "float16", (2, 3)),), (TensorSpec("y", "float16", (2, 3)),))

    def answer(inputs: Any) -> Any:
        seen.append(inputs[0])
        assert inputs[0].flags.c_contiguous
        assert inputs[0].dtype == np.float16
        return [inputs[0]]

    with Joined(PuppetRuntime(signature, answer), frontends=2) as joined:
        for rows in (1, 5):
            for frontend in range(2):
                values = np.arange(rows * 6, dtype=np.float64).reshape(rows, 2, 3) + frontend
                ticket = PuppetTicket()
                joined.exchanges[frontend].submit(ticket, [values])
                joined.settle()
                assert seen[-1].shape == (rows, 2, 3)
                assert ticket.answer is not None
                assert ticket.answer[0].tolist() == values.tolist()


def test_a_full_batch_leaves_and_the_rest_follows_at_once() -> None:
    """A turn runs one batch at most, and says with 0 that more could leave now."""
    with Joined(policy=BatchPolicy(4), capacity=32) as joined:
        for number in range(9):
            joined.submit(number)
        joined.turn_frontends()
        assert [joined.turn_device() for _ in range(4)] == [0, 0, None, None]
        assert [len(batch) for batch in joined.runtime.batches] == [4, 4, 1]


def test_each_row_tells_its_batch() -> None:
    """Its rows over all frontends, the requests that began in it, and why it left."""
    facts: list[BatchFacts | None] = []
    with Joined(policy=BatchPolicy(4), capacity=32, frontends=2) as joined:
        for frontend, rows in ((0, 2), (1, 1), (0, 3)):
            ticket = PuppetTicket()
            ticket.then = lambda ticket=ticket: facts.append(ticket.batch)  # type: ignore[misc]
            joined.exchanges[frontend].submit(ticket, rows_of(*range(rows)))
        joined.settle()
        # A request with rows in both batches gets the facts of the last one.
        assert sorted(filter(None, facts)) == [
            BatchFacts(2, 0, 1, "idle"),
            BatchFacts(4, 0, 3, "full"),
            BatchFacts(4, 0, 3, "full"),
        ]


def test_a_backlog_of_single_rows_is_served_without_looking_around() -> None:
    """A model that takes rows one by one gets the next one at once, though each of them came alone."""
    with Joined(policy=BatchPolicy(1), capacity=32) as joined:

        def end_with_the_last() -> None:
            if len(joined.runtime.batches) == 20:
                joined.worker.stop()

        for number in range(20):
            joined.submit(number)
        joined.turn_frontends()
        joined.clock.ticks_ns = 1000
        joined.runtime.during = end_with_the_last
        begun_ns = joined.clock()
        joined.worker.serve()
        assert joined.clock() - begun_ns < AWAKE_NS


def test_rows_wait_for_company_until_their_delay_is_over() -> None:
    """The worker says when to look again, and then sends what has come."""
    with Joined(policy=BatchPolicy(4, max_delay_ms=5)) as joined:
        joined.submit(1)
        joined.turn_frontends()
        due_ns = joined.clock() + 5 * MS
        assert joined.turn_device() == due_ns
        joined.clock.advance_ms(3)
        joined.submit(2)
        joined.turn_frontends()
        assert joined.turn_device() == due_ns
        assert joined.runtime.batches == []
        joined.clock.advance_ms(2)
        assert joined.turn_device() is None
        assert joined.runtime.rows_run == [1, 2]


@pytest.mark.parametrize(
    ("policy", "ran_before"), [(BatchPolicy(2), [1, 3]), (BatchPolicy(16, max_delay_ms=5), [])]
)
def test_rows_cancelled_while_they_wait_do_not_run(policy: BatchPolicy, ran_before: list[float]) -> None:
    """A caller who goes away after the device has heard of his rows costs no GPU time."""
    with Joined(policy=policy) as joined:
        first, gone, kept = joined.submit(1, 2), joined.submit(3, 4, 5), joined.submit(6)
        joined.turn_frontends()
        joined.turn_device()
        assert joined.runtime.rows_run == ran_before
        gone.cancel()
        joined.clock.advance_ms(5)
        joined.settle()
        assert ends(first, kept) == [doubled(1, 2), doubled(6)]
        assert gone.completions == 0
        assert sorted(joined.runtime.rows_run) == sorted({1, 2, 6, *ran_before})
        assert joined.exchange.leased_rows == 0


class PollWithNews:
    """An epoll during whose next wait something happens."""

    def __init__(self, poller: select.epoll, news: Callable[[], None]) -> None:
        self._poller = poller
        self._news: Callable[[], None] | None = news

    def poll(self, _: float | None) -> list[tuple[int, int]]:
        """Call the news, then return the result of `select.epoll.poll`."""
        news, self._news = self._news, None
        if news is not None:
            news()
        return self._poller.poll(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._poller, name)


def test_rows_cancelled_while_the_device_waits_for_company_do_not_run() -> None:
    """The wait of `max_delay_ms` is where callers go away; what they left is skipped when it ends."""
    with Joined(policy=BatchPolicy(16, max_delay_ms=5)) as joined:
        gone, kept = joined.submit(1), joined.submit(2)
        joined.turn_frontends()
        joined.turn_device()

        def news() -> None:
            gone.cancel()
            joined.clock.advance_ms(5)

        joined.worker.doorbells.poller = PollWithNews(joined.worker.doorbells.poller, news)  # type: ignore[assignment]
        joined.turn_device()
        joined.settle()
        assert ends(kept) == [doubled(2)]
        assert joined.runtime.rows_run == [2]


def test_rows_past_their_deadline_do_not_run() -> None:
    """A backlog that nobody waits for any more is handed back without costing GPU time."""
    with Joined(policy=BatchPolicy(2)) as joined:
        tickets = [joined.submit(number, timeout_ms=10 if number < 4 else 50) for number in range(6)]
        joined.runtime.during = lambda: joined.clock.advance_ms(10)
        joined.settle()
        late = [DeadlineExceeded] * 2
        assert ends(*tickets) == [doubled(0), doubled(1), *late, doubled(4), doubled(5)]
        assert joined.runtime.rows_run == [0, 1, 4, 5]


def test_a_frontend_that_dies_takes_only_its_own_rows_along() -> None:
    """Rows that wait for a dead frontend are forgotten; those of the others run."""
    with Joined(policy=BatchPolicy(2), frontends=2) as joined:
        joined.submit(1, 2, 3, 4, 5, 6, frontend=0)
        kept = joined.submit(7, 8, frontend=1)
        joined.turn_frontends()
        joined.turn_device()
        joined.kill_frontend(0)
        joined.settle()
        assert ends(kept) == [doubled(7, 8)]
        assert len(joined.open_lanes) == 1
        assert set(joined.runtime.rows_run) <= {1, 2, 7, 8}


def test_a_frontend_may_die_while_its_rows_run() -> None:
    """The answer of a dead frontend goes nowhere; its neighbour of the same batch gets his."""
    with Joined(frontends=2) as joined:
        joined.submit(1, 2, frontend=0)
        kept = joined.submit(3, frontend=1)
        joined.runtime.during = lambda: joined.kill_frontend(0) if not joined.exchanges[0].lost else None
        joined.settle()
        assert ends(kept) == [doubled(3)]
        assert [len(batch) for batch in joined.runtime.batches] == [3]
        assert len(joined.open_lanes) == 1


def test_row_numbers_may_arrive_in_pieces() -> None:
    """The bytes of a number that has not arrived whole are kept until it has."""
    with Joined() as joined:
        tickets = [joined.submit(number) for number in range(3)]
        doorbell = joined.exchange.doorbell.socket
        (lane,) = joined.lanes
        joined.turn_frontends()
        whole = lane.doorbell.recv(100)
        assert len(whole) == 12
        for piece in (whole[:3], whole[3:4], whole[4:9], whole[9:]):
            doorbell.send(piece)
            joined.turn_device()
        assert sorted(joined.runtime.rows_run) == [0, 1, 2]
        assert len(joined.runtime.batches) == 3
        joined.settle()
        assert ends(*tickets) == [doubled(0), doubled(1), doubled(2)]


def test_a_lane_that_rings_unknown_rows_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """A frontend that rings for rows which its arena does not have is cut off; the others are served on."""
    with Joined(frontends=2) as joined:
        kept = joined.submit(1, frontend=1)
        joined.exchanges[0].doorbell.socket.send(np.array([0, 99], np.int32).tobytes())
        joined.settle()
        assert ends(kept) == [doubled(1)]
        assert joined.runtime.rows_run == [1]
        assert "cut off" in caplog.text
        assert joined.lost == [0]
        with pytest.raises(DeviceLost):
            joined.submit(2, frontend=0)


def test_batches_are_counted() -> None:
    """Sizes, reasons, and the times of each stage end up in the metrics."""
    with Joined(policy=BatchPolicy(4)) as joined:
        joined.runtime.during = lambda: joined.clock.advance_ms(2)
        for number in range(6):
            joined.submit(number)
        joined.clock.advance_ms(1)
        joined.turn_frontends()
        joined.turn_device()
        assert joined.totals().queue_rows == 2
        joined.settle()
        totals = joined.totals()
        assert totals.queue_rows == 0
        assert {reason: count for reason, count in totals.dispatches().items() if count} == {
            "full": 1,
            "idle": 1,
        }
        sizes = totals.batch_rows()
        assert sizes.sum == 6
        expected = {2: 1, 4: 1}
        assert dict(zip(sizes.bounds, sizes.counts, strict=False)) == {
            bound: expected.get(int(bound), 0) for bound in BATCH_BOUNDS_ROWS
        }
        stages = totals.stage_seconds()
        assert (sum(stages["compute"].counts), stages["compute"].sum) == (2, pytest.approx(0.004))
        # Four rows waited 1 ms, two waited for the first batch too.
        assert (sum(stages["queue"].counts), stages["queue"].sum) == (6, pytest.approx(4 * 0.001 + 2 * 0.003))


def test_rows_that_arrive_during_a_batch_form_the_next() -> None:
    """On its own thread: rows that arrive while a batch runs make up the next one; a new lane wakes the thread."""
    with Joined() as joined:
        runtime = joined.runtime
        runtime.hold = threading.Event()
        thread = threading.Thread(target=joined.worker.serve, daemon=True)
        thread.start()
        first = joined.submit(1)
        joined.turn_frontends()
        assert runtime.entered.wait(PATIENCE_S)
        later = [joined.submit(number) for number in (2, 3, 4)]
        joined.turn_frontends()
        runtime.hold.set()
        joined.wait_for(*later)
        assert ends(first, *later) == [doubled(number) for number in (1, 2, 3, 4)]
        assert [len(batch) for batch in runtime.batches] == [1, 3]
        joined.add_frontend()
        newcomer = joined.submit(5, frontend=1)
        joined.wait_for(newcomer)
        assert ends(newcomer) == [doubled(5)]
        joined.worker.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_rows_that_cannot_be_in_time_are_refused_at_once() -> None:
    """With a target and `late: refuse` the others run, are counted, and the device is not kept at work for nobody."""
    policy = BatchPolicy(16, target_ms=20, late="refuse")
    with Joined(policy=policy) as joined:
        joined.worker.teach((rows, rows * 10_000_000) for rows in (1, 2, 4, 16) for _ in range(2))
        joined.runtime.during = lambda: joined.clock.advance_ms(10 * len(joined.runtime.batches[-1]))
        tickets = [joined.submit(number) for number in range(5)]
        joined.settle()
        answered = ends(*tickets)
        assert [end for end in answered if end is not DeadlineExceeded] == [doubled(0), doubled(1)]
        totals = joined.totals()
        assert (totals.in_target_rows()["normal"], totals.answered_rows()["normal"]) == (2, 2)
        assert {reason: totals.dispatches()[reason] for reason in TARGET_REASONS} == {
            "largest": 1,
            "order": 0,
            "turn": 0,
        }
        assert sum(totals.expected_over_actual().counts) == 1


def test_late_rows_are_answered_behind_the_others() -> None:
    """With a target alone no row is refused: late rows wait for the others."""
    with Joined(policy=BatchPolicy(16, target_ms=20)) as joined:
        joined.worker.teach((rows, rows * 10_000_000) for rows in (1, 2, 4, 16) for _ in range(2))
        joined.runtime.during = lambda: joined.clock.advance_ms(10 * len(joined.runtime.batches[-1]))
        tickets = [joined.submit(number) for number in range(5)]
        joined.settle()
        assert ends(*tickets) == [doubled(number) for number in range(5)]
        totals = joined.totals()
        assert (totals.in_target_rows()["normal"], totals.answered_rows()["normal"]) == (2, 5)
        assert [len(batch) for batch in joined.runtime.batches] == [2, 1, 1, 1]


@pytest.mark.parametrize("count", [1, 3])
def test_rows_of_single_numbers_are_handed_back(count: int) -> None:
    """A row without axes, alone or beside others: how one row is stored differs from how several are."""
    number = TensorSpec("y", "float32", ())
    signature = Signature((TensorSpec("x", "float32", (2,)),), (number,))
    runtime = PuppetRuntime(signature, lambda inputs: [inputs[0][:, 0] * 2])
    with Joined(runtime) as joined:
        tickets = [joined.submit(first) for first in range(count)]
        joined.settle()
        assert ends(*tickets) == [[2.0 * first] for first in range(count)]
        assert [len(batch) for batch in runtime.batches] == [count]
