"""The choice of the rows that leave, and when to look again: with a clock that is passed in, and no device."""

import itertools
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.device.batch_decisions import BatchDecision, BatchPolicy
from stoker.device.batch_sizes import ServiceTimes
from stoker.device.row_blocks import RowBlock
from stoker.device.row_queue import RowQueue
from stoker.device.scheduler import schedule
from stoker.metrics.layout import REASONS
from stoker.runtimes.base import powers_of_two

MS = 1_000_000
NEVER = (1 << 63) - 1

Row = tuple[int, int]
"""Lane and row number."""


def push(
    queue: RowQueue,
    *sizes: int,
    lane: int = 0,
    first: int = 0,
    enqueued_ns: int = 0,
    deadline_ns: int = NEVER,
) -> list[Row]:
    """Queue requests of these sizes as one block with row numbers from `first`; returns their rows."""
    position = np.concatenate([np.arange(size) for size in sizes])
    numbers = np.arange(first, first + len(position), dtype=np.int32)
    queue.push(
        lane,
        numbers,
        position=position,
        enqueued_ns=np.full(len(position), enqueued_ns),
        deadline_ns=np.full(len(position), deadline_ns),
    )
    return [(lane, number) for number in numbers.tolist()]


def rows(blocks: list[RowBlock]) -> list[Row]:
    """Lane and number of each row, in order."""
    return [(block.lane, number) for block in blocks for number in block.numbers.tolist()]


def look(queue: RowQueue, now_ns: int = 0, max_batch_rows: int = 4, max_delay_ms: float = 0) -> BatchDecision:
    """Schedule with no times learned."""
    return schedule(queue, now_ns, BatchPolicy(max_batch_rows, max_delay_ms), ServiceTimes())


@dataclass
class QueuedRow:
    """The facts that a row was queued with."""

    position: int
    enqueued_ns: int
    deadline_ns: int


@dataclass
class Checked:
    """A queue beside a plain dictionary of the rows that must be in it."""

    policy: BatchPolicy
    queue: RowQueue = field(default_factory=RowQueue)
    times: ServiceTimes = field(default_factory=ServiceTimes)
    waiting: dict[Row, QueuedRow] = field(default_factory=dict)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def arrive(self, lane: int, requests: list[tuple[int, int]], now_ns: int) -> None:
        """Queue requests, each with its number of rows and its deadline, as one block."""
        queued = [QueuedRow(place, now_ns, deadline) for size, deadline in requests for place in range(size)]
        numbers = [next(self.numbers) for _ in queued]
        self.waiting.update({(lane, number): row for number, row in zip(numbers, queued, strict=True)})
        self.queue.push(
            lane,
            np.array(numbers, np.int32),
            np.array([row.position for row in queued]),
            np.array([row.enqueued_ns for row in queued]),
            np.array([row.deadline_ns for row in queued]),
        )

    def leave(self, lane: int) -> None:
        """A frontend dies."""
        dropped = [row for row in self.waiting if row[0] == lane]
        assert self.queue.drop_lane(lane) == len(dropped)
        for row in dropped:
            del self.waiting[row]

    def look(self, now_ns: int) -> None:
        """Schedule, and check the result by the contract."""
        alive = sum(row.deadline_ns > now_ns for row in self.waiting.values())
        hopeless_ns = now_ns + round(1.5 * self.times.expected_ns(self.policy.max_batch_rows))
        result = schedule(self.queue, now_ns, self.policy, self.times)
        expired, batch = self._removed(result.expired), self._removed(result.batch)
        given_up = [row for row in expired if row.deadline_ns > now_ns]
        assert not given_up or alive > self.policy.max_batch_rows
        assert all(row.deadline_ns <= hopeless_ns for row in given_up)
        assert bool(alive) == bool(batch or self.waiting)
        assert all(row.deadline_ns > now_ns for row in (*batch, *self.waiting.values()))
        assert len(batch) <= self.policy.max_batch_rows
        assert result.reason in REASONS if batch else result.reason == ""
        assert self.queue.rows == len(self.waiting) == len(rows(list(self.queue.blocks)))
        if not self.waiting:
            assert result.check_again_ns is None
        elif not batch:
            assert len(self.waiting) < self.policy.max_batch_rows
            oldest_ns = min(row.enqueued_ns for row in self.waiting.values())
            assert result.check_again_ns is not None
            assert now_ns < result.check_again_ns <= oldest_ns + self.policy.max_delay_ms * MS
        else:
            assert len(batch) in {self.policy.max_batch_rows, *self.policy.buckets}

    def _removed(self, blocks: list[RowBlock]) -> list[QueuedRow]:
        removed = []
        for block in blocks:
            assert len(block.numbers) > 0
            for index, number in enumerate(block.numbers.tolist()):
                row = self.waiting.pop((block.lane, number))
                assert (block.position[index], block.enqueued_ns[index], block.deadline_ns[index]) == (
                    row.position,
                    row.enqueued_ns,
                    row.deadline_ns,
                )
                removed.append(row)
        return removed


