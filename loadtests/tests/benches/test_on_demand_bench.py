"""The bench of models on demand: what its table says of the answers that were seen."""

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import numpy as np

from stoker_bench.benches.on_demand_bench import Answered, Figure, Load, Measured, describe

MB = 1 << 20


def _load(*answers: Answered, used_mb: int = 60) -> Load:
    server: Any = SimpleNamespace()
    return Load(server, np.ones(2), list(answers), [used_mb * MB])


def _figures(crowd: Load) -> dict[str, Figure]:
    """Of two models that load in 0.1 s, and a single caller whose cold request takes 0.11 s."""
    measured = Measured(
        sizes=[10 * MB, 10 * MB],
        footprints={0: 10 * MB, 1: 10 * MB},
        base_bytes=30 * MB,
        crowd=crowd,
        on_loaded=_load(Answered(50.0, 0, 200, True, 0.010, 0.0)),
        single=_load(Answered(60.0, 1, 200, True, 0.110, 0.108)),
        loads=[(0, 0.1), (1, 0.1)],
        single_loads=[(1, 0.1)],
    )
    return {figure.name: figure for figure in describe(measured, Namespace(memory_mb=100))}


def test_the_table_tells_which_bounds_are_met() -> None:
    """Requests that waited for a load of others count as such, in the simulation too."""
    crowd = [
        Answered(0.0, 0, 200, True, 0.11, 0.11),
        Answered(0.05, 0, 200, True, 0.06, 0.06),
        Answered(1.0, 1, 200, True, 0.11, 0.11),
        *(Answered(2.0 + number, 0, 200, True, 0.012, 0.0) for number in range(5)),
    ]
    figures = _figures(_load(*crowd))
    assert all(figure.met for figure in figures.values())
    assert figures["loads of models, simulated"].value == "2"
    found = figures["requests that found their model loaded"]
    assert (found.value, found.bound) == ("0.6250", "simulated 0.6250 +- 0.02")
    assert figures["cold request of one caller, time / load, median"].value == "1.10"

    slow = Answered(9.0, 0, 503, False, 0.5, 0.0)
    late = Answered(9.5, 0, 200, True, 0.5, 0.0)
    figures = _figures(_load(*crowd, slow, late, used_mb=101))
    missed = {name for name, figure in figures.items() if not figure.met}
    assert missed == {
        "wrong or lost",
        "most memory, MiB",
        "seconds above the budget",
        "p99 of loaded models while others load, ms",
    }


def test_simulated_requests_wait_as_long_between_loads_as_live_ones() -> None:
    """From the answer of one load until the next one began, 0.04 s passed; a lone request says only 0.01 s."""
    first, second = Answered(0.0, 0, 200, True, 0.11, 0.11), Answered(0.05, 1, 200, True, 0.2, 0.2)
    shared = Answered(0.1, 1, 200, True, 0.15, 0.15)
    figures = _figures(_load(first, second, shared, Answered(1.0, 0, 200, True, 0.012, 0.0)))
    assert figures["mean wait behind loads of others, ms"].value == "153.3"
    assert figures["mean wait behind loads of others, simulated, ms"].value == "183.3"
