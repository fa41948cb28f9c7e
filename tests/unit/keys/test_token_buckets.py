"""Token buckets: never more than their rate and their capacity."""

from hypothesis import given
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.keys.buckets import Bucket

S = 1_000_000_000


def test_a_bucket_is_full_fills_and_owes() -> None:
    """It begins full, holds so many seconds of its rate, and may be less than empty where time is drawn later."""
    bucket = Bucket(100, 2, 7_000, 0)
    assert (bucket.size, bucket.level, bucket.wait_ns(200)) == (200, 200, 0)
    bucket.draw(150)
    assert bucket.update(S // 2, 7_150) == 100
    assert bucket.update(S, 7_450) == -150
    assert bucket.wait_ns(0) == 3 * S // 2
    assert bucket.update(100 * S, 7_450) == 200


def test_a_small_rate_has_room_for_one() -> None:
    """Else nobody would ever come through."""
    bucket = Bucket(0.01, 2, 0, 0)
    bucket.draw(1)
    assert bucket.wait_ns(1) == 100 * S


def test_changed_rate_keeps_the_level() -> None:
    """A larger bucket is not filled by the change, and from a smaller one the rest is lost."""
    bucket = Bucket(100, 2, 0, 0)
    bucket.draw(150)
    bucket.change(1000, 2)
    assert (bucket.size, bucket.level) == (2000, 50)
    bucket.change(10, 2)
    assert (bucket.size, bucket.level) == (20, 20)


@STEADY
@given(
    per_s=st.floats(0.1, 1e6),
    burst_s=st.floats(0.01, 60),
    draws=st.lists(st.tuples(st.integers(0, 3 * S), st.integers(1, 1000)), max_size=40),
)
def test_granted_amount_stays_within_the_rate(
    per_s: float, burst_s: float, draws: list[tuple[int, int]]
) -> None:
    """No period grants more than its inflow and a full bucket; waiting as advised always suffices."""
    bucket, now_ns, drawn = Bucket(per_s, burst_s, 0, 0), 0, 0
    granted: list[tuple[int, int]] = []
    for pause_ns, amount in draws:
        now_ns += pause_ns
        bucket.update(now_ns, drawn)
        if amount > bucket.size:
            continue
        wait_ns = bucket.wait_ns(amount)
        now_ns += wait_ns
        bucket.update(now_ns, drawn)
        assert bucket.wait_ns(amount) == 0
        bucket.draw(amount)
        drawn += amount
        granted.append((now_ns, amount))
    for first in range(len(granted)):
        for last in range(first, len(granted)):
            spent_s = (granted[last][0] - granted[first][0]) / S
            amount = sum(amount for _, amount in granted[first : last + 1])
            assert amount <= (bucket.size + per_s * spent_s) * (1 + 1e-6) + 1e-3
