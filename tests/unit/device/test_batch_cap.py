"""The most rows of a batch: lowered after failures, never raised."""

from tests.puppets import metric_memory

from stoker.device.batch_cap import BatchCap
from stoker.device.batch_decisions import BatchPolicy
from stoker.device.batch_sizes import BatchSizes


def make_cap(rows: int, buckets: tuple[int, ...] = ()) -> BatchCap:
    return BatchCap(BatchPolicy(rows, buckets=buckets), BatchSizes(buckets), metric_memory().page(0).model(0))


def test_instances_that_fail_at_once_halve_the_cap_once() -> None:
    """The second one saw the earlier cap; the cap is a bucket where there are some, and at least one row."""
    cap = make_cap(8)
    for seen_rows, expected in ((8, 4), (8, 4), (4, 2), (2, 1), (1, 1)):
        cap.halve(seen_rows)
        assert (cap.rows, cap.policy.max_batch_rows) == (expected, expected)
    with_buckets = make_cap(12, (2, 5, 12))
    with_buckets.halve(12)
    assert with_buckets.rows == 5


def test_batching_is_stopped_once() -> None:
    """Later orders change nothing."""
    cap = make_cap(8)
    assert cap.stop_batching()
    assert (cap.separate, cap.rows, cap.policy.max_batch_rows) == (True, 1, 1)
    assert not cap.stop_batching()


def test_a_new_size_changes_the_policy() -> None:
    """Batches are planned with it from then on."""
    cap = make_cap(12, (2, 12))
    cap.sizes.add(5)
    assert cap.policy.buckets == (2, 12)
    cap.change_buckets()
    assert cap.policy.buckets == (2, 5, 12)
