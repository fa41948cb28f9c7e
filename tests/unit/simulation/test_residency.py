"""Which models stay in memory, on traces."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.simulation.residency import (
    RULES,
    TRACES,
    Sizes,
    Trace,
    draw_sizes,
    simulate_residency,
)

MODELS, BUDGET_BYTES = 40, 250_000_000


@pytest.mark.parametrize("name", TRACES)
def test_requests_wait_no_longer_than_by_other_rules(name: str) -> None:
    """On each trace, by the mean of two seeds, for LRU, LFU, GreedyDual and GDSF."""
    waited_s = dict.fromkeys(RULES, 0.0)
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        sizes = draw_sizes(MODELS, rng)
        trace = TRACES[name](MODELS, rng)
        for rule, make_rule in RULES.items():
            waited_s[rule] += simulate_residency(trace, sizes, BUDGET_BYTES, make_rule(sizes)).waited_s
    own_s = waited_s.pop("Stoker")
    assert own_s <= min(waited_s.values()), waited_s


@pytest.mark.parametrize("name", TRACES)
def test_requests_of_a_trace_come_in_order(name: str) -> None:
    """Each names a model that there is; a seed is a trace."""
    first, second = (TRACES[name](20, np.random.default_rng(7)) for _ in range(2))
    assert all(earlier <= later for earlier, later in pairwise(first.at_s.tolist()))
    assert set(first.model.tolist()) <= set(range(20))
    np.testing.assert_array_equal(first.model, second.model)


@given(
    st.lists(st.tuples(st.integers(1, 100), st.floats(0, 10)), min_size=1, max_size=8),
    st.lists(st.tuples(st.floats(0, 1e5), st.integers(0, 7)), max_size=60),
    st.integers(100, 400),
)
def test_memory_never_exceeds_its_budget(
    models: list[tuple[int, float]], requests: list[tuple[float, int]], budget_bytes: int
) -> None:
    """By no rule; a request hits or waits for one load, and with room for all each model is loaded once."""
    sizes = Sizes([size for size, _ in models], [load_s for _, load_s in models])
    at_s = np.cumsum([gap_s for gap_s, _ in requests])
    trace = Trace(at_s, np.array([model % len(models) for _, model in requests], int))
    asked = set(trace.model.tolist())
    for make_rule in RULES.values():
        outcome = simulate_residency(trace, sizes, budget_bytes, make_rule(sizes))
        assert outcome.peak_bytes <= budget_bytes
        assert outcome.requests - outcome.hits >= len(asked)
        assert outcome.waited_s <= sum(sizes.load_s[model] for model in trace.model.tolist()) + 1e-6
        if sum(sizes.bytes) <= budget_bytes:
            assert outcome.requests - outcome.hits == len(asked)
            assert outcome.waited_s == pytest.approx(sum(sizes.load_s[model] for model in asked))


def test_loads_that_take_time_run_one_after_the_other() -> None:
    """Who asks meanwhile waits for what is left of the load, and for the loads before it."""
    sizes = Sizes([10, 10], [2.0, 3.0])
    trace = Trace(np.array([0.0, 1.0, 1.5, 4.0, 5.5]), np.array([0, 1, 0, 1, 1]))
    outcome = simulate_residency(trace, sizes, 20, RULES["LRU"](sizes), loads_take_time=True)
    assert (outcome.hits, outcome.loads) == (1, 2)
    assert outcome.waited_s == pytest.approx(2.0 + 4.0 + 0.5 + 1.0)


def test_a_load_may_need_more_memory_than_its_model() -> None:
    """Then a model leaves for it that has room beside it otherwise."""
    trace = Trace(np.array([0.0, 1.0, 2.0]), np.array([0, 1, 0]))
    for spare_bytes, loads in (((), 2), ((0, 5), 3)):
        sizes = Sizes([10, 10], [1.0, 1.0], spare_bytes)
        assert simulate_residency(trace, sizes, 20, RULES["LRU"](sizes)).loads == loads
