"""The request rates that are learned."""

import numpy as np
import pytest

from stoker.residency.rates import RequestRates

DAY_S = 86400.0


def test_a_steady_rate_is_learned() -> None:
    """Of Poisson arrivals, from the first minutes on, and whether or not requests are counted one by one."""
    rng = np.random.default_rng(7)
    rates = RequestRates(0.0)
    for second in range(1, 1801):
        rates.observe("busy", int(rng.poisson(2.0)), second)
        rates.observe("quiet", int(rng.poisson(0.1)), second)
    assert rates.rate("busy", 1800.0) == pytest.approx(2.0, rel=0.1)
    assert rates.rate("quiet", 1800.0) == pytest.approx(0.1, rel=0.3)


def test_a_rate_decays() -> None:
    """Without requests it only falls, down to nothing."""
    rates = RequestRates(0.0)
    rates.observe("a", 50, 1.0)
    times_s = [1.0, 60.0, 3600.0, DAY_S, 100 * DAY_S]
    learned = [rates.rate("a", now_s) for now_s in times_s]
    assert learned == sorted(learned, reverse=True)
    assert learned[0] > 0
    assert learned[-1] < 1e-9


def test_unknown_models_have_no_rate() -> None:
    """Nor has one that is forgotten, or that had no requests."""
    rates = RequestRates(0.0)
    assert rates.rate("a", 1.0) == 0
    rates.observe("a", 0, 1.0)
    assert rates.rate("a", 1.0) == 0
    rates.observe("a", 3, 1.0)
    rates.forget("a")
    rates.forget("a")
    assert rates.rate("a", 1.0) == 0


def test_memory_is_as_long_as_it_helps() -> None:
    """Where favourites change each day, yesterday's count for less than where they never do."""
    ranks = 1 / np.arange(1, 101)

    def share_of_rested(*, shifts: bool) -> float:
        rng = np.random.default_rng(7)
        rates = RequestRates(0.0)
        for day in range(4):
            order = rng.permutation(100) if shifts else np.arange(100)
            requested = order[rng.choice(100, 1000, p=ranks / ranks.sum())]
            for at_s, model in zip(np.linspace(0, DAY_S, 1000), requested, strict=True):
                rates.observe(str(model), 1, day * DAY_S + at_s)
        rates.observe("rested", 40, 4 * DAY_S)
        return rates.rate("rested", 4.5 * DAY_S) / rates.rate("rested", 4 * DAY_S)

    assert share_of_rested(shifts=True) < 0.8 * share_of_rested(shifts=False)
