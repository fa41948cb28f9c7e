"""Plans of rows with targets: worlds under a virtual clock, whose batches take the learned times."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.device.batch_decisions import BatchDecision, BatchPolicy, Proposal
from stoker.device.batch_sizes import ServiceTimes
from stoker.device.row_blocks import RowBlock, split_into_blocks
from stoker.device.row_queue import RowQueue
from stoker.device.scheduler import propose, schedule
from stoker.metrics.layout import REASONS, TARGET_REASONS

MS = 1_000_000
NEVER = 1 << 60

Row = tuple[int, int]
"""Lane and number."""


@dataclass(frozen=True)
class Request:
    """Rows that come together."""

    pause_ms: int
    lane: int
    rows: int
    target_ms: int
    timeout_ms: int = 10_000


requests = st.builds(
    Request,
    st.sampled_from([0, 0, 1, 3, 10, 40]),
    st.integers(0, 2),
    st.integers(1, 12),
    st.integers(1, 80),
    st.sampled_from([20, 60, 10_000]),
)
curves = st.tuples(st.integers(0, 20), st.integers(1, 4), st.integers(1, 16))
"""Milliseconds of a batch and of each row, and the most rows."""


def taught(batch_ms: float, row_ms: float, most: int) -> ServiceTimes:
    """Times that were learned from an exact line."""
    times = ServiceTimes()
    for _ in range(4):
        for rows in (1, 2, max(1, most // 2), most):
            times.learn(rows, round((batch_ms + row_ms * rows) * MS))
    return times


def rows_of(blocks: list[RowBlock]) -> list[Row]:
    return [(block.lane, number) for block in blocks for number in block.numbers.tolist()]


@dataclass
class World:
    """A queue and a device, and what is known of each row."""

    policy: BatchPolicy
    times: ServiceTimes
    queue: RowQueue = field(default_factory=RowQueue)
    due: dict[Row, int] = field(default_factory=dict)
    deadline: dict[Row, int] = field(default_factory=dict)
    request: dict[Row, int] = field(default_factory=dict)
    waiting: set[Row] = field(default_factory=set)
    now_ns: int = 0
    split: bool = False
    batches: list[list[Row]] = field(default_factory=list)
    expired: list[Row] = field(default_factory=list)

    def arrive(self, request: Request) -> None:
        """Queue a request, in one block or in two; it came when the device was still busy, if it was."""
        numbers = np.arange(request.rows) + len(self.due)
        target, deadline = (self.now_ns + ms * MS for ms in (request.target_ms, request.timeout_ms))
        for number in numbers.tolist():
            row = request.lane, number
            self.request[row] = int(numbers[0])
            self.due[row], self.deadline[row] = min(target, deadline), deadline
            self.waiting.add(row)
        middle = request.rows // 2 if self.split else 0
        for part in (slice(0, middle), slice(middle, None)):
            count = len(numbers[part])
            if count:
                self.queue.push(
                    request.lane,
                    numbers[part].astype(np.uint32),
                    np.arange(request.rows)[part],
                    np.full(count, self.now_ns),
                    np.full(count, deadline),
                    target_ns=np.full(count, target),
                    size=np.full(count, request.rows),
                )

    def look(self) -> BatchDecision:
        """Schedule, and check what holds of every decision; the device is busy with its batch then."""
        proposal = propose(self.queue, self.now_ns, self.policy, self.times)
        assert propose(self.queue, self.now_ns, self.policy, self.times) == proposal
        costs = self.times.costs_ns(self.policy.max_batch_rows, self.policy.buckets)
        feasible = self._feasible(costs)
        planned = schedule(self.queue, self.now_ns, self.policy, self.times)
        batch, expired = rows_of(planned.batch), rows_of(planned.expired)
        self._check_rows(batch, expired, planned.reason)
        self._check_offer(proposal, batch, planned)
        if batch:
            self._check_batch(batch, feasible, costs, proposal)
            self.now_ns += costs[len(batch)]
        else:
            assert not feasible or planned.check_again_ns is not None
        self.batches += [sorted(batch)] if batch else []
        self.expired += expired
        return planned

    def _check_rows(self, batch: list[Row], expired: list[Row], reason: str) -> None:
        """Property 1: a row is in one place, and a batch is not too large."""
        assert not [row for row, count in Counter(batch + expired).items() if count > 1]
        assert set(batch + expired) <= self.waiting
        self.waiting -= {*batch, *expired}
        assert self.queue.rows == len(self.waiting)
        assert len(batch) <= self.policy.max_batch_rows
        assert reason in ({*REASONS, *TARGET_REASONS} if batch else {""})

    def _check_offer(self, proposal: Proposal | None, batch: list[Row], planned: BatchDecision) -> None:
        """Property 4: a plan takes what was offered."""
        assert len(batch) == (0 if proposal is None else proposal.rows)
        assert planned.check_again_ns == (None if proposal is None else proposal.check_again_ns)
        assert planned.check_again_ns is None or planned.check_again_ns > self.now_ns

    def _check_batch(
        self, batch: list[Row], feasible: set[Row], costs: list[int], proposal: Proposal | None
    ) -> None:
        """Properties 2 and 3: what runs is in time, and all that fits and is feasible runs."""
        assert proposal is not None
        done_ns = self.now_ns + proposal.cost_ns
        normal = [row for row in batch if row in feasible]
        if proposal.tier != 3:
            assert normal
            assert all(self.due[row] >= done_ns for row in normal)
            assert proposal.latest_ns == min(self.due[row] for row in normal) - proposal.cost_ns
        late = set(batch) - set(normal)
        assert not late or self.policy.late == "answer"
        assert all(self.deadline[row] > self.now_ns for row in late)
        alone = len(feasible) <= self.policy.max_batch_rows and not self.policy.buckets
        if (
            alone
            and feasible
            and all(self.due[row] >= self.now_ns + costs[len(feasible)] for row in feasible)
        ):
            assert set(normal) == feasible

    def _feasible(self, costs: list[int]) -> set[Row]:
        """The rows whose requests could be done in time as a whole, were they alone.

        Those that have been late stay it, though times that were doubted since may say otherwise.
        """
        missing = Counter(self.request[row] for row in self.waiting)
        most = self.policy.max_batch_rows
        needed = {of: rows // most * costs[most] + costs[rows % most] for of, rows in missing.items()}
        waiting = self.waiting - set(rows_of(split_into_blocks(self.queue.late.parts)))
        return {row for row in waiting if self.due[row] >= self.now_ns + needed[self.request[row]]}

    def run(self, arriving: list[Request]) -> None:
        """Let the requests come, and look after each, and until nothing waits."""
        for request in arriving:
            if request.pause_ms:
                self.now_ns += request.pause_ms * MS
                self.look()
            self.arrive(request)
        for _ in range(3 * len(self.due) + 3):
            planned = self.look()
            if not planned.batch:
                if planned.check_again_ns is None:
                    break
                self.now_ns = planned.check_again_ns
        assert not self.waiting


@STEADY
@given(
    curves,
    st.lists(requests, max_size=12),
    st.sampled_from(["answer", "refuse"]),
    st.sampled_from([0.0, 0.0, 20.0, 60.0]),
)
def test_every_plan_answers_each_row_once_and_in_time(
    curve: tuple[int, int, int], arriving: list[Request], late: Literal["answer", "refuse"], delay_ms: float
) -> None:
    """Each row comes back once; what runs is in time; what was offered is taken; nothing feasible idles."""
    policy = BatchPolicy(curve[2], target_ms=50, late=late, max_delay_ms=delay_ms)
    World(policy, taught(*curve)).run(arriving)


@STEADY
# Powers of two: what device time is worth is a fraction, and others would round a tie of two choices otherwise.
@given(curves, st.lists(requests, max_size=10), st.sampled_from([2, 4, 8]))
def test_a_slower_world_has_the_same_batches(
    curve: tuple[int, int, int], arriving: list[Request], factor: int
) -> None:
    """With all times so many times as long, the same rows leave together."""
    worlds = []
    for times_as_long in (1, factor):
        times = taught(curve[0] * times_as_long, curve[1] * times_as_long, curve[2])
        # Rounded, a quantile of a fitted line is not the same to the nanosecond.
        exact = [0, *((curve[0] + curve[1] * n) * MS * times_as_long for n in range(1, curve[2] + 1))]
        times.costs_ns = lambda *_, exact=exact: exact  # type: ignore[method-assign]
        world = World(BatchPolicy(curve[2], target_ms=50 * times_as_long), times)
        world.run(
            [
                Request(
                    request.pause_ms * times_as_long,
                    request.lane,
                    request.rows,
                    request.target_ms * times_as_long,
                    request.timeout_ms * times_as_long,
                )
                for request in arriving
            ]
        )
        worlds.append(world)
    assert worlds[0].batches == worlds[1].batches
    assert sorted(worlds[0].expired) == sorted(worlds[1].expired)


@STEADY
@given(curves, st.lists(requests, max_size=10))
def test_splitting_blocks_changes_nothing(curve: tuple[int, int, int], arriving: list[Request]) -> None:
    """Rows that arrive in two blocks run as those that arrive in one."""
    worlds = []
    for split in (False, True):
        world = World(BatchPolicy(curve[2], target_ms=50), taught(*curve), split=split)
        world.run(arriving)
        worlds.append(world)
    assert worlds[0].batches == worlds[1].batches
    assert sorted(worlds[0].expired) == sorted(worlds[1].expired)


@settings(STEADY, max_examples=25)
@given(curves, st.lists(requests, max_size=10), st.permutations([0, 1, 2]))
def test_names_of_lanes_do_not_matter(
    curve: tuple[int, int, int], arriving: list[Request], names: list[int]
) -> None:
    """The same rows leave together under other names of lanes."""
    worlds = []
    for called in ([0, 1, 2], names):
        world = World(BatchPolicy(curve[2], target_ms=50), taught(*curve))
        world.run([replace(request, lane=called[request.lane]) for request in arriving])
        worlds.append(world)
    renamed = [sorted((names[lane], number) for lane, number in batch) for batch in worlds[0].batches]
    assert renamed == worlds[1].batches


def queue_of(*targets_ms: int, deadline_ns: int = NEVER) -> RowQueue:
    """Requests of one row each, all of them come at 0."""
    queue = RowQueue()
    count = len(targets_ms)
    queue.push(
        0,
        np.arange(count, dtype=np.uint32),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.full(count, deadline_ns),
        target_ns=np.array(targets_ms) * MS,
    )
    return queue


def test_a_batch_is_as_large_as_can_be_in_time() -> None:
    """Of many rows with one target, as many run as are in time; if all ran, all would be late."""
    times = taught(1, 1, 64)
    planned = schedule(queue_of(*[20] * 60), 0, BatchPolicy(64), times)
    assert (len(rows_of(planned.batch)), planned.reason) == (19, "largest")


def test_the_few_in_a_hurry_are_lost_where_many_gain() -> None:
    """One row would make a batch of nine of all, and twenty are lost then."""
    times = taught(9, 1, 64)
    queue = queue_of(11, *[40] * 30)
    planned = schedule(queue, 0, BatchPolicy(64, late="refuse"), times)
    assert len(rows_of(planned.batch)) == 30
    assert rows_of(planned.expired) == [(0, 0)]


def test_the_first_are_not_lost_where_they_are_many() -> None:
    """The batch that its target allows leaves, for all others are in time behind it."""
    times = taught(1, 1, 64)
    planned = schedule(queue_of(*[41] * 10, *[100] * 54), 0, BatchPolicy(64), times)
    assert (rows_of(planned.batch), planned.reason) == ([(0, number) for number in range(40)], "order")


def test_a_request_that_cannot_be_done_as_a_whole_does_not_begin() -> None:
    """Of twelve rows with time for two batches of four, none runs."""
    queue = RowQueue()
    queue.push(
        0,
        np.arange(12, dtype=np.uint32),
        np.arange(12),
        np.zeros(12, np.int64),
        np.full(12, NEVER),
        target_ns=np.full(12, 14 * MS),
        size=np.full(12, 12),
    )
    planned = schedule(queue, 0, BatchPolicy(4, late="refuse"), taught(1, 1, 4))
    assert (len(rows_of(planned.expired)), planned.batch) == (12, [])


def test_late_rows_are_answered_when_nothing_else_is_to_do() -> None:
    """They wait for those that can be in time, and run in batches of half a target."""
    times, policy = taught(0, 1, 64), BatchPolicy(64, target_ms=20)
    queue = queue_of(*[1] * 30)
    for number in (30, 31):
        queue.push(
            0, np.array([number], np.uint32), np.zeros(1, np.int64), np.full(1, 5 * MS), np.full(1, NEVER)
        )
    assert rows_of(schedule(queue, 5 * MS, policy, times).batch) == [(0, 30), (0, 31)]
    proposal = propose(queue, 7 * MS, policy, times)
    assert proposal is not None
    assert (proposal.rows, proposal.tier) == (10, 3)
    assert [len(rows_of(schedule(queue, 7 * MS, policy, times).batch)) for _ in range(4)] == [10, 10, 10, 0]


def test_late_rows_fill_buckets_up() -> None:
    """The rest of a bucket beyond rows in time costs nothing."""
    times = ServiceTimes((4, 8))
    times.learn(4, 4 * MS)
    times.learn(8, 8 * MS)
    queue = queue_of(1, 1, 1)
    policy = BatchPolicy(8, buckets=(4, 8), target_ms=20)
    queue.push(
        0, np.array([7, 8, 9], np.uint32), np.zeros(3, np.int64), np.full(3, 2 * MS), np.full(3, NEVER)
    )
    assert sorted(rows_of(schedule(queue, 2 * MS, policy, times).batch)) == [(0, 0), (0, 7), (0, 8), (0, 9)]


def test_of_too_many_late_rows_the_oldest_are_given_up() -> None:
    """Arenas have room for those that can be in time."""
    queue = queue_of(*[1] * 30)
    queue.late_limit_rows = 10
    planned = schedule(queue, 5 * MS, BatchPolicy(4, target_ms=20), taught(0, 1, 4))
    assert rows_of(planned.expired) == [(0, number) for number in range(20)]


def test_cancelled_rows_are_handed_back_wherever_they_wait() -> None:
    """In blocks, among those that are sorted, and among the late ones."""
    times, policy = taught(0, 1, 4), BatchPolicy(4, target_ms=20)
    queue = queue_of(*[1] * 3, *[100] * 20)
    schedule(queue, 2 * MS, policy, times)
    queue.refresh(lambda _, numbers: np.where(np.isin(numbers, [0, 22]), 0, NEVER))
    assert sorted(rows_of(schedule(queue, 3 * MS, policy, times).expired)) == [(0, 0), (0, 22)]


def test_the_rows_of_a_dead_frontend_are_forgotten() -> None:
    """Sorted and late ones too."""
    queue = queue_of(*[1] * 3, *[100] * 20)
    schedule(queue, 2 * MS, BatchPolicy(4, target_ms=20), taught(0, 1, 4))
    assert queue.drop_lane(0) == queue.rows + 19
    assert queue.rows == 0


def test_batch_with_a_target_waits_for_max_delay_or_its_last_moment() -> None:
    """It leaves at the first of both; the reason says at which."""
    times, policy = taught(0, 10, 4), BatchPolicy(4, max_delay_ms=20)
    queue = queue_of(50)
    assert schedule(queue, 0, policy, times) == BatchDecision([], [], "", 20 * MS)
    assert propose(queue, 0, policy, times) == Proposal(
        0, 10 * MS, 40 * MS, 1, losing=False, check_again_ns=20 * MS
    )
    assert schedule(queue, 20 * MS, policy, times).reason == "delay"
    queue, policy = queue_of(50), BatchPolicy(4, max_delay_ms=60)
    assert schedule(queue, 0, policy, times).check_again_ns == 40 * MS
    assert schedule(queue, 40 * MS, policy, times).reason == "deadline"


def test_times_that_nothing_could_meet_are_doubted() -> None:
    """A device that was slow is tried again, else it would never be known to be quick."""
    times = taught(100, 1, 4)
    policy = BatchPolicy(4, late="refuse")
    looks = 0
    while not schedule(queue_of(50), 0, policy, times).batch:
        looks += 1
        assert looks < 20
    assert looks > 1


def test_a_batch_for_a_device_that_is_still_busy_is_planned_for_later() -> None:
    """Rows in time now may be late when the device is free."""
    times = taught(0, 1, 64)
    now = schedule(queue_of(*[20] * 30), 0, BatchPolicy(64), times)
    later = schedule(queue_of(*[20] * 30), 0, BatchPolicy(64), times, free_ns=8 * MS)
    assert [len(rows_of(planned.batch)) for planned in (now, later)] == [20, 12]


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        ({"target_ms": 0}, "target_ms must be above 0, got 0"),
        ({"max_delay_ms": -1}, "max_delay_ms must be between 0"),
    ],
)
def test_a_policy_outside_its_bounds_is_refused(policy: dict[str, float], complaint: str) -> None:
    """The message quotes the bad value."""
    with pytest.raises(ValueError, match=complaint):
        BatchPolicy(8, **policy)  # type: ignore[arg-type]
