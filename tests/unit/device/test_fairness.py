"""The choice of rows where several callers or tiers wait: worlds under a virtual clock."""

from collections import Counter
from dataclasses import dataclass, field
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY
from tests.unit.device.test_target_decisions import MS, NEVER, rows_of, taught

from stoker.device import shares
from stoker.device.batch_decisions import BatchDecision, BatchPolicy
from stoker.device.batch_sizes import ServiceTimes
from stoker.device.row_blocks import placed_of
from stoker.device.row_queue import RowQueue
from stoker.device.scheduler import propose, schedule
from stoker.metrics.layout import REASONS, TARGET_REASONS

HIGH, USUAL, LOW = 0, 1, 2


@dataclass(frozen=True)
class Request:
    """Rows that come together."""

    pause_ms: int
    caller: int
    tier: int
    rows: int
    target_ms: int


@dataclass
class World:
    """A queue and a device; `batches` are counts of rows by class, each with when it began and its cost."""

    policy: BatchPolicy
    times: ServiceTimes
    targets: bool = True
    queue: RowQueue = field(default_factory=RowQueue)
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)
    now_ns: int = 0
    count: int = 0
    batches: list[tuple[int, int, Counter[tuple[int, int]]]] = field(default_factory=list)

    def arrive(self, rows: int, caller: int = 0, tier: int = USUAL, target_ms: float = 1e6) -> list[int]:
        """Queue a request; returns the numbers of its rows."""
        numbers = list(range(self.count, self.count + rows))
        self.count += rows
        due_ns = self.now_ns + round(target_ms * MS)
        self.waiting |= dict.fromkeys(numbers, (due_ns, tier))
        self.queue.push(
            0,
            np.array(numbers, np.uint32),
            np.arange(rows),
            np.full(rows, self.now_ns),
            np.full(rows, NEVER),
            target_ns=np.full(rows, due_ns) if self.targets else None,
            size=np.full(rows, rows),
            tier=np.full(rows, tier),
            caller=np.full(rows, caller),
        )
        return numbers

    def look(self) -> BatchDecision:
        """Schedule, and check what holds of every decision; the device is busy with its batch then."""
        proposal = propose(self.queue, self.now_ns, self.policy, self.times)
        planned = schedule(self.queue, self.now_ns, self.policy, self.times)
        batch = [number for _, number in rows_of(planned.batch)]
        expired = [number for _, number in rows_of(planned.expired)]
        assert len({*batch, *expired}) == len(batch) + len(expired)
        assert {*batch, *expired} <= self.waiting.keys()
        assert len(batch) == (0 if proposal is None else proposal.rows) <= self.policy.max_batch_rows
        assert planned.reason in ({*REASONS, *TARGET_REASONS} if batch else {""})
        if batch and proposal is not None:
            self._run(batch, planned, proposal.cost_ns, late=proposal.tier == 3)
        for number in (*batch, *expired):
            del self.waiting[number]
        assert self.queue.rows == len(self.waiting)
        return planned

    def _run(self, batch: list[int], planned: BatchDecision, cost_ns: int, *, late: bool) -> None:
        done_ns = self.now_ns + cost_ns
        if self.targets and not late:
            assert all(self.waiting[number][0] >= done_ns for number in batch)
            assert min(self.waiting[number][1] for number in batch) >= 0
        classes = Counter(
            (placed >> 16, placed & 0xFFFF) for block in planned.batch for placed in placed_of(block).tolist()
        )
        self.batches.append((self.now_ns, cost_ns, classes))
        self.now_ns = done_ns

    def used_ns(self, caller: int, since: int = 0) -> float:
        """Device time of a caller."""
        return sum(
            cost_ns * sum(rows for (_, other), rows in classes.items() if other == caller) / classes.total()
            for _, cost_ns, classes in self.batches[since:]
        )


requests = st.builds(
    Request,
    st.sampled_from([0, 0, 0, 1, 5, 30, 1100]),
    st.integers(0, 3),
    st.sampled_from([HIGH, USUAL, USUAL, LOW]),
    st.integers(1, 12),
    st.sampled_from([5, 20, 60, 300]),
)
curves = st.tuples(st.integers(0, 10), st.integers(1, 4), st.integers(1, 16))


@STEADY
@given(
    curves,
    st.lists(requests, max_size=14),
    st.booleans(),
)
def test_every_ranked_plan_answers_each_row_once_within_its_target(
    curve: tuple[int, int, int],
    arriving: list[Request],
    targets: bool,
) -> None:
    """Each row comes back once, in a batch that ends within its target, and what was offered is taken."""
    policy = BatchPolicy(curve[2], target_ms=50 if targets else None, late="refuse")
    world = World(policy, taught(*curve), targets)
    for request in arriving:
        if request.pause_ms:
            world.now_ns += request.pause_ms * MS
            world.look()
        world.arrive(request.rows, request.caller, request.tier, request.target_ms)
    while world.waiting:
        before = len(world.waiting)
        world.look()
        assert len(world.waiting) < before, "nothing idles that could run"


@settings(STEADY, max_examples=25)
@given(curves, st.lists(requests, max_size=14), st.integers(2, 50))
def test_numbers_of_callers_do_not_matter(
    curve: tuple[int, int, int], arriving: list[Request], times: int
) -> None:
    """Callers with other numbers, in the same order, which is that of equals, have the same rows in each batch."""
    worlds = []
    for factor in (1, times):
        world = World(BatchPolicy(curve[2], target_ms=50, late="refuse"), taught(*curve))
        for request in arriving:
            if request.pause_ms:
                world.now_ns += request.pause_ms * MS
                world.look()
            world.arrive(request.rows, request.caller * factor, request.tier, request.target_ms)
        while world.waiting:
            world.look()
        worlds.append(world)
    renamed = [
        (
            begun_ns,
            cost_ns,
            Counter({(tier, caller * times): rows for (tier, caller), rows in classes.items()}),
        )
        for begun_ns, cost_ns, classes in worlds[0].batches
    ]
    assert renamed == worlds[1].batches


