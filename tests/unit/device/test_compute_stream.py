"""When the compute stream is expected to be free, and when its next batch is planned."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.puppets import STEADY

from stoker.device.compute_stream import ComputeStream

US = 1000
MS = 1_000_000


def test_an_idle_stream_is_free_at_once() -> None:
    """Nothing is in flight, so the next batch is due."""
    stream = ComputeStream()
    assert (len(stream), stream.free_ns) == (0, 0)
    assert stream.plan_ns(5 * MS) < 0


def test_batches_in_flight_are_computed_one_after_the_other() -> None:
    """The second of two batches begins when the first has ended, or when its own rows are there."""
    stream = ComputeStream()
    stream.begin(10 * MS, 1 * MS, 5 * MS)
    assert stream.free_ns == 16 * MS
    stream.begin(12 * MS, 1 * MS, 5 * MS)
    assert stream.free_ns == 21 * MS
    stream.begin(13 * MS, 20 * MS, 5 * MS)
    assert stream.free_ns == 38 * MS


def test_the_next_batch_is_planned_before_the_stream_is_free() -> None:
    """As long before as its copy and its planning take."""
    stream = ComputeStream()
    stream.begin(0, 0, 5 * MS)
    assert stream.plan_ns(1 * MS) == 4 * MS - stream.planning_ns


def test_a_full_batch_is_planned_at_once() -> None:
    """No row could join it, and planned early it leaves no gap."""
    stream = ComputeStream()
    stream.begin(0, 0, 5 * MS)
    assert stream.look_ns(1 * MS, 64, 64, lambda rows: rows * 10 * US) == 1 * MS


def test_waiting_rows_are_looked_at_while_a_full_batch_could_still_be_copied() -> None:
    """At the first look two rows wait, at the second sixty: they are planned then, for their copy takes longer."""

    def copy_ns(rows: int) -> int:
        return rows * 10 * US

    stream = ComputeStream()
    stream.begin(0, 0, 5 * MS)
    due_ns = 5 * MS - stream.planning_ns
    first_ns = stream.look_ns(0, 2, 64, copy_ns)
    assert first_ns == due_ns - 640 * US
    assert stream.look_ns(first_ns, 2, 64, copy_ns) == due_ns - 20 * US
    assert stream.look_ns(first_ns, 60, 64, copy_ns) == due_ns - 600 * US


def test_planning_that_takes_long_is_planned_for_earlier() -> None:
    """A longer planning counts at once, a shorter one only if it stays so; a hiccup does not count in full."""
    stream = ComputeStream()
    for _ in range(20):
        stream.learn_planning(500 * US)
    assert stream.planning_ns == pytest.approx(500 * US, rel=0.01)
    stream.learn_planning(100 * US)
    assert stream.planning_ns == pytest.approx(450 * US, rel=0.01)
    stream.learn_planning(500 * MS)
    assert stream.planning_ns < MS


def test_a_batch_that_fails_is_in_flight_no_more() -> None:
    """The next one is expected to begin when the failure is seen."""
    stream = ComputeStream()
    stream.begin(0, 0, 5 * MS)
    stream.begin(0, 0, 3 * MS)
    stream.fail(2 * MS)
    assert (len(stream), stream.free_ns) == (1, 5 * MS)


def test_the_time_until_rows_are_handed_back_is_learned() -> None:
    """It begins at the likely end of the computation, not when a thread saw it."""
    stream = ComputeStream()
    for start_ns in range(0, 2000 * MS, 100 * MS):
        stream.begin(start_ns, MS, 5 * MS)
        ended_ns = stream.end(start_ns + MS + 5 * MS + 80 * US, 5 * MS)
        assert start_ns + 5.9 * MS < ended_ns < start_ns + 6.1 * MS
        stream.hand_back(ended_ns, start_ns + MS + 5 * MS + 300 * US)
    assert stream.returning_ns == pytest.approx(300 * US, abs=60 * US)


class Device:
    """A stream that computes batches one after the other, and a host that plans them by a `ComputeStream`.

    Attributes:
        idle_ns: How long the stream has waited for a batch behind another one.
        early_ns: By how much each batch was on the device before the stream was free; negative if later.
    """

    def __init__(
        self, compute_ns: Callable[[], int], copy_ns: int, planning: Callable[[], int], lag: Callable[[], int]
    ) -> None:
        self.stream = ComputeStream()
        self.idle_ns = 0
        self.early_ns: list[int] = []
        self._compute_ns, self._copy_ns, self._planning, self._lag = compute_ns, copy_ns, planning, lag
        self._free_ns = 0

    def saturate(self, batches: int, expected_ns: int) -> None:
        """Compute batches, each planned as late as the stream says."""
        stream, now_ns = self.stream, 0
        returns: list[tuple[int, int]] = []
        for number in range(batches):
            while True:
                due_ns = max(now_ns, stream.plan_ns(self._copy_ns))
                if not returns or returns[0][0] > due_ns:
                    break
                now_ns, computed_ns = returns.pop(0)
                stream.end(now_ns, computed_ns)
            begun_ns = due_ns + self._planning()
            # Batches that returned while it was planned are known before it begins.
            while returns and returns[0][0] <= begun_ns:
                stream.end(*returns.pop(0))
            stream.learn_planning(begun_ns - due_ns)
            stream.begin(begun_ns, self._copy_ns, expected_ns)
            takes_ns, ready_ns = self._compute_ns(), begun_ns + self._copy_ns
            if number:
                self.early_ns.append(self._free_ns - ready_ns)
                self.idle_ns += max(0, ready_ns - self._free_ns)
            self._free_ns = max(ready_ns, self._free_ns) + takes_ns
            returns.append((self._free_ns + self._lag(), takes_ns))
            now_ns = begun_ns


@settings(STEADY, max_examples=60)
@given(
    st.integers(1, 20),
    st.integers(0, 1000),
    st.integers(20, 300),
    st.integers(5, 200),
    st.floats(0, 0.02),
    st.integers(0, 2**32 - 1),
)
def test_a_saturated_stream_never_starves_and_rows_join_late(
    compute_ms: int, copy_us: int, planning_us: int, lag_us: int, spread: float, seed: int
) -> None:
    """The stream waits for less than 2 % of its time, and a batch is not ready long before its turn."""
    random = np.random.default_rng(seed)
    device = Device(
        lambda: round(compute_ms * MS * (1 + spread * random.standard_normal())),
        copy_us * US,
        lambda: round(planning_us * US * random.uniform(0.5, 1)),
        lambda: round(lag_us * US * random.uniform(1, 1.5)),
    )
    device.saturate(300, round(compute_ms * MS * (1 + spread)))
    early_ns = np.array(device.early_ns[100:])
    assert device.idle_ns < 0.02 * 300 * compute_ms * MS
    allowed_ns = (planning_us + lag_us) * US + 4 * spread * compute_ms * MS + 100 * US
    assert np.median(early_ns) < allowed_ns


def test_expected_ends_do_not_drift() -> None:
    """Gaps between batches that nobody measures do not add up: what is seen of the ends corrects them."""
    stream, end_ns = ComputeStream(), 0
    for number in range(2000):
        stream.begin(end_ns - MS, 0, 5 * MS)
        # Each batch takes 5 ms, of which the last 20 us are not counted as computed.
        end_ns += 5 * MS + 20 * US
        if number:
            stream.end(end_ns - 5 * MS - 20 * US + 50 * US, 5 * MS)
    assert abs(stream.free_ns - end_ns) < 200 * US
