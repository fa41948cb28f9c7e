"""The counts of batches: metrics, learned times, padding, and audits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.puppets import metric_memory

from stoker.arena import NORMAL
from stoker.device.auditing import AuditSchedule
from stoker.device.batch import Batch
from stoker.device.batch_cap import BatchCap
from stoker.device.batch_counter import BatchCounter
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import BatchSizes, ServiceTimes
from stoker.device.row_blocks import RowBlock
from stoker.device.row_queue import RowQueue

MS = 1_000_000
HIGH = 0


class Scene:
    """A counter with the metrics that it writes and the times that it teaches."""

    def __init__(
        self, policy: BatchPolicy, sizes: BatchSizes | None = None, audits: AuditSchedule | None = None
    ) -> None:
        self.memory = metric_memory()
        metrics = self.memory.page(0).model(0)
        self.cap = BatchCap(policy, sizes or BatchSizes(), metrics)
        self.times, self.queue = ServiceTimes(), RowQueue()
        self.counter = BatchCounter(
            metrics, self.queue, self.times, self.cap, audits=audits, always_learns=False, now_ns=7
        )
        self.instance: Any = SimpleNamespace(
            scattering=SimpleNamespace(padding_rows=0),
            monitor=SimpleNamespace(non_finite_rows=0, wants_rows=False),
        )

    def count(
        self, *blocks: RowBlock, started_ns: int = 100 * MS, elapsed_ns: int = 4 * MS, sharing: int = 1
    ) -> None:
        batch = Batch(list(blocks), sum(block.rows for block in blocks), {}, "full")
        with self.counter.lock:
            self.counter.count(self.instance, batch, started_ns, elapsed_ns, sharing)

    @property
    def totals(self) -> Any:
        return self.memory.totals().model(0)


def block(rows: int, enqueued_ns: int = 90 * MS, tier: int | None = None, target_ns: int = 0) -> RowBlock:
    """Rows that were queued at once."""
    zeros = np.zeros(rows, np.int64)
    return RowBlock(
        0, zeros, zeros, zeros + enqueued_ns, zeros + 10**15, 0, zeros + target_ns if target_ns else None,
        placed=None if tier is None else zeros + (tier << 16),
    )  # fmt: skip


def test_a_batch_is_counted_with_its_rows_and_times() -> None:
    """Rows that waited are noted, and written when they are flushed."""
    scene = Scene(BatchPolicy(4))
    scene.count(block(2), block(1, enqueued_ns=99 * MS))
    scene.counter.flush()
    totals = scene.totals
    assert (totals.batch_rows().sum, totals.dispatches()["full"]) == (3, 1)
    assert totals.stage_ns()["compute"] == (1, 4 * MS)
    assert sum(totals.stage_seconds()["queue"].counts) == 3
    assert totals.stage_seconds()["queue"].sum == pytest.approx(0.021)
    assert scene.counter.active_ns == 104 * MS


def test_times_are_learned_in_full_where_rows_have_targets() -> None:
    """Without targets and shares the mean is enough."""
    plain, with_target = Scene(BatchPolicy(4)), Scene(BatchPolicy(4, target_ms=50))
    for scene in (plain, with_target):
        for _ in range(10):
            scene.count(block(2))
            scene.count(block(2), elapsed_ns=8 * MS)
    assert plain.times.expected_ns(2) == plain.times.mean_ns(2)
    assert with_target.times.expected_ns(2) == pytest.approx(8 * MS, rel=0.05)


def test_answers_in_time_are_counted_by_tier() -> None:
    """Rows have the target of the model, or their own."""
    scene = Scene(BatchPolicy(8, target_ms=10))
    scene.count(
        block(2, enqueued_ns=95 * MS), block(1, enqueued_ns=90 * MS), block(1, tier=HIGH, target_ns=200 * MS)
    )
    totals = scene.totals
    assert (totals.answered_rows()["normal"], totals.in_target_rows()["normal"]) == (3, 2)
    assert (totals.answered_rows()["high"], totals.in_target_rows()["high"]) == (1, 1)
    assert NORMAL >> 16 == 1


def test_padding_and_answers_that_are_not_finite_are_taken_from_the_instance() -> None:
    """They are counted once."""
    scene = Scene(BatchPolicy(4), BatchSizes((4,)))
    scene.instance.scattering.padding_rows, scene.instance.monitor.non_finite_rows = 3, 1
    for _ in range(2):
        scene.count(block(1))
    assert (scene.totals.padding_rows, scene.totals.non_finite_rows) == (3, 1)


def test_a_due_audit_wants_rows_unless_each_runs_alone() -> None:
    """A row that runs alone has only padding beside it."""
    scene = Scene(BatchPolicy(4), audits=AuditSchedule(1, share=None, first_after_ns=0))
    scene.count(block(2))
    assert scene.instance.monitor.wants_rows
    scene.cap.stop_batching()
    scene.count(block(1))
    assert not scene.instance.monitor.wants_rows
