"""Models in a simulated memory, by the server's rule for those that leave."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker_bench.benches.simulated_residency import Sizes, Trace, simulate_residency


@given(
    st.lists(st.tuples(st.integers(1, 100), st.floats(0, 10)), min_size=1, max_size=8),
    st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 7)), max_size=60),
    st.integers(100, 400),
)
def test_memory_never_exceeds_its_budget(
    models: list[tuple[int, float]], requests: list[tuple[float, int]], budget_bytes: int
) -> None:
    """A request hits or waits for a load, and with room for all each model is loaded once."""
    sizes = Sizes([size for size, _ in models], [load_s for _, load_s in models])
    at_s = np.cumsum([gap_s for gap_s, _ in requests])
    trace = Trace(at_s, np.array([model % len(models) for _, model in requests], int))
    outcome = simulate_residency(trace, sizes, budget_bytes)
    requested = set(trace.model.tolist())
    assert outcome.peak_bytes <= budget_bytes
    assert outcome.requests - outcome.hits >= len(requested)
    if sum(sizes.bytes) <= budget_bytes:
        assert outcome.loads == len(requested)


def test_loads_run_one_after_the_other() -> None:
    """Requests during a load wait for its end, and for the loads before it."""
    sizes = Sizes([10, 10], [2.0, 3.0])
    trace = Trace(np.array([0.0, 1.0, 1.5, 4.0, 5.5]), np.array([0, 1, 0, 1, 1]))
    outcome = simulate_residency(trace, sizes, 20)
    assert (outcome.hits, outcome.loads) == (1, 2)
    assert outcome.waited_s == pytest.approx(2.0 + 4.0 + 0.5 + 1.0)


def test_load_with_spare_bytes_evicts_a_model_that_has_room_beside_it() -> None:
    """The memory that a load needs beside its model counts while it loads."""
    trace = Trace(np.array([0.0, 10.0, 20.0]), np.array([0, 1, 0]))
    for spare_bytes, loads in (((), 2), ((0, 5), 3)):
        assert simulate_residency(trace, Sizes([10, 10], [1.0, 1.0], spare_bytes), 20).loads == loads
