"""The division of batches among callers by their device time."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from stoker.arena import CALLER_BITS
from stoker.device.shares import Shares

FIRST = 1 << CALLER_BITS

waiting = st.tuples(
    st.integers(0, 1000).map(lambda quarter: 4 * quarter),
    st.integers(1, 100),
    st.sampled_from([0.5, 1, 3, 1000]),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(waiting, min_size=1, max_size=12),
    st.integers(1, 600),
    st.sampled_from([1, 7, 2000]),
    st.booleans(),
)
def test_rows_are_divided_so_that_virtual_times_meet(
    callers: list[tuple[int, int, float]], rows: int, row_ns: int, for_months: bool
) -> None:
    """All the room is used and no more, and no class gets a row before another one with less virtual time."""
    past_ns = 1 << 54 if for_months else 0
    counts = {FIRST + place: count for place, (_, count, _) in enumerate(callers)}
    used_ns = {FIRST + place: float(past_ns + since_ns) for place, (since_ns, _, _) in enumerate(callers)}
    weights = {place: weight for place, (_, _, weight) in enumerate(callers)}
    shares = Shares(used_ns=used_ns, waiting=frozenset(counts))
    parts = shares.divide(counts, rows, row_ns, weights)
    assert sum(parts.values()) == min(rows, sum(counts.values()))
    assert all(0 <= parts[placed] <= count for placed, count in counts.items())
    upto = {
        FIRST + place: (since_ns, parts[FIRST + place], row_ns / weight)
        for place, (since_ns, _, weight) in enumerate(callers)
    }
    left = [upto[placed] for placed, count in counts.items() if parts[placed] < count]
    for since_ns, part, step_ns in upto.values():
        begun_ns = since_ns + (part - 1) * step_ns
        assert not part or all(begun_ns <= other + (count + 1) * step + 1e-6 for other, count, step in left)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 679_199, 10**15]), st.integers(1, 20), st.sampled_from([0.5, 3, 10])
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 40),
)
@example([(0, 2, 10.0), (0, 2, 0.5), (0, 2, 2.0), (10**15, 3, 10.0), (10**15 + 852_130, 200, 10.0)], 28)
def test_times_far_apart_use_the_room_and_no_more(callers: list[tuple[int, int, float]], rows: int) -> None:
    """Beside a million seconds nothing is left of a row that is charged a nanosecond, but a batch has its bounds."""
    counts = {FIRST + place: count for place, (_, count, _) in enumerate(callers)}
    used_ns = {FIRST + place: float(since_ns) for place, (since_ns, _, _) in enumerate(callers)}
    weights = {place: weight for place, (_, _, weight) in enumerate(callers)}
    parts = Shares(used_ns=used_ns, waiting=frozenset(counts)).divide(counts, rows, 0.0, weights)
    assert sum(parts.values()) == min(rows, sum(counts.values()))
    assert all(0 <= parts[placed] <= count for placed, count in counts.items())