deadlines_ms = st.one_of(st.just(0), st.integers(1, 60), st.just(NEVER // MS))
arrivals = st.tuples(
    st.integers(0, 2), st.lists(st.tuples(st.integers(1, 20), deadlines_ms), min_size=1, max_size=4)
)
events = st.one_of(
    arrivals, arrivals, st.just("look"), st.just("look"), st.sampled_from(["leave 0", "leave 2"])
)


@settings(STEADY, max_examples=150)
@given(
    st.integers(1, 24),
    st.sampled_from([0, 0, 0.5, 5, 20]),
    st.lists(st.tuples(st.integers(0, 10), events), max_size=25),
    st.lists(st.tuples(st.integers(1, 24), st.integers(0, 8 * MS)), max_size=6),
    st.booleans(),
)
def test_each_row_comes_out_exactly_once(
    max_batch_rows: int,
    max_delay_ms: float,
    schedule: list[tuple[int, object]],
    known: list[tuple[int, int]],
    has_buckets: bool,
) -> None:
    """Each row is run or expired once, in a batch that is not too large, in any order of arrivals."""
    buckets = powers_of_two(max_batch_rows) if has_buckets else ()
    checked = Checked(BatchPolicy(max_batch_rows, max_delay_ms, buckets))
    for size, elapsed_ns in known:
        checked.times.learn(size, elapsed_ns)
    now_ns = 0
    for pause_ms, event in schedule:
        now_ns += pause_ms * MS
        match event:
            case "look":
                checked.look(now_ns)
            case str(leaving):
                checked.leave(int(leaving.split()[1]))
            case (int(lane), list(requests)):
                timed = [(size, wait_ms and now_ns + wait_ms * MS) for size, wait_ms in requests]
                checked.arrive(lane, [(size, min(deadline, NEVER)) for size, deadline in timed], now_ns)
    looks = 0
    while checked.waiting:
        now_ns += 25 * MS
        checked.look(now_ns)
        looks += 1
        assert looks <= 1 + 25 * 80 // max_batch_rows


def test_an_empty_queue_has_nothing_to_do() -> None:
    """With nothing waiting there is no batch and no time to look again."""
    assert look(RowQueue()) == BatchDecision([], [], "", None)


def test_without_delay_all_that_waits_leaves_at_once() -> None:
    """The default adds no delay: a free device takes what is there."""
    queue = RowQueue()
    waiting = push(queue, 1, 2, enqueued_ns=5 * MS)
    result = look(queue, 5 * MS)
    assert (rows(result.batch), result.reason, result.check_again_ns) == (waiting, "idle", None)


def test_a_full_batch_does_not_wait_for_company() -> None:
    """As many rows as a batch holds leave at once, whatever the delay."""
    queue = RowQueue()
    waiting = push(queue, 3, 2)
    result = look(queue, max_delay_ms=60_000)
    assert result.reason == "full"
    assert len(rows(result.batch)) == 4
    assert set(rows(result.batch)) < set(waiting)
    assert queue.rows == 1


def test_a_delay_ends_for_the_oldest_row() -> None:
    """Rows wait for company until the oldest of them has waited `max_delay_ms`, not a nanosecond longer."""
    queue = RowQueue()
    oldest = push(queue, 1, lane=1, enqueued_ns=10 * MS)
    later = push(queue, 1, lane=2, enqueued_ns=25 * MS)
    assert look(queue, 26 * MS, max_delay_ms=20) == BatchDecision([], [], "", 30 * MS)
    assert look(queue, 30 * MS - 1, max_delay_ms=20) == BatchDecision([], [], "", 30 * MS)
    result = look(queue, 30 * MS, max_delay_ms=20)
    assert (rows(result.batch), result.reason) == (oldest + later, "delay")


def test_a_deadline_cuts_the_wait_for_company_short() -> None:
    """A batch leaves when its expected time still fits before the earliest deadline."""
    queue, times = RowQueue(), ServiceTimes()
    times.learn(2, 4 * MS)
    waiting = push(queue, 1) + push(queue, 1, first=1, deadline_ns=15 * MS)
    policy = BatchPolicy(4, 20)
    assert schedule(queue, 0, policy, times) == BatchDecision([], [], "", 11 * MS)
    assert schedule(queue, 11 * MS - 1, policy, times) == BatchDecision([], [], "", 11 * MS)
    result = schedule(queue, 11 * MS, policy, times)
    assert (rows(result.batch), result.reason) == (waiting, "deadline")


def test_with_nothing_learned_a_row_leaves_before_its_deadline_or_expires() -> None:
    """Without an expected time the last moment is the deadline, when the row is handed back unrun."""
    queue = RowQueue()
    waiting = push(queue, 1, deadline_ns=7 * MS)
    assert look(queue, 0, max_delay_ms=20).check_again_ns == 7 * MS
    result = look(queue, 7 * MS, max_delay_ms=20)
    assert (rows(result.expired), result.batch, result.check_again_ns) == (waiting, [], None)


@pytest.mark.parametrize("max_delay_ms", [0, 20])
def test_cancelled_rows_never_run(max_delay_ms: float) -> None:
    """A deadline of 0 marks rows whose caller has gone: they come back unrun, their neighbours run."""
    queue = RowQueue()
    cancelled = push(queue, 3, deadline_ns=0)
    kept = push(queue, 4, first=3)
    result = look(queue, 0, max_delay_ms=max_delay_ms)
    assert (rows(result.expired), rows(result.batch), result.reason) == (cancelled, kept, "full")


def test_an_overloaded_device_gives_up_rows_that_would_be_late() -> None:
    """Of more rows than fit in a batch, those are given up whose answers would hardly come in time."""
    times = ServiceTimes()
    times.learn(2, 10 * MS)
    queue = RowQueue()
    late, soon = push(queue, 2, deadline_ns=14 * MS), push(queue, 2, first=2, deadline_ns=16 * MS)
    result = schedule(queue, 0, BatchPolicy(2), times)
    assert (rows(result.expired), rows(result.batch)) == (late, soon)


def test_rows_that_fit_in_one_batch_are_tried_however_little_time_they_have() -> None:
    """Nobody would gain if they were given up."""
    times = ServiceTimes()
    times.learn(2, 10 * MS)
    queue = RowQueue()
    both = [*push(queue, 1, deadline_ns=14 * MS), *push(queue, 1, first=1)]
    result = schedule(queue, 0, BatchPolicy(2), times)
    assert (rows(result.expired), rows(result.batch)) == ([], both)


def test_a_time_that_leaves_nobody_any_hope_is_not_believed() -> None:
    """One slow batch, the first one say, must not be the last; what it took is learned anew."""
    times = ServiceTimes()
    times.learn(1, 60_000 * MS)
    queue = RowQueue()
    first, _ = push(queue, 2, deadline_ns=1000 * MS)
    result = schedule(queue, 0, BatchPolicy(1), times)
    assert (rows(result.expired), rows(result.batch)) == ([], [first])


def test_expired_rows_are_taken_out_of_their_block() -> None:
    """Rows of one block expire each at its own time."""
    queue = RowQueue()
    position = np.zeros(3, np.int64)
    queue.push(5, np.array([8, 9, 7], np.int32), position, position, np.array([NEVER, 3 * MS, 4 * MS]))
    result = look(queue, 3 * MS)
    assert (rows(result.expired), rows(result.batch)) == ([(5, 9)], [(5, 8), (5, 7)])


@settings(STEADY, max_examples=60)
@given(st.integers(2, 64), st.integers(1, 8), st.integers(0, 12), st.integers(1, 4))
def test_a_single_row_leaves_with_the_next_batch(
    max_batch_rows: int, large_requests: int, batches_before: int, singles: int
) -> None:
    """Requests of one row are served beside requests of a thousand, not behind them."""
    if large_requests + singles > max_batch_rows:
        large_requests, singles = 1, 1
    queue = RowQueue()
    for lane in range(large_requests):
        push(queue, 1000, lane=lane)
    for _ in range(batches_before):
        assert look(queue, max_batch_rows=max_batch_rows).reason == "full"
    single = push(queue, *[1] * singles, lane=99)
    assert set(single) <= set(rows(look(queue, max_batch_rows=max_batch_rows).batch))


def test_large_requests_share_the_batches() -> None:
    """Of two requests that arrived together each gets half of every batch."""
    queue = RowQueue()
    push(queue, 40, lane=1)
    push(queue, 40, lane=2)
    for _ in range(5):
        lanes = [lane for lane, _ in rows(look(queue, max_batch_rows=8).batch)]
        assert (lanes.count(1), lanes.count(2)) == (4, 4)


def test_a_late_large_request_does_not_push_an_earlier_one_back() -> None:
    """A request that arrives later shares from then on; it is not owed what the first one has had already."""
    queue = RowQueue()
    push(queue, 100, lane=1)
    for _ in range(5):
        look(queue, max_batch_rows=8)
    push(queue, 100, lane=2)
    lanes = [lane for _ in range(4) for lane, _ in rows(look(queue, max_batch_rows=8).batch)]
    assert abs(lanes.count(1) - lanes.count(2)) <= 2


def test_a_large_request_is_not_starved_by_a_stream_of_small_ones() -> None:
    """Though each batch could be filled with fresh one-row requests, a waiting request of 10 rows gets done."""
    queue = RowQueue()
    waiting = set(push(queue, 10, lane=1))
    for arrived in range(50):
        push(queue, 1, 1, 1, 1, lane=2, first=4 * arrived)
        waiting -= set(rows(look(queue).batch))
    assert not waiting


def test_small_requests_that_wait_keep_their_order() -> None:
    """An overfull queue of one-row requests is first come, first served."""
    queue = RowQueue()
    waiting = [row for first in range(0, 12, 2) for row in push(queue, 1, 1, lane=first % 4, first=first)]
    served = [row for _ in range(3) for row in rows(look(queue).batch)]
    assert sorted(served[:4]) == sorted(waiting[:4])
    assert sorted(served[4:8]) == sorted(waiting[4:8])
    assert sorted(served[8:]) == sorted(waiting[8:])


POWERS = (1, 2, 4, 8, 16)


def learned(**times_ms: float) -> ServiceTimes:
    """The times of batches of each size, as `of_8=2`."""
    times = ServiceTimes()
    for size, time_ms in times_ms.items():
        times.learn(int(size.removeprefix("of_")), int(time_ms * MS))
    return times


@pytest.mark.parametrize(
    ("waiting", "times", "leaving", "reason"),
    [
        # Filled up to 16 they would take 1.8 ms: 8 rows in 1 ms are more in a second than 9, and fewer than 15.
        (9, learned(of_8=1, of_16=1.8), 8, "full"),
        (15, learned(of_8=1, of_16=1.8), 15, "idle"),
        (8, learned(of_8=1, of_16=1.8), 8, "idle"),
        # A device that is hardly busier with more rows takes them all.
        (9, learned(of_8=1, of_16=1.1), 9, "idle"),
        # Sizes without a known time are tried out.
        (9, learned(of_8=1), 9, "idle"),
        (9, learned(of_16=2), 9, "idle"),
        (1, learned(of_1=1), 1, "idle"),
        (16, learned(of_8=1, of_16=9), 16, "full"),
    ],
)
@pytest.mark.parametrize("max_delay_ms", [0, 5])
def test_a_full_bucket_leaves_where_padding_would_cost_more(
    waiting: int, times: ServiceTimes, leaving: int, reason: str, max_delay_ms: float
) -> None:
    """The rest is next: nothing has waited in vain. With a delay it is the same, once that has passed."""
    queue = RowQueue()
    push(queue, *[1] * waiting)
    decision = schedule(queue, 9 * MS, BatchPolicy(16, max_delay_ms, POWERS), times)
    assert len(rows(decision.batch)) == leaving
    assert decision.reason == ("delay" if max_delay_ms and reason == "idle" else reason)
    assert queue.rows == waiting - leaving


@pytest.mark.parametrize(
    ("waiting", "ahead", "leaving"),
    [
        # The rows that are ahead come back, and join those that are left behind.
        (12, 4, 8),
        (15, 1, 8),
        (16, 0, 8),
        (8, 8, 8),
        (4, 12, 4),
        # More callers than two batches have rows for: batches are full.
        (16, 16, 16),
        (40, 8, 16),
        # Batches begin only once the device is free, so the rows would wait for nothing.
        (16, None, 16),
    ],
)
def test_waiting_callers_form_two_even_groups(waiting: int, ahead: int | None, leaving: int) -> None:
    """While one is computed the other comes back. Batches of 8 rows do 96 % of the rows that those of 16 do."""
    queue, times = RowQueue(), learned(of_4=1.4, of_8=2, of_16=3.84)
    push(queue, *[1] * waiting)
    times.ahead_rows = ahead
    assert len(rows(schedule(queue, 0, BatchPolicy(16, 0, POWERS), times).batch)) == leaving


def test_groups_are_not_made_even_where_that_costs_throughput() -> None:
    """A device that takes as long for 8 rows as for 16 runs all that wait."""
    queue, times = RowQueue(), learned(of_8=3.6, of_16=3.84)
    push(queue, *[1] * 12)
    times.ahead_rows = 4
    assert len(rows(schedule(queue, 0, BatchPolicy(16, 0, POWERS), times).batch)) == 12


def test_without_buckets_nothing_is_left_behind() -> None:
    """A device that runs batches of any size runs what there is."""
    queue = RowQueue()
    push(queue, *[1] * 9)
    decision = schedule(queue, 0, BatchPolicy(16), learned(of_8=1, of_16=2))
    assert (len(rows(decision.batch)), decision.reason) == (9, "idle")


def test_a_deadline_counts_with_the_time_of_the_bucket() -> None:
    """Nine rows take as long as sixteen: they leave early enough for that."""
    queue = RowQueue()
    push(queue, *[1] * 9, deadline_ns=10 * MS)
    policy, times = BatchPolicy(16, 100, POWERS), learned(of_8=1, of_16=6)
    assert schedule(queue, 3 * MS, policy, times).check_again_ns == 4 * MS
    assert schedule(queue, 4 * MS, policy, times).reason == "deadline"


def test_the_rows_of_a_dead_frontend_are_forgotten() -> None:
    """Dropping a lane says how many rows waited there, and leaves those of the others."""
    queue = RowQueue()
    push(queue, 2, lane=1)
    kept = push(queue, 1, lane=2)
    push(queue, 3, lane=1, first=2)
    assert queue.drop_lane(1) == 5
    assert queue.drop_lane(1) == 0
    assert (queue.rows, rows(look(queue).batch)) == (1, kept)


def test_service_times_are_learned_per_power_of_two() -> None:
    """An unknown size takes the time of the nearest larger one that is known, else of the largest."""
    times = ServiceTimes()
    assert times.expected_ns(5) == 0
    times.learn(4, 100)
    times.learn(64, 900)
    assert [times.expected_ns(size) for size in (1, 4, 7, 8, 64, 127, 128, 5000)] == [
        100, 100, 100, 900, 900, 900, 900, 900,
    ]  # fmt: skip


def test_service_times_follow_a_change_slowly() -> None:
    """One slow batch moves the expectation by a fifth, many move it all the way."""
    times = ServiceTimes()
    times.learn(8, 1000)
    times.learn(8, 2000)
    assert times.expected_ns(8) == 1200
    for _ in range(40):
        times.learn(8, 2000)
    assert times.expected_ns(8) == pytest.approx(2000, rel=0.01)


@pytest.mark.parametrize(
    ("max_batch_rows", "max_delay_ms", "complaint"),
    [
        (0, 0, "max_batch_rows must be at least 1, got 0"),
        (8, -1, "max_delay_ms must be between 0 and 60000, got -1"),
        (8, 60_001, "max_delay_ms"),
        (8, float("nan"), "max_delay_ms"),
    ],
)
def test_a_policy_outside_its_bounds_is_refused(
    max_batch_rows: int, max_delay_ms: float, complaint: str
) -> None:
    """The message quotes the bad value."""
    with pytest.raises(ValueError, match=complaint):
        BatchPolicy(max_batch_rows, max_delay_ms)