@STEADY
@given(
    curves,
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0.5, 1.0, 3.0])), min_size=2, max_size=4),
    st.booleans(),
    st.integers(0, 20),
)
def test_waiting_callers_get_device_time_by_weight(
    curve: tuple[int, int, int], callers: list[tuple[int, float]], targets: bool, alone: int
) -> None:
    """Device time by weight differs by two of the dearest batches by the least weight at most, whatever comes."""
    weights = {caller: weight for caller, (_, weight) in enumerate(callers, 1)}
    policy = BatchPolicy(curve[2], weights=weights, target_ms=1e6 if targets else None)
    world = World(policy, taught(*curve), targets)
    for _ in range(alone):
        world.arrive(curve[2], 1)
        world.look()
    begun = len(world.batches)
    for _ in range(30):
        for caller, (rows, _) in enumerate(callers, 1):
            # Enough that nobody runs out of rows before the next look.
            for _ in range(1 + curve[2] // rows):
                world.arrive(rows, caller)
        world.look()
    used = {caller: world.used_ns(caller, begun) / weight for caller, weight in weights.items()}
    dearest_ns = max(cost_ns for _, cost_ns, _ in world.batches)
    assert max(used.values()) - min(used.values()) <= 2 * dearest_ns / min(weights.values()) + 1


def test_weights_are_kept_over_two_seconds() -> None:
    """Of weights 1 and 3 the second gets three times the device time, within 3 %; single rows as much as requests."""
    world = World(BatchPolicy(64, weights={2: 3.0}), taught(1.7, 0.25, 64), targets=False)
    while world.now_ns < 2_000 * MS:
        for _ in range(64):
            world.arrive(1, 1)
        for _ in range(2):
            world.arrive(32, 2)
            world.arrive(32, 3)
        world.look()
    assert world.used_ns(2) / world.used_ns(1) == pytest.approx(3, rel=0.03)
    assert world.used_ns(3) / world.used_ns(1) == pytest.approx(1, rel=0.03)


@patch.object(shares, "TIER_FLOOR", 0.0)
@STEADY
@given(
    curves,
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 3)), min_size=1, max_size=10),
    st.integers(0, 20),
)
def test_a_high_row_waits_for_one_short_batch(
    curve: tuple[int, int, int], coming: list[tuple[int, int]], beyond_ms: int
) -> None:
    """High rows are in the next batch; meanwhile no batch with lower rows takes more than half of their target."""
    block_ms = curve[0] + curve[1] + beyond_ms
    most_rows = min(curve[2], (block_ms - curve[0]) // curve[1])
    world = World(BatchPolicy(curve[2], target_ms=2 * block_ms), taught(*curve))
    world.arrive(1, 0, HIGH, 2 * block_ms)
    world.look()
    for pause_ms, rows in coming:
        until_ns = world.now_ns + pause_ms * MS
        while world.now_ns < until_ns:
            world.arrive(curve[2], 1, LOW)
            world.look()
        high = world.arrive(min(rows, most_rows), 0, HIGH, 2 * block_ms)
        planned = world.look()
        assert {*high} <= {number for _, number in rows_of(planned.batch)}
    for _, cost_ns, classes in world.batches:
        if any(tier == LOW for tier, _ in classes):
            assert cost_ns <= block_ms * MS * 1.0001


def test_lower_tiers_get_their_floor() -> None:
    """Where high rows always wait, a twentieth of the time is for low ones."""
    world = World(BatchPolicy(64, target_ms=50, late="refuse"), taught(1.7, 0.25, 64))
    world.arrive(64, 1, LOW, 1e5)
    while world.now_ns < 1_000 * MS:
        world.arrive(100, 0, HIGH, 50)
        world.arrive(10, 1, LOW, 1e5)
        world.look()
    assert 0.045 <= world.used_ns(1) / world.now_ns <= 0.075


def test_nobody_gains_by_a_pause() -> None:
    """A caller that comes back is served beside those that had the device meanwhile, not alone."""
    world = World(BatchPolicy(8), taught(1, 1, 8), targets=False)
    for _ in range(20):
        world.arrive(16, 1)
        world.look()
    begun = len(world.batches)
    for _ in range(10):
        world.arrive(16, 1)
        world.arrive(16, 2)
        world.look()
    assert abs(world.used_ns(1, begun) - world.used_ns(2, begun)) <= 2 * 9 * MS


def test_rows_of_one_caller_and_tier_are_planned_as_unranked_rows() -> None:
    """Rows of one caller and tier are planned as if they had neither, also under overload."""
    batches = []
    for is_named in (False, True):
        queue, times, policy = RowQueue(), taught(1, 1, 8), BatchPolicy(8, target_ms=30)
        chance, order, number = np.random.default_rng(1), [], 0
        for step in range(60):
            rows = int(chance.integers(1, 9))
            urgency = {"tier": np.full(rows, USUAL), "caller": np.zeros(rows, np.int64)} if is_named else {}
            queue.push(
                0,
                np.arange(number, number + rows, dtype=np.uint32),
                np.zeros(rows, np.int64),
                np.full(rows, step * 6 * MS),
                np.full(rows, NEVER),
                **urgency,
            )
            number += rows
            order.append(rows_of(schedule(queue, step * 6 * MS, policy, times).batch))
        batches.append(order)
    assert batches[0] == batches[1]
